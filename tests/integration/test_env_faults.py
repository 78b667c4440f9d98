"""Environments that raise or hang, through the whole distributed stack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed_runs import Train, command, log_of
from faulty_envs import LENGTH

from services.run_control import control_of

pytestmark = pytest.mark.timeout(1200)

SILENCE_SECONDS = 8.0

ALGORITHMS = {
    "dqn": ("--set", "learner.learning_starts=200", "--set", "learner.batch_size=32",
            "--set", "learner.updates_per_step=0.1"),
    "ppo": ("--set", "learner.segment_length=50", "--envs-per-actor", "2"),
}  # fmt: skip


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


def steps_of(train: Train, name: str, incarnation: int) -> int:
    member = train.members().get(name)
    if member is None or member.incarnation < incarnation:
        return 0
    return int(member.facts.get("env_steps", 0))


def start(train: Train, env: str, algorithm: str, steps: int, *more: str) -> None:
    train.start(
        "train", f"faulty_envs:{env}", "--algo", algorithm, "--steps", str(steps),
        "--actors", "2", "--shards", "1", "--run-dir", str(train.run_dir),
        "--set", "learner.hidden_sizes=[16]", "--set", "evaluation.episodes=2",
        "--set", f"topology.restarts.silence_seconds={SILENCE_SECONDS:g}",
        "--set", "topology.restarts.first_pause_seconds=0.1",
        *ALGORITHMS[algorithm], *more,
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_episode_in_which_the_environment_raises_is_dropped(
    train: Train, algorithm: str
) -> None:
    start(train, "RaisesNowAndThen", algorithm, 4000)
    train.until(lambda: train.env_steps() > 3000)
    control = control_of(train.run_dir)
    lengths = {
        length
        for entry in control.read("metrics")
        for length in entry.fields["metrics"].get("lengths", ())
    }
    broken = [
        member.facts.get("broken_episodes", 0)
        for name, member in control.members().items()
        if name.startswith("worker-")
    ]
    train.finish()
    assert lengths == {LENGTH}  # none of those that were cut short counts as an episode
    assert sum(broken) >= 10  # 3000 steps, and one breaks after each 110
    assert train.events("restarting") == []
    assert any("made anew" in line for line in log_of(train, "worker-0"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_worker_whose_environment_hangs_is_started_again(
    train: Train, algorithm: str, tmp_path: Path
) -> None:
    mark = tmp_path / "hung"
    start(train, "HangsOnce", algorithm, 10_000_000, "--set", f"env.kwargs.mark={mark}")
    train.until(mark.exists)
    hung_at = time.time()
    train.until(lambda: train.events("restarting"))
    restart = train.events("restarting")[0]
    assert restart["member"].startswith("worker-")
    assert restart["reason"].startswith("said nothing for")
    assert SILENCE_SECONDS - 1.0 < restart["time"] - hung_at < SILENCE_SECONDS + 15.0
    train.until(lambda: steps_of(train, restart["member"], incarnation=2) > 0)
    command("stop", str(train.run_dir))
    train.finish()
    assert len(train.events("restarting")) == 1
    train.assert_nothing_left()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_run_whose_environment_is_gone_for_good_says_so_and_ends(
    train: Train, algorithm: str, tmp_path: Path
) -> None:
    mark = tmp_path / "gone"
    start(
        train, "GoneForGood", algorithm, 1_000_000, "--set", f"env.kwargs.mark={mark}",
        "--set", "topology.restarts.max_failures=2",
    )  # fmt: skip
    train.until(mark.exists)
    output = train.fail(timeout_seconds=120.0)
    sentence = output.strip().splitlines()[-1]
    assert sentence.startswith("repertory: worker-")
    assert "the simulator is gone" in sentence
    train.assert_nothing_left()
