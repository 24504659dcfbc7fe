# Every target sets up the virtual environment if there is none, so `make run` works in a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
DOCS_READY := $(VENV)/.docs-ready
TORTURE ?= 50
FUZZ ?= 1000000
SCHEDULES ?= 5
FAILOVERS ?= 24
MOVES ?= 25
STOPS ?= 50
SEED ?= $(shell date +%s)
ONLY ?=

.PHONY: setup run test retest test-times check docs site examples picture bench network rolling newcomer mutants torture torture-cluster clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "installing polyrhythm and its packages into $(VENV), which takes some minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[jobs,dev]'
	touch $(READY)

$(BENCH_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	touch $(BENCH_READY)

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $(DOCS_READY)

run: $(READY)
	$(BIN)/polyrhythm train digits --workers 3 --servers 2

# The suite starts some 300 processes: compiled modules are kept for them, even where the environment
# says otherwise.
test: $(READY)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest

# Run the tests that failed in the last `make test` once more, one at a time.
retest: $(READY)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n 0 --last-failed --last-failed-no-failures none

# Run all tests, and list the processor time and the wall time of folders, files and tests.
test-times: $(READY)
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -p tests.times

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Write the pages that are made from the program, draw the policies' pictures from simulated runs, and
# make a site of docs/ in build/site. `make site` makes the site alone.
docs: $(READY)
	$(BIN)/python -m tools.cli_docs
	$(BIN)/python -m tools.option_docs
	$(BIN)/python -m tools.timelines
	$(MAKE) site

site: $(DOCS_READY)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/site
	@echo "the site begins at build/site/index.html"

# Draw the pictures in docs/guarantees.md: servers are killed and started again, or replaced, in turn.
rolling: $(READY)
	$(BIN)/python -m tools.rolling docs/pictures/rolling.svg --job mnist-lr
	$(BIN)/python -m tools.replaced docs/pictures/replaced.svg

# Draw the picture in the README from a run that this target starts.
picture: $(READY)
	$(BIN)/python -m tools.terminal_picture docs/pictures/run.svg --title polyrhythm \
	  --prompt 'polyrhythm train mnist-lr --workers 4 --sync asp --min-step 10ms --slow 3=4x --target accuracy=0.92' -- \
	  $(BIN)/polyrhythm train mnist-lr --workers 4 --sync asp --min-step 10ms --slow 3=4x \
	  --target accuracy=0.92

bench: $(BENCH_READY)
	$(BIN)/python -m benchmarks.stragglers --readme
	$(BIN)/python -m benchmarks.exchange --readme
	$(BIN)/python -m benchmarks.network --all --readme

# Measure the laboratory of links with given rates, and draw its pictures (more than an hour; needs root).
network: $(READY)
	$(BIN)/python -m benchmarks.network --all --figures --json runs/network.json --readme

# Compare the scripts of examples/ with plain torch, and write the table in docs/examples.md. Known
# results in runs/examples.json are kept: `make examples ONLY=gan` makes the runs of one script.
examples: $(READY)
	$(BIN)/python -m benchmarks.examples --parallel 2 --docs --check $(if $(ONLY),--only $(ONLY))

# Run the commands of README and guide in a fresh clone.
newcomer: $(READY)
	$(BIN)/python -m tools.newcomer

# Apply one fault after the other; a test that the fault names must fail. `make mutants ONLY=probe` takes
# the faults whose name contains "probe".
mutants: $(READY)
	$(BIN)/python -m tools.mutants $(ONLY)

# Long tests, with other examples each time; failures are listed with the command that repeats them.
# First the properties and the simulated ledger; then 1,000,000 hostile inputs (tests/hostile); then 504
# faults of real processes, servers among them, seven to a schedule for each of three policies; then 50
# stops at random moments under every policy; then all mutants.
torture: $(READY)
	POLYRHYTHM_TORTURE=$(TORTURE) $(BIN)/python -m pytest tests/properties tests/conformance \
	  tests/sim/test_simulated_ledger.py tests/sim/test_server_ledger.py tests/sim/test_moving_ledger.py \
	  tests/sim/test_simulated_statistics.py tests/sim/test_simulated_balance.py \
	  tests/sim/test_simulated_migration.py --timeout 3600 \
	  --hypothesis-seed $(SEED)
	POLYRHYTHM_FUZZ=$(FUZZ) POLYRHYTHM_FUZZ_SEED=$(SEED) $(BIN)/python -m pytest \
	  tests/hostile --timeout 14400
	POLYRHYTHM_TORTURE=$(FAILOVERS) $(BIN)/python -m pytest tests/cluster/test_failover_ledger.py
	POLYRHYTHM_TORTURE=$(MOVES) $(BIN)/python -m pytest tests/cluster/test_moving_ledger.py
	POLYRHYTHM_TORTURE=$(STOPS) $(BIN)/python -m pytest tests/cluster/test_orderly_stop.py
	POLYRHYTHM_TORTURE=2 $(BIN)/python -m pytest tests/cluster/test_statistics_processes.py
	$(BIN)/python -m tools.mutants

# More schedules of kills, stops, joins and leaves of real processes, for every policy over every link; then
# the tests that need a Ray cluster for themselves.
torture-cluster: $(READY)
	POLYRHYTHM_TORTURE=$(SCHEDULES) $(BIN)/python -m pytest tests/cluster/test_ledger_processes.py tests/cluster/test_torn.py
	POLYRHYTHM_TORTURE=1 $(BIN)/python -m pytest -n 1 -m ray tests/cluster/test_ray_*.py

clean:
	rm -rf $(VENV) build runs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
