# Commands for developers and CI. Every target installs what it needs. Stamp files make the next run quick;
# a change of pyproject.toml installs again.

PORT ?= 8000
# The folder with the source documents of the requirements; without it `make requirements` updates only the tests.
SHARED ?= ../shared
# PYTHON= selects another Python (a path, a command, or a version such as 3.13), with a separate environment.
VENV := $(if $(filter command line,$(origin PYTHON)),.venv-$(notdir $(PYTHON)),.venv)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOWEST := .cache/lowest
# Where this variable is set, each of the thousands of Python processes of a test run would compile every module again.
export PYTHONDONTWRITEBYTECODE :=

# These tests measure servers under attack, and while processes die, so they run apart. Those of the second kind mostly
# wait for leases, so both of their files run at the same time.
ATTACKS := tests/attacks
CHAOS := tests/fleet/test_chaos.py tests/fleet/test_chaos_tasks.py
ALONE := $(ATTACKS) $(CHAOS)
# Most tests wait more than they compute: eight workers need less than a third of the time of one, even on two cores.
# The slowest tests start first, so that all workers finish at about the same time.
AT_ONCE := --numprocesses 8 --dist loadfile --no-loadscope-reorder
SLOW := tests/fleet tests/interop tests/cli tests/test_mistakes.py tests/test_deploy.py \
	tests/server/test_streams_fleet.py tests/e2e tests/server
SLOW_FIRST := $(SLOW) $(filter-out $(SLOW) $(ALONE) tests/support tests/typing tests/__pycache__, \
	$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
# The unit tests are all tests that need no other SDK, no Node package, no browser and no proxy.
UNIT := $(AT_ONCE) --ignore=tests/fleet --ignore=tests/interop --ignore=tests/attacks
# Tests for the lowest and the newest versions: the tests of single packages, which use every dependency. Other tests
# (programs, measurements, random input, architecture) are slow and do not depend on versions.
ENDS := $(AT_ONCE) tests/backends tests/client tests/eras tests/protocol tests/server tests/types \
	tests/test_jsonrpc.py tests/test_public_api.py

.DEFAULT_GOAL := help
.PHONY: help run test unit lowest newest check lint interop conformance conformance-fleet bench soak mutate requirements
.PHONY: peers-test peers-conformance peers-conformance-fleet peers-bench clean
.DELETE_ON_ERROR:

help:
	@echo "make run           serve examples/server.py over HTTP (PORT=$(PORT))"
	@echo "make test          run every check and every test, also with other SDKs if they can be installed"
	@echo "make check         run lint, formatting, type checks, import layers and the architecture tests"
	@echo "make unit          run the tests that need no other software; PYTHON=3.13 selects another Python, also for test and check"
	@echo "make lowest        run the tests of single packages with the lowest versions that pyproject.toml allows"
	@echo "make newest        run the same tests with another Python: make newest PYTHON=3.13"
	@echo "make interop       test Weft with agent frameworks and third-party servers; writes docs/interop.md"
	@echo "make conformance   run the official conformance suite against conformance/*.py"
	@echo "make conformance-fleet  the same for the server in three processes: behind nginx with Redis, and as workers"
	@echo "make soak          make 20,000 calls per era and transport, and watch memory, tasks and file descriptors"
	@echo "make mutate        change the code in 300 places, one at a time, and count the changes that tests detect"
	@echo "make bench         compare Weft with mcp, fastmcp and a bare server; writes bench/RESULTS.md and README figures"
	@echo "make requirements  write docs/requirements.md: every requirement and its tests (SHARED=$(SHARED))"
	@echo "make clean         remove .venv, .cache and all files made by the tools"

run: $(VENV)/.runtime
	@sh tools/what_to_try.sh $(PORT)
	@exec $(BIN)/weft run examples/server.py --http --port $(PORT)

test: lint peers-test
	$(BIN)/pytest $(AT_ONCE) $(addprefix --ignore=,$(ALONE)) $(SLOW_FIRST)
	$(BIN)/pytest $(ATTACKS)
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(CHAOS)

unit: $(VENV)/.dev
	$(BIN)/pytest $(UNIT)

lowest: $(LOWEST)/.stamp
	$(LOWEST)/bin/pytest $(ENDS)

newest: $(VENV)/.dev
	$(BIN)/pytest $(ENDS)

check: lint
	$(BIN)/pytest tests/test_architecture.py
	$(BIN)/python tools/count_code.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/mypy
	$(BIN)/lint-imports

interop: peers-test
	$(BIN)/pytest --numprocesses 4 tests/interop/test_foreign.py
	$(BIN)/python tools/interop_page.py

conformance: peers-conformance
	$(BIN)/python conformance/run.py

conformance-fleet: peers-conformance-fleet
	$(BIN)/python conformance/run.py --behind redis
	$(BIN)/python conformance/run.py --behind workers

bench: peers-bench
	@$(BIN)/python bench/run.py; missed=$$?; $(BIN)/python tools/readme_figures.py; exit $$missed

soak: $(VENV)/.dev
	$(BIN)/python tools/soak.py

mutate: $(VENV)/.dev
	$(BIN)/python tools/mutate.py --security --at-least 95
	$(BIN)/python tools/mutate.py --at-least 92

requirements: | $(BIN)/python
	@$(BIN)/python tools/requirements.py $(SHARED)

# Other software for the tests (other SDKs, Node packages, Debian packages) is in .cache, never in git.
peers-test: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py node mcp1 mcp fastmcp servers nginx redis chromium \
		fetch sqlite pydantic-ai openai-agents langchain google-adk llama-index node-foreign celery

peers-conformance: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required node

peers-conformance-fleet: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required node nginx redis

peers-bench: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required wrk redis weft weft_fastapi mcp fastmcp engine
	@.cache/peers/weft/bin/python -m pip install --quiet --disable-pip-version-check redis hiredis

$(BIN)/python:
	@sh tools/make_venv.sh $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "Installing Weft into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

# uv needs a tenth of pip's time. pip is used if uv fails (for example, with another index or a proxy).
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing Weft and its development tools into $(VENV) ..."
	@$(PIP) "uv>=0.9" "pip>=25.1"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable . --group dev 2>/dev/null \
		|| $(PIP) --editable . --group dev
	@touch $@ $(VENV)/.runtime

# Weft's own dependencies at their lower bounds, on the oldest Python; the test tools in their newest versions.
$(LOWEST)/.stamp: pyproject.toml | $(VENV)/.dev
	@echo "Installing the lowest versions into $(LOWEST) ..."
	@rm -rf $(LOWEST)
	@$(BIN)/uv venv --quiet --python "$$(sh tools/find_python.sh 3.11 | grep . || echo $(BIN)/python)" $(LOWEST)
	@$(BIN)/uv pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --all-extras \
		--output-file $(LOWEST)/versions.txt pyproject.toml
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --constraints $(LOWEST)/versions.txt \
		--group test --editable '.[telemetry,reload,redis]'
	@touch $@

clean:
	rm -rf .venv .venv-* .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
