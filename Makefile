# Everything is installed into .venv; build/ keeps object files, so a rebuild is incremental.

PYTHON ?= python3
VENV ?= .venv
BUILD ?= build/release
SETTINGS ?= cmake.build-type=Release

BIN := $(VENV)/bin
NATIVE := $(wildcard native/*.h native/*.cpp)
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt
# Editable: Python sources are used where they lie, the native module is built and installed.
INSTALL := $(PIP) --no-build-isolation --config-settings=build-dir=$(BUILD) \
	$(addprefix --config-settings=,$(SETTINGS)) --editable
BUILD_TOOLS := scikit-build-core nanobind \
	$(if $(shell command -v cmake),,cmake) $(if $(shell command -v ninja),,ninja)

PEERS_VENV := .venv-peers
SANITIZE_VENV := .venv-sanitize
SANITIZE_CXX ?= g++
# libstdc++ as well: the address sanitizer looks for __cxa_throw when the process starts.
SANITIZE_PRELOAD = $(shell $(SANITIZE_CXX) -print-file-name=libasan.so):$(shell \
	$(SANITIZE_CXX) -print-file-name=libubsan.so):$(shell \
	$(SANITIZE_CXX) -print-file-name=libstdc++.so)

.DELETE_ON_ERROR:
.PHONY: help test lint test-slow test-report test-sanitize test-netns demo bench-engine bench-solvers bench-peers \
	bench-training bench-variance bench-distributed format clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

test: lint  ## set up, lint, type-check, and run the tests but for the slow ones
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "not slow and not browser"

lint: $(VENV)/.dev  ## everything `make test` checks without running code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test-slow: $(VENV)/.dev  ## run the slow tests
	$(BIN)/pytest -m slow

test-report: $(VENV)/.dev  ## open the report in headless Chromium (which must be installed)
	$(PIP) playwright
	$(BIN)/pytest -m browser -rs

test-sanitize:  ## run the native engine's tests under address and undefined-behaviour sanitizers
	CXX=$(SANITIZE_CXX) $(MAKE) $(SANITIZE_VENV)/.dev VENV=$(SANITIZE_VENV) BUILD=build/sanitize \
		SETTINGS="cmake.build-type=RelWithDebInfo cmake.define.MEGAGP_SANITIZE=ON"
	LD_PRELOAD="$(SANITIZE_PRELOAD)" ASAN_OPTIONS=detect_leaks=0 \
		$(SANITIZE_VENV)/bin/python -m pytest -m "not slow" tests/engines/test_native*.py tests/engines/test_keeping.py \
		tests/engines/test_sparse.py \
		tests/engines/far_field \
		tests/posterior/test_subset_variance.py tests/posterior/test_factors.py tests/preconditioners/test_vecchia.py

test-netns: $(VENV)/.package  ## cut the link between two hosts (network namespaces; needs root)
	$(BIN)/python tests/distributed/two_hosts.py

demo: $(VENV)/.plot  ## train an exact GP on 50,000 points of a robot arm and show what it found
	$(BIN)/megagp demo

bench-engine: $(VENV)/.bench  ## measure the engines' speed
	$(BIN)/python benchmarks/engine.py

bench-solvers: $(VENV)/.package  ## iterations by rank and precision (MEGAGP_DATA: the data sets)
	$(BIN)/python benchmarks/solvers.py

bench-peers: $(VENV)/.package $(PEERS_VENV)/.ready  ## against GPyTorch, and growth with n
	$(BIN)/python benchmarks/peers.py --peer $(PEERS_VENV)/bin/python --growth \
		--sets pol bike kin40k protein houseelectric
	$(BIN)/python benchmarks/approximate.py --peer $(PEERS_VENV)/bin/python

bench-training: $(VENV)/.package  ## training tolerances and recipes compared
	$(BIN)/python benchmarks/training.py

bench-distributed: $(VENV)/.package  ## two ranks against one, and a forecast for many
	$(BIN)/python benchmarks/distributed.py

bench-variance: $(VENV)/.package  ## how far predicted deviations are from exact ones
	$(BIN)/python benchmarks/variance.py

format: $(VENV)/.dev  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(NATIVE)

clean:  ## remove environments, builds and caches
	rm -rf .venv .venv-sanitize .venv-peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find src tests benchmarks examples -name __pycache__ -prune -exec rm -rf {} +

# Stamps. The environment is brought up in the order: torch and build tools, the package, extras.

$(VENV)/.requirements: constraints.txt
	@echo "Setting up $(VENV); the first time this downloads torch and takes a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) $(BUILD_TOOLS)
	@touch $@

$(VENV)/.package: $(VENV)/.requirements pyproject.toml CMakeLists.txt $(NATIVE)
	$(INSTALL) .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.requirements | $(VENV)/.package
	$(INSTALL) '.[dev]'
	@touch $@

$(VENV)/.plot: pyproject.toml constraints.txt $(VENV)/.requirements | $(VENV)/.package
	$(INSTALL) '.[plot]'
	@touch $@

$(PEERS_VENV)/.ready: constraints.txt
	$(PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install -qq --constraint constraints.txt torch
	$(PEERS_VENV)/bin/python -m pip install -qq --constraint constraints.txt gpytorch
	@touch $@

$(VENV)/.bench: pyproject.toml constraints.txt $(VENV)/.requirements | $(VENV)/.package
	$(INSTALL) '.[bench]' || echo "The bench extra could not be installed: peers will be left out."
	@touch $@
