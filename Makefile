# Everyday commands. `make` lists them.
.DEFAULT_GOAL := help
.PHONY: help install format check docs test exhaustive oldest trl025 newest trl-tests vllm verifiers demo serve pictures compare lock release

help:  ## This list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install:  ## Everything that tests and demo need, into the active environment
	python -m pip install torch==2.13.0 -e ".[test]"

format:  ## Format and fix what can be fixed
	ruff format .
	ruff check --fix .

check:  ## Formatting, lint, types, and which room may import which
	ruff format --check .
	ruff check .
	mypy
	mypy tests benchmarks examples
	lint-imports

docs:  ## The documentation site, into site/; a broken link or reference fails it
	python -m zensical build --strict --clean

test:  ## All tests, with a real trainer, a real environment and a real browser
	python -m pytest

exhaustive:  ## The same with all patterns, seeds and examples, not a few of each, and the slow tests; part of CI
	python -m pytest --exhaustive

oldest:  ## The tests of the recorder's footing, with the oldest TRL and OpenEnv that are supported; part of CI
	.ci/versions oldest

trl025:  ## A training with TRL 0.25, the oldest whose rollout functions can be recorded; part of CI
	.ci/versions trl025

newest:  ## The same with the newest on the index; reports, and decides nothing
	.ci/versions newest

trl-tests:  ## TRL's own tests of GRPO, with and without `logs-ui run`: TRL_SOURCE=(a checkout of TRL); not part of CI
	python -m tests.support.trl_tests.compare

vllm:  ## A real vLLM on the CPU, as a server against transformers, and as an engine; in an environment of 3 GB, not part of CI
	.ci/environments vllm
	LOGS_UI_TEST_VLLM=1 python -m pytest tests/end_to_end/test_vllm_server.py tests/recorder/capture/test_vllm.py

verifiers:  ## record_verifiers() and exports with the package itself, in an environment of its own; not part of CI
	PYTHONPATH=.dev "$$(.ci/environments verifiers)" -m pytest --noconftest tests/recorder/api/test_record_verifiers.py tests/recorder/analysis/test_export_readers.py

demo:  ## Train the tiny model and watch it
	logs-ui demo

serve:  ## The dashboard on the default database
	logs-ui serve

pictures:  ## Screenshots of every page in both themes, into docs/pictures
	python -m tests.pictures docs/pictures

compare:  ## logs-ui beside what a user would pick instead: environments of 2 GB in the cache, a quarter of an hour
	python benchmarks/peers/compare.py

lock:  ## Write down the versions of the active environment, for CI
	python -m pip freeze --exclude-editable --exclude logs-ui | sed 's/+cpu$$//' > .ci/constraints.txt

release:  ## The wheel and the source distribution as they would be uploaded, into dist/, checked
	rm -rf build dist
	python -m build
	python -m twine check --strict dist/*
