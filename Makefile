# Everything starts here: `make demo` on a machine with python3 (3.11 or newer, with venv), git and make.
PYTHON ?= python3
BIN := .venv/bin
# Python keeps what it compiled, whatever the caller's environment says: tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE
# Each target installs what it needs and no more: .venv/.with-EXTRAS says that these extras are there.
DEMO := .venv/.with-testbed,train
LAB := .venv/.with-lab,testbed,train,tune
DOCS := .venv/.with-docs
ALL := .venv/.with-dev

.PHONY: help demo test thorough reproductions fast flaky check chaos lab bench docs wheel pythons lock doctor notebooks clean

help:  ## say what there is
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST)

# The table needs neither torch nor SSH, so it comes before they are installed.
demo: .venv/.with-base  ## compare schedulers on a small trace, train three jobs, and write reports/demo.html
	@$(BIN)/labkit demo --no-testbed
	@$(MAKE) --no-print-directory $(DEMO)
	@$(BIN)/labkit demo --no-table

# Many tests wait for something: four workers keep two cores busy. Threads within one would wait for each other, spinning.
WORKERS ?= 4
# Fork servers stay for some minutes without work: each new one imports torch.
AROUND := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 LABKIT_FORK_SERVER_IDLE_S=300
# Notebooks that set up machines, or solve for minutes.
LONG := $(wildcard notebooks/07_*.ipynb) $(wildcard notebooks/08_*.ipynb) $(wildcard notebooks/05_*.ipynb)
NOTEBOOKS := $(filter-out $(LONG), $(sort $(wildcard notebooks/*.ipynb)))
NBVAL := $(AROUND) $(BIN)/pytest -c tests/nbval.ini --rootdir .
# Tests need no nbval: its import takes each worker a second.
PYTEST := $(AROUND) $(BIN)/pytest -p no:nbval -n $(WORKERS) --dist loadfile --no-loadscope-reorder
DOCTESTS := $(AROUND) $(BIN)/pytest -p no:nbval --doctest-modules labkit reproductions
# Beside each other: cores have work while tests wait for processes. The tests end last; notebooks are to hear Ctrl-C.
test: $(ALL)  ## run notebooks, examples in docstrings and tests, all but those of `make thorough`
	$(BIN)/python -m labkit.cli.compile_kernels
	$(PYTEST) -m "not slow" & tests=$$!; $(if $(NOTEBOOKS),$(NBVAL) $(NOTEBOOKS),true); failed=$$?; $(DOCTESTS) || failed=1; \
	wait $$tests && exit $$failed

thorough: $(ALL)  ## run what takes long: notebooks and jobs on machines, policies that learn, properties on more examples
	$(if $(NOTEBOOKS),$(NBVAL) $(LONG))
	$(PYTEST) -m "slow or hypothesis or reproductions" --hypothesis-profile=thorough

reproductions: $(ALL)  ## run all tests of the papers' own forms: after a change of reproductions/, or of what it uses
	$(PYTEST) tests/reproductions

fast: $(ALL)  ## run a few tests of each part, within a minute: the set before a commit
	$(PYTEST) -m fast

flaky: $(ALL)  ## run the tests of `make test` three times, shuffled and under load, and list what failed
	$(BIN)/python -m tests.flaky --workers $(WORKERS)

check: $(ALL)  ## format, lint, types, layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

N ?= 10
CHAOS := .chaos.jsonl
chaos: $(ALL)  ## kill, cut and stop what trains, N times each (N=10), fuzz the commands; writes the table of docs/elastic-faults.md
	rm -f $(CHAOS)
	LABKIT_CHAOS=$(N) LABKIT_CHAOS_RECORDS=$(CURDIR)/$(CHAOS) $(BIN)/pytest -n 2 tests/elastic/chaos tests/fuzz tests/gifts
	$(BIN)/python -m tests.elastic.chaos.table $(CHAOS) "make chaos N=$(N)"

lab: $(LAB)  ## open JupyterLab
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/00_start.ipynb

bench: $(ALL)  ## measure, write benchmarks/results.json, print it as a table
	$(BIN)/python -m benchmarks

docs: $(DOCS)  ## build the documentation site into site/, with its links checked; open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

wheel: .venv/.with-base  ## build a wheel into dist/, and try it in an empty venv, in an empty folder
	.ci/wheel $(BIN)/python

# PYTHONS="python3.12 python3.13" names others than those that are found.
pythons:  ## install into an empty venv of each Python at hand, and compare schedulers there
	.ci/pythons $(PYTHONS)

lock:  ## write constraints.txt anew: one set of versions for every Python that pyproject.toml allows
	.ci/lock $(PYTHON)

doctor:  ## say what this machine lacks and how to get it; installs nothing
	@if [ -e .venv/.with-base ]; then $(BIN)/python -m labkit.system.doctor; else PYTHONPATH=. $(PYTHON) -m labkit.system.doctor; fi

notebooks: $(ALL)  ## run all notebooks and keep their outputs
	$(BIN)/jupyter nbconvert --to notebook --execute --inplace --ExecutePreprocessor.store_widget_state=False notebooks/*.ipynb

clean:  ## remove what make made; runs/ stays
	rm -rf .venv reports site labkit/__kernels__ build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# What `.ci/install.py` installs stays, so each target adds what the ones before it did not need.
.venv/.with-%: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "labkit needs Python 3.11 or newer; '$(PYTHON)' is older or missing. Install it, or: make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "labkit needs Python's venv with pip: apt-get install python3-venv (Debian, Ubuntu)"; exit 2; }
	@$(PYTHON) .ci/install.py $(filter-out base,$*)
	@touch $@
