# `make run` and `make test` need only make and Python 3.11 or newer. They set up .venv themselves.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# For two processors. A test waits half of its time, for the end of a lease or the answer of a server.
TESTERS := 6

# Hundreds of tests start a new Python process. This keeps the bytecode, even if the environment turns it off.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run demo quickstart test check collect build bench bench-scale prove reference screenshots lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(READY) ## start the service with the SQLite store, and print a curl command to try it
	@$(BIN)/oncegate serve --handler log

demo: $(READY) ## start the service and its console, with a minute of simulated traffic
	@$(BIN)/python examples/demo/demo.py

quickstart: $(READY) ## send one event in five wrappings through an emulator of AWS: one effect
	@$(BIN)/python examples/quickstart/run.py

test: $(READY) ## check the code and run the tests
	@$(MAKE) --no-print-directory -j 2 check collect
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal --ignore tests/test_layers.py  # `check` has run these

check: $(READY) ## run the linter, the type checker and the test of the structure
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

# pytest compiles each test file when it first reads it. Without this, each of the testers would compile all of them.
# The run of the tests reports an error in a file.
collect: $(READY)
	@$(BIN)/python -m pytest -q --collect-only >/dev/null || true

build: $(READY) ## build the wheel and the sdist into dist/ (without the network)
	$(BIN)/python -m build --no-isolation

bench: $(READY) ## measure Oncegate against the raw limits of this machine, as ratios
	$(BIN)/python -m benchmarks

bench-scale: $(READY) ## the same with ten million keys (built once in .bench, about 2 GB)
	$(BIN)/python -m benchmarks --scale

prove: $(READY) ## run the long proofs and write docs/proof.md
	$(BIN)/python -m tests.proof

reference: $(READY) ## update the generated tables in docs/reference and the README
	$(BIN)/python -m tests.reference

screenshots: $(READY) ## take the pictures of the console in docs/images
	$(BIN)/python -m tests.screenshots

lock: ## update requirements.lock from pyproject.toml (needs uv)
	uv export --quiet --no-header --no-emit-project --all-extras --all-groups --no-annotate -o requirements.lock
	rm -f uv.lock

clean: ## remove the files that make has created, except the store of make run (oncegate.db)
	rm -rf $(VENV) dist .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Oncegate needs Python 3.11 or newer; use: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up $(VENV) (once, about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib  # pip would compile on one processor only
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
