# On a machine with Python 3.11 or newer and make, nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
URL ?=
TRANSCRIPTS ?=

.PHONY: help install test lint types check demo bench clean coverage

help:
	@echo "make demo    a whole conversation on a fresh SQLite file (URL=..., TRANSCRIPTS=...)"
	@echo "make test    lint, types and every test, on both engines"
	@echo "make bench   ratios against the raw drivers"

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	@touch $@

install: $(VENV)/.installed

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy
	$(BIN)/basedpyright --pythonpath $(BIN)/python

test: lint types
	$(BIN)/python -m pytest -n 2

coverage: install
	$(BIN)/python -m pytest -n 2 --cov --cov-report=term

demo: install
	$(BIN)/python examples/demo.py $(if $(URL),--url "$(URL)") $(if $(TRANSCRIPTS),--transcripts "$(TRANSCRIPTS)")

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) dist build
