"""The comparison with other loggers, as far as it needs no other environment: the floor, and logs-ui itself."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.peers import compare


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    def row(number: int) -> dict[str, object]:
        said = [("system", "Be brief."), ("user", f"What is {number}?"), ("assistant", "a number"), ("user", "Surely?")]
        said += [("assistant", "certainly" if number % 5 == 0 else "perhaps it is")]
        return {
            "id": f"rollout-{number}", "step": number // 4, "group": f"g{number // 4}", "generation": number % 4,
            "task": "t", "reward": number / 20, "messages": [{"role": role, "content": text} for role, text in said],
            "prompt_ids": [1, 2, number], "completion_ids": [3, 4], "logprobs": [-0.25, -1.5],
        }  # fmt: skip

    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(20)))
    return path


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["jsonl", "logs-ui"])
def test_all_that_is_logged_is_kept_and_found(name: str, rows: Path) -> None:
    figures = compare.once(sys.executable, compare.PEERS[name].script, rows)
    assert not isinstance(figures, str), figures
    assert figures["rows"] == 20
    assert figures["kept"] == {"messages": True, "reward": True, "ids": True, "logprobs": True}
    assert figures["below"][1] == 2  # 0 and 0.05 are below 0.1
    assert figures["word"][1] == 4  # every fifth says "certainly"
    line = compare.line(name, [figures, figures])
    assert line.count("|") == len(compare.COLUMNS) + 1
    assert "messages, reward, ids, logprobs" in line


def test_a_peer_that_fails_says_why_and_leaves_a_line(rows: Path) -> None:
    rows.write_text("no JSON\n")
    assert "JSONDecodeError" in str(compare.once(sys.executable, compare.PEERS["jsonl"].script, rows))
    assert compare.line("JSONL", []).count("|") == len(compare.COLUMNS) + 1
