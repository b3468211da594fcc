# `make help` lists the targets. `make demo` and `make test` need nothing but this machine: each installs
# what it uses (.venv here; the cluster's programs in the cache that `python -m devcluster status` names).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
.DEFAULT_GOAL := help
.PHONY: help check test demo bench crds fmt lock clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@echo "[setup] Python environment in $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Penstock needs Python 3.11 or newer, {sys.executable} is {v.major}.{v.minor}; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements/dev.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps uv==$(UV_VERSION) -e .
	@touch $@

lock: ## Write requirements/*.lock anew from pyproject.toml
	@for extra in operator router sidecar sdk dev; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --no-emit-package penstock --extra $$extra -o requirements/$$extra.lock pyproject.toml || exit 1; done
