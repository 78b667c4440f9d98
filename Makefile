# `make demo` and `make test` do all the set-up on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup browser hosts screenshots demo test test-all chaos broken soak check format proto bench-setup bench-replay bench-actors bench-portfolio bench-learning bench-dashboard clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev,atari]"
	touch $(STAMP)

# A portfolio on this machine: Ray, two shards, two actors, two learners and their director, an
# evaluator, Valkey. The director's shares are in the last lines of `repertory status` and in the metrics.
demo: $(STAMP)
	rm -rf runs/demo
	$(BIN)/repertory train CartPole-v1 --algo dqn,ppo --strategy ucb --seed 1 --steps 40000 \
	  --actors 2 --shards 2 --run-dir runs/demo
	$(BIN)/repertory eval runs/demo --policy best --episodes 20
	$(BIN)/repertory play runs/demo --gif runs/demo/cartpole.gif
	$(BIN)/repertory plot runs/demo --out runs/demo/curves.png

# Two workers, one torch thread each: the suite is made for two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist load --maxschedchunk 1

test: $(STAMP) browser hosts
	$(PYTEST) -m "not slow"

test-all: $(STAMP) browser hosts
	$(PYTEST)

# A Chromium for the tests of the dashboard, where there is none and it can be installed.
browser: $(STAMP)
	$(BIN)/python tests/browser_setup.py

# An sshd for the hosts that the tests of clusters make, where there is none and it can be installed.
hosts: $(STAMP)
	$(BIN)/python tests/lan.py

# Pictures of the dashboard's pages over a real run, for the docs.
screenshots: $(STAMP) browser
	$(BIN)/python tests/dashboard_screenshots.py $(ARGS)

# Kills and cuts while a run trains: DQN, then PPO. For example: make chaos ARGS="--seed 2"
chaos: $(STAMP)
	$(BIN)/python tests/chaos.py --algo dqn --faults 60 $(ARGS)
	$(BIN)/python tests/chaos.py --algo ppo --steps 150000 --faults 40 $(ARGS)

# Puts known bugs in, one by one: do the tests notice? For example: make broken ARGS="natural_gradient h_dqn"
broken: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.broken_variants $(ARGS)

# Half an hour: does anything grow?
soak: $(STAMP)
	$(BIN)/python -m benchmarks.soak --minutes 30 $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

proto: $(STAMP)
	$(BIN)/python -m buffer_server.proto.generate

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# A peer that we are measured against has an environment of its own.
REVERB_VENV := benchmarks/.venv-reverb
REVERB_STAMP := $(REVERB_VENV)/.installed

bench-setup: $(STAMP) $(REVERB_STAMP)

$(REVERB_STAMP): benchmarks/requirements-reverb.txt
	$(PYTHON) -m venv $(REVERB_VENV)
	$(REVERB_VENV)/bin/pip install --quiet --requirement benchmarks/requirements-reverb.txt
	touch $(REVERB_STAMP)

# For example: make bench-replay ARGS=--quick
bench-replay: bench-setup
	$(BIN)/python -m benchmarks.replay $(ARGS)

# 32 actors on an environment that sleeps, then 8, then 32 again.
bench-actors: $(STAMP)
	$(BIN)/python -m benchmarks.actor_scaling $(ARGS)

# How long a large run takes to open, and what the dashboard costs while 32 actors are watched.
bench-dashboard: $(STAMP) browser
	$(BIN)/python -m benchmarks.dashboard $(ARGS)

# Every algorithm on what it should learn, over seeds. For example: make bench-learning ARGS="--only c51"
bench-learning: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.learning $(ARGS)

# Portfolios against their members alone, at equal cost. For example: make bench-portfolio ARGS=--quick
bench-portfolio: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.portfolio $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
