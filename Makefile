# `make demo` and `make test` need Python 3.11 or newer with venv, and make; they set up the rest in .venv/.
# `make test` needs a Chromium on PATH, too.

# A release that is the same for everybody. On Linux the default wheel brings CUDA; for the CPU build:
#   make demo TORCH_PIP_ARGS="--index-url <PyTorch's CPU index>"
TORCH_VERSION ?= 2.13.0
TORCH_PIP_ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo-ready
READY := $(VENV)/.ready
ALL_READY := $(VENV)/.all-ready
# Frameworks whose needs differ from torch's, each in an environment of its own.
TENSORFLOW := $(VENV)/tensorflow
JAX := $(VENV)/jax
# A torch whose processes can live on when a peer dies.
TORCH_NEXT := $(VENV)/torch-next
TORCH_NEXT_VERSION ?= 2.14.1
PACKAGES := $(wildcard agent controller crds deploy dlr e2e healthcheck localcluster reconcilers release simulator benchmarks)
# What runs in training images, on the oldest Python there; what it imports is read too.
INJECTED := agent healthcheck/probes dlr/pod.py dlr/torchrun.py dlr/cli.py dlr/commands/dispatch.py \
	$(addprefix dlr/,as_dlrover checkpoint data integrations replicas shards tasks)

# The first interpreter that is new enough; PYTHON=… chooses another.
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Installing without bytecode takes half the time; whatever is imported then writes its own.
# torch and dlr write theirs once, which workers that start at once would all do.
WRITE_BYTECODE = { $(BIN)/python -c 'import torch.distributed.run, torch.distributed.checkpoint, torch._dynamo'; $(BIN)/python -m compileall -q $(PACKAGES); } >/dev/null 2>&1
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile
# compat: a plain path, where the usual import hook would cost every Python process 15 ms.
PIP_EDITABLE := $(PIP_INSTALL) --config-settings editable_mode=compat --editable
# pip works on one core, so two of them install torch and the rest; of what they install only typing-extensions is in both.
SIDE_BY_SIDE = { $(PIP_INSTALL) $(TORCH_PIP_ARGS) torch==$(TORCH_VERSION) numpy && { $(WRITE_BYTECODE) & }; } & torch=$$!; \
	$(PIP_EDITABLE) '.[demo]'; rest=$$?; wait $$torch && exit $$rest
unexport PYTHONDONTWRITEBYTECODE
# The venv's dlr, kubectl and torchrun are the ones that tests and demo find.
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test checks lint types imports pure named test-all docs release clean
.DELETE_ON_ERROR:

demo: $(DEMO_READY)
	python -m e2e.demo

# Scenarios wait more than they compute, so the checks and the pure tests run beside them; each prints when it has ended.
test: $(READY)
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target checks pure named

checks: lint imports types

lint: $(READY)
	ruff check .
	ruff format --check .

types: $(READY)
	mypy $(PACKAGES)
	mypy --python-version 3.10 $(INJECTED)

imports: $(READY)
	lint-imports

# All that decides something: values, and what is played over a false network and clock.
pure: $(READY)
	pytest --dist loadfile --no-loadscope-reorder -n 2 tests -m "not real" --durations=20

# The scenarios that a user would name, with real processes, clusters and a browser: from the files that have any,
# a file's by the same process. The conftests say which files begin.
named: $(READY)
	pytest --dist loadfile --no-loadscope-reorder -n 2 -m named --durations=10 \
		$(shell grep --recursive --files-with-matches --include='*.py' 'mark\.named' e2e tests | sort)

# All other real tests, by file and by folder.
test-all: $(ALL_READY)
	DLR_TENSORFLOW_PYTHON=$(abspath $(TENSORFLOW)/bin/python) DLR_JAX_PYTHON=$(abspath $(JAX)/bin/python) \
		DLR_TORCH_NEXT_PYTHON=$(abspath $(TORCH_NEXT)/bin/python) python -m tests.shards

# Wheel, sdist and chart in dist/; the images too, where their bases are there as OCI layouts (docs/install.md):
#   make release RELEASE_ARGS="--python-base FOLDER --busybox-base FOLDER"
release: $(READY)
	python -m release $(RELEASE_ARGS)

# The site, in site/; broken links fail it. `python -m mkdocs serve` shows it while you write.
docs: $(READY)
	$(PIP_EDITABLE) '.[docs]'
	NO_MKDOCS_2_WARNING=1 python -m mkdocs build --quiet

define make_venv
	@test -n "$(PYTHON)" || { echo "dlr needs Python 3.11 or newer, and found none on PATH; install one, or name it with PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dlr needs Python 3.11 or newer; $(PYTHON) is older or does not run; name another with PYTHON=/path/to/python3." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module with pip; install it (Debian and Ubuntu: apt install python3-venv)." >&2; exit 1; }
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
endef

$(DEMO_READY): pyproject.toml
	$(make_venv)
	$(PIP_INSTALL) typing-extensions
	@$(SIDE_BY_SIDE)
	@touch $@

$(READY): $(DEMO_READY) tests/without-needs.txt
	$(PIP_EDITABLE) '.[dev]'
	$(PIP_INSTALL) --no-deps --requirement tests/without-needs.txt
	@touch $@

$(ALL_READY): $(READY)
	$(PIP_INSTALL) nbformat nbclient ipykernel
	$(PYTHON) -m venv $(TENSORFLOW) && $(TENSORFLOW)/bin/python -m pip install --quiet --no-compile tensorflow-cpu
	$(PYTHON) -m venv $(JAX) && $(JAX)/bin/python -m pip install --quiet --no-compile jax
	$(PYTHON) -m venv $(TORCH_NEXT) && $(TORCH_NEXT)/bin/python -m pip install --quiet --no-compile torch==$(TORCH_NEXT_VERSION) numpy pytest
	@touch $@

clean:
	rm -rf $(VENV) build dist site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
