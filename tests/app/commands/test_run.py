"""`logs-ui run`: what a program trains is recorded, and the program is as without it."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from operator import itemgetter
from pathlib import Path
from traceback import extract_tb
from typing import Any

import pytest

from logs_ui.app.commands.run_hook import logs_ui_run_hook as hook
from logs_ui.recorder import load_run, load_runs, trace_env
from tests.support.command import LOGS_UI, typed
from tests.support.exhaustive import cases

ROOT = Path(__file__).parents[3]

TRAINING = """
import json, os, random, sys
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from examples.tiny_model import make_model, make_tokenizer

noted = []

def length(completions, **_):
    rewards = [len(one) / 8 + random.random() / 100 for one in completions]
    noted.extend(zip(completions, rewards))
    return rewards

def train(folder="out"):
    tokenizer = make_tokenizer([([{"role": "user", "content": "one two three"}], [])])
    settings = GRPOConfig(output_dir=folder, max_steps=2, per_device_train_batch_size=4, num_generations=2,
        use_cpu=True, bf16=False, gradient_checkpointing=False, max_completion_length=8, report_to="none",
        save_strategy="no", disable_tqdm=True)
    trainer = GRPOTrainer(make_model(tokenizer), reward_funcs=length, args=settings, processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": f"say {n}"} for n in range(8)]))
    trainer.train()
    rank = os.environ.get("RANK", "0")
    with open(f"noted-{rank}-{os.getpid()}.json", "w") as file:
        json.dump(noted, file)
"""


def environment(**variables: str) -> dict[str, str]:
    """The variables of a child that finds the tree, and waits for no hub."""
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return {**os.environ, "PYTHONPATH": path, "ACCELERATE_USE_CPU": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}


def started(
    folder: Path, *command: object, said: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What comes of a command that is started in that folder."""
    options: dict[str, Any] = {"cwd": folder, "env": environment(**variables), "input": said}
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280, check=False, **options)


