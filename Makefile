# `make run` and `make test` need nothing but Python 3.11 or newer and make: they set up .venv by themselves.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# For two processors: half of the time a test waits, for a lease to end or a server to answer.
TESTERS := 3

# Hundreds of tests start a Python of their own. None is to compile the package anew, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run quickstart test check bench bench-scale prove lock clean

help: ## show what make can do
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(READY) ## start the service on the embedded store, with a curl line to try
	@$(BIN)/oncegate serve --handler log

quickstart: $(READY) ## one event in five wrappings through an emulator of AWS: one effect
	@$(BIN)/python examples/quickstart/run.py

test: check ## check the code and run the tests
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal

check: $(READY) ## lint, strict types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(READY) ## measure against the raw limits of this machine, as ratios
	$(BIN)/python -m benchmarks

bench-scale: $(READY) ## the same on ten million keys (built once under .bench, about 2 GB)
	$(BIN)/python -m benchmarks --scale

prove: $(READY) ## the long proofs; writes docs/proof.md
	$(BIN)/python -m tests.proof

lock: ## write requirements.lock anew from pyproject.toml (needs uv)
	uv export --quiet --no-header --no-emit-project --all-extras --all-groups --no-annotate -o requirements.lock
	rm -f uv.lock

clean: ## remove what make has made, but for the store of make run (oncegate.db)
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Oncegate needs Python 3.11 or newer; name one with: make PYTHON=/path/to/python3"; exit 1; }
	@echo "Setting up $(VENV) (once; a minute or so) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib  # what pip would do on one processor
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
