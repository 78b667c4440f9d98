"""What a portfolio must do with members that cannot learn, and with data that others made.

Local runs: a shared replay and a director as in a distributed one, the same for the same seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from repertory.api import evaluate, resume, train
from services.run_directory import RunDirectory

MIN_SHARE = 0.05
RECENT = 200  # choices
# Episodes of at most 50 steps: thousands of choices in a minute.
SHORT_CARTPOLE = {"id": "CartPole-v1", "copies": 8, "max_episode_steps": 50}
SMALL_DQN = {
    "algorithm": "dqn",
    "hidden_sizes": [64, 64],
    "batch_size": 64,
    "learning_starts": 500,
    "train_every": 8,
    "updates_per_step": 0.125,
    "target_period": 100,
    "exploration": {
        "name": "epsilon_greedy",
        "epsilon": {"start": 1.0, "final": 0.04, "steps": 2000},
    },
}


def config_file(folder: Path, **document: Any) -> Path:
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"seed": 1, **document}))
    return file


def choices(run: RunDirectory) -> list[str]:
    """Who was chosen, one after the other."""
    events = [json.loads(line) for line in run.events.read_text().splitlines()]
    return [
        policy
        for event in events
        if event["event"] == "decisions"
        for _, policy, *_ in event["decisions"]
    ]


def share_of_crippled(chosen: list[str]) -> float:
    return chosen.count("crippled") / len(chosen)


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", ["uniform", "ucb", "thompson", "exp3", "roulette", "epochal"])
def test_a_member_that_learns_nothing_is_left_alone_until_it_is_repaired(
    strategy: str, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    config = config_file(
        tmp_path,
        env=SHORT_CARTPOLE,
        steps=40_000,
        learners={"good": {"lr": 1e-3, **SMALL_DQN}, "crippled": {"lr": 0.0, **SMALL_DQN}},
        director={"strategy": strategy, "lease": 1, "min_share": MIN_SHARE},
        evaluation={"every": 20_000, "episodes": 5},
    )
    train(config=config, run_dir=run_dir, progress=False)
    run = RunDirectory.open(run_dir)
    before = choices(run)
    if strategy == "uniform":
        assert share_of_crippled(before) == pytest.approx(0.5, abs=0.05)
        return
    assert share_of_crippled(before[-RECENT:]) == pytest.approx(MIN_SHARE, abs=0.02)
    resume(run_dir, steps=100_000, settings={"learners.crippled.lr": 1e-3}, progress=False)
    assert share_of_crippled(choices(run)[len(before) :]) > 4 * MIN_SHARE


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.timeout(1200)
def test_dqn_learns_from_what_only_others_did(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    config = config_file(
        tmp_path,
        env={"id": "CartPole-v1", "copies": 8},
        steps=40_000,
        learners={
            "dqn": {
                "algorithm": "dqn",
                "own_share": 0.0,
                "gamma": 0.98,
                "lr": 1e-3,
                "hidden_sizes": [64, 64],
                "batch_size": 64,
                "updates_per_step": 0.25,
                "train_every": 8,
                "learning_starts": 1000,
                "target_period": 100,
                "double": True,
                "n_step": 3,
            },
            "random": {
                "algorithm": "dqn",
                "lr": 0.0,
                "random_steps": 1_000_000_000,
                "updates_per_step": 0.001,
                "learning_starts": 1000,
            },
            "ppo": {
                "algorithm": "ppo",
                "lr": 1e-3,
                "gamma": 0.98,
                "gae_lambda": 0.8,
                "segment_length": 32,
                "epochs": 8,
                "batch_size": 32,
            },
        },
        director={
            "strategy": {
                "name": "scripted",
                "script": [["random", 250], ["ppo", 750]],
                "unit": "steps",
            }
        },
        evaluation={"every": 4000, "episodes": 10},
        replay={"capacity": 100_000},
    )
    train(config=config, run_dir=run_dir, progress=False)
    rows = RunDirectory.open(run_dir).read_metrics()
    own = [row[key] for row in rows for key in row if key == "learner/dqn/own_experience"]
    assert own
    assert max(own) == 0
    assert evaluate(run_dir, "dqn", episodes=20).mean_return >= 400
