"""On-policy and without lag, a distributed run learns what a local one does, to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repertory.checkpoints import CheckpointStore

pytestmark = pytest.mark.timeout(600)

SETTINGS = (
    "CartPole-v1", "--algo", "ppo", "--seed", "3", "--envs-per-actor", "4", "--steps", "2048",
    "--set", "learner.segment_length=64", "--set", "evaluation.every=1000000",
    "--set", "evaluation.episodes=1", "--set", "learner.normalize_observation=true",
)  # fmt: skip


def trained(run_dir: Path, *options: str) -> dict[str, Any]:
    """The learner's state at the end."""
    train = [sys.executable, "-m", "services.cli", "train", *SETTINGS, "--run-dir", str(run_dir)]
    done = subprocess.run(
        [*train, *options], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(CheckpointStore(run_dir / "checkpoints", keep=3).newest_valid().load("learner-ppo"))


def flat(tree: Any, name: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        return {key: leaf for k, v in tree.items() for key, leaf in flat(v, f"{name}/{k}").items()}
    return {name: tree}


def test_one_actor_and_lag_zero_give_the_weights_of_a_local_run(tmp_path: Path) -> None:
    local = flat(trained(tmp_path / "local", "--local"))
    distributed = flat(trained(tmp_path / "distributed", "--actors", "1"))
    assert local["/updates"] == distributed["/updates"] == 8
    assert local.keys() == distributed.keys()
    for name, value in local.items():
        np.testing.assert_array_equal(value, distributed[name], err_msg=name)
