# Every command a user or developer of this tree needs; bare `make` lists them.
BUILD := build
VENV := $(BUILD)/venv
PYTHON := $(abspath $(VENV))/bin/python
export PATH := $(abspath $(VENV))/bin:$(PATH)
export PYTHONPATH := $(abspath $(BUILD))/python
# the kernels in *.cu and *.cuh keep their instruction tables and include order as written
OWN_CXX = $(shell git ls-files '*.cpp' '*.h' '*.c')
CMAKE_ARGS ?=

.PHONY: help build demo bench bench-op test archs lint format bump clean check ctest pytest stock wheel configure
.DEFAULT_GOAL := help

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

build: $(BUILD)/build.ninja ## environment, upstream, hooks, libraries, programs, Python package (in build/)
	cmake --build $(BUILD) --target ridgefill-python

demo: build ## the main job on a real model: fit a projector, serve a long prompt with and without it
	$(PYTHON) tools/demo.py $(ARGS)

bench: build ## time to first token, stock over filled, at 2048, 4096 and 8000 tokens (build/bench.json)
	$(PYTHON) tools/bench.py $(ARGS)

bench-op: build ## the op beside Q8_0 and bf16 mul_mat: make bench-op BACKEND=cpu|cuda|vulkan (build/bench-op.json)
	cmake --build $(BUILD) --target ridgefill-test-backend-ridgefill
	$(PYTHON) tools/bench_op.py --backend $(or $(BACKEND),cpu) $(ARGS)

test: build stock ## all tests: C++ by ctest, Python by pytest
	cmake --build $(BUILD)
	sh tools/setup_hip.sh
	sh tools/setup_vulkan.sh
	@$(MAKE) --no-print-directory ctest; a=$$?; $(MAKE) --no-print-directory pytest; b=$$?; exit $$((a | b))

archs: build ## the pass on every architecture: docs/architectures.md and build/archs.json
	cmake --build $(BUILD) --target ridgefill-test-archs
	cd $(BUILD) && bin/ridgefill-test-archs --level 2 --json archs.json --doc $(CURDIR)/docs/architectures.md

lint: $(VENV)/.lint ## ruff, mypy, clang-format and the touch budget
	ruff check .
	ruff format --check .
	mypy
	clang-format --dry-run --Werror $(OWN_CXX)
	$(PYTHON) tools/upstream.py check

format: $(VENV)/.lint ## rewrite our own sources in house style
	ruff check --fix-only --quiet .
	ruff format .
	clang-format -i $(OWN_CXX)

bump: $(VENV)/.ready ## try another upstream release: make bump VERSION=x.y.z
	@test -n "$(VERSION)" || { echo 'usage: make bump VERSION=x.y.z [ARGS=--write]' >&2; exit 2; }
	$(PYTHON) tools/upstream.py bump $(VERSION) $(ARGS)

clean: ## remove everything that was built here (the download cache stays)
	rm -rf $(BUILD) build-wheel build-stock build-vulkan build-bump-* dist

# --- internals ---

$(VENV)/.ready: pyproject.toml tools/setup.sh tools/requirements.py
	sh tools/setup.sh $(VENV) test
	@touch $@

$(VENV)/.lint: $(VENV)/.ready
	sh tools/setup.sh $(VENV) test lint
	@touch $@

$(BUILD)/build.ninja: $(VENV)/.ready
	cmake -G Ninja -S . -B $(BUILD) -DPython3_EXECUTABLE=$(PYTHON) $(CMAKE_ARGS)
	@touch $@

configure: $(BUILD)/build.ninja
ctest:
	ctest --test-dir $(BUILD) --output-on-failure --no-tests=ignore
pytest:
	$(PYTHON) -m pytest $(ARGS)
check:
	$(PYTHON) tools/upstream.py check

# the pinned upstream without hooks (portability patches only): what "off equals stock" is held against
stock: $(VENV)/.ready
	cmake -G Ninja -S . -B build-stock -DRIDGEFILL_STOCK=ON -DPython3_EXECUTABLE=$(PYTHON) $(CMAKE_ARGS)
	cmake --build build-stock --target llama ggml

wheel: $(VENV)/.ready
	$(PYTHON) -m pip wheel --quiet --no-deps --wheel-dir dist .
