"""Whole distributed runs: real Ray, real shards, a real control server; and what kills survive."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from distributed_runs import Train, command, log_of

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


def dqn(train: Train, steps: int) -> None:
    """Fast enough to see several evaluations and checkpoints go by."""
    train.start(
        "train", "CartPole-v1", "--algo", "dqn", "--steps", str(steps), "--actors", "2",
        "--shards", "2", "--run-dir", str(train.run_dir), "--set", "checkpoint.every=1000",
        "--set", "evaluation.every=2000", "--set", "evaluation.episodes=2",
        "--set", "learner.learning_starts=200",
        "--set", "topology.restarts.first_pause_seconds=0.1",
    )  # fmt: skip


def test_a_run_ends_with_all_it_promises_and_leaves_no_process_behind(train: Train) -> None:
    train.start(
        "train", "CartPole-v1", "--algo", "ppo", "--steps", "4000", "--actors", "2",
        "--shards", "2", "--envs-per-actor", "4", "--run-dir", str(train.run_dir),
        "--set", "evaluation.every=2000",
        "--set", "evaluation.episodes=2",
    )  # fmt: skip
    output = train.finish()
    assert "finished:" in output
    train.assert_nothing_left()
    with np.load(train.run_dir / "evaluations.npz") as evaluations:
        assert evaluations["timesteps"][0] == 0
        assert evaluations["timesteps"][-1] >= 4000
    assert (train.run_dir / "checkpoints" / "best").is_dir()
    assert (train.run_dir / "metrics.jsonl").read_text().count("learner/") > 0
    assert train.events("restarting") == []
    for name in ("worker-0", "worker-1", "learner-ppo", "shard-0", "shard-1", "evaluator"):
        assert (train.run_dir / "logs" / f"{name}.jsonl").exists()


def test_kills_of_every_kind_of_process_are_survived(train: Train) -> None:
    dqn(train, 30_000)  # more than a fast machine makes before the last kill
    for name in ("worker-0", "shard-1", "learner-dqn"):
        train.until(lambda: train.env_steps() > 1200)  # there is a checkpoint
        member = train.await_member(name)
        os.kill(member.process_id, signal.SIGKILL)
        train.await_member(name, incarnation=member.incarnation + 1)
    os.kill(train.control_server(), signal.SIGKILL)
    train.finish()
    restarted = {event["member"] for event in train.events("restarting")}
    assert restarted >= {"worker-0", "shard-1", "learner-dqn"}
    train.assert_nothing_left()


def test_a_killed_head_leaves_nobody_behind_and_resume_goes_on(train: Train) -> None:
    dqn(train, 3000)
    train.until(lambda: train.env_steps() > 1500 and any(train.run_dir.glob("checkpoints/step_*")))
    for agent in (b"ray::DashboardAgent", b"ray::RuntimeEnvAgent"):
        (process_id,) = train.processes(agent)  # knows its environment still, so the mark is there
        assert b"REPERTORY_GUARDIAN=" in Path(f"/proc/{process_id}/environ").read_bytes()
    train.process.kill()
    train.process.communicate()
    train.assert_nothing_left()
    saved = train.env_steps_saved()
    train.start("resume", str(train.run_dir))
    output = train.finish()
    assert f"at step {saved}" in output
    assert any("restored" in line for line in log_of(train, "shard-0"))
    train.assert_nothing_left()


def test_scaling_stopping_and_going_on(train: Train) -> None:
    dqn(train, 100_000)
    train.await_member("worker-1")
    command("scale", str(train.run_dir), "--actors", "3")
    train.await_member("worker-2")
    command("scale", str(train.run_dir), "--actors", "1")
    train.until(lambda: [name for name in train.members() if "worker" in name] == ["worker-0"])
    assert "worker-0" in command("status", str(train.run_dir))
    command("stop", str(train.run_dir))
    output = train.finish()
    assert "stopped by stop command" in output
    train.assert_nothing_left()
    # The command is in the control server's file still, and was obeyed once.
    before = train.env_steps_saved()
    train.start("resume", str(train.run_dir))
    train.until(lambda: train.env_steps() > before + 500)
    command("stop", str(train.run_dir))
    train.finish()
