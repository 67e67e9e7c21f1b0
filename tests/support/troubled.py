"""Rollout functions in which answers are never sent, or sent twice: what was done no longer stands row for row."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.support.world import FIRST, HINT, Client, Row, World, answered

Pattern = Callable[[World], None]


def _turns(world: World, row: Row, client: Client) -> None:
    """Play up to two turns; an answer that nobody could parse ends the row."""
    for turn in range(2):
        if turn:
            row.heard(HINT)
        if not _turn(world, row, client):
            return


def _turn(world: World, row: Row, client: Client) -> bool:
    """True if the answer was sent."""
    (answer,) = world.generate([row.prompt + row.completion], world.pause())
    row.said(answer)
    if world.is_unparsable():
        return False
    world.step(row, client)
    return True


def _reset(world: World) -> list[tuple[Row, Client]]:
    """Return each row with a new environment, which is reset."""
    pairs = [(row, Client()) for row in world.rows]
    for row, client in pairs:
        world.reset(row, client)
    return pairs


def sequential_and_unparsable(world: World) -> None:
    client = Client()
    for row in world.rows:
        world.reset(row, client)
        _turns(world, row, client)


def reset_once_parsed(world: World) -> None:
    """Rows whose answer nobody could parse have no episode."""
    for row in world.rows:
        (answer,) = world.generate([row.prompt])
        row.said(answer)
        if not world.is_unparsable():
            client = Client()
            world.reset(row, client)
            world.step(row, client)


def reset_twice_until_it_came_up(world: World) -> None:
    for row in world.rows:
        if world.is_unparsable():
            row.tries.append(world.call(Client(), "reset", fails=True))
        client = Client()
        world.reset(row, client)
        _turns(world, row, client)


def resets_ahead_and_unparsable(world: World) -> None:
    for row, client in _reset(world):
        _turns(world, row, client)


def prefetched_and_unparsable(world: World) -> None:
    """The next row's environment is reset before this row's is stepped."""
    clients = [Client() for _ in world.rows]
    world.reset(world.rows[0], clients[0])
    for i, row in enumerate(world.rows):
        for after, client in zip(world.rows[i + 1 : i + 2], clients[i + 1 : i + 2], strict=True):
            world.reset(after, client)
        _turn(world, row, clients[i])


def lockstep_and_unparsable(world: World) -> None:
    going = _reset(world)
    for turn in range(2):
        for row, _ in going if turn else ():
            row.heard(HINT)
        answered(world, [row for row, _ in going])
        going = [pair for pair in going if not world.is_unparsable()]
        for row, client in going:
            world.step(row, client)


def a_pool_with_one_client_and_unparsable(world: World) -> None:
    client = Client()

    def play(row: Row) -> None:
        world.reset(row, client, world.pause())
        _turns(world, row, client)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(play, world.rows))


def _send_something_else(world: World, going: list[tuple[Row, Client]], fallback: dict[int, int]) -> None:
    """Steps each environment; what nobody could parse is not sent, but the row's fallback."""
    for row, client in going:
        said = fallback.get(id(row), FIRST) if world.is_unparsable() else row.answers[-1][0]
        row.rewards.append(world.call(client, "step", sent=world.action(said)))


def lockstep_with_a_fallback(world: World) -> None:
    """A parser sends the first option where it finds none."""
    going = _reset(world)
    for turn in range(3):
        for row in world.rows:
            row.heard(*[HINT] * bool(turn))
        answered(world, world.rows)
        _send_something_else(world, going, {})


def asked_one_by_one_with_a_stuck_action(world: World) -> None:
    """Each row is asked on its own, then all are stepped; some rows send again what they sent first."""
    going = _reset(world)
    stuck: dict[int, int] = {}
    for turn in range(3):
        for row in world.rows:
            row.heard(*[HINT] * bool(turn))
            row.said(*world.generate([row.prompt + row.completion]))
            stuck.setdefault(id(row), row.answers[0][0])
        _send_something_else(world, going, stuck)


TOLD: list[Pattern] = [
    sequential_and_unparsable, reset_once_parsed, reset_twice_until_it_came_up, resets_ahead_and_unparsable,
    prefetched_and_unparsable, lockstep_and_unparsable, a_pool_with_one_client_and_unparsable,
    lockstep_with_a_fallback, asked_one_by_one_with_a_stuck_action,
]  # fmt: skip
"""Everything of them is found all the same."""


def round_robin_and_unparsable(world: World) -> None:
    """Nothing shows which one of two rows goes on that said the same at first."""
    going = _reset(world)
    for turn in range(2):
        for row, _ in going if turn else ():
            row.heard(HINT)
        going = [(row, client) for row, client in going if _turn(world, row, client)]


def one_skipped_and_another_tried_again(world: World) -> None:
    """There are as many episodes as rows, but not one each."""
    client, (skipped, failing) = Client(), world.two_rows()
    for row in answered(world, world.rows):
        if row is failing:
            row.tries.append(world.call(client, "reset"))
            row.tries.append(world.call(client, "step", fails=True, sent=world.action(row.answers[-1][0])))
        if row is not skipped:
            world.reset(row, client)
            world.step(row, client)


def one_skipped_and_another_scored_again(world: World) -> None:
    scorer, (skipped, failing) = Client(), world.two_rows()
    world.call(scorer, "reset")
    for row in answered(world, world.rows):
        if row is failing:
            row.tries.append(world.call(scorer, "step", fails=True, sent=world.action(row.answers[-1][0])))
        if row is not skipped:
            world.step(row, scorer)


def one_parsed_of_all(world: World) -> None:
    """Answers were given one by one; the last of them is no more likely than the others."""
    for row in world.rows:
        row.said(*world.generate([row.prompt]))
    parsed, client = world.two_rows()[0], Client()
    world.reset(parsed, client)
    world.step(parsed, client)


def longest_first(world: World) -> None:
    client = Client()
    for row in sorted(answered(world, world.rows), key=lambda row: -row.answers[-1][0]):
        world.reset(row, client)
        world.step(row, client)


def calls_of_the_model_that_failed_are_made_again_at_the_end(world: World) -> None:
    client, failed = Client(), world.two_rows()
    for row in world.rows:
        if row in failed:
            row.tries.append(world.call(client, "reset"))
            world.fail(row.prompt)
        else:
            world.play(row, client, slowly=False)
    for row in failed:
        world.play(row, client, slowly=False)


def given_up_once_a_call_of_the_model_failed(world: World) -> None:
    """A row breaks off in its second turn: it then has all that another row has."""
    failed = world.two_rows()
    for row in world.rows:
        client = Client()
        world.reset(row, client)
        world.turn(row, client)
        if row in failed:
            row.heard(HINT)
            world.fail(row.prompt + row.completion)


TOLD_IN_PART: dict[Pattern, int] = {
    round_robin_and_unparsable: 0, one_skipped_and_another_tried_again: 0,
    one_skipped_and_another_scored_again: 0, one_parsed_of_all: 0, longest_first: 0,
    calls_of_the_model_that_failed_are_made_again_at_the_end: 0, given_up_once_a_call_of_the_model_failed: 0,
}  # fmt: skip
"""Rows of which at least the steps are found; the rest is nobody's."""
