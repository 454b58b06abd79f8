# Needs Python 3.11 or later with pip, and make. Every target builds .venv on first use and installs only what it needs,
# at the versions of constraints.txt. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
BIN := $(VENV)/bin
# Modules are compiled when they are first imported: most never are.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable
WORKERS ?= 2
# A file's tests share models and compiled programs, so one worker runs them all.
BY_FILE = --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder
TOOLS := build/tools/bin

# Processes import what the first has compiled, also where the environment keeps Python from writing it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help quickstart notebooks docs test test-slow test-part test-pythons attack test-wheel test-lowest test-newest parity parity-newest check format clean
.DELETE_ON_ERROR:

help:
	@echo 'make quickstart   score, remove, share and shrink the heads of a small decoder (examples/quickstart.py)'
	@echo 'make notebooks    run the notebooks and store them with their outputs'
	@echo 'make docs         the documentation site, in build/docs'
	@echo 'make test         the tests, but for whole programs, studies and further cases'
	@echo 'make test-slow    the tests that run whole programs: notebooks, the quickstart, commands, kills, full disks'
	@echo 'make test-pythons the quickstart and a part of the tests on every other Python found; make test-part that part here'
	@echo 'make attack       the tests that kill, fill disks and mutate requests, seeded, for long, and further cases'
	@echo 'make test-wheel   the built wheel: what it holds, and its use from an empty environment'
	@echo 'make test-lowest  the tests on the lowest versions that pyproject.toml admits; make test-newest on the newest'
	@echo 'make parity       the tests against PyTorch, transformers, TensorLy, Tunix, MaxText and ONNX Runtime'
	@echo 'make parity-newest those of the remote code on the newest transformers, which parity and test-newest run, too'
	@echo 'make check        lint, format and types'
	@echo 'make format       let ruff fix and format the code'
	@echo 'make clean        remove .venv and caches (runs/ stays)'

quickstart: $(VENV)/.core
	$(BIN)/python examples/quickstart.py

notebooks: $(VENV)/.test
	$(BIN)/python notebooks/store.py

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d build/doctrees docs build/docs
	@echo 'build/docs/index.html'

test: $(VENV)/.test
	$(BIN)/python -m pytest -m 'not parity and not whole and not attack' $(BY_FILE) tests

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m 'whole and not parity and not attack' $(BY_FILE) tests/slow tests/notebooks tests

# What may differ between versions of Python, JAX and Flax: imports, attention, other people's models, our own, resuming.
PART := tests/test_api.py tests/test_flax.py tests/nn/test_module.py tests/sites/test_sites.py \
	tests/models/test_model.py tests/models/test_generation.py
test-part: $(VENV)/.part
	$(BIN)/python -m pytest -m 'not parity and not whole and not attack' $(BY_FILE) $(PART)
	$(BIN)/python -m pytest -m 'not attack' $(BY_FILE) tests/training/test_loop.py tests/hub/test_onnx.py \
		-k 'bit_for_bit and 3-tmp_path or survive'

# The quickstart shares compiled programs, too: without most of XLA's optimizations, as tests do.
test-pythons: export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/build/compiled
test-pythons: export JAX_DISABLE_MOST_OPTIMIZATIONS ?= 1
test-pythons: $(BIN)/python build/tools/.installed
	@mkdir -p build
	@$(BIN)/python tests/slow/pythons.py > build/pythons
	@while read -r version python; do echo "=== Python $$version"; \
		$(MAKE) VENV=build/python$$version PYTHON=$$python INSTALL="$(TOOLS)/uv pip install --quiet \
			--python build/python$$version/bin/python --constraint constraints.txt --editable" \
			quickstart test-part < /dev/null || exit 1; done < build/pythons

attack: $(VENV)/.test
	$(BIN)/python -m pytest -m attack tests

test-wheel: build/tools/.installed
	$(BIN)/python tests/slow/wheel.py

