"""A run of several environments: each has a best reward of its own, its own definition of solved, and a verdict."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from logs_ui.recorder import SettingsError
from logs_ui.recorder.diagnosis import Rows, Settings, diagnose_rows
from logs_ui.recorder.diagnosis.scale import Scale
from logs_ui.recorder.settings import check_environments
from logs_ui.recorder.vocabulary import Mark
from tests.recorder.diagnosis.test_diagnosis import NAN, rows_of

COUNT = 192
PLACE = np.arange(COUNT)
IS_GAME = PLACE // 4 % 2 == 1  # every second group
SOLVED = np.where(PLACE % 4 < 2, 1.0, 0.0)
POINTS = np.random.default_rng(1).uniform(0, 20, COUNT)


def web_and_game(**columns: object) -> Rows:
    """Groups of a web environment, half solved, and of a game of some 20 points, in turn."""
    given: Any = {"parts": {}, "reward": np.where(IS_GAME, POINTS, SOLVED), **columns}
    return replace(rows_of(COUNT, **given), eval=IS_GAME.astype(np.int64), evals=["web", "game"])


def test_the_best_reward_of_one_environment_is_none_of_another() -> None:
    scale = Scale.of(web_and_game(), Settings())
    assert scale.bests(web_and_game())[:8].tolist() == [1.0] * 4 + [np.percentile(POINTS[IS_GAME], 99)] * 4
    assert scale.below == "-reward_in.web>=1 -reward_in.game>=19.630148"


def test_evals_whose_best_rewards_are_equal_share_a_scale() -> None:
    assert Scale.of(web_and_game(reward=SOLVED), Settings()).units == ()


def test_what_is_solved_is_told_where_it_can_be() -> None:
    success = Scale.of(web_and_game(), Settings()).success
    assert success.description == "web: reward \u2265 1; game: not defined"
    np.testing.assert_array_equal(success.outcomes(web_and_game()), np.where(IS_GAME, NAN, SOLVED))
    assert success.where == "eval:web reward>=0.999999"


def test_an_eval_that_never_reports_success_is_not_judged_by_it() -> None:
    rows = web_and_game(reward=POINTS, env_success=np.where(IS_GAME, NAN, SOLVED))
    success = Scale.of(rows, Settings()).success
    np.testing.assert_array_equal(success.countable(rows), ~IS_GAME)


def test_functions_that_score_groups_of_their_own_are_environments() -> None:
    parts = {"web": np.where(IS_GAME, NAN, SOLVED), "points": np.where(IS_GAME, POINTS, NAN), "form": SOLVED / 10}
    reward = np.where(IS_GAME, POINTS, SOLVED) + SOLVED / 10
    rows = rows_of(COUNT, parts=parts, reward=reward)
    units = Scale.of(rows, Settings()).units
    assert [(it.name, round(it.best, 2)) for it in units] == [("points", 19.64), ("web", 1.1)]


def test_a_function_that_is_missing_in_some_groups_is_no_environment() -> None:
    parts = {"right": SOLVED, "judge": np.where(IS_GAME, POINTS, NAN)}
    assert Scale.of(rows_of(COUNT, parts=parts, reward=SOLVED), Settings()).units == ()


def test_what_a_function_never_paid_in_an_environment_is_lost_there() -> None:
    paid = np.where(IS_GAME, 0.0, SOLVED)
    rows = web_and_game(parts={"right": paid, "form": SOLVED / 10}, reward=paid + SOLVED / 10)
    assert [it.best for it in Scale.of(rows, Settings()).units] == []  # both could give 1.1
    assert Scale.of(rows, Settings()).best == pytest.approx(1.1)


def test_an_environment_whose_rewards_are_all_equal_lends_from_none_where_they_are_above_0() -> None:
    scale = Scale.of(web_and_game(reward=np.where(IS_GAME, POINTS, 1.0)), Settings())
    assert scale.source == "by environment: web 1, game 19.6"
    hopeless = Scale.of(web_and_game(reward=np.where(IS_GAME, POINTS, 0.0)), Settings())
    assert hopeless.source == "the run's 99th percentile"  # it could be as much as the game's


def test_a_function_of_another_environment_is_no_fault_of_this_one() -> None:
    parts = {"success": np.where(IS_GAME, NAN, SOLVED), "points": np.where(IS_GAME, POINTS, NAN)}
    report = diagnose_rows(web_and_game(parts=parts), has_ended=True)
    assert {name: it.id for name, it in report.environments} == {"game": "level", "web": "reached"}
    assert report.scale.success.marks == (Mark("rewards.success", 1.0),)


def test_each_environment_has_a_verdict() -> None:
    late = PLACE >= COUNT // 2
    falls = np.where(IS_GAME, POINTS, np.where(late, 0.0, 1.0))
    report = diagnose_rows(web_and_game(reward=falls), Settings(steps=3), has_ended=True)
    verdicts = {name: it.id for name, it in report.environments}
    assert verdicts == {"game": "level", "web": "fault"}
    assert [it["eval"] for it in report.as_dict()["environments"]] == ["game", "web"]
    assert any(str(line).startswith("  web: ") for line in str(report).splitlines())


def test_a_run_of_one_environment_has_no_verdicts_beside_its_own() -> None:
    assert diagnose_rows(rows_of()).environments == ()


def test_what_is_set_for_one_environment_holds_there_alone() -> None:
    settings = Settings(max_reward=1.0, environments={"game": {"max_reward": 21, "solved_at": 15}})
    scale = Scale.of(web_and_game(), settings)
    assert [(it.name, it.best) for it in scale.units] == [("web", 1.0), ("game", 21.0)]
    assert scale.success.description == "web: reward \u2265 1; game: reward \u2265 15, as set"
    solved = scale.success.solved(web_and_game())
    np.testing.assert_array_equal(solved, np.where(IS_GAME, POINTS >= 15, SOLVED == 1))


@pytest.mark.parametrize(
    ("environments", "message"),
    [
        ({"game": {"steps": 3}}, "must be a dict of max_reward, solved_at, solved_by, reference, not"),
        ({"game": {"max_reward": "high"}}, "environments\\['game'\\]: max_reward must be a finite number, not 'high'"),
        ({"game": {"reference": 3}}, "environments\\['game'\\]: reference must be the name of a dataset column, not 3"),
        ({"game": {"solved_at": 2}}, "environments\\['game'\\]: solved_at 2 is above max_reward 1"),
        (["game"], "environments must be a dict of settings by eval"),
    ],
)
def test_settings_of_an_environment_are_checked(environments: object, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(max_reward=1.0, environments=environments)  # type: ignore[arg-type]


def test_settings_of_an_eval_that_the_run_lacks_name_the_nearest() -> None:
    with pytest.raises(SettingsError, match=r"The run has no eval 'gane': did you mean 'game'\?"):
        check_environments(Settings(environments={"gane": {"solved_at": 1}}), ["web", "game"])
