# Commands for this checkout. `make train` and `make test` install everything that they need.
PYTHON ?= python3
ARGS ?=
VENV := .venv
# The tests that took longest are listed at the end. As many processes as cores, at most eight; one more for the fast
# tests, some of which wait.
CORES := $(shell cores=$$(nproc); echo $$((cores < 8 ? cores : 8)))
PYTEST := $(VENV)/bin/python -m pytest --durations=15 --durations-min=1
PY := $(VENV)/bin/python
# pip shows its progress on a terminal, and only warnings and errors elsewhere. Python compiles what is imported.
PIP := $(PY) -m pip install --no-compile --disable-pip-version-check $(shell [ -t 2 ] || echo -qq)
NATIVE := $(wildcard native/*.cpp native/*/*.cpp native/*/*.h native/*/*.cu fuzz/*.cpp wheels/*.h tests/helpers/*/*.h tests/helpers/core/*.cpp \
	benchmarks/*.cpp)

# The tests are compiled once, not by each process of each run.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup system build wheel train test test-all lint format docs bench soak fuzz asan clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup: $(VENV)/.stamp  ## system packages, then .venv with everything in it; does nothing the second time

$(VENV)/.stamp: requirements.txt pyproject.toml setup.py
	@$(MAKE) --no-print-directory system
	@echo "setup 1/3: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@echo "setup 2/3: installing PyTorch, Lightning and the rest of requirements.txt into $(VENV): 2 to 10 minutes," \
	  "about 6 GB on disk (most of it PyTorch with CUDA)"
	@$(PIP) "setuptools>=77" wheel -r requirements.txt
	@echo "setup 3/3: installing the tools of the tests, and compiling tarpeg's operators (1 to 2 minutes)"
	@$(PIP) --no-build-isolation -e ".[dev]"
	@touch $@

system:  ## a C++ compiler and libjpeg-turbo's headers, installed where that is possible
	@PYTHON="$(PYTHON)" tools/install_system.sh

build: setup  ## compile the native library again (TARPEG_DEBUG=1, TARPEG_SANITIZE=address,undefined)
	$(PY) -c "import logging; logging.basicConfig(level='INFO'); from tarpeg.ops import compiler; compiler.build(force=True)"

wheel: setup  ## a manylinux wheel with libjpeg-turbo, in dist/ (ARGS=aarch64: cross-compiled)
	$(PY) wheels/make.py $(ARGS)

train: setup  ## train on synthetic shards (ARGS="experiment=article trainer.max_epochs=2")
	$(PY) train.py $(ARGS)

test: setup  ## the fast tests (ARGS="-k crop")
	$(PYTEST) -n $(shell expr $(CORES) + 1) -m "not slow" --dist worksteal $(ARGS)

test-all: setup  ## the slow tests, those that `make test` leaves out
	$(PYTEST) -n $(CORES) -m slow --dist loadgroup $(ARGS)

lint: setup  ## formatting, ruff, mypy, clang-format
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/clang-format --dry-run -Werror $(NATIVE)

format: setup  ## reformat the sources
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/clang-format -i $(NATIVE)

docs: setup  ## the site of the pages and of all public names, in build/site
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict $(ARGS)

bench: setup  ## measure (ARGS="suite=crop")
	$(PY) tools/bench.py $(ARGS)

soak: setup  ## train under random faults for SOAK_SECONDS=3600 (SOAK_SEED and SOAK_FIRST repeat a failure)
	$(PY) tests/soak.py

fuzz: setup  ## fuzz the decoders for FUZZ_SECONDS=60 (FUZZ_LIBJPEG=source: libjpeg-turbo with the sanitisers too)
	@fuzz/run.sh $(PY)

asan: setup  ## the operators' tests under ASan and UBSan (ARGS="-k tile")
	@fuzz/asan.sh $(PY) $(ARGS)

clean:  ## remove what was built; .venv, data and outputs stay
	rm -rf build dist datamodules/*.egg-info datamodules/tarpeg/_lib .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
