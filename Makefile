# Herdsman's tasks. `make help` lists them; each sets up what it needs and repeats nothing that is done.
SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.docs-installed
# kind for its example; pretended nodes for the scale tests and what makes groups of pods on them; an S3 server for the state backends; Helm for the chart; LangChain as a client of the gateway; a real node only where root on Linux can run it (elsewhere its tests are skipped).
TEST_TOOLS := helm kind kwok langchain-openai lws-controller versitygw $(shell [ "$$(uname -s)-$$(id -u)" = Linux-0 ] && echo kubelet kube-proxy)
# Checkers of workflows; each is built in seconds.
LINT_TOOLS := actionlint jv gitlab-ci-schema
# The folders of tests/ whose tests need more than the virtual environment. Each has a target, listed below `test`.
LAYERS := conformance contract apiserver engine loop hosts node scale examples
# What `test-fast` leaves out of tests/unit: files that start processes or servers, wait for clocks, or try many generated inputs.
# The marker `slow` is for such files in other folders.
SLOW_UNITS := -m "not slow" --ignore-glob='*/test_hostile_*.py' --ignore-glob='*_properties.py' $(addprefix --ignore=tests/unit/,agent converting policies proxy tools)
# JUNIT=FILE makes the test targets write their results to a JUnit file, with the output of the failed tests.
JUNIT_OPTIONS = $(if $(JUNIT),--junit-xml='$(JUNIT)' -o junit_logging=all -o junit_log_passing_tests=false)

.PHONY: help setup tools image demo demo-down kind kind-down test test-tools test-soak test-nightly test-stress test-unit test-fast coverage $(LAYERS:%=test-%) check lint docs bench bench-check crds install-files monitoring reference picture pictures clean

# `make -j test test-soak` runs one after the other, too: tests have deadlines.
.NOTPARALLEL:

help: ## List the tasks
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  \033[1m%-16s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V). Name another by PYTHON=…"; exit 1; }
	@echo "Installing the Python packages into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

setup: $(STAMP) tools ## Make .venv and build the tools (cached outside the checkout)

tools: $(STAMP)
	@$(BIN)/herdsman tools install

image: $(STAMP) ## Build the operator's image without Docker; ARGS="-o FILE --architecture arm64"
	@$(BIN)/herdsman image build $(ARGS)

demo: setup ## Start a cluster, the loop and an agent; ask the example model; change, damage and repair it; leave all running
	@$(BIN)/python -m examples.demo up --tour

demo-down: $(STAMP) ## Stop what `make demo` started
	@$(BIN)/python -m examples.demo down

test-tools: setup
	@$(BIN)/herdsman tools install $(TEST_TOOLS) $(LINT_TOOLS)

test: test-tools ## Run the tests of all layers but the long ones; ARGS=… goes to pytest, ARGS=--ci fails on skips that are not listed, JUNIT=FILE writes the results
	@$(BIN)/python -m tests.support.suite_run --short $(JUNIT_OPTIONS) $(ARGS)

test-soak: test-tools ## Run the long tests, which `make test` leaves out
	@$(BIN)/python -m tests.support.suite_run --soak $(JUNIT_OPTIONS) $(ARGS)

test-nightly: test-tools ## Run the tests of many minutes that neither of the two runs
	@$(BIN)/python -m tests.support.suite_run --nightly $(JUNIT_OPTIONS) $(ARGS)

test-stress: test-tools ## Run the tests of `make test` beside other processes that load the machine; repeat no failed test
	@$(BIN)/python -m tests.support.suite_run --short --stress $(JUNIT_OPTIONS) $(ARGS)

test-fast: $(STAMP) ## Run the pure unit tests on all cores, in about a minute on two
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile $(SLOW_UNITS) $(JUNIT_OPTIONS) tests/unit $(ARGS)

test-unit: $(STAMP) ## Run the tests that need no tools
	@$(BIN)/python -m pytest -q $(JUNIT_OPTIONS) tests/unit $(ARGS)

coverage: $(STAMP) ## Measure which lines the unit tests run; HTML in .coverage-html, ARGS=tests/… adds layers
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 8 --dist loadfile --cov --cov-report=term --cov-report=html tests/unit $(ARGS)

test-conformance: ## Compare with the recorded behaviour of LLMKube, KServe and llmaz
test-contract: ## Run the same tests on each fake and on the part that it replaces
test-apiserver: ## Test clients, caches and commands on a real API server
test-engine: ## Test the provider, the stacks and their state with the real Pulumi CLI
test-loop: ## Test the loop as a process, on a real API server with the real engine
test-hosts: ## Test agents, SSH and downloads with real processes
test-node: ## Test pods on a real kubelet and containerd (root on Linux)
test-scale: ## Test hundreds of services on simulated nodes
test-examples: ## Run every example
$(LAYERS:%=test-%): test-%: setup
	@$(BIN)/herdsman tools install $(TEST_TOOLS)
	@$(BIN)/python -m tests.support.suite_run $(JUNIT_OPTIONS) tests/$* $(ARGS)

check: lint test-unit ## Lint, types, import rules, shell scripts, workflows, unit tests

lint: $(STAMP) ## Lint, types, import rules, shell scripts, workflows, the site of the documents
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tools.shell_scripts
	@$(BIN)/herdsman tools install $(LINT_TOOLS) >/dev/null
	@$(BIN)/python -m tools.workflows
	@$(MAKE) --no-print-directory docs

$(DOCS_STAMP): requirements-docs.lock $(STAMP)
	@echo "Installing the packages for the site into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements-docs.lock
	@touch $@

docs: $(DOCS_STAMP) ## Build the site of the documents into site/; a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

bench: setup ## Measure (benchmarks/README.md says what; ARGS="--peer …" compares with another controller)
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: setup ## Compare with the recorded ratios of benchmarks/baseline.json; fail if a measure lost 15 % (ARGS="--record" records)
	@$(BIN)/python -m benchmarks check $(ARGS)

crds: install-files reference ## Generate the CRDs in docs/crds again, and what is made of them
	@$(BIN)/python -m tools.pod_fields program/dialects/pods/pod_fields.json
	@$(BIN)/python -m program.dialects.crds.definitions docs/crds

install-files: $(STAMP) ## Generate docs/install and the Helm chart again
	@$(BIN)/python -m automation.install.generate .

monitoring: $(STAMP) ## Generate the dashboards and alert rules in docs/monitoring again
	@$(BIN)/herdsman monitoring -o docs/monitoring

reference: $(STAMP) ## Generate the pages in docs/reference again
	@$(BIN)/python -m automation.reference.generate .

picture: setup ## Start the demo, and draw docs/pictures/terminal.svg again from commands against it
	@$(BIN)/python -m examples.demo up
	@$(BIN)/python -m examples.picture

pictures: picture ## Draw the picture of `make picture` again, and take those of the web console (needs Chromium)
	@$(BIN)/python -m tests.support.console_pictures

kind: setup ## Start a kind cluster with the operator and an example service (needs Docker); ARGS=… goes to `herdsman install`
	@$(BIN)/herdsman tools install kind
	@examples/16-kind/up.sh $(ARGS)

kind-down: $(STAMP) ## Delete the cluster of `make kind`
	@$(BIN)/herdsman cluster down --dir "$${KIND_DIR:-$${XDG_STATE_HOME:-$$HOME/.local/state}/herdsman/kind}"

clean: ## Remove the virtual environment and caches of the checkout (built tools stay)
	@rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build *.egg-info
