# Loadmaster: everything a newcomer needs is `make demo`, `make up` and `make test`.
PYTHON ?= python3
VENV ?= .venv
PORT ?= 8000
HOME_DIR ?= .loadmaster
REQUESTS ?= 100000
SEED ?= 1
REPORT ?= demo-report.json
RUNTIME ?= process
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE :=
.DEFAULT_GOAL := help
.PHONY: help demo up install-tests test check unit coverage kernels test-all test-nightly test-sqlite test-postgres docker-image test-docker test-root test-slurm test-gpu test-browser mutants fuzz bench bench-slurm bench-size reproduce-andreas reproduce-gavel reproduce-pcp20 reproduce-hadar chaos load screenshots clean

help: ## show these lines
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 16

$(VENV)/.demo: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Loadmaster into $(VENV) (about a minute the first time) ..."
	@$(PIP) install --quiet -c constraints.txt -e '.[demo]'
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Loadmaster and its test tools into $(VENV) ..."
	@$(PIP) install --quiet --no-compile -c constraints.txt -e '.[test]'
	@touch $@

demo: $(VENV)/.demo ## start everything, run eight real training jobs on emulated GPUs, write demo-report.json (RUNTIME=docker: in containers)
	@echo "Starting Loadmaster ..."
	@LOADMASTER_HOME=$(HOME_DIR)/demo $(BIN)/python manage.py demo --port $(PORT) --report $(REPORT) --runtime $(RUNTIME)

up: $(VENV)/.demo ## start everything and stay until Ctrl-C
	@echo "Starting Loadmaster ..."
	@LOADMASTER_HOME=$(HOME_DIR)/up $(BIN)/python manage.py embedded --port $(PORT) --runtime $(RUNTIME)

# The sets of tests: CONTRIBUTING.md says which set a test belongs to and how long each may take.
FAST := not slow and not compiler and not nightly and not browser and not postgres and not docker and not root and not slurm and not gpu
PYTEST := $(BIN)/python -m pytest
WORKERS ?= 3
# Long tests mostly wait, for processes and for time to pass.
LONG_WORKERS ?= 4
COVERAGE ?=

install-tests: $(VENV)/.test

test: check unit ## the fast set: checks and tests

check: $(VENV)/.test ## ruff, mypy --strict, the walls
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.kernels
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "$(FAST)" $(COVERAGE)

coverage: COVERAGE = --cov --cov-report=term:skip-covered
coverage: unit ## the fast set's tests with branch coverage, as every night runs them

# Three test workers that start on a new tree would each compile every kernel.
KERNELS := policies/placement/kernels.py $(shell grep -rl --include=*.py placement.kernels policies)
$(VENV)/.kernels: $(VENV)/.test $(KERNELS)
	@echo "Compiling the policies' kernels (half a minute, once) ..."
	$(PYTEST) -n 0 tests/policies/kernels tests/controlplane/loop/live/test_carrying_out.py
	@touch $@

kernels: $(VENV)/.kernels ## compile the policies' kernels, which their first use does otherwise

test-all: test-sqlite test-postgres test-docker test-root test-slurm test-browser ## the long ones: PostgreSQL, a C compiler, Docker, network namespaces, Slurm, browser

test-sqlite: $(VENV)/.test
	$(PYTEST) -n $(LONG_WORKERS) --dist loadfile --no-loadscope-reorder -m "(slow or compiler) and not nightly and not browser and not postgres and not docker and not root and not slurm and not gpu"

# Every night runs all tests of the database on PostgreSQL (test-nightly).
test-postgres: $(VENV)/.test
	tests/with-postgres $(PYTEST) -n $(LONG_WORKERS) --dist worksteal \
	  -m "(postgres or both_databases and django_db and not slow) and not nightly and not browser and not docker and not root and not slurm and not gpu"

docker-image: ## the image of the tests with Docker, which their first run makes otherwise
	tests/with-docker true

