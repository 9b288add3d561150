# Thin on purpose: scripts/ and the package do the work. `make` alone lists what there is.
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.anabranch-setup
WORKERS ?= 2
KILLS ?= 30
FRAMES ?= 100000
REQUESTS ?= 20000

.DEFAULT_GOAL := help
.PHONY: help setup test test-fast lint format bench soak demo clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## virtual environment in .venv with everything needed (done once)

$(STAMP): pyproject.toml constraints.txt scripts/setup.sh
	@VENV=$(VENV) scripts/setup.sh

test: $(STAMP)  ## all tests but the soaks
	$(PY) -m pytest -q -n $(WORKERS) --dist loadgroup -m "not soak" tests

test-fast: $(STAMP)  ## unit and property tests only
	$(PY) -m pytest -q -n $(WORKERS) -m "not slow and not soak" tests/unit tests/property

lint: $(STAMP)  ## ruff and strict mypy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: $(STAMP)  ## let ruff fix and format the sources
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(STAMP)  ## benchmarks: a table for people, JSON in bench-results/
	$(PY) -m benchmarks

soak: $(STAMP)  ## crash soak (KILLS=30), fuzz of frames (FRAMES=100000) of REST and of credentials (REQUESTS=20000) against real broker processes
	$(PY) -m tests.soak.crash_soak --kills $(KILLS)
	$(PY) -m tests.soak.fuzz --frames $(FRAMES)
	$(PY) -m tests.soak.fuzz_rest --requests $(REQUESTS)
	$(PY) -m tests.soak.fuzz_auth --attempts $(REQUESTS)

demo: $(STAMP)  ## broker, keyed traffic, kill -9 in the middle, audit
	@$(PY) -m scripts.demo

clean:  ## remove everything that can be made again, .venv included
	rm -rf $(VENV) build dist bench-results .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
