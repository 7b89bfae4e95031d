# Two commands matter: `make demo` and `make test`. Each sets up all it needs on a fresh machine.
# Downloads and builds are kept in KVLOOP_CACHE (by default ~/.cache/kvloop), keyed by version.

VENV   := .venv
BIN    := $(VENV)/bin
PYTHON := $(BIN)/python
ENGINE ?= sim
DEMO_sim  := e2e.demo
DEMO_vllm := e2e.engine.demo
TESTS  ?=
export PYTHONUNBUFFERED := 1
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c

.DEFAULT_GOAL := help
.PHONY: help venv cluster prometheus engine demo demo-down test test-pure test-engine lint generate verify bench images clean

help:  ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.ready  ## Make the Python environment in .venv

$(VENV)/.ready: pyproject.toml
	@echo "==> Python environment"
	@python3 -m venv $(VENV) || { echo "python3 -m venv failed: apt-get install --yes python3-venv" >&2; exit 1; }
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check uv==0.13.9
	@$(BIN)/uv pip install --quiet --python $(PYTHON) --editable '.[dev]'
	@touch $@

demo: venv cluster  ## From nothing to a conversation whose KV returns to prefill; ENGINE=vllm for real engines
	@$(PYTHON) -m $(DEMO_$(ENGINE)) up

demo-down: venv  ## Remove all that the demo made
	@$(PYTHON) -m e2e.demo down

test: lint verify cluster prometheus engine  ## Every check and test; TESTS="-k name" or a path narrows it
	@echo "==> tests"
	@$(BIN)/pytest --numprocesses 2 --dist loadscope $(TESTS)

test-pure: venv  ## Only the tests that need no cluster
	@$(BIN)/pytest operator/tests $(TESTS)

test-engine: engine  ## Only the tests on real vLLM engines
	@$(BIN)/pytest e2e/engine $(TESTS)

engine: venv  ## Install vLLM for the CPU, once per version
	@$(PYTHON) -m e2e.engine.install

cluster: venv  ## Build Kubernetes from its Go modules, once per version
	@$(PYTHON) -m e2e.cluster build --profile node

prometheus: venv  ## Build Prometheus from its Go modules, once per version
	@$(PYTHON) -m e2e.monitoring build

lint: venv  ## Format, style, types, import directions
	@echo "==> lint"
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache 2>&1 | tail -n 3

generate: venv  ## Write the CRD, the references, the plain install and the golden files from their sources
	@$(PYTHON) -m kvloop.api.generate
	@$(PYTHON) -m kvloop.cli.reference
	@$(PYTHON) -m e2e.traces
	@$(PYTHON) -m e2e.monitoring generate
	@$(PYTHON) -m e2e.charts
	@$(BIN)/pytest --quiet operator/tests/plan/test_goldens.py --update-goldens

verify: venv  ## Fail if anything generated is out of date
	@echo "==> verify"
	@$(PYTHON) -m kvloop.api.generate --check
	@$(PYTHON) -m kvloop.cli.reference --check
	@$(PYTHON) -m e2e.monitoring generate --check
	@$(PYTHON) -m e2e.charts --check

report: venv engine  ## Write operator/docs/report: reuse on and off, simulated at published lengths, and on real engines
	@$(PYTHON) -m e2e.report

images: venv  ## Build the container images without a Docker engine
	@$(PYTHON) -m e2e.images build

bench: venv  ## Measure guard, router and operator; prints tables
	@$(PYTHON) -m e2e.bench

clean:  ## Remove what was made inside the repository (not the cache)
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
