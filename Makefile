# On a machine with Python 3.11 or newer and make, nothing else is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
URL ?=
PINS ?=
# One more than there are cores, from 3 to 8: each starts a PostgreSQL of its own, and waits for it.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(max(os.cpu_count() or 2, 2) + 1, 8))")
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
TRANSCRIPTS ?=

.PHONY: help install dev quick test test-all test-frameworks test-ui browser everything suite lint types mypy pyright check demo docs site wheel bench bench-peers chaos clean coverage

help:
	@echo "make demo    a whole conversation on a fresh SQLite file (URL=..., TRANSCRIPTS=...)"
	@echo "make dev     what a contributor needs, in .venv, with hooks that check each commit"
	@echo "make quick   lint, types, and on SQLite the tests of what your branch has changed"
	@echo "make test    lint, types and tests on both engines; what it leaves to test-all it says"
	@echo "make test-all   the same and all of the rest; and what test runs on each other Python, 3.11 to 3.13, and with SQLAlchemy 2.0"
	@echo "make test-frameworks   the adapters for heavy frameworks, with the frameworks' own tests"
	@echo "make test-ui   the explorer's tests, in a real browser too, which it installs if there is none"
	@echo "make chaos   break it on purpose; five minutes (MINUTES=..., CASES=..., docs/reliability.md)"
	@echo "make site    the pages and the API reference as a site, in site/index.html"
	@echo "make wheel   dist/agentstore_db-*.whl"
	@echo "make docs    docs/schema.md from the models, and the asynchronous repositories' stub from these"
	@echo "make bench   the figures and pictures of docs/performance.md, and more; an hour (ROUNDS=...)"
	@echo "make bench-peers   the same work by other libraries; some ten minutes (docs/peers.md)"

# PINS names a file of versions that take the place of those in constraints.txt.
$(VENV)/.installed: pyproject.toml constraints.txt $(PINS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test]'
	$(if $(PINS),$(BIN)/python -m pip install --quiet -r $(PINS))
	@touch $@

install: $(VENV)/.installed

dev: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/pre-commit install

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: mypy pyright

mypy: install
	$(BIN)/mypy --num-workers 2

pyright: install
	$(BIN)/basedpyright --pythonpath $(BIN)/python

check: install
	$(MAKE) --jobs 2 mypy pyright lint

# Which tests these are says a table in tests/selection.py.
quick: check
	@tests=$$($(BIN)/python -m tests.selection) && test -z "$$tests" \
		|| AGENTSTORE_TEST_ON_SQLITE=1 $(PYTEST) -q $$tests

test: check
	$(PYTEST)

# Chromium, and what drives it, for the tests in tests/explorer that `make test` leaves out without.
$(VENV)/.browser: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test-ui]'
	$(BIN)/python -c 'from tests.selection import chromium; exit(not chromium())' || $(BIN)/playwright install chromium
	@touch $@

browser: $(VENV)/.browser

test-ui: browser
	$(BIN)/python -m pytest tests/explorer

FRAMEWORKS := .venv-frameworks
SDKS := .venv-sdks

# Adapters for frameworks that are too heavy for .venv, and the frameworks' own tests with ours.
$(FRAMEWORKS)/.installed: pyproject.toml constraints-frameworks.txt
	$(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/python -m pip install --quiet --upgrade pip
	$(FRAMEWORKS)/bin/python -m pip install --quiet -c constraints-frameworks.txt -e '.[frameworks]'
	@touch $@

# The suites of LangGraph and of the OpenAI Agents SDK bring plugins of pytest's, which .venv has not.
$(SDKS)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SDKS)
	$(SDKS)/bin/python -m pip install --quiet --upgrade pip
	$(SDKS)/bin/python -m pip install --quiet -c constraints.txt -e '.[suites]'
	@touch $@

SUITES := $(FRAMEWORKS)/suites
OWN_TESTS := $(FRAMEWORKS)/bin/python -m tests.frameworks.suites
SDISTS := nexus-agentos==1.50.10 openai-chatkit==1.6.5
A2A ?=
AGENTSCOPE ?=
AGENT_FRAMEWORK ?=

# A2A, AGENTSCOPE and AGENT_FRAMEWORK name checkouts of A2A's SDK 1.3, of AgentScope v1.0.21 and of
# Agent Framework's python-1.13.0 or later: their distributions come without their tests.
test-frameworks: $(FRAMEWORKS)/.installed $(SDKS)/.installed
	$(SDKS)/bin/python -m tests.frameworks.langgraph_conformance
	$(SDKS)/bin/python -m tests.frameworks.openai_suite
	$(FRAMEWORKS)/bin/python -m pytest -p no:asyncio tests/frameworks
	$(FRAMEWORKS)/bin/python -m pip download --quiet --no-deps --no-binary :all: --dest $(SUITES) $(SDISTS)
	for sdist in $(SUITES)/*.tar.gz; do tar xzf $$sdist -C $(SUITES) || exit 1; done
	for engine in sqlite postgresql; do \
		$(OWN_TESTS) agentos $(SUITES)/nexus_agentos-*/tests/test_checkpoint_engine.py --engine $$engine || exit 1; \
		$(OWN_TESTS) chatkit $(SUITES)/openai_chatkit-*/tests/test_store.py --engine $$engine || exit 1; \
		test -z "$(AGENT_FRAMEWORK)" || $(OWN_TESTS) agent_framework $(AGENT_FRAMEWORK)/python/packages/core/tests/workflow/test_checkpoint.py --engine $$engine || exit 1; \
		test -z "$(A2A)" || $(OWN_TESTS) a2a $(A2A)/tests/server/tasks/test_inmemory_task_store.py --engine $$engine || exit 1; \
		test -z "$(AGENTSCOPE)" || $(OWN_TESTS) agentscope $(AGENTSCOPE)/tests/memory_test.py --engine $$engine || exit 1; \
	done

test-all:
	$(PYTHON) tests/interpreters.py "$(MAKE)"

# These two are for one environment, which test-all names. Types are those of the pinned SQLAlchemy.
everything: check
	$(PYTEST)

suite: install
	$(PYTEST)

coverage: install
	AGENTSTORE_TEST_FULL=1 $(PYTEST) --cov --cov-report=term

demo: install
	$(BIN)/python examples/demo.py $(if $(URL),--url "$(URL)") $(if $(TRANSCRIPTS),--transcripts "$(TRANSCRIPTS)")

wheel: install
	$(BIN)/python -m build --wheel --no-isolation --outdir dist

docs: install
	$(BIN)/python -m docs.schema_page
	$(BIN)/python -m docs.async_stub

# The variable silences an advertisement of the theme's.
site: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

ROUNDS ?= 5
MORE := branches checkpoints search

bench: install
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks.bench --rounds $(ROUNDS)
	$(BIN)/python -m benchmarks.plots
	$(BIN)/python -m benchmarks.pages
	for program in $(MORE); do $(BIN)/python -m benchmarks.$$program || exit 1; done

$(PEERS)/.installed: pyproject.toml constraints-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --upgrade pip
	$(PEERS)/bin/python -m pip install --quiet -c constraints-peers.txt -e '.[bench-peers]'
	@touch $@

bench-peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m benchmarks.peers --docs docs/peers.md

MINUTES ?= 5
CASES ?=

# --minutes of all cases together; -m tests.chaos --help tells what else there is.
chaos: install
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) --cases "$(CASES)"

clean:
	rm -rf $(VENV) .venv-* $(PEERS) dist build site
