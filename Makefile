# `make demo` and `make test` do all the set-up on a machine with Python 3.11 and make.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup browser hosts screenshots demo test test-all chaos broken soak check format proto clean \
  bench bench-quick bench-setup bench-page bench-replay bench-learner bench-end-to-end bench-rollout bench-weights \
  bench-scaling bench-actors bench-portfolio bench-learning bench-dashboard

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

# Each peer that we are measured against has an environment of its own.
PEERS := reverb sb3 rllib
PEER_STAMPS := $(PEERS:%=benchmarks/.venv-%/.installed)

bench-setup: $(STAMP) $(PEER_STAMPS) $(VENV)/.envpool

# A vector backend of ours, as an extra: rollouts are measured with it too.
$(VENV)/.envpool: $(STAMP)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[envpool]"
	touch $@

benchmarks/.venv-%/.installed: benchmarks/requirements-%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --requirement $<
	touch $@

# Everything that has a target: an hour and a half, most of it whole systems, which go on where they were stopped.
# What fails or misses a target does not keep the rest from being measured.
bench: bench-setup
	-$(BIN)/python -m benchmarks.replay
	-$(BIN)/python -m benchmarks.learner
	-$(BIN)/python -m benchmarks.learner --threads 2 --cases td3 sac
	-$(BIN)/python -m benchmarks.rollout
	-$(BIN)/python -m benchmarks.weights
	-$(BIN)/python -m benchmarks.scaling
	-$(BIN)/python -m benchmarks.end_to_end --resume --parts throughput time_to_threshold returns
	$(BIN)/python -m benchmarks.performance_page
	$(BIN)/python -m benchmarks.bench_summary --check

# Does every benchmark work? Minutes; the figures mean little.
bench-quick: bench-setup
	$(BIN)/python -m benchmarks.replay --quick
	$(BIN)/python -m benchmarks.learner --quick
	$(BIN)/python -m benchmarks.rollout --quick
	$(BIN)/python -m benchmarks.weights --quick
	$(BIN)/python -m benchmarks.scaling --quick
	$(BIN)/python -m benchmarks.end_to_end --quick

# Tables and figures of docs/performance.md, from the results that are there.
bench-page: $(STAMP)
	$(BIN)/python -m benchmarks.performance_page

# For example: make bench-replay ARGS=--quick
bench-replay: $(STAMP) benchmarks/.venv-reverb/.installed
	$(BIN)/python -m benchmarks.replay $(ARGS)

# Updates per second of learners, against Stable-Baselines3 and plain torch.
bench-learner: $(STAMP) benchmarks/.venv-sb3/.installed
	$(BIN)/python -m benchmarks.learner $(ARGS)

# Whole systems. For example: make bench-end-to-end ARGS="--cases td3 --systems repertory sb3 --rounds 1"
bench-end-to-end: $(STAMP) benchmarks/.venv-sb3/.installed benchmarks/.venv-rllib/.installed
	$(BIN)/python -m benchmarks.end_to_end $(ARGS)

# Rollouts against the bare vector environment.
bench-rollout: $(STAMP) $(VENV)/.envpool
	$(BIN)/python -m benchmarks.rollout $(ARGS)

# How long weights take from a learner to those who act.
bench-weights: $(STAMP)
	$(BIN)/python -m benchmarks.weights $(ARGS)

# Throughput against actors, shards, items and machines.
bench-scaling: $(STAMP)
	$(BIN)/python -m benchmarks.scaling $(ARGS)

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
