"""Several learners in one distributed run: who acts when is what the director decided."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed_runs import Train

from repertory.errors import RepertoryError
from services.run_control import control_of

pytestmark = pytest.mark.timeout(600)

SCRIPT = ["dqn", "dqn", "ppo"]
ANSWER_SECONDS = 30.0


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Train]:
    made = Train(tmp_path)
    yield made
    made.end()


def start(train: Train, *more: str) -> None:
    train.start(
        "train", "CartPole-v1", "--algo", "dqn,ppo", "--run-dir", str(train.run_dir),
        "--actors", "2", "--shards", "1", "--envs-per-actor", "2", "--seed", "1",
        "--set", "learner.hidden_sizes=[16]", "--set", "learners.ppo.segment_length=32",
        "--set", "learners.dqn.learning_starts=200", "--set", "topology.send_items=32",
        "--set", "checkpoint.every=1000", "--set", "log.every=500",
        "--set", "evaluation.every=100000", "--set", "evaluation.episodes=1", *more,
    )  # fmt: skip


def decided(train: Train) -> dict[int, tuple[str, str]]:
    """By number: the policy and the reason, as it was handed out the last time."""
    return {
        number: (policy, reason)
        for event in train.events("decisions")
        for number, policy, reason, _ in event["decisions"]
    }


def ended(train: Train) -> list[list[Any]]:
    """[number, policy, version, return, own steps] of each."""
    return [row for event in train.events("decisions_ended") for row in event["outcomes"]]


def test_a_script_is_kept_to_the_letter_and_a_pin_acts_with_the_next_episode(train: Train) -> None:
    """Also within episodes, across a kill of the director, and with two actors that ask."""
    start(
        train, "--steps", "12000", "--set", "director.switch_every=15",
        "--set", "director.strategy={name: scripted, script: [[dqn, 2], [ppo, 1]]}",
    )  # fmt: skip
    train.until(lambda: train.env_steps() > 1000)
    (director,) = train.processes(b"DirectorHost")
    os.kill(director, signal.SIGKILL)
    killed_at = train.env_steps()
    train.until(lambda: train.env_steps() > killed_at + 1500)

    control = control_of(train.run_dir)
    with pytest.raises(RepertoryError, match="no policy 'td3'"):
        control.await_reply(control.send("pin", policy="td3"), ANSWER_SECONDS)
    answer = control.await_reply(control.send("pin", policy="ppo"), ANSWER_SECONDS)
    pinned_at = train.env_steps()
    train.until(lambda: train.env_steps() > pinned_at + 1000)
    control.await_reply(control.send("stop"), ANSWER_SECONDS)
    train.finish()

    decisions = decided(train)
    scripted = {n: policy for n, (policy, reason) in decisions.items() if reason == "strategy"}
    assert len(scripted) > 100
    assert all(policy == SCRIPT[number % 3] for number, policy in scripted.items())
    assert {policy for policy, reason in decisions.values() if reason == "pinned"} == {"ppo"}
    editions = [event["edition"] for event in train.events("decisions")]
    assert editions == sorted(editions)
    assert editions[-1] == answer["edition"]

    rows = ended(train)
    numbers = [row[0] for row in rows]
    assert len(set(numbers)) == len(numbers) > 100  # each once
    for number, policy, version, _, steps in rows:
        assert decisions[number][0] == policy
        assert version >= 0
        assert 0 <= steps <= 15
    assert len({version for _, policy, version, _, _ in rows if policy == "dqn"}) > 5
    # What was leased before the kill and after it is one sequence without a gap.
    assert sorted(decisions) == list(range(len(decisions)))


def test_a_run_of_several_goes_on_with_its_director_after_a_kill_of_the_head(train: Train) -> None:
    start(train, "--steps", "60000", "--strategy", "round_robin")
    train.until(lambda: any(train.run_dir.glob("checkpoints/step_*")))
    train.process.send_signal(signal.SIGKILL)
    train.process.communicate(timeout=60)
    train.assert_nothing_left()
    before = len(decided(train))
    saved = train.env_steps_saved()
    train.start("resume", str(train.run_dir), "--steps", str(saved + 2000))
    output = train.finish()
    assert f"resuming {train.run_dir} at step {saved}" in output
    rows = [row for event in train.events("decisions") for row in event["decisions"]]
    assert before < len(rows)
    again = [row[0] for row in rows[before:]]
    # It goes on from the checkpoint's own count, not from the beginning.
    assert min(again) > 0
    assert all(policy == ("dqn", "ppo")[number % 2] for number, policy, _, _ in rows)
