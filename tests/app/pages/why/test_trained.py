"""Which rollouts moved the policy: over columns as of each row, by filters that have exactly those, and as a page."""

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Engine, insert, update
from sqlmodel import Session, col, select
from starlette.testclient import TestClient

from logs_ui.recorder import queries
from logs_ui.recorder.analysis.diagnosis_columns import RunColumns
from logs_ui.recorder.analysis.diagnosis_columns import columns_of as columns_of_rows
from logs_ui.recorder.diagnosis.card import Trend
from logs_ui.recorder.diagnosis.rollout_rows import Rows
from logs_ui.recorder.diagnosis.success import Success
from logs_ui.recorder.diagnosis.tables.masks import RATIO, masks
from logs_ui.recorder.diagnosis.tables.movement import signals
from logs_ui.recorder.diagnosis.tables.one_rollout import Moved, training
from logs_ui.recorder.diagnosis.tables.training_outcome import OUTCOMES, Outcome, Tokens, counts, outcomes, where
from logs_ui.recorder.queries.filters.rollout_filter import parse_where
from logs_ui.recorder.storage.clock import now_us
from logs_ui.recorder.storage.database import writing_engine
from logs_ui.recorder.storage.tables import EvaluationRow, Run, Scalar, StepStatistics
from logs_ui.recorder.vocabulary import Mark, Mode, RunState, Status, StopReason
from tests.recorder.diagnosis.test_diagnosis import rows_of as columns_of
from tests.support import factory
from tests.support.dashboard import dashboard, page_of, rollouts_at

COUNT = 800
SUCCESS = Success((Mark("reward", 1.0),))
CONFIG = {"mask_truncated_completions": True, "beta": 0.04, "logging_steps": 1, "steps_per_generation": 2}
RUN = "a-run-of-every-kind"
_WHY = {
    Outcome.STALE: "dropped as stale",
    Outcome.OVERSIZE: "dropped as oversize",
    Outcome.FILTERED: "not in the trainer's dump",
    Outcome.ERRORED: "before it was scored",
    Outcome.RUN_ENDED: "the run ended before it was scored",
    Outcome.AWAITED: "awaits its reward",
    Outcome.NO_REWARD: "no reward function gave it a number",
    Outcome.NOT_RECORDED: "not recorded",
    Outcome.UNSAMPLED: "none of its tokens was sampled",
    Outcome.TRUNCATED: "mask_truncated_completions",
    Outcome.FAILED_GROUP: "rewards of its group are equal",
    Outcome.PASSED_GROUP: "rewards of its group are equal",
    Outcome.NO_ADVANTAGE: "its advantage is 0",
    Outcome.TRAINED: "",
}