# Environments of their own in build/, by a resolver that can ask for the lowest versions. A part of the tests:
# make test-lowest TESTS=tests/core
TESTS ?= tests
test-lowest: RESOLUTION := lowest-direct
test-newest: RESOLUTION := highest
test-lowest test-newest: test-%: build/tools/.installed
	$(TOOLS)/uv venv --quiet --allow-existing --python $(BIN)/python build/$*
	$(TOOLS)/uv pip install --quiet --python build/$* --resolution $(RESOLUTION) --upgrade --editable '.[test,data,sentencepiece,translation]'
	build/$*/bin/python -m pytest -m 'not parity and not whole and not attack' $(BY_FILE) $(TESTS)

build/tools/.installed: | $(BIN)/python
	$(BIN)/python -m venv --without-pip build/tools
	$(BIN)/python -m pip --python build/tools/bin/python install --quiet 'uv>=0.9'
	@touch $@

parity: $(VENV)/.parity $(VENV)/.maxtext parity-newest
	$(BIN)/python -m pytest -m 'parity and not attack' $(BY_FILE) tests

# Exports carry code that runs with the `transformers` of their users: the newest stands before the pinned one.
test-newest: parity-newest
parity-newest: $(VENV)/.parity build/tools/.installed
	$(TOOLS)/uv pip install --quiet --python $(BIN)/python --target build/transformers --no-deps --upgrade transformers
	PYTHONPATH=build/transformers $(BIN)/python -m pytest -m 'parity and not attack' $(BY_FILE) tests/hub/test_remote*.py

check: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist docs/reference *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One stamp per set of extras.

$(VENV)/.core: EXTRAS :=
$(VENV)/.part: EXTRAS := [test,onnx]
$(VENV)/.test: EXTRAS := [test,data,sentencepiece,translation]
$(VENV)/.parity: EXTRAS := [test,parity,onnx,sentencepiece]
$(VENV)/.docs: EXTRAS := [docs]
$(VENV)/.dev: EXTRAS := [dev]

$(VENV)/.core $(VENV)/.part $(VENV)/.test $(VENV)/.parity $(VENV)/.docs $(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing headjax$(EXTRAS) into $(VENV)"
	@$(INSTALL) '.$(EXTRAS)'
	@touch $@

# Tunix asks for an older safetensors than headjax is tested with; its models need these packages alone.
TUNIX := google-tunix==0.1.7 qwix==0.1.8 google-metrax==0.2.4 jaxtyping==0.3.11 wadler-lindig==0.1.8 perfetto==0.59.1 pandas==3.1.1
$(VENV)/.tunix: $(VENV)/.parity
	@$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt $(TUNIX)
	@touch $@

# MaxText needs Python 3.12, and names every package of its environment: these are what its models and checkpoints import.
MAXTEXT := maxtext==0.2.5 omegaconf==2.3.0 antlr4-python3-runtime==4.9.3 aqtp==0.9.0 drjax==0.2.1 tokamax==0.0.17 \
	xprof==2.24.2 pathwaysutils==0.1.13 cloud-accelerator-diagnostics==0.1.1 cloud-tpu-diagnostics==0.1.5 \
	ml-goodput-measurement==0.2.3 tiktoken==0.14.0 einshape==1.0 immutabledict==4.3.1 fire==0.7.1 termcolor==3.3.0 six==1.17.0
$(VENV)/.maxtext: $(VENV)/.tunix
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 12))'; then \
		$(BIN)/python -m pip install --quiet --no-deps $(MAXTEXT) && $(BIN)/python -m pip install --quiet fastapi psutil requests uvicorn; fi
	@touch $@

# Where Python comes without ensurepip (Debian's python3 without python3-venv), its own pip fills the environment.
$(BIN)/python:
	@test -n '$(PYTHON)' || { echo 'headjax needs Python 3.11 or later; name it with: make PYTHON=...' >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $@ install --quiet pip; }