def run(folder: Path, *words: object, said: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """What comes of `logs-ui run` in that folder, with a database there."""
    return started(folder, LOGS_UI, "run", "--db", "a.db", *words, said=said, **variables)


def script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def noted(folder: Path) -> list[tuple[str, float]]:
    """The completions, and their rewards, that the reward function saw, in all processes."""
    files = sorted(folder.glob("noted-*.json"))
    return sorted((text, reward) for path in files for text, reward in json.loads(path.read_text()))


def recorded(db: Path) -> list[tuple[str, float]]:
    """Those that were recorded, in all runs."""
    rows: list[tuple[str, float]] = []
    for run_id in load_runs(db=db).run:
        frame = load_run(run_id, db=db)
        assert set(frame.status) == {"ok"}
        assert frame.advantage.notna().all()
        rows += [(said[-1]["content"], reward) for said, reward in zip(frame.messages, frame.reward, strict=True)]
    return sorted(rows)


def same(ours: list[tuple[str, float]], theirs: list[tuple[str, float]]) -> bool:
    """Whether they are equal. A message has no marks such as </think>, which an untrained model samples, too."""
    pairs = zip(sorted(ours, key=itemgetter(1)), sorted(theirs, key=itemgetter(1)), strict=True)
    return all(
        reward == pytest.approx(other_reward, abs=1e-6) and (text == other or ">" in other)
        for (text, reward), (other, other_reward) in pairs
    )


SEEN = """
    import __main__, os, signal, sys
    print(sys.argv, sys.path, __name__, __main__.__file__, sys.orig_argv[1:], sys.flags, sys.excepthook)
    print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGPIPE), "sitecustomize" in sys.modules)
    print(sys.stdin.read(), sorted(set(os.environ) - {"LOGS_UI_HOOK", "LOGS_UI_HOOK_EVAL_NAME", "LOGS_UI_DB"}))
    sys.stderr.write("wrong\\n")
    sys.exit(3)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", cases(["command", "script", "module"], 1))
def test_a_program_sees_and_returns_what_it_does_without(tmp_path: Path, kind: str) -> None:
    script(tmp_path, SEEN, "seen.py")
    words = {"script": ["seen.py"], "module": ["-m", "seen"], "command": ["--", sys.executable, "seen.py"]}[kind]
    arguments = ["--db", "b", "--", "-m", "x y"]
    plain = started(
        tmp_path, *([] if kind == "command" else [sys.executable]), *words[words[0] == "--" :], *arguments, said="typed"
    )
    ours = run(tmp_path, *words, *arguments, said="typed")
    assert plain.returncode == ours.returncode == 3
    assert plain.stdout == ours.stdout
    assert "typed" in plain.stdout
    assert ours.stderr == f"{plain.stderr}logs-ui: nothing was recorded: TRL's trainers were never imported.\n"
    assert {it.name for it in tmp_path.iterdir()} <= {"seen.py", "__pycache__"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("text", cases(["1 / 0", "import nothing_such", "raise SystemExit('enough')", "def f(:"], 1))
def test_a_traceback_is_the_same_to_the_byte(tmp_path: Path, text: str) -> None:
    script(tmp_path, text)
    plain, ours = started(tmp_path, sys.executable, "train.py"), run(tmp_path, "train.py")
    assert (plain.returncode, plain.stdout) == (ours.returncode, ours.stdout)
    lines = [line for line in ours.stderr.splitlines() if not line.startswith("logs-ui: ")]
    assert lines == plain.stderr.splitlines()


@pytest.mark.exhaustive
@pytest.mark.parametrize("sent", cases([signal.SIGINT, signal.SIGKILL, signal.SIGTERM], 1))
def test_a_signal_ends_it_as_without(tmp_path: Path, sent: signal.Signals) -> None:
    script(tmp_path, "import time; print('ready', flush=True); time.sleep(300)")
    codes = []
    commands: list[list[Any]] = [[sys.executable, "train.py"], [LOGS_UI, "run", "--db", "a.db", "train.py"]]
    for command in commands:
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(sent)
            _, wrong = process.communicate(timeout=240)
            codes.append((process.returncode, "KeyboardInterrupt" in wrong))
    assert codes[0] == codes[1] == (-sent, sent == signal.SIGINT)


@pytest.mark.exhaustive
def test_a_hidden_sitecustomize_runs_and_a_command_has_its_own_signals(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    script(folder, "print('customized', __name__)", "sitecustomize.py")
    environ = {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    text = "import sitecustomize, sys; print(sitecustomize.__file__, [it for it in sys.path if 'run_hook' in it])"
    done = run(tmp_path, "--", sys.executable, "-c", text, **environ)
    assert done.stdout.splitlines()[-2:] == ["customized sitecustomize", f"{folder}/sitecustomize.py []"]
    done = run(tmp_path, "--", "sh", "-c", "yes | head -n 1; kill -9 $$")
    assert (done.returncode, done.stdout) == (-9, "y\n")
    assert "Broken pipe" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "what"),
    [
        (["--", "no-such-command"], 1, "no-such-command cannot be started: No such file or directory"),
        (["sh", "-c", "x"], 1, "sh is a command, not a Python script. Put -- before it: logs-ui run -- sh ..."),
        (["--evalname", "x", "a.py"], 2, "No such option: --evalname"),
        (["--db", "mysql://x/y", "a.py"], 1, "mysql databases are not supported"),
        ([], 2, "Missing argument"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(tmp_path: Path, words: list[str], code: int, what: str) -> None:
    # Behind `--`, all is prepared before it fails, and would stay so in this process.
    done = started(tmp_path, LOGS_UI, "run", *words) if "--" in words else typed("run", *words, folder=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    assert what in line


@pytest.mark.exhaustive
def test_a_plain_training_is_recorded_completely_and_keeps_its_exit_code(tmp_path: Path) -> None:
    script(tmp_path, TRAINING + "train()\nprint(sys.excepthook.__module__)\nsys.exit(3)\n")
    done = run(tmp_path, "--eval-name", "lengths", "--project", "games", "train.py", "x", LOGS_UI_RUN="mine")
    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines()[-1] == "logs_ui_run_hook", "it leaves frames of the recorder out of tracebacks"
    assert len(noted(tmp_path)) == 8
    assert same(recorded(tmp_path / "a.db"), noted(tmp_path))
    assert set(load_run("latest", db=tmp_path / "a.db").eval_name) == {"lengths"}
    assert set(load_runs(db=tmp_path / "a.db").project) == {"games"}
    assert list(load_runs(db=tmp_path / "a.db").run) == ["mine"]
    assert re.findall("^logs-ui: .*", done.stderr, re.MULTILINE) == re.findall(
        "^logs-ui: recording run .*; browse it with: logs-ui serve --db .*a.db$", done.stderr, re.MULTILINE
    )
    assert done.stderr.count("logs-ui: ") == 1


def test_an_error_shows_no_frames_of_the_recorder() -> None:
    def fails() -> None:
        raise RuntimeError("no more")

    shown: list[str] = []
    show = hook._without_our_frames(lambda _kind, _error, trace: shown.extend(it.name for it in extract_tb(trace)))
    with pytest.raises(RuntimeError) as raised:
        trace_env(fails)()
    assert len(extract_tb(raised.value.__traceback__)) > 2
    show(RuntimeError, raised.value, raised.value.__traceback__)
    assert shown == ["test_an_error_shows_no_frames_of_the_recorder", "fails"]


WATCHED = """
    import multiprocessing, subprocess, sys

    def child(kind):
        print(kind, [type(it).__name__ for it in sys.meta_path].count("_AtTrl"), flush=True)

    if __name__ == "__main__":
        subprocess.run([sys.executable, "-c", "import parent; parent.child('called')"], check=True)
        for kind in ("spawn", "fork"):
            process = multiprocessing.get_context(kind).Process(target=child, args=(kind,))
            process.start()
            process.join()
"""


@pytest.mark.exhaustive
def test_child_processes_of_any_kind_wait_for_a_trainer(tmp_path: Path) -> None:
    script(tmp_path, WATCHED, "parent.py")
    done = run(tmp_path, "parent.py")
    assert (done.returncode, done.stdout) == (0, "called 1\nspawn 1\nfork 1\n"), done.stderr


@pytest.mark.parametrize(
    ("came", "why"),
    [
        ("", "no Python 3.11 or later was started that logs-ui can reach (python -I, -E and -S cannot be reached)"),
        ("python", "TRL's trainers were never imported"),
        ("python trl", "TRL's trainers were imported, but neither train() nor evaluate() of one was called"),
        (
            "python trl other:SFTTrainer",
            "logs-ui does not record SFTTrainer: it records GRPO, RLOO, OnlineDPO and AsyncGRPO trainers",
        ),
        ("python trl trained:GRPOTrainer", "GRPOTrainer trained, but sampled no completions"),
        ("python trl failed:E_x", "the recorder did not start (E_x)"),
        ("python trl trained:A recorded", None),
    ],
)
def test_why_nothing_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], came: str, why: str | None
) -> None:
    events = tmp_path / "events"
    events.write_text("".join(f"{it.replace(':', ' ')}\n" for it in came.split()))
    for _ in range(2):
        hook.report(str(events))
    assert capsys.readouterr().err == ("" if why is None else f"logs-ui: nothing was recorded: {why}.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("lacks", cases(["database", "package"], 1))
def test_a_recorder_that_cannot_start_costs_a_line_and_no_training(tmp_path: Path, lacks: str) -> None:
    (tmp_path / "trl" / "trainer").mkdir(parents=True)
    for folder in ("trl", "trl/trainer"):
        (tmp_path / folder / "__init__.py").touch()
    script(tmp_path, "import os\nos.environ['LOGS_UI_DB'] = 'mysql://x/y'\nimport trl.trainer\nprint('trains')")
    python = Path(sys.base_prefix) / "bin" / "python3" if lacks == "package" else Path(sys.executable)
    keep = 1 if lacks == "package" else 99  # of the folders in PYTHONPATH, of which the first is the hook's
    path = f"PYTHONPATH=$(echo $PYTHONPATH | cut -d : -f 1-{keep})"
    done = run(tmp_path, "--", "sh", "-c", f"{path} exec {python} train.py")
    assert (done.returncode, done.stdout) == (0, "trains\n")
    said, end = done.stderr.splitlines()
    reason = f"{python} has TRL, but no logs-ui: install it there" if lacks == "package" else "mysql databases are not"
    assert said.startswith("logs-ui: process ")
    assert reason in said
    assert end.startswith("logs-ui: nothing was recorded: the recorder did not start (")


RECORDED = '__import__("logs_ui.recorder").recorder.record_trainer(trainer, eval_name="mine").train()'
CALLBACK = 'callbacks=[__import__("logs_ui.recorder").recorder.LogsUICallback(eval_name="mine")], reward_funcs=length'


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("written", "instead", "name"),
    [
        ('report_to="none"', 'report_to="logs_ui"', "ours"),
        ("reward_funcs=length", CALLBACK, "mine"),
        ("trainer.train()", RECORDED, "mine"),
    ],
)
def test_a_script_that_records_its_trainer_itself_is_recorded_once(
    tmp_path: Path, written: str, instead: str, name: str
) -> None:
    assert TRAINING.count(written) == 1
    script(tmp_path, TRAINING.replace(written, instead) + "train()\n")
    done = run(tmp_path, "--eval-name", "ours", "train.py")
    assert done.returncode == 0, done.stderr
    assert len(load_runs(db=tmp_path / "a.db")) == 1
    assert set(load_run("latest", db=tmp_path / "a.db").eval_name) == {name}
    assert same(recorded(tmp_path / "a.db"), noted(tmp_path))


@pytest.mark.exhaustive
def test_what_a_script_records_by_itself_counts(tmp_path: Path) -> None:
    script(tmp_path, "from logs_ui.recorder import start_run\nwith start_run('by hand') as run: pass")
    done = run(tmp_path, "train.py")
    assert done.returncode == 0, done.stderr
    assert "nothing was recorded" not in done.stderr
    assert list(load_runs(db=tmp_path / "a.db").name) == ["by hand"]


def test_serve_is_there_for_as_long_as_the_program(tmp_path: Path) -> None:
    script(tmp_path, "import os, sys; print('ready', flush=True); sys.stdin.read(); sys.exit(5)")
    command: list[Any] = [LOGS_UI, "run", "--db", "a.db", "--serve", "train.py"]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, cwd=tmp_path, env=environment(), text=True, **pipes) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.fullmatch(r"logs-ui: dashboard at (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line + process.stderr.read()
        with urllib.request.urlopen(found[1]) as page:  # noqa: S310 - of this machine
            assert "logs-ui" in page.read().decode()
        _, wrong = process.communicate("", timeout=240)
        assert process.returncode == 5
    assert wrong == "logs-ui: nothing was recorded: TRL's trainers were never imported.\n"
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(found[1])  # noqa: S310
