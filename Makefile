# Everything starts here: `make demo` on a machine with python3 (3.11 or newer, with venv), git and make.
PYTHON ?= python3
BIN := .venv/bin
# Python keeps what it compiled, whatever the caller's environment says: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
STAMP := .venv/.installed

.PHONY: help demo test thorough fast flaky check chaos lab bench docs wheel doctor notebooks clean

help:  ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

demo: $(STAMP)  ## compare schedulers on a small trace, and write reports/demo.html
	$(BIN)/labkit demo

# Many tests wait for something: three workers keep two cores busy.
WORKERS ?= 3
# Notebooks that set up machines, or solve for minutes.
LONG := $(wildcard notebooks/07_*.ipynb) $(wildcard notebooks/08_*.ipynb) $(wildcard notebooks/05_*.ipynb)
NOTEBOOKS := $(filter-out $(LONG), $(sort $(wildcard notebooks/*.ipynb)))
NBVAL := $(BIN)/pytest -c tests/nbval.ini --rootdir .
# Tests need no nbval: its import takes each worker a second.
PYTEST := $(BIN)/pytest -p no:nbval -n $(WORKERS) --dist loadfile --no-loadscope-reorder
test: $(STAMP)  ## run notebooks, examples in docstrings and tests, all but those of `make thorough`
	$(if $(NOTEBOOKS),$(NBVAL) $(NOTEBOOKS))
	$(BIN)/pytest -p no:nbval --doctest-modules labkit
	$(PYTEST) -m "not slow"

thorough: $(STAMP)  ## run what takes long: notebooks and jobs on machines, policies that learn, properties on more examples
	$(if $(NOTEBOOKS),$(NBVAL) $(LONG))
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=thorough

fast: $(STAMP)  ## run a few tests of each part, within a minute: the set before a commit
	$(PYTEST) -m fast

flaky: $(STAMP)  ## run the tests of `make test` three times, shuffled and under load, and list what failed
	$(BIN)/python -m tests.flaky --workers $(WORKERS)

check: $(STAMP)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

N ?= 10
CHAOS := .chaos.jsonl
chaos: $(STAMP)  ## kill, cut and stop what trains, N times each (N=10), fuzz the commands; writes the table of docs/elastic-faults.md
	rm -f $(CHAOS)
	LABKIT_CHAOS=$(N) LABKIT_CHAOS_RECORDS=$(CURDIR)/$(CHAOS) $(BIN)/pytest -n 2 tests/elastic/chaos tests/fuzz
	$(BIN)/python -m tests.elastic.chaos.table $(CHAOS) "make chaos N=$(N)"

lab: $(STAMP)  ## open JupyterLab
	$(BIN)/jupyter lab notebooks/00_start.ipynb

bench: $(STAMP)  ## measure, write benchmarks/results.json, print it as a table
	$(BIN)/python -m benchmarks

docs: $(STAMP)  ## build the documentation site into site/, with its links checked; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: $(STAMP)  ## build a wheel into dist/, and try it in an empty venv, in an empty folder
	.ci/wheel $(BIN)/python

doctor:  ## say what this machine lacks and how to get it; installs nothing
	@if [ -e $(STAMP) ]; then $(BIN)/python -m labkit.doctor; else $(PYTHON) labkit/doctor.py; fi

notebooks: $(STAMP)  ## run all notebooks and keep their outputs
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.store_widget_state=False notebooks/*.ipynb

clean:  ## remove what make made; runs/ stays
	rm -rf .venv reports site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# torch is the largest part. Without an NVIDIA GPU its CPU build is enough and far smaller: point pip at an index that
# has it (pip config, or PIP_EXTRA_INDEX_URL) before the first make; the pinned version takes either build.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "labkit needs Python 3.11 or newer; '$(PYTHON)' is older or missing. Install it, or: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "labkit needs Python's venv with pip: apt-get install python3-venv (Debian, Ubuntu)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@echo "building .venv: a few minutes the first time"
	$(BIN)/python -m pip install --quiet -e '.[dev]' -c constraints.txt
	$(BIN)/python -m labkit.compile_kernels
	@touch $@