test-docker: $(VENV)/.test
	tests/with-docker $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "docker and not postgres and not nightly"

test-root: $(VENV)/.test
	$(PYTEST) -n 0 -m "root and not docker and not nightly"

test-slurm: $(VENV)/.test
	tests/with-slurm $(PYTEST) -n 0 -m slurm

test-gpu: $(VENV)/.test ## NVML, sandboxed jobs and MPS on this machine's NVIDIA GPUs
	$(PYTEST) -n 0 -m gpu

test-browser: $(VENV)/.test
	tests/with-network $(PYTEST) -n 0 -m browser

test-nightly: export LOADMASTER_TEST_EXAMPLES = 10
test-nightly: export LOADMASTER_EXPLORE = 1
test-nightly: export LOADMASTER_FUZZ_REQUESTS = 40000
test-nightly: $(VENV)/.test ## everything, with ten times the examples and requests, on both databases (hours)
	$(PYTEST) -n 2 --dist worksteal --timeout 3600 -m "not browser and not postgres and not docker and not root and not slurm and not gpu"
	tests/with-postgres $(PYTEST) -n 2 --dist worksteal --timeout 3600 -m "(postgres or django_db) and not browser and not docker and not root and not slurm and not gpu"
	tests/with-docker $(PYTEST) -n 0 -m "docker and not postgres"
	$(PYTEST) -n 0 -m "root and not docker"
	tests/with-network $(PYTEST) -n 0 -m browser
	env -u LOADMASTER_TEST_EXAMPLES -u LOADMASTER_EXPLORE $(MAKE) coverage
	$(MAKE) mutants

mutants: $(VENV)/.test ## break each promise of safety by one line, and see that a test of the fast set notices (minutes); ONLY=S01,A02
	$(BIN)/python -m experiments.mutants --marks "$(FAST)" --workers $(PROCESSES) $(if $(ONLY),--only $(ONLY))

fuzz: $(VENV)/.test ## hostile requests, nested bodies and floods at API and agent protocol: REQUESTS=100000 SEED=1
	LOADMASTER_FUZZ_REQUESTS=$(REQUESTS) LOADMASTER_FUZZ_SEED=$(SEED) $(PYTEST) -n 2 tests/controlplane/web/test_openapi_fuzz.py tests/controlplane/web/test_floods.py

bench: $(VENV)/.test ## the figures: JSON lines of name, median, goal, ratio, machine; WHOLE=1: without sampling (hours)
	$(BIN)/python -m experiments.bench $(if $(WHOLE),--whole)

TURNS ?= 3
bench-slurm: $(VENV)/.kernels ## the same jobs through a real Slurm and Loadmaster in turn, medians and ratios; TURNS=3; needs root and Slurm
	tests/with-slurm $(BIN)/python -m experiments.bench.beside_slurm --turns $(TURNS)

PROCESSES ?= 2
reproduce-andreas: $(VENV)/.test ## ANDREAS' evaluation again (hours; goes on where it stopped); a part: SCENARIO=1 N=10 TUNING=1.0 SEEDS=2 POLICIES="FIFO,EDF"
	$(BIN)/python -m experiments.reproduce.andreas --processes $(PROCESSES) $(if $(SCENARIO),--scenarios $(SCENARIO)) \
	  $(if $(N),--nodes $(N)) $(if $(TUNING),--tunings $(TUNING)) $(if $(SEEDS),--seeds $(SEEDS)) \
	  $(if $(POLICIES),--policies "$(POLICIES)") $(if $(FOLDER),--folder $(FOLDER))