def rows_of_every_kind() -> list[dict[str, Any]]:
    """Of every kind, in groups of four."""
    draw = random.Random(4)

    def row(number: int) -> dict[str, Any]:
        kind = random.Random(number // 4).choice(["mixed", "mixed", "failed", "passed"])
        alike = {"failed": 0.2, "passed": 1.0 + draw.choice([0, 5e-7])}.get(kind)
        mixed = draw.choice([0.1, 0.5, 0.9, 0.1, 0.5, 0.9, 0.1, None])
        reward = alike if alike is not None or mixed is None else mixed + number % 4 / 100
        drawn = draw.choice([-0.7, 0.7, 0.0]) if alike is None else draw.choice([0.0, -6e-4, 0.0])
        advantage = None if reward is None else draw.choice([*[drawn] * 30, None])
        status = draw.choice([*Status, *[Status.OK] * 12])
        nothing = dict.fromkeys(("reward", "advantage", "scored", "completion_tokens", "dropped"))
        return {
            "status": status, "mode": Mode.EVAL if number >= COUNT else Mode.TRAIN, "step": 1 + number // 40,
            "policy_step": number // 40, "group": str(number // 4), "generation": number % 4, "created": number,
            "stop_reason": draw.choice([StopReason.LENGTH, StopReason.NOT_RECORDED, *[StopReason.DONE] * 6]),
            "reward": reward, "advantage": advantage, "scored": draw.choice([1, 1, 1, None]) if reward is None else 1,
            "rewards": {"a": reward}, "reward_weights": {"a": 1.0},
            "completion_tokens": draw.choice([None, None, 0, 40, 40, 70, 70]), "env_tokens": draw.choice([None, 0, 9]),
            "dropped": draw.choice(["stale", "oversize", "filtered", *[None] * 20]),
            **(nothing if status == Status.RUNNING or (status != Status.OK and number % 2) else {}),
            **({"completion_tokens": 40} if status == Status.ERROR and number % 4 == 1 else {}),
        }  # fmt: skip

    return [row(number) for number in range(COUNT + 40)]


def fill(engine: Engine) -> None:
    rows = rows_of_every_kind()
    sums = {"eval_name": "e", "scored": 0, "reward_sum": 0, "errors": 0, "truncated": 0, "rollouts": 40}
    values = {"grad_norm": 0.5, "learning_rate": 1e-6, "entropy": 1.5}
    figures = [(name, step, value) for name, value in values.items() for step in range(1, 21)]
    figures = [(name, step, 0.0 if name == "learning_rate" and step >= 11 else value) for name, step, value in figures]
    with engine.begin() as connection:
        of_run = {"run_id": factory.insert_rows(connection, rows, RUN, config=CONFIG)}
        steps = [{"mode": mode, "step": step} for mode, step in sorted({(row["mode"], row["step"]) for row in rows})]
        connection.execute(insert(StepStatistics), [of_run | sums | step for step in steps])
        scalars = [of_run | {"name": name, "step": step, "value": value} for name, step, value in figures]
        connection.execute(insert(Scalar), scalars)


@pytest.fixture(scope="module")
def rows(engine: Engine) -> Rows:
    """The training's columns, as the diagnosis has them."""
    return RunColumns(1, Mode.TRAIN).refresh(engine)


@pytest.fixture(scope="module")
def stored(engine: Engine) -> dict[int, EvaluationRow]:
    with Session(engine) as session:
        return {row.id or 0: row for row in session.exec(select(EvaluationRow)).all()}


@pytest.fixture(scope="module")
def groups(stored: dict[int, EvaluationRow]) -> dict[str, Rows]:
    """The columns of each group, as the page of one of its rollouts has them."""
    members: dict[str, list[EvaluationRow]] = defaultdict(list)
    for row in stored.values():
        members[row.group].append(row)
    return {name: columns_of_rows(mine) for name, mine in members.items()}


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.FINISHED, "died"])
@pytest.mark.parametrize("is_masked", [True, False])
def test_each_row_is_judged_as_its_own_page_judges_it(
    rows: Rows, stored: dict[int, EvaluationRow], groups: dict[str, Rows], state: str, *, is_masked: bool
) -> None:
    config, is_running = CONFIG | {"mask_truncated_completions": is_masked}, state == RunState.RUNNING
    codes = outcomes(rows, success=SUCCESS, is_running=is_running, config=config)
    assert len(codes) == sum(row.mode == Mode.TRAIN and row.status != Status.RUNNING for row in stored.values())
    for row_id, code in zip(rows.id.tolist(), codes, strict=True):
        row, outcome = stored[row_id], OUTCOMES[code]
        judgement = training(groups[row.group], row_id, is_evaluation=False, is_running=is_running, config=config)
        assert (judgement.moved == Moved.YES) == (outcome == Outcome.TRAINED), (judgement, outcome)
        assert _WHY[outcome] in judgement.why, (judgement, outcome)
        assert ("of its group are equal" in judgement.why) == (outcome in {Outcome.FAILED_GROUP, Outcome.PASSED_GROUP})
        if outcome == Outcome.TRAINED:
            assert judgement.tokens == row.completion_tokens
    missing_outcome = Outcome.RUN_ENDED if is_running else Outcome.AWAITED
    expected = set(OUTCOMES) - {Outcome.EQUAL_GROUP, missing_outcome}
    expected -= set() if is_masked else {Outcome.TRUNCATED}
    assert {OUTCOMES[code] for code in codes} == expected


