# Two commands do everything on a machine with Python 3.11 and make, environment included:
#   make gate   the CI gate over every smoke config        make test   the test suite
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GATE_ARGS ?=
TEST_ARGS ?=

.DEFAULT_GOAL := help

.PHONY: help
help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,lint]'
	@touch $@

.PHONY: install
install: $(STAMP)  ## Make the environment in .venv

.PHONY: gate
gate: $(STAMP)  ## Kill the trainer wherever it can be hurt, resume it, judge it (under 4 minutes)
	$(BIN)/durability gate $(GATE_ARGS)

.PHONY: test
test: $(STAMP)  ## Run the test suite (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -n 3 --dist worksteal $(TEST_ARGS)

.PHONY: lint
lint: $(STAMP)  ## Check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

.PHONY: format
format: $(STAMP)  ## Rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: bench
bench: $(STAMP)  ## Measure the harness's and the writer's own speed
	$(BIN)/durability bench

.PHONY: matrix
matrix: $(STAMP)  ## Mutants x layers: what must be caught, and where nothing may be
	$(BIN)/durability matrix

.PHONY: doctor
doctor: $(STAMP)  ## What can run here, and what each missing layer needs
	$(BIN)/durability doctor

.PHONY: clean
clean:  ## Remove the environment, caches and results
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find reports -mindepth 1 -maxdepth 1 ! -name README.md ! -name track-record.md ! -name findings -exec rm -rf {} +
