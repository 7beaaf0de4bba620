# Headwater. Every target works first thing in a clean clone: Python >= 3.11 is all that must be there (Java >= 17 for
# Kafka and Spark). What is installed goes into .venv, from the hashes in requirements/*.lock.

PYTHON ?= python3
VENV ?= .venv
# make demo: SECONDS bounds it, HEADLESS=1 opens no browser and ends when it is over
SECONDS ?= 300
HEADLESS ?=
# make up
EDGES ?= 2
# make fuzz
COUNT ?= 1000000
# make simulate
SEEDS ?= 500
# make soak
MINUTES ?= 60
# make test: more arguments for pytest, as in make test PYTEST_ARGS="-k codec"
PYTEST_ARGS ?=

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input
LOCKED := $(PIP_INSTALL) --require-hashes --no-build-isolation
PACKAGES := schemas bridge edge spark_streaming
# folders too: a deleted file changes nothing else
SOURCES := pyproject.toml README.md LICENSE $(shell find $(PACKAGES) -name __pycache__ -prune -o -print)

.DEFAULT_GOAL := help
.PHONY: help demo test lint format fuzz bench bench-spark bench-replay sessions simulate chaos soak conformance up smoke lock clean peers
.DELETE_ON_ERROR:

help:
	@echo "make demo [SECONDS=60] [HEADLESS=1]  real data through two edges, Kafka and Spark, with a live page"
	@echo "make up [EDGES=2]                    Kafka and edges on this machine, for development"
	@echo "make test                            build the wheel, install it, test it"
	@echo "make lint                            ruff, mypy --strict, import-linter"
	@echo "make fuzz [COUNT=1000000]            mutated packets into the codec, COUNT/100 sequences into an edge"
	@echo "make bench                           against mosquitto and amqtt on this machine"
	@echo "make bench-spark                     the Spark jobs against plain Python, and end to end over two edges"
	@echo "make bench-replay                    a million records replayed, compared with the log byte for byte"
	@echo "make sessions [QUICK=1]              QoS 2, take-over and reconnect storms with edges that die"
	@echo "make simulate [SEEDS=500]            real edges under virtual time, with trouble; every invariant checked"
	@echo "make chaos                           faults in edges, Kafka and the network; every invariant judged"
	@echo "make soak [MINUTES=60]               load of all kinds; memory, descriptors and tasks must come back"
	@echo "make conformance                     the statement ledger on Headwater and on mosquitto"
	@echo "make smoke                           docker/: build, start, publish on one edge, receive on the other"
	@echo "make lock                            resolve requirements/*.lock anew"
	@echo "make clean                           remove what make made"

demo: $(VENV)/.demo $(VENV)/.wheel
	PYTHONSAFEPATH=1 $(BIN)/headwater demo --seconds $(SECONDS) $(if $(filter-out 0 no false,$(HEADLESS)),--headless)

up: $(VENV)/.edge $(VENV)/.wheel
	PYTHONSAFEPATH=1 $(BIN)/headwater up --dev --edges $(EDGES)

# The wheel is tested, not the tree: PYTHONSAFEPATH keeps the working folder off sys.path, here and in child processes.
test: $(VENV)/.dev $(VENV)/.wheel peers
	@PYTHONSAFEPATH=1 $(BIN)/python -c "import edge, sysconfig; assert edge.__file__.startswith(sysconfig.get_path('purelib')), edge.__file__"
	PYTHONSAFEPATH=1 HEADWATER_TESTS_WHEEL=1 $(BIN)/pytest $(PYTEST_ARGS)

peers:
	@for peer in mosquitto mosquitto_pub mosquitto_sub kcat; do \
	  PATH="$$PATH:/usr/sbin" command -v $$peer > /dev/null || echo "make test: $$peer is not here: the tests against it will fail." \
	    "apt-get install mosquitto mosquitto-clients kcat"; done

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/.dev
	$(BIN)/python tests/fuzz/fuzz_wire.py --count $(COUNT)
	$(BIN)/python tests/fuzz/fuzz_live.py --count $$(( $(COUNT) / 100 ))

bench: $(VENV)/.dev $(VENV)/.wheel
	PYTHONSAFEPATH=1 $(BIN)/python benchmarks/run.py $(BENCH_ARGS)

bench-spark: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python -m benchmarks.spark $(BENCH_ARGS)

bench-replay: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python -m benchmarks.replay $(BENCH_ARGS)

sessions: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python -m benchmarks.sessions $(if $(QUICK),--quick) $(SESSIONS_ARGS)

simulate: $(VENV)/.dev $(VENV)/.wheel
	PYTHONPATH=tests:. $(BIN)/python -m support.simulation_run --seeds $(SEEDS)

chaos: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python tests/chaos/run.py $(CHAOS_ARGS)

soak: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python tests/chaos/soak.py --minutes $(MINUTES)

conformance: $(VENV)/.dev $(VENV)/.wheel
	$(BIN)/python tests/conformance/table.py $(CONFORMANCE_ARGS)

smoke:
	docker/smoke.sh

# One resolution for all: the parts are cut out of dev.lock, so that a version is the same wherever it appears.
COMPILE = $(VENV)-lock/bin/uv pip compile --quiet --no-header --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --no-config
EXTRAS_EDGE := --extra jwt --extra validation
EXTRAS_SPARK := $(EXTRAS_EDGE) --extra spark
EXTRAS_DEMO := $(EXTRAS_SPARK) --extra demo --extra replay

lock: | $(VENV)-lock/bin/uv
	$(COMPILE) --upgrade pyproject.toml $(EXTRAS_DEMO) --group dev -o requirements/dev.lock
	$(COMPILE) -c requirements/dev.lock --group build -o requirements/build.lock
	$(COMPILE) -c requirements/dev.lock pyproject.toml $(EXTRAS_EDGE) -o requirements/edge.lock
	$(COMPILE) -c requirements/dev.lock pyproject.toml $(EXTRAS_SPARK) -o requirements/spark.lock
	$(COMPILE) -c requirements/dev.lock pyproject.toml $(EXTRAS_DEMO) -o requirements/demo.lock

$(VENV)-lock/bin/uv:
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet --disable-pip-version-check uv

# Stamps: a file per state that .venv has reached, older than what it was made of when that has changed.
$(VENV)/.build: requirements/build.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || { \
	  echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1 || echo missing), Headwater needs Python 3.11 or newer:" \
	    "install one and name it, as in: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || { \
	  echo "make: $(PYTHON) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --require-hashes --only-binary :all: -r $<
	@touch $@

$(VENV)/.edge: requirements/edge.lock $(VENV)/.build
	$(LOCKED) -r $<
	@touch $@

$(VENV)/.demo: requirements/demo.lock $(VENV)/.build
	$(LOCKED) -r $<
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.build
	$(LOCKED) -r $<
	@touch $@ $(VENV)/.demo $(VENV)/.edge

$(VENV)/.wheel: $(SOURCES) $(VENV)/.build
	@rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir build/wheel .
	$(PIP_INSTALL) --no-deps --no-index --force-reinstall build/wheel/*.whl
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-lock build dist .headwater .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