def rows_without_advantage(more: dict[str, Any]) -> list[dict[str, Any]]:
    """150 rollouts, each apart from the next of its kind, of each way to lack an advantage, and trained ones."""
    base: dict[str, Any] = {"stop_reason": StopReason.DONE, "completion_tokens": 40}
    missing = dict.fromkeys(("reward", "advantage", "scored", "dropped"))
    kinds: list[dict[str, Any]] = [
        {"status": Status.ERROR, "stop_reason": StopReason.EXCEPTION},
        {"completion_tokens": None},
        {"reward": 0.5, "scored": 2},
        {"reward": 0.5, "scored": 2, "advantage": 0.7},
        {"dropped": "stale", "status": Status.ERROR},
        {"dropped": "filtered"},
        {"dropped": "filtered", "status": Status.ERROR},
        more,
    ]
    count = 150 * len(kinds)  # more ranges of ids than an address holds
    return [
        {**base, **missing, **kinds[n % len(kinds)], "group": str(n // 4), "generation": n % 4} for n in range(count)
    ]


@pytest.mark.parametrize("is_running", [True, False])
def test_the_ways_to_lack_an_advantage_open_exactly_their_rollouts(tmp_path: Path, *, is_running: bool) -> None:
    """A rollout that raised was errored, also if its tokens are known and its run is alive; the run's end left others
    unscored; of those that were scored the advantage is unknown.
    """
    engine = writing_engine(tmp_path / "lacking.db")
    alive: dict[str, Any] = {"state": RunState.RUNNING, "heartbeat": now_us()} if is_running else {}
    with engine.begin() as connection:
        run_id = factory.insert_rows(connection, rows_without_advantage({"scored": 2} if is_running else {}), **alive)
    rows = RunColumns(run_id, Mode.TRAIN).refresh(engine)
    codes = outcomes(rows, success=SUCCESS, is_running=is_running, config={})
    expected = dict.fromkeys((Outcome.NOT_RECORDED, Outcome.TRAINED, Outcome.STALE, Outcome.FILTERED), 150)
    expected[Outcome.ERRORED] = 300  # also of those that were left out
    expected |= {Outcome.AWAITED: 150, Outcome.NO_REWARD: 150} if is_running else {Outcome.RUN_ENDED: 300}
    assert {outcome: count for outcome, count in counts(codes).items() if count} == expected
    for outcome in expected:
        terms = where(outcome, rows, codes, success=SUCCESS)
        ids = set(rows.id[codes == OUTCOMES.index(outcome)].tolist())
        rollout_filter = parse_where(f"{terms} mode:train")
        assert terms, outcome
        assert {
            rollout.row.id for chunk in queries.rollouts(engine, run_id, rollout_filter) for rollout in chunk
        } == ids, terms
    engine.dispose()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_filter_has_exactly_the_rollouts_of_an_outcome(engine: Engine, rows: Rows, outcome: Outcome) -> None:
    success = Success() if outcome == Outcome.EQUAL_GROUP else SUCCESS
    codes = outcomes(rows, success=success, is_running=False, config=CONFIG)
    terms = where(outcome, rows, codes, success=success)
    ids = set(rows.id[codes == OUTCOMES.index(outcome)].tolist())
    if outcome == Outcome.AWAITED:
        assert (terms, ids) == ("", set())
        return
    rollout_filter = parse_where(f"{terms} mode:train")
    assert {rollout.row.id for chunk in queries.rollouts(engine, 1, rollout_filter) for rollout in chunk} == ids
    assert ids


def test_where_a_dead_group_has_real_advantages_no_filter_says_which_were_trained_on() -> None:
    rows = columns_of(400, steps=1, reward=0.0, advantage=[0.7, 6e-4, *[0.0] * 398])
    codes = outcomes(rows, success=SUCCESS, is_running=False, config={})
    assert where(Outcome.TRAINED, rows, codes, success=SUCCESS) == "id:1"
    rows = columns_of(400, steps=1, reward=0.0, advantage=[0.7, 6e-4] * 200)
    codes = outcomes(rows, success=SUCCESS, is_running=False, config={})
    assert where(Outcome.TRAINED, rows, codes, success=SUCCESS) == ""


def test_tokens_are_those_of_a_gradient_of_all_that_were_sampled() -> None:
    """Four rollouts: two of a mixed group with 10 and 20 tokens, one masked with 30, one dropped with 40."""
    rows = columns_of(
        4, steps=1, reward=[0, 1, 1, 0], advantage=[-0.7, 0.7, 0.7, -0.7], completion_tokens=[10, 20, 30, 40],
        stop_reason=["done", "done", "length", "done"], dropped=[None, None, None, "stale"], env_tokens=[1, 2, 3, NAN],
    )  # fmt: skip
    codes = outcomes(rows, success=SUCCESS, is_running=False, config={"mask_truncated_completions": True})
    assert counts(codes)[Outcome.TRAINED] == 2
    assert Tokens.of(rows, codes) == Tokens(trained=30, all=100, unknown=40, inserted=6)


NAN = float("nan")
VLLM: dict[str, Any] = {
    "use_vllm": True, "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0, "logging_steps": 1, "steps_per_generation": 4,
    "gradient_accumulation_steps": 4,
}  # fmt: skip


def test_what_importance_sampling_dropped_is_told_only_where_the_trainer_says_that_it_dropped_nothing() -> None:
    rows = columns_of(48, steps=6)
    trained = np.ones(48, bool)
    (mask,) = masks(rows, trained, VLLM, {})
    assert (mask.effect, mask.rollouts) == (
        "dropped all tokens of a rollout by importance sampling (sequence_mask, above 3.0)",
        48,
    )
    assert mask.logged == f"The trainer logged no {RATIO}, which would be 0 where something was dropped."
    logged: dict[str, Trend] = {RATIO: ((1, 0.4), (2, 0.0), (3, 0.9), (9, 0.9))}
    (mask,) = masks(rows, trained, VLLM, logged)
    assert mask.rollouts == 32  # steps 1 and 3 are told
    assert mask.where == "id:9..16,25..48"
    assert mask.logged.endswith("is 0 at 1 of 3 steps: something was dropped there; at 2 nothing was.")
    (mask,) = masks(rows, trained, VLLM | {"logging_steps": 10}, logged)
    assert mask.rollouts == 48  # a mean of minima above 0 says nothing of each
    (mask,) = masks(rows, trained, VLLM | {"vllm_importance_sampling_mode": "token_mask"}, {})
    assert "some tokens of a rollout" in mask.effect
    for off in ({"use_vllm": False}, {"vllm_importance_sampling_mode": "sequence_truncate"}):
        assert masks(rows, trained, VLLM | off, {}) == ()


def test_the_masks_that_are_on_are_those_that_a_rollouts_own_page_names(
    rows: Rows, stored: dict[int, EvaluationRow], groups: dict[str, Rows]
) -> None:
    config = VLLM | CONFIG | {"off_policy_mask_threshold": 0.5}
    trained = outcomes(rows, success=SUCCESS, is_running=False, config=config) == OUTCOMES.index(Outcome.TRAINED)
    state: dict[str, Any] = {"is_evaluation": False, "is_running": False, "config": config}
    judgements = [training(groups[stored[row_id].group], row_id, **state) for row_id in rows.id[trained].tolist()]
    expected = [
        sum(any(word in clause for clause in judgement.unknown) for judgement in judgements)
        for word in ("importance sampling", "off-policy", "as truncated")
    ]
    assert [mask.rollouts for mask in masks(rows, trained, config, {})] == expected
    assert min(expected) > 0


def flat(value: float, steps: Sequence[int] = range(1, 31)) -> Trend:
    return tuple((step, value) for step in steps)


def test_one_sentence_on_each_figure_of_the_policy() -> None:
    config = {"beta": 0.0, "num_iterations": 1, "steps_per_generation": 4, "gradient_accumulation_steps": 4}
    scalars: dict[str, Trend] = {
        "grad_norm": ((1, 0.5), (19, 0.25)),
        "learning_rate": (*flat(1e-6, range(1, 12)), *flat(0.0, range(12, 20))),
        "clip_ratio/region_mean": flat(0.0),
        "entropy": (*flat(2.0, range(1, 18)), (18, 0.003), (19, 0.01), (20, 0.01)),
    }
    sentences = {signal.name: (signal.sentence, signal.is_bad) for signal in signals(scalars, config, 12)}
    assert sentences == {
        "grad_norm": ("Non-zero at all 2 logged steps (0.25 to 0.5).", False),
        "learning_rate": ("It is 0 since step 12: the policy is not updated.", True),
        "clip_ratio/region_mean": (
            "No token was clipped at any of 30 logged steps: each batch is trained on once.",
            False,
        ),
        "kl": ("Not logged: beta is 0, so the trainer computes no KL penalty.", False),
        "entropy": ("0.00767 nats per token, <1% of the initial median (2): collapsed at step 18.", True),
    }


@pytest.mark.parametrize(
    ("name", "trend", "sentence"),
    [
        ("learning_rate", (), "Not logged; the configured value is 1e\u221206."),
        ("learning_rate", flat(1e-6, [3]), "Non-zero at the one logged step, 3 (1e\u221206)."),
        ("grad_norm", flat(0.0), "It is 0 at all 30 logged steps: the policy is not updated."),
        ("grad_norm", ((1, 1.0), (2, 1e-9)), "It is at most 1e\u221209 since step 2: the policy is not updated."),
        ("grad_norm", ((1, 0.0), (2, 1.0)), "At 1 of 2 logged steps it was at most 1e\u221208; now it is above."),
        ("clip_ratio", ((1, 0.0), (2, 0.25), (3, 0.1)), "At most 25% of tokens were clipped, at step 2."),
        ("kl", ((1, 0.0), (2, 0.5), (3, 0.25)), "From 0 at step 1 to 0.25; highest was 0.5 at step 2."),
        ("kl", ((1, 0.0),), "Logged once, at step 1."),
        ("entropy", ((1, 2.0), (2, 1.0)), "From 2 at step 1 to 1; highest was 2 at step 1."),
        ("entropy", (), "Not logged."),
        ("entropy", (*flat(2.0), *flat(0.5, range(31, 34))), "0.5 nats per token, 25% of the initial median (2)."),
    ],
)
def test_the_sentence_follows_the_figure(name: str, trend: Trend, sentence: str) -> None:
    assert (
        next(signal.sentence for signal in signals({name: trend}, {"learning_rate": 1e-6}, 2) if signal.name == name)
        == sentence
    )


def test_a_figure_that_was_nothing_only_lately_is_said_and_is_no_verdict() -> None:
    """A schedule that ends at 0 is how a training ends."""
    signal = signals({"learning_rate": (*flat(1e-6), (31, 0.0))}, {}, 22)[1]
    assert (signal.sentence, signal.is_bad) == ("It is 0 since step 31.", False)
    signal = signals({"learning_rate": flat(0.0)}, {}, 22)[1]
    assert signal.is_bad


def test_a_policy_that_stays_where_it_began() -> None:
    signal = next(signal for signal in signals({"kl": flat(1e-12)}, {"beta": 0.04}, 22) if signal.name == "kl")
    assert signal.is_bad
    assert signal.sentence == "It is at most 1e\u221212 at all 30 logged steps: the policy is not updated."
    assert not next(
        signal for signal in signals({"kl": flat(0.0, [1, 2])}, {"beta": 0.04}, 1) if signal.name == "kl"
    ).is_bad


def test_a_gradient_that_is_no_number_any_more_is_said() -> None:
    signal = signals({"grad_norm": ((1, 0.5),), "learning_rate": flat(1e-6)}, {})[0]
    assert signal.is_bad
    assert signal.sentence == "Not finite, or not logged, after step 1; learning_rate was logged up to step 30."
    assert signal.clause.startswith("grad_norm: Not finite, or not logged, after step 1")


def links(html: str) -> dict[str, str]:
    return {
        unescape(text).strip(): unescape(address)
        for address, text in re.findall(r'<a [^>]*href="([^"]*)"[^>]*>([^<]*)</a>', html)
    }


def test_the_page_says_what_became_of_the_rollouts_and_leads_to_them(
    engine: Engine, client: TestClient, rows: Rows
) -> None:
    html = client.get(f"/runs/{RUN}/why/trained?steps=all").text
    number_by_outcome = counts(outcomes(rows, success=Success(), is_running=False, config=CONFIG))
    lines = page_of(client, f"/runs/{RUN}/why/trained?steps=all").lines
    assert {line.outcome: line.rollouts for line in lines} == {it: n for it, n in number_by_outcome.items() if n}
    for line in lines:
        assert rollouts_at(engine, line.address) == line.rollouts, line.outcome
        assert unescape(links(html)[line.word.text]) == line.address
    assert f"{number_by_outcome[Outcome.TRAINED]:.0f} of {len(rows)} rollouts" in html
    assert "but the policy is not updating: learning_rate is 0 since step 11." in html
    assert "the KL penalty also applies to rollouts with advantage 0" in html
    assert "of evaluations, never trained on" in html


def test_rollouts_that_an_error_ended_and_that_were_trained_on_are_named(
    engine: Engine, client: TestClient, rows: Rows
) -> None:
    broken = page_of(client, f"/runs/{RUN}/why/trained?steps=all").broken
    codes = outcomes(rows, success=SUCCESS, is_running=False, config=CONFIG)
    is_broken = (codes == OUTCOMES.index(Outcome.TRAINED)) & np.isin(rows.status, (Status.ERROR, Status.ABORTED))
    assert (broken.rollouts, broken.advantage) == (is_broken.sum(), pytest.approx(rows.advantage[is_broken].mean()))
    assert rollouts_at(engine, broken.address) == broken.rollouts > 5


def test_the_last_steps_are_shown_unless_all_are_asked_for(client: TestClient) -> None:
    html = client.get(f"/runs/{RUN}/why/trained").text
    assert "steps 11\u201320" in html
    assert 'aria-current="true">last 10 steps' in html
    assert "step%3A11..20" in html or "step:11..20" in html
    wrong = client.get(f"/runs/{RUN}/why/trained?steps=first")
    assert wrong.status_code == 422
    assert "first" in wrong.text


def test_runs_that_train_nothing_or_have_nothing_yet_say_so(tmp_path: Path) -> None:
    engine = writing_engine(tmp_path / "b.db")
    with engine.begin() as connection:
        factory.insert_rows(connection, [], "empty")
    factory.make_run(engine, uid="tested", steps=4, state=RunState.FINISHED)
    with engine.begin() as connection:
        connection.execute(update(EvaluationRow).values(mode=Mode.EVAL))
        connection.execute(update(StepStatistics).values(mode=Mode.EVAL, eval_name="e" + col(StepStatistics.eval_name)))
        connection.execute(update(Run).values(changed=2))
    engine.dispose()
    with dashboard(tmp_path / "b.db") as client:
        assert "trains no policy" in client.get("/runs/tested/why/trained").text
        empty = client.get("/runs/empty/why/trained").text
    assert "The run ended without any." in empty
    assert "an evaluation" not in empty
