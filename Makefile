# Every target sets up first when it needs to: `make run` on a fresh clone is all it takes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
TORTURE ?= 50
FUZZ ?= 1000000
SCHEDULES ?= 5
FAILOVERS ?= 24
STOPS ?= 50
SEED ?= $(shell date +%s)
ONLY ?=

.PHONY: setup run test check docs picture bench rolling newcomer mutants torture torture-cluster clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[jobs,dev]'
	touch $(READY)

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $(BENCH_READY)

run: $(READY)
	$(BIN)/polyrhythm train digits --workers 3 --servers 2

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# docs/cli.md is what the commands say of themselves; the policies are drawn from simulated runs.
docs: $(READY)
	$(BIN)/python -m tools.cli_docs
	$(BIN)/python -m tools.timelines

# The picture in docs/guarantees.md: servers are killed and started again in turn.
rolling: $(READY)
	$(BIN)/python -m tools.rolling docs/pictures/rolling.svg --job mnist-lr

# The picture in the README, of a run that takes place now.
picture: $(READY)
	$(BIN)/python -m tools.terminal_picture docs/pictures/run.svg --title polyrhythm -- \
	  $(BIN)/polyrhythm train mnist-lr --workers 4 --sync asp --min-step 10ms --slow 3=4x \
	  --target-accuracy 0.92

bench: $(BENCH_READY)
	$(BIN)/python -m benchmarks.stragglers --readme
	$(BIN)/python -m benchmarks.exchange --readme

# What README and guide tell people to type, typed in a fresh clone.
newcomer: $(READY)
	$(BIN)/python -m tools.newcomer

# Faults are switched on one after the other, and the tests that each of them names must find it.
# `make mutants ONLY=probe` takes those whose name contains the word.
mutants: $(READY)
	$(BIN)/python -m tools.mutants $(ONLY)

# The properties of this repository and the simulated ledger, many times longer. Each time other
# examples are tried; what fails is listed with the command that shows it again. Then 504 faults of real
# processes, servers among them: seven to a schedule, for each of three policies. Then 50 stops at random
# moments under every policy. Then all mutants.
# Before them, 1,000,000 hostile inputs (tests/hostile), with a seed that is printed with what fails.
torture: $(READY)
	POLYRHYTHM_TORTURE=$(TORTURE) $(BIN)/python -m pytest tests/properties tests/conformance \
	  tests/sim/test_simulated_ledger.py tests/sim/test_server_ledger.py --timeout 3600 \
	  --hypothesis-seed $(SEED)
	POLYRHYTHM_FUZZ=$(FUZZ) POLYRHYTHM_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest \
	  tests/hostile --timeout 14400
	POLYRHYTHM_TORTURE=$(FAILOVERS) $(BIN)/python -m pytest tests/cluster/test_failover_ledger.py
	POLYRHYTHM_TORTURE=$(STOPS) $(BIN)/python -m pytest tests/cluster/test_orderly_stop.py
	$(BIN)/python -m tools.mutants

# More schedules of kills, stops, joins and leaves, with real processes; every policy over every link.
torture-cluster: $(READY)
	POLYRHYTHM_TORTURE=$(SCHEDULES) $(BIN)/python -m pytest tests/cluster/test_ledger_processes.py tests/cluster/test_torn.py

clean:
	rm -rf $(VENV) runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
