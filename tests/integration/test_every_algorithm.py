"""Every algorithm over processes: a small distributed run of each learns, is judged, and ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed_runs import Train
from small_runs import ENVS

from repertory.api import load_policy
from repertory.parts import SHORT_NAMES
from services.run_directory import RunDirectory

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

ENV_OF = {**ENVS, "c51": "CartPole-v1"}
ON_POLICY = ("actor_critic", "npg", "ppo", "trpo", "vpg")


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize("algorithm", sorted(SHORT_NAMES["algorithm"]))
def test_it_trains_over_processes(train: Train, algorithm: str) -> None:
    kind = (
        ["learner.segment_length=64"]
        if algorithm in ON_POLICY
        else ["learner.learning_starts=200", "learner.updates_per_step=0.25"]
    )
    small = ["learner.hidden_sizes=[16,16]"] if algorithm != "q_learning" else []
    settings = [*kind, *small, "log.every=200", "evaluation.every=1000", "evaluation.episodes=1"]
    train.start(
        "train", ENV_OF[algorithm], "--algo", algorithm, "--steps", "2000", "--actors", "2",
        "--shards", "2", "--envs-per-actor", "2", "--run-dir", str(train.run_dir),
        *(word for setting in settings for word in ("--set", setting)),
    )  # fmt: skip
    said = re.search(r"finished: \d+ steps, (\d+) updates", train.finish())
    assert said is not None
    assert int(said[1]) > 0
    assert len(RunDirectory.open(train.run_dir).read_evaluations()) >= 2
    assert train.events("restarting") == []
    load_policy(train.run_dir)
    train.assert_nothing_left()
