# Everything runs from .venv, which `make install` creates. Needs python3 >= 3.10 and make.
PYTHON   ?= python3
VENV     ?= .venv
JOBS     ?= 2
# Extra arguments for pip, for example an index that serves CPU builds of torch.
PIP_ARGS ?=

BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt $(PIP_ARGS)
INPUTS := pyproject.toml constraints.txt
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=25 --durations-min=1
SHORT  := not slow and (not peers or peers_short)

.PHONY: help install install-test demo doctor inspect bench lint format test test-full clean

help:
	@echo "make demo       compile the forward kernel, run it, compare with float32 (no GPU needed)"
	@echo "make test       lint and the test suite (under 20 minutes on 2 cores)"
	@echo "make test-full  the whole sampled matrix and all third-party kernels"
	@echo "make lint | format | doctor | inspect ARGS=... | bench ARGS=... | clean"

install: $(VENV)/.installed
install-test: $(VENV)/.installed-test

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "fa4 needs Python 3.10 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	       "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' || { \
	  echo "'$(PYTHON)' has no venv module. Install it (Debian, Ubuntu: apt install python3-venv)" \
	       "or name a Python that has it: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(INPUTS) | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-test: $(INPUTS) | $(BIN)/python
	$(PIP) -e '.[test,peers,sass,plot]'
	@touch $(VENV)/.installed $@

demo: install
	$(BIN)/python -m fa4 demo

doctor: install
	$(BIN)/python -m fa4 doctor

inspect: install-test
	$(BIN)/python -m fa4 inspect $(ARGS)

bench: install-test
	$(BIN)/python -m bench $(ARGS)

lint: install-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(PYTEST) -m "$(SHORT)"

test-full: lint
	$(PYTEST)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache
