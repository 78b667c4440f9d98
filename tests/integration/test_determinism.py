"""One seed, one result: twice the same run, and a killed one that goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_runs import ENVS, final_weights, settings, small_run, timeless_metrics

from repertory.api import resume

# Every kind of experience, policy and table once; all of the others in `make test-all`.
EVERY_TIME = {"dqn", "ppo", "td3", "sac", "h_dqn", "rainbow", "dqn,ppo", "td3,sac,ppo"}
ALGORITHMS = [
    pytest.param(algo, marks=[] if algo in EVERY_TIME else [pytest.mark.slow])
    for algo in sorted(ENVS)
]


def assert_same_end(left: Path, right: Path) -> None:
    weights, others = final_weights(left), final_weights(right)
    assert weights.keys() == others.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)
    assert timeless_metrics(left) == timeless_metrics(right)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_same_seed_gives_the_same_metrics_and_weights(algo: str, tmp_path: Path) -> None:
    small_run(algo, tmp_path / "a")
    small_run(algo, tmp_path / "b")
    assert_same_end(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_replay_over_grpc_changes_nothing(algo: str, tmp_path: Path) -> None:
    small_run(algo, tmp_path / "object")
    small_run(algo, tmp_path / "shard", **{"replay.transport": "grpc"})
    assert_same_end(tmp_path / "object", tmp_path / "shard")


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    small_run("td3", tmp_path / "a", seed=3)
    small_run("td3", tmp_path / "b", seed=4)
    a, b = final_weights(tmp_path / "a"), final_weights(tmp_path / "b")
    assert any((a[name] != b[name]).any() for name in a)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_a_killed_and_resumed_run_ends_as_one_that_was_not(algo: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    small_run(algo, whole)
    code = (
        "import sys; from repertory.api import train; "
        f"train({ENVS[algo]!r}, {algo!r}, seed=3, run_dir={str(killed)!r}, progress=False, "
        f"settings={settings(algo, callbacks=['hooks:KillAt700'])!r})"
    )
    tests = str(Path(__file__).parents[1])
    process = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": tests, "OMP_NUM_THREADS": "1"}, timeout=300
    )
    assert process.returncode == -signal.SIGKILL
    steps = [row["step"] for row in timeless_metrics(killed)]
    assert max(steps) >= 700  # it had gone on beyond the checkpoint that is resumed

    config = killed / "config.yaml"  # the run goes on without the hook that killed it
    config.write_text(config.read_text().replace("- hooks:KillAt700", ""))
    config.write_text(config.read_text().replace("callbacks:\n", "callbacks: []\n"))
    result = resume(killed, progress=False)
    assert result.stopped_by is None
    assert_same_end(whole, killed)
    tables, others = final_weights(whole, "table-*"), final_weights(killed, "table-*")
    for name in (name for name in tables if name.endswith("/generator")):
        np.testing.assert_array_equal(tables[name], others[name], err_msg=name)


def test_a_finished_run_goes_on_for_more_steps(tmp_path: Path) -> None:
    small_run("dqn", tmp_path / "run")
    result = resume(tmp_path / "run", steps=1400, progress=False)
    assert result.env_steps == 1400
    steps = [row["step"] for row in timeless_metrics(tmp_path / "run")]
    assert steps == sorted(steps)
    assert steps[-1] == 1400
