# What a person or a machine does with this project. Every target sets up what it needs by itself;
# stamps make it quick the next time, and a change of pyproject.toml sets up anew.

PORT ?= 8000
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test check lint conformance bench peers-test peers-conformance peers-bench clean
.DELETE_ON_ERROR:

help:
	@echo "make run           serve examples/server.py over HTTP (PORT=$(PORT))"
	@echo "make test          every check and every test, with the other SDKs' clients where they can be had"
	@echo "make check         lint, formatting, types, layers and the architecture tests"
	@echo "make conformance   the official conformance suite against conformance/*.py"
	@echo "make bench         Weft beside mcp, fastmcp and a bare server; writes bench/RESULTS.md and README's figures"
	@echo "make clean         remove .venv, .cache and what the tools left behind"

run: $(VENV)/.runtime
	@sh tools/what_to_try.sh $(PORT)
	@exec $(BIN)/weft run examples/server.py --http --port $(PORT)

# Most tests wait more than they work: four workers take a third of the time of one, also on two cores.
test: lint peers-test
	$(BIN)/pytest --numprocesses 4 --dist loadfile

check: lint
	$(BIN)/pytest tests/test_architecture.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/mypy
	$(BIN)/lint-imports

conformance: peers-conformance
	$(BIN)/python conformance/run.py

bench: peers-bench
	@$(BIN)/python bench/run.py; missed=$$?; $(BIN)/python tools/readme_figures.py; exit $$missed

# What comes from elsewhere (other SDKs, Node packages, Debian packages) lives in .cache, never in git.
peers-test: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py node mcp1 mcp fastmcp servers nginx chromium

peers-conformance: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required node

peers-bench: $(VENV)/.dev
	@$(BIN)/python tools/setup_peers.py --required wrk weft weft_fastapi mcp fastmcp engine

$(BIN)/python:
	@sh tools/make_venv.sh $(VENV)

$(VENV)/.runtime: pyproject.toml | $(BIN)/python
	@echo "Installing Weft into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "Installing Weft and its development tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@ $(VENV)/.runtime

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
