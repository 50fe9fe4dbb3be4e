# `make demo` and `make test` set up all they need: Python ≥ 3.11, make and curl are enough for the demo; the tests want more (test-packages).
# PYTHON=python3.12 names the interpreter; by default the first one on the path that is recent enough.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
TESTS ?=

# Compiled modules are kept, whatever the environment says: tests start DFC hundreds of times.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: setup setup-test setup-full torch test-packages demo test test-full durations test-long test-cluster lint format bench bench-jobs bench-inputs bench-moves bench-page compare compose-test lock clean

# The packages come in groups (pyproject.toml), each with those of the one before: `setup` brings what DFC, the demo and the
# README need, `setup-test` also those of `make test` and `make lint`, `setup-full` also those of `make test-full`.
setup: $(VENV)/.ready-run
setup-test: $(VENV)/.ready-test
setup-full: $(VENV)/.ready-full

$(VENV)/.ready-%: pyproject.toml uv.lock deploy/requirements.txt deploy/requirements-%.txt deploy/setup-venv deploy/progress deploy/download-size
	@PYTHON="$(PYTHON)" sh deploy/setup-venv $(VENV) $*
	@touch $@

# PyTorch, for the tests and examples that train with it.
torch: setup-test
	@PYTHON="$(PYTHON)" sh deploy/setup-torch $(VENV)

# KEEP=1 leaves the cluster up at the end, until Ctrl-C.
demo: setup
	$(BIN)/python -m loadtest.demo $(if $(KEEP),--keep)

# What tests want beyond that (deploy/test-packages): installed as root on Debian, else the line to run is printed.
test-packages:
	@sh deploy/install-test-packages

# What to run before a commit, in minutes; it says what it leaves out. TESTS=changed runs all tests that stand on what differs from
# BASE=REVISION, TESTS=tests/unit/tar names some. OFFSET=NUMBER has the same cases of the thinned tests again. Only tests that LIGHT
# does not match need PyTorch and the packages of the group `full`.
LIGHT := tests/unit/% tests/http% tests/simulation%
test: test-packages $(if $(filter-out $(LIGHT),$(TESTS)),setup-full,setup-test)
	@$(if $(filter-out $(LIGHT),$(or $(TESTS),default)),PYTHON="$(PYTHON)" sh deploy/prepare-tests $(VENV))
	@BASE="$(BASE)" OFFSET="$(OFFSET)" sh deploy/run-tests $(BIN)/python $(or $(TESTS),default)

# All tests that `make test` leaves out, with the same BASE and OFFSET.
test-full: test-packages setup-full
	@PYTHON="$(PYTHON)" sh deploy/prepare-tests $(VENV) full
	@BASE="$(BASE)" OFFSET="$(OFFSET)" sh deploy/run-tests $(BIN)/python full

# After some runs of both: tests/durations.json anew, which says which tests take longer than a second.
durations: setup-test
	PYTHONPATH=tests:. $(BIN)/python -m timings renew .timings

# The longest stress runs alone (marked `long`); `make test` runs the same cases with smaller counts. As root, and where there are
# loop devices, also real power losses.
test-long: test-packages setup-full torch
	$(BIN)/python -m pytest -n 2 --dist worksteal -m long --timeout=3600 --durations=0 $(or $(TESTS),tests)

# Real clusters whose nodes are killed, whose disks lose power (as root), whose links are cut, and one that is away: nothing
# acknowledged may be lost. SEED=2 draws other moments; ROW="kills --seconds 60" runs one of them (`python -m failures --help`).
test-cluster: torch
	cd tests && PYTHONPATH=.. ../$(BIN)/python -m failures $(or $(ROW),all) $(if $(SEED),--seed $(SEED))

lint: setup-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup
	$(BIN)/python -m loadtest.bench

bench-jobs: setup
	$(BIN)/python -m loadtest.bench --jobs

bench-inputs: torch
	$(BIN)/python -m loadtest.bench --inputs

bench-moves: setup
	$(BIN)/python -m loadtest.bench --moves

bench-page: setup
	$(BIN)/python -m loadtest.bench --pages

# This source tree beside another version, pair after pair: BASE is a revision or a directory, ROWS names some rows.
compare: torch
	$(BIN)/python -m loadtest.compare $(or $(BASE),$(error BASE=REVISION is missing)) $(if $(ROWS),--rows $(ROWS))

# Builds the image and runs the whole compose file against a Docker engine (see deploy/test-compose).
compose-test:
	deploy/test-compose

# After a change of dependencies in pyproject.toml; needs uv. Upgrades nothing by itself: `uv lock --upgrade` does.
lock:
	uv lock
	deploy/export-requirements

clean:
	rm -rf $(VENV) .timings build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