DATA ?= $(or $(LOADMASTER_DATA),../shared/data)/gavel
JOBS_AT_ONCE = $(if $(filter command line environment,$(origin JOBS)),$(JOBS),$(PROCESSES))
reproduce-gavel: $(VENV)/.test ## Gavel's evaluation again (hours; goes on where it stopped); QUICK=1: minutes; a part: FIGURES=8,12,T3 SEEDS=1 JOBS=2
	$(BIN)/python -m experiments.reproduce.gavel --data $(DATA) --processes $(JOBS_AT_ONCE) \
	  $(if $(QUICK),--quick) $(if $(FIGURES),--figures $(FIGURES)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FOLDER),--folder $(FOLDER))

HPC_DATA = $(if $(filter command line environment,$(origin DATA)),$(DATA),$(or $(LOADMASTER_DATA),../shared/data))
reproduce-pcp20: $(VENV)/.test ## PCP'20's evaluation again (hours; goes on where it stopped); QUICK=1: minutes; a part: SETTINGS=eurora,seth KIT_LOG=hpc/kit.swf
	$(BIN)/python -m experiments.reproduce.pcp20 --data $(HPC_DATA) --processes $(JOBS_AT_ONCE) $(if $(QUICK),--quick) $(if $(FIRST),--first $(FIRST)) $(if $(REPORT),--report) \
	  $(if $(SETTINGS),--settings $(SETTINGS)) $(if $(KIT_LOG),--kit-log $(KIT_LOG)) $(if $(FOLDER),--folder $(FOLDER))

reproduce-hadar: $(VENV)/.test ## Hadar's figures 3 to 6 on 480 jobs (goes on where it stopped); QUICK=1: one trace
	$(BIN)/python -m experiments.reproduce.hadar --data $(HPC_DATA) --processes $(JOBS_AT_ONCE) $(if $(QUICK),--quick) $(if $(FOLDER),--folder $(FOLDER))

chaos: $(VENV)/.kernels ## KILLS=200 and JUMPS of clocks, or PARTITIONS=50, of a real system, SEED=1, DATABASE=sqlite or postgres, ONLY= or WITHOUT=disk, FORMS=slow; see docs/chaos.md
	$(if $(filter postgres,$(DATABASE)),POSTGRES_SYNC=on tests/with-postgres) $(BIN)/python -m experiments.chaos --seed $(or $(SEED),1) \
	  $(if $(PARTITIONS),--partitions $(PARTITIONS),--kills $(or $(KILLS),200)) $(if $(JUMPS),--jumps $(JUMPS)) $(if $(FOLDER),--folder $(FOLDER)) \
	  $(if $(ONLY),--only $(ONLY)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(FORMS),--jobs $(FORMS)) $(if $(GRACE),--grace $(GRACE))

DATABASE ?= both
AGENTS ?= 10000
JOBS ?= 100000
NODES ?= 1000
SECONDS ?= 20
RATE ?= 365
SINGLE_RATE ?= 90
SCENARIOS ?= starts,pages,submissions,overload,flood,bulk,rounds,heartbeats
bench-size: $(VENV)/.test ## pages, lists, a round, backup and restore beside ENDED=1000000 ended jobs (DATABASE=sqlite|postgres|both)
	$(BIN)/python -m experiments.load --database $(DATABASE) --jobs 2000 --nodes 100 --scenarios history --ended $(or $(ENDED),1000000)

load: $(VENV)/.test ## everything under load, measured (DATABASE=sqlite|postgres|both AGENTS= JOBS= NODES= SECONDS= RATE= SINGLE_RATE= SCENARIOS= OUTPUT=)
	$(BIN)/python -m experiments.load --database $(DATABASE) --agents $(AGENTS) --jobs $(JOBS) --nodes $(NODES) --seconds $(SECONDS) \
	  --rate $(RATE) --single-rate $(SINGLE_RATE) --scenarios $(SCENARIOS) $(if $(OUTPUT),--output $(OUTPUT))

screenshots: $(VENV)/.test ## the README's pictures, from the running demo (four minutes; needs Chromium)
	$(BIN)/python -m experiments.screenshots --port $(PORT)

clean: ## remove what was built; the databases in .loadmaster stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage* build *.egg-info
