# Two commands: `make run` (the main job) and `make test`. Both set up what they need, once.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
READY := $(VENV)/ready
READY_DEV := $(VENV)/ready-dev
PIP := "$(BIN)/python" -m pip install --disable-pip-version-check --no-compile
CHECK := "$(BIN)/python" -m pip check --disable-pip-version-check
# Python compiles what is unpacked on all cores; pip would do it on one. A third is left until it is imported: the tests
# of other projects, and packages of which a run imports a few files.
COMPILE := "$(BIN)/python" -m compileall -qq -j 0 -x '/(tests?|moto|ray|transformers/models)/' $(VENV)/lib
FAILED := { tail -n 20 $(VENV)/install.log; echo "after a version was changed on purpose, \`make lock\` lists its files"; exit 1; }
# Half as many again as cores: tests also wait, for servers and for processes that start.
TEST_PROCESSES = $(shell "$(PYTHON)" -c 'import os; print((3 * (os.cpu_count() or 1) + 1) // 2)')
export PATH := $(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1

.PHONY: run test acceptance lint format setup setup-dev lock bench docs help

run: setup  ## corpus -> tokenizer -> tokens -> model -> evaluation -> published folder
	@parrotflow run

test: setup-dev  ## the tests, in parallel
	@python tests/run_suite.py -n $(TEST_PROCESSES) -m "not acceptance"

acceptance: setup-dev  ## the tests that take long: kills, servers, several machines, the tutorial, Slurm
	@python tests/run_suite.py -n $(TEST_PROCESSES) -m acceptance

lint: setup-dev  ## style and strict types
	@ruff check .
	@ruff format --check .
	@mypy $(addprefix -p ,$(subst /,.,$(wildcard flows stages benchmarks docs/_build)))

format: setup-dev
	@ruff check --fix .
	@ruff format .

setup: $(READY)  ## the virtual environment of requirements.lock

setup-dev: $(READY_DEV)  ## the same, and what tests and benchmarks need

$(VENV)/bin/python:
	@"$(PYTHON)" -c 'import sys; sys.exit("parrotflow needs Python 3.11 or newer; this is " + sys.version.split()[0] + " (set PYTHON=...)") if sys.version_info < (3, 11) else None'
	@"$(PYTHON)" -m venv $(VENV)

$(READY): requirements.lock requirements-gpu.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing requirements.lock into $(VENV) (once, a minute or more; the log is $(VENV)/install.log) ..."
	@"$(BIN)/python" deploy/install.py requirements.lock >$(VENV)/install.log 2>&1 || $(FAILED)
	@# What else is in the environment of a developer may fit only after the second lock.
	@{ $(PIP) -q --no-deps --no-build-isolation -e . && { test -e $(READY_DEV) || $(CHECK); }; } \
		>>$(VENV)/install.log 2>&1 || $(FAILED)
	@echo "compiling what was installed (once, a minute) ..."
	@$(COMPILE) || true
	@touch $(READY)

$(READY_DEV): requirements-dev.lock $(READY)
	@echo "installing requirements-dev.lock (once, a minute) ..."
	@{ "$(BIN)/python" deploy/install.py requirements-dev.lock && $(CHECK); } >>$(VENV)/install.log 2>&1 || $(FAILED)
	@$(COMPILE) || true
	@touch $(READY_DEV)

lock: | $(VENV)/bin/python  ## the hashes in the locks, after a version was changed in one
	@"$(BIN)/python" deploy/lock.py

bench: setup-dev  ## every measurement, and docs/reference/measured.md from them
	@python -m benchmarks

docs: setup-dev  ## the documentation site, in site/
	@test -f mkdocs.yml || { echo "this project has no mkdocs.yml; the documentation is in parrotflow's own repository"; exit 1; }
	@NO_MKDOCS_2_WARNING=1 python -m mkdocs --quiet build
	@echo "open site/index.html in a browser"

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14
