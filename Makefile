# `make help` lists the targets. `make demo` and `make test` need only this machine: each installs what it uses
# (.venv here; the cluster's programs in the cache that `python -m devcluster status` names).
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
# Without it each process that a test starts, and each worker of pytest, compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
.DEFAULT_GOAL := help
.PHONY: help quick check types style repeated test modules compiled unit mutants demo bench release docs audit crds fmt lock clean

help: # list the targets, a dozen at most
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(VENV)/.ready: requirements/dev.lock pyproject.toml
	@echo "[setup] Python environment in $(VENV)"
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Penstock needs Python 3.11 or newer, {sys.executable} is {v.major}.{v.minor}; set PYTHON=...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync --quiet --require-hashes requirements/dev.lock
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip install --quiet --no-deps uv==$(UV_VERSION) -e .
	@touch $@

lock: # Write requirements/*.lock from pyproject.toml
	@for extra in artifact cli huggingface lightgbm mlflow onnx operator router sidecar sklearn tracing xgboost sdk compile dev; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-emit-find-links \
	    --no-header --no-annotate --no-emit-package penstock-serving --extra $$extra -o requirements/$$extra.lock pyproject.toml || exit 1; done
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate -o requirements/docs.lock site/requirements.in
	@printf '%s\n' 'moto[s3]>=5.2,<6' flask flask-cors | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate -o requirements/s3.lock -
	@echo 'hatchling>=1.27' | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-emit-find-links --no-header --no-annotate -o requirements/build.lock -

# Each part keeps one core busy: two at a time, the longest one first.
CHECKS := types style repeated
# Under another name: `make -n` runs each line that has this one in it.
SELF := $(MAKE)
AT_ONCE := $(SELF) --no-print-directory --output-sync --keep-going --jobs 2
check: $(VENV)/.ready ## Lint, types, import contracts, generated files, repeated code
	@$(AT_ONCE) $(CHECKS)

types:
	@echo "[check] mypy --strict";  $(BIN)/mypy --no-error-summary

style:
	@echo "[check] ruff";           $(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet .
	@echo "[check] import contracts"; $(BIN)/lint-imports --no-cache >build.log 2>&1 || { cat build.log; rm -f build.log; exit 1; }; rm -f build.log
	@echo "[check] CRDs in step";   $(BIN)/python -m penstock_operator.api.crds --check

repeated:
	@echo "[check] repeated code";  $(BIN)/pylint --disable=all --enable=duplicate-code --min-similarity-lines=12 --score=n \
	  cli/penstock_cli operator/penstock_operator router/penstock_router sdk/penstock sidecar/penstock_sidecar wire/penstock_wire devcluster

quick: $(VENV)/.ready ## The loop while you write, a minute: lint, types, tests without a process or a port
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --check --quiet . && $(BIN)/mypy --no-error-summary
	@$(BIN)/pytest -q -n 2 --dist loadfile --hypothesis-profile quick -m "not long" tests/unit

# A file's tests run in one worker, since many share what their module starts. Of three workers that run processes too
# one usually waits, so that two cores are busy.
BESIDE := -n 3 --dist loadfile
# Exists once these tests have passed on the compiled modules, as in images: then they do not run again.
COMPILED := .compiled.passed
COMPILED_TESTS := tests/unit/compiled $(foreach package,wire sidecar router,tests/unit/$(package) tests/process/$(package))
LOG := .beside.log
# One for each worker of pytest. They start beside the first tests; what they print comes once these are done.
CLUSTERS := penstock-test penstock-test-2
DIGITS := --file examples/digits/Dockerfile --tag localhost/penstock-examples/digits:dev \
  --build-arg BASE=localhost/penstock/python-model:dev
test: $(VENV)/.ready ## Everything: `check`, all tests without a cluster, the tests on a real Kubernetes cluster
	@$(AT_ONCE) $(CHECKS) modules
	@echo "[test] the tests without a cluster, while two clusters start (printed below)"; rm -f $(COMPILED); \
	( for name in $(CLUSTERS); do $(BIN)/python -m devcluster --name $$name down && \
	  $(BIN)/python -m devcluster --name $$name up && \
	  $(BIN)/python -m devcluster --name $$name images --load && \
	  $(BIN)/python -m devcluster --name $$name images --load $(DIGITS) || exit 1; done ) >$(LOG) 2>&1 & beside=$$!; \
	$(SELF) --no-print-directory compiled; first=$$?; \
	$(BIN)/pytest -q $(BESIDE) tests/unit tests/process $$(test -f $(COMPILED) && echo --without-compiled); second=$$?; \
	wait $$beside; cluster=$$?; cat $(LOG); rm -f $(LOG); exit $$((first | second | cluster))
	@$(BIN)/pytest -n 2 --dist loadgroup --no-loadscope-reorder --durations 25 --durations-min 10 --fight-seconds 300 tests/cluster

modules: # what `compiled` runs on; where it cannot be made, that target says so
	@$(BIN)/python compile_modules.py --cached >/dev/null 2>&1 || true

# Without a compiler the target says so and does not fail: images then contain Python, on which all other tests run.
compiled: $(VENV)/.ready # a part of `test`: the unit tests of wire, sidecar and router on the compiled modules
	@echo "[compiled] compiling wire, sidecar and router"; folder=$$($(BIN)/python compile_modules.py --cached); code=$$?; \
	case $$code in \
	0) PYTHONPATH=$$folder PENSTOCK_TEST_BUILD=compiled $(BIN)/pytest -q $(BESIDE) -m "not interpreted" \
	     $(COMPILED_TESTS) && touch $(COMPILED);; \
	3) echo "[compiled] NOT RUN: see above";; \
	*) exit $$code;; \
	esac

