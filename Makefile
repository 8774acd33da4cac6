# Every target is safe to repeat and to interrupt: the set-up is recorded in a stamp file only once all of it is done.
#
#   make demo [BUDGET=5m]   set up, then tune ResNet-18 for this CPU for BUDGET and print the summary
#   make test [PYTEST_ARGS=]  set up, then run the tests
#   make test-all           the tests of make test and of make test-long together
#   make test-exhaustive    every form of every operator, hundreds of wrong and right kernels
#   make gpu-emulated [GPU_CANDIDATES=16 GPU_LOG=]  so many candidates of each sketch for a GPU, whose CUDA source runs on
#                           the CPU (hours for many); GPU_LOG=FILE keeps what each was, and goes on where it was cut
#   make test-long          those that take a minute and more each: whole runs, killed and resumed, as a job of a cluster
#   make soak [SOAK_SECS=1800]  fleet-tune retune on this machine: two networks, and a device that is slowed down again and again
#   make fuzz [FUZZ_EXAMPLES=1000 FUZZ_READERS=120000 PYTEST_ARGS=]  look for new failing cases of the property tests: make
#                           each an @example; FUZZ_READERS inputs for each reader of what others wrote or send, over a
#                           million in all
#   make test-arm64         set up, then tune an emulated aarch64 board beside this machine (downloads 150 MB once)
#   make zoo                networks of torchvision, transformers and every usual layer, and all of ONNX's own tests of single
#                           operators, through our import, as tables (hours; an interrupted one goes on where it stopped;
#                           installs what it needs into .venv/zoo); writes docs/generated/operators.md
#   make docs               the generated pages: reference of the command line, figures of the benchmarks
#   make lint               ruff, mypy --strict and the layer rules
#   make shipped STORE=FILE   the records that come with fleet-tune, of a store: the three best of each task (docs/store.md)
#   make bench              the short form of every benchmark into bench/results, and the pages of their figures
#   make clean              remove .venv, caches and the demo's results

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

BUDGET ?= 5m
OUT ?= demo-out
PYTEST_ARGS ?=
TEST_WORKERS ?= $(shell cores=$$(nproc); echo $$((cores < 3 ? cores + 1 : 4)))
FUZZ_EXAMPLES ?= 1000
FUZZ_READERS ?= 120000
SOAK_SECS ?= 1800
GPU_CANDIDATES ?= 16
GPU_LOG ?=
PYTHON ?=

# Hundreds of processes that the tests start load our modules: what one has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
ZOO := $(VENV)/zoo

.PHONY: help setup demo test test-long test-all test-exhaustive gpu-emulated soak fuzz test-arm64 zoo docs lint shipped bench clean

help:
	@sed -n 's/^#   //p' Makefile

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml .ci/setup.sh
	@PYTHON='$(PYTHON)' .ci/setup.sh $(VENV)

demo: setup
	$(BIN)/fleet-tune tune examples/networks.py:resnet18 --time-budget $(BUDGET) --out $(OUT)

# Files beside each other, one more than there are cores: many tests wait for processes to start and to end. Not more than
# four: they measure kernels with as many threads as there are cores.
# In the order of tests/conftest.py, the longest first: xdist's own puts those of the fewest tests last.
test: setup
	$(BIN)/python -m pytest -q -m 'not long and not soak and not exhaustive' -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-long: setup
	$(BIN)/python -m pytest -q -m long -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# Collected once, and the last of the one beside the first of the other.
test-all: setup
	$(BIN)/python -m pytest -q -m 'not soak and not exhaustive' -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-exhaustive: setup
	$(BIN)/python -m pytest -q -m exhaustive --timeout 1800 -n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

gpu-emulated: setup
	GPU_CANDIDATES=$(GPU_CANDIDATES) GPU_LOG=$(GPU_LOG) $(BIN)/python -m pytest -q -m '' tests/devices/cuda/test_emulated.py --timeout 0 \
		-n $(TEST_WORKERS) --dist worksteal $(PYTEST_ARGS)

soak: setup
	RETUNE_SOAK_SECS=$(SOAK_SECS) $(BIN)/python -m pytest -q -n 0 -m soak tests/fleet_tune/retuning $(PYTEST_ARGS)

# hypothesis marks its tests itself. A property takes as long as it takes: no limit on a test.
fuzz: setup
	FUZZ_EXAMPLES=$(FUZZ_EXAMPLES) $(BIN)/python -m pytest -q -m hypothesis --timeout 0 \
		-n logical --maxprocesses 4 --dist worksteal -k 'not fuzzed' $(PYTEST_ARGS)
	FUZZ_EXAMPLES=$(FUZZ_READERS) $(BIN)/python -m pytest -q -m hypothesis --timeout 0 \
		-n logical --maxprocesses 4 --dist worksteal -k fuzzed $(PYTEST_ARGS)

test-arm64: setup
	@PYTHON='$(CURDIR)/$(BIN)/python' tests/arm64/board.sh prepare
	$(BIN)/python -m pytest -q $(PYTEST_ARGS) tests/arm64

# Both tables, also where the first has faults.
zoo: setup $(ZOO)/.installed
	failed=0; \
	$(BIN)/python -m tests.zoo.networks --kept .zoo/networks.jsonl || failed=1; \
	$(BIN)/python -m tests.zoo.onnx_nodes --kept .zoo/onnx_nodes.jsonl --write docs/generated/operators.md || failed=1; \
	exit $$failed

$(ZOO)/.installed: tests/zoo/requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --upgrade --target $(ZOO) -r $<
	touch $@

docs: setup
	$(BIN)/python -m tests.docs.cli_reference
	$(BIN)/python -m bench docs

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

shipped: setup
	$(BIN)/fleet-tune records export fleet_tune/data/records.jsonl.gz --keep-best 3 --store '$(STORE)'

bench: setup
	$(BIN)/python -m bench all --short --save
	$(BIN)/python -m bench docs

clean:
	rm -rf $(VENV) .zoo *.egg-info build dist $(OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
