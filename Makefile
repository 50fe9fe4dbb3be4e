# `make demo` and `make test` set up all they need: Python ≥ 3.11, make and curl are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml uv.lock
	PYTHON="$(PYTHON)" sh deploy/setup-venv $(VENV)
	@touch $@

demo: setup
	$(BIN)/python -m loadtest.demo

test: setup
	$(BIN)/python -m pytest -n 2 tests

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m loadtest.bench

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