unit: $(VENV)/.ready ## The tests without a cluster or root
	@$(BIN)/pytest $(BESIDE) tests/unit tests/process

mutants: $(VENV)/.ready ## Check that the tests catch each kept mutant of the data plane
	@$(BIN)/python -m tests.mutants $(MUTANTS)

demo: $(VENV)/.ready ## The main job: a cluster, the operator, two models, traffic; leaves the cluster up
	@$(if $(findstring command line,$(origin KUBECONFIG)),,env -u KUBECONFIG) $(BIN)/python -m examples.digits.demo

bench: $(VENV)/.ready ## Measure the sidecar and its peers on this machine (15 min); figures in bench/results/
	@$(BIN)/python -m bench.run $(BENCH)

# VERSION must be what pyproject.toml and the chart say; REGISTRY=host/path [KEY=cosign.key] pushes and signs, too.
release: $(VENV)/.ready ## Build a release into dist/: packages, images, chart, bills of material (VERSION=0.1.0)
	@$(BIN)/python -m release "$(VERSION)" $(STEPS) $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(KEY),--key $(KEY)) $(RELEASE)

docs: $(VENV)/.ready ## Build the documentation's site in dist/site; dead links and anchors fail it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/uv run --quiet --isolated --no-project --with-requirements requirements/docs.lock \
	  mkdocs build --config-file site/mkdocs.yml && echo "[docs] dist/site/index.html"

audit: $(VENV)/.ready # known vulnerabilities in what the locks pin (where PyPI's data can be had), faults in the workflows
	@code=0; for lock in artifact huggingface lightgbm mlflow onnx operator router sidecar sdk sklearn xgboost cli tracing; do echo "[audit] requirements/$$lock.lock"; \
	  $(BIN)/uv tool run --quiet pip-audit==2.10.1 --strict --disable-pip --require-hashes -r requirements/$$lock.lock || code=1; done; exit $$code
	@$(BIN)/uv tool run --quiet zizmor==1.32.0 --offline .github

crds: $(VENV)/.ready ## Write crds/ and the chart's copy from the pydantic models
	@$(BIN)/python -m penstock_operator.api.crds

fmt: $(VENV)/.ready ## Format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix-only --quiet . ; $(BIN)/ruff format .

clean: ## Remove the clusters of this machine that this checkout made, and .venv; caches stay
	@test ! -x $(BIN)/python || for name in penstock $(CLUSTERS); do $(BIN)/python -m devcluster --name $$name down; done
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
