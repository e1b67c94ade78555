# What a person or a machine does with this project. Every target sets up what it needs by itself;
# stamps make it quick the next time, and a change of pyproject.toml sets up anew.

PORT ?= 8000
# The documents that the requirements come from; without them `make requirements` renews the tests only.
SHARED ?= ../shared
# Another Python (a path, a command, or a version such as 3.13) has an environment of its own.
VENV := $(if $(filter command line,$(origin PYTHON)),.venv-$(notdir $(PYTHON)),.venv)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOWEST := .cache/lowest

# What is measured under attack is measured with nothing else running.
ALONE := tests/attacks
# Most tests wait more than they work: four workers take a third of the time of one, also on two cores.
# Those that take longest begin first, or one worker would be left with them at the end.
AT_ONCE := --numprocesses 4 --dist loadfile --no-loadscope-reorder
SLOW := tests/interop tests/cli tests/test_mistakes.py tests/e2e
SLOW_FIRST := $(SLOW) $(filter-out $(SLOW) $(ALONE) tests/support tests/typing tests/__pycache__, \
	$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
# The unit tests are all that need nothing from elsewhere: no other SDK, no Node package, no browser, no proxy.
UNIT := $(AT_ONCE) --ignore=tests/interop --ignore=tests/attacks
# At both ends of the versions: the tests of single rooms, which call every dependency. What starts programs, is measured,
# drawn at random, or looks at the code itself says nothing more of versions, and takes most of the time.
ENDS := $(AT_ONCE) tests/backends tests/client tests/eras tests/protocol tests/server tests/types \
	tests/test_jsonrpc.py tests/test_public_api.py

.DEFAULT_GOAL := help
.PHONY: help run test unit lowest newest check lint interop conformance bench soak mutate requirements
.PHONY: peers-test peers-conformance peers-bench clean
.DELETE_ON_ERROR:

help:
	@echo "make run           serve examples/server.py over HTTP (PORT=$(PORT))"
	@echo "make test          every check and every test, with the other SDKs' clients where they can be had"
	@echo "make check         lint, formatting, types, layers and the architecture tests"
	@echo "make unit          the tests that need nothing from elsewhere; PYTHON=3.13 takes another Python, here and above"
	@echo "make lowest        the tests of single rooms with the lowest versions that pyproject.toml allows"
	@echo "make newest        the same with another Python: make newest PYTHON=3.13"
	@echo "make interop       agent frameworks and servers that others wrote, beside Weft; writes docs/interop.md"
	@echo "make conformance   the official conformance suite against conformance/*.py"
	@echo "make soak          20,000 calls per era and transport, and what memory, tasks and descriptors do meanwhile"
	@echo "make mutate        changes the code in 300 places, one at a time, and counts what the tests notice"
	@echo "make bench         Weft beside mcp, fastmcp and a bare server; writes bench/RESULTS.md and README's figures"
	@echo "make requirements  writes docs/requirements.md: every requirement and its tests (SHARED=$(SHARED))"
	@echo "make clean         remove .venv, .cache and what the tools left behind"

run: $(VENV)/.runtime
	@sh tools/what_to_try.sh $(PORT)
	@exec $(BIN)/weft run examples/server.py --http --port $(PORT)

test: lint peers-test
	$(BIN)/pytest $(AT_ONCE) $(SLOW_FIRST)
	$(BIN)/pytest $(ALONE)

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

bench: peers-bench
	@$(BIN)/python bench/run.py; missed=$$?; $(BIN)/python tools/readme_figures.py; exit $$missed

soak: $(VENV)/.dev
	$(BIN)/python tools/soak.py

mutate: $(VENV)/.dev
	$(BIN)/python tools/mutate.py --security --at-least 95
	$(BIN)/python tools/mutate.py --at-least 92

requirements: | $(BIN)/python
	@$(BIN)/python tools/requirements.py $(SHARED)

# What comes from elsewhere (other SDKs, Node packages, Debian packages) lives in .cache, never in git.
peers-test: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py node mcp1 mcp fastmcp servers nginx chromium \
		fetch sqlite pydantic-ai openai-agents langchain google-adk llama-index node-foreign

peers-conformance: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required node

peers-bench: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required wrk weft weft_fastapi mcp fastmcp engine

$(BIN)/python:
	@sh tools/make_venv.sh $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "Installing Weft into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

# uv takes a tenth of pip's time; pip is asked where uv cannot (another index, a proxy of the user's).
$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing Weft and its development tools into $(VENV) ..."
	@$(PIP) "uv>=0.9" "pip>=25.1"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable . --group dev 2>/dev/null \
		|| $(PIP) --editable . --group dev
	@touch $@ $(VENV)/.runtime

# Weft's own dependencies at their lower bounds, on the oldest Python; what the tests need besides is as new as it gets.
$(LOWEST)/.stamp: pyproject.toml | $(VENV)/.dev
	@echo "Installing the lowest versions into $(LOWEST) ..."
	@rm -rf $(LOWEST)
	@$(BIN)/uv venv --quiet --python "$$(sh tools/find_python.sh 3.11 | grep . || echo $(BIN)/python)" $(LOWEST)
	@$(BIN)/uv pip compile --quiet --python $(LOWEST)/bin/python --resolution lowest-direct --all-extras \
		--output-file $(LOWEST)/versions.txt pyproject.toml
	@$(BIN)/uv pip install --quiet --python $(LOWEST)/bin/python --constraints $(LOWEST)/versions.txt \
		--group test --editable '.[telemetry,reload]'
	@touch $@

clean:
	rm -rf .venv .venv-* .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
