# Every target installs what it needs. Start with `make demo` and `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLS  := $(VENV)/.tools
FIT    := $(VENV)/.fit
PUBLISH := $(VENV)/.publish
# Bytecode halves the start-up time of every command; some machines disable it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow check collect bench docs docs-site packages clean coverage fuzz soak web

$(STAMP): pyproject.toml hatch_build.py scripts/setup scripts/launcher.sh $(wildcard scripts/bin/* src/gflow/*/native/* src/gflow/*/*/native/*)
	PYTHON=$(PYTHON) scripts/setup $(VENV)
	@touch $(STAMP)

# Needed by every target but the demo, which does not wait for these downloads (one minute).
$(TOOLS): $(STAMP) scripts/setup-tests
	scripts/setup-tests $(VENV)
	@touch $(TOOLS)

demo: $(STAMP)           ## start a daemon, run a small pipeline, show it, stop
	@PATH="$(CURDIR)/$(BIN):$$PATH" scripts/demo

check: $(TOOLS)          ## format, lint, types, import rules: under a minute
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests benchmarks scripts/structure.py scripts/man_pages.py scripts/reference_pages.py scripts/python_api.py scripts/docs-site scripts/release scripts/top-screenshot scripts/build-packages scripts/build-deb hatch_build.py
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/structure.py --check

# For the tests of gflow fit and gflow.train: PyTorch (CPU), transformers, and the trainers with gflow callbacks.
# Two minutes, once; without the bytecode of the 8,000 modules, of which few are imported.
$(FIT): tests/fit/constraints.txt $(TOOLS)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint tests/fit/constraints.txt --editable '.[fit,plot]' accelerate pytorch-lightning s3fs 'moto[s3,server]' gcsfs gcp-storage-emulator
	@touch $(FIT)

# What builds and installs packages, and the documentation site.
$(PUBLISH): scripts/publish-tools.txt $(TOOLS)
	$(BIN)/pip install --quiet --disable-pip-version-check --requirement scripts/publish-tools.txt
	@touch $(PUBLISH)

# Compiles the test modules once, for all workers of pytest: in a new clone that takes as long as collecting them.
collect: $(TOOLS) $(FIT)
	@$(BIN)/pytest -qq --collect-only tests > $(VENV)/.collected || { cat $(VENV)/.collected; exit 1; }

test: $(TOOLS) $(FIT)    ## all tests that finish within minutes
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check collect
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu" tests

test-slow: $(TOOLS) $(PUBLISH) ## crash tests, soak tests, long searches, a Slurm cluster, packages
	@scripts/slurm-packages --accounting
	@scripts/ssh-packages
	@scripts/prometheus-package
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder -m "slow and not gpu" tests

fuzz: $(TOOLS)           ## random input for every parser and route, for half an hour
	$(BIN)/python -m tests.fuzz 1800

soak: $(TOOLS)           ## ten thousand jobs of three users, with processes killed at random and at each point
	GFLOW_ALL_POINTS=1 $(BIN)/pytest -n 2 -m slow tests/crash/test_system_fault_points.py tests/crash/test_shim_system_calls.py
	GFLOW_SOAK_JOBS=10000 $(BIN)/pytest -s -m slow tests/soak

coverage: $(TOOLS)
	$(BIN)/coverage run -m pytest -q -m "not slow and not gpu" tests/unit tests/property
	$(BIN)/coverage combine -q && $(BIN)/coverage report

# About half an hour on two cores. Less: make bench ROUNDS=1 SIZES=1000,10000 BULK=10000
ROUNDS := 3
# Waiting jobs of the growth curves, and jobs that one client changes at a time.
SIZES := 1000,10000,100000,1000000
BULK := 1000000
PEERS := ours,ours-system,gflow-process,tsp,hyperqueue,slurm
bench: $(STAMP)          ## compare with other schedulers on this machine, write docs/benchmarks.md
	benchmarks/run -s $(PEERS) -t cli,start,start_open,throughput,gap,submit,durable,timelimit --rounds $(ROUNDS)
	benchmarks/run -s ours -t scale,gpus --rounds 1 sizes=$(SIZES) idle_s=10 -o .bench/growth.json
	benchmarks/run bulk --jobs $(BULK) -t submit,array,queue-all,queue-20,update,cancel --json .bench/bulk.json
	$(PYTHON) -m benchmarks.page

# Needs node. The built files are in the repository: a test compares them with the sources.
web:                     ## build the web page from web/ into src/gflow/web
	cd web && npm ci --no-audit --no-fund && npm run check && npm run build

docs: $(STAMP)           ## regenerate the pages of docs/ that are derived from code
	$(BIN)/python scripts/gen_docs.py

docs-site: $(PUBLISH)    ## build the documentation site into .site/, strictly
	$(BIN)/python scripts/docs-site

packages: $(PUBLISH)     ## build the wheels and the source distribution into dist/
	@rm -rf dist
	$(BIN)/python scripts/build-packages dist

clean:
	rm -rf $(VENV) dist .site web/node_modules .bench .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
