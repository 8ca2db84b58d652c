# What the README shows. Everything is installed into .venv; nothing outside the checkout is touched.
VENV := .venv
BIN := $(VENV)/bin
# The Node.js of .venv before the one of the machine, which may be too old for the CDK or absent.
export PATH := $(CURDIR)/$(BIN):$(PATH)
PYTHON ?= python3

.PHONY: help setup synth test lint test-serve snapshots serve-setup rehearse clean

help: ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

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

test: lint $(if $(FAST),,serve-setup) ## All tests but those that start engines; FAST=1 without Ray's classes too
	$(BIN)/python -m pytest -m "not $(if $(FAST),serve,cluster)"

test-serve: $(VENV)/.dev serve-setup ## The tests that start Ray and engines
	$(BIN)/python -m pytest tests/serve -m cluster

snapshots: $(VENV)/.dev ## Accept changed templates
	$(BIN)/python -m pytest tests/snapshots --snapshot-update

clean: ## Remove what was installed and synthesized
	rm -rf $(VENV) $(SERVE_VENV) cdk.out

# Ray, vLLM's CPU build and NIXL, in an environment of their own: they pin other versions than the CDK's.
SERVE_VENV := .venv-serve
SERVE_PYTHON ?= $(PYTHON)
FILE ?= serve_configs/qwen3.5-9b-pd.yaml

$(SERVE_VENV)/.ready: requirements-serve.txt
	@$(SERVE_PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "Python 3.11 to 3.13 is needed, this is " + sys.version.split()[0] + ": make serve-setup SERVE_PYTHON=python3.11")'
	$(SERVE_PYTHON) -m venv $(SERVE_VENV)
	$(SERVE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --requirement requirements-serve.txt
	@touch $@

serve-setup: $(SERVE_VENV)/.ready ## Install Ray Serve LLM, vLLM for CPU and NIXL into .venv-serve (3.3 GB)

rehearse: setup serve-setup ## Run the Serve config FILE here: prefill and decode, with a real KV transfer
	@$(BIN)/ray-llm rehearse $(FILE)
