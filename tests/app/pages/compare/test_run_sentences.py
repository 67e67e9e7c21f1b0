"""The sentence on two runs says what their figures say."""

import pytest

from logs_ui.app.pages.compare.run_differences import RunSetting, RunSettings
from logs_ui.app.pages.compare.run_figures import Estimate
from logs_ui.app.pages.compare.run_sentences import compare_run, name_differences


def of(mean: float, error: float | None = 0.03, *, is_clear: bool = False) -> Estimate:
    return Estimate(mean, error, 80, 10, is_clear=is_clear)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"reward": [of(0.5), of(0.7, 0.04, is_clear=True)]}, "B is better than A: mean reward +0.2 ± 0.05 (steps 1)."),
        (
            {"reward": [of(0.5), of(0.7, 0.04, is_clear=True)], "solved": [of(0.6), of(0.2, 0.04, is_clear=True)]},
            "B is worse than A: solved \u221240 ± 5 pp, mean reward +0.2 ± 0.05 (steps 1).",
        ),
        (
            {"reward": [of(0.5), of(0.5, 0.04)]},
            "B does not differ from A beyond chance: mean reward 0 ± 0.05 (steps 1).",
        ),
        ({"reward": [of(0.5), of(0.9, None)]}, ""),
        ({"reward": [of(0.5), None]}, ""),
        ({}, ""),
    ],
    ids=["better", "more reward, less solved", "alike", "one group", "nothing", "no figures"],
)
def test_the_outcome_decides_which_run_is_better(figures: dict[str, list[Estimate | None]], sentence: str) -> None:
    assert compare_run(figures, 1, "B", "steps 1") == sentence


def test_what_differs_is_named() -> None:
    settings = [RunSetting("beta", ["0", "0.1"]), RunSetting("seed", ["1", "1"])]
    assert name_differences(RunSettings(settings, 1, 2), []) == "What differs: beta."
    assert name_differences(RunSettings([], 0, 2), []) == "No argument and no source that is stored differs."
    assert name_differences(RunSettings([], 0, 0), []) == ""
