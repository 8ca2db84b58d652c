# What the README shows. Everything is installed into .venv; nothing outside the checkout is touched.
VENV := .venv
BIN := $(VENV)/bin
# The Node.js of .venv before the one of the machine, which may be too old for the CDK or absent.
export PATH := $(CURDIR)/$(BIN):$(PATH)
PYTHON ?= python3

.PHONY: help setup synth test lint snapshots clean

help: ## Show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.app: requirements.txt pyproject.toml package.json tools/install_node.py | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.txt
	$(BIN)/python tools/install_node.py
	@touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.app
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements-dev.txt
	@touch $@

setup: $(VENV)/.app ## Install what `make synth` and `cdk` need

synth: setup ## Synthesize the app into cdk.out and say what it would deploy
	@$(BIN)/ray-llm synth

lint: $(VENV)/.dev ## Formatting, linting, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --warnings

test: lint ## Everything
	$(BIN)/python -m pytest

snapshots: $(VENV)/.dev ## Accept changed templates
	$(BIN)/python -m pytest tests/snapshots --snapshot-update

clean: ## Remove what was installed and synthesized
	rm -rf $(VENV) cdk.out
