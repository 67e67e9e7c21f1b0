"""What is installed, and what importing it brings along."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
import venv
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import logs_ui.recorder
import logs_ui.rollout
from tests.support.command import serving

ROOT = Path(__file__).parents[2]
TRAINING = {"torch", "trl", "transformers", "openenv", "vllm", "datasets", "accelerate"}
READING = "from logs_ui.recorder import DiagnosisCallback, diagnose, export_run"
WEB = {"fastapi", "starlette", "jinja2", "typer", "uvicorn"}


def modules_after(statement: str) -> set[str]:
    code = f"{statement}; import sys, json; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        (f"import logs_ui.app.commands.cli, logs_ui.app.main; {READING}", TRAINING | {"pandas", "pyarrow"}),
        ("import logs_ui.rollout; logs_ui.rollout.openenv_rollout_func", TRAINING | {"fastapi"}),
        ("import logs_ui.rollout.demo.demo", TRAINING),
    ],
    ids=["the dashboard and a diagnosis", "a rollout function", "the demo"],
)
def test_a_part_imports_no_more_than_it_needs(statement: str, unwanted: set[str]) -> None:
    assert not modules_after(statement) & unwanted


@pytest.mark.parametrize("package", [logs_ui.recorder, logs_ui.rollout])
def test_the_public_names_are_sorted_and_there(package: ModuleType) -> None:
    assert package.__all__ == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name).__doc__ for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = package.other


@pytest.mark.parametrize("folder", ["app", "recorder", "rollout"])
def test_a_folder_of_the_source_is_no_package_of_its_own(folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import {folder}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert f"ImportError: Import logs_ui.{folder}:" in done.stderr


def test_the_package_names_its_version() -> None:
    assert logs_ui.recorder.__version__ == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel. Files that have gone since an earlier build would be packed, too."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    subprocess.run([*PIP, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The bin folder of a fresh environment that has the wheel and what it depends on, and no more."""
    venv.create(wheel.parent / "venv")
    binaries = wheel.parent / "venv" / "bin"  # what is imported is compiled then; to compile all of it takes longer
    subprocess.run([*PIP, "--python", str(binaries / "python"), "install", "--no-compile", str(wheel)], check=True)
    return binaries


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_wheel_has_every_file_and_no_tests(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    folders = ("app", "recorder", "rollout", "templates")
    tracked = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(names ^ {f"logs_ui/{name}" for name in tracked.stdout.splitlines()}) == []
    assert {f"logs_ui/{package}/py.typed" for package in ("app", "recorder", "rollout")} <= names


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_wheel_serves_the_dashboard_without_a_trainer(installed: Path, tmp_path: Path) -> None:
    for package in TRAINING:
        found = subprocess.run([installed / "python", "-c", f"import {package}"], capture_output=True, check=False)
        assert found.returncode != 0, package
    with serving("--db", tmp_path / "none.db", command=installed / "logs-ui", PYTHONPATH="") as (address, _):
        page = urllib.request.urlopen(address).read().decode()  # noqa: S310
        assert "record(" in page
        for asset in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
            assert urllib.request.urlopen(address + asset).status == 200  # noqa: S310
    missing = subprocess.run([installed / "logs-ui", "demo"], capture_output=True, text=True, check=False, timeout=120)
    assert missing.returncode == 1
    assert 'pip install "logs-ui[demo]"' in missing.stderr
    assert "Traceback" not in missing.stderr
