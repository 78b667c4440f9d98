"""Whole distributed runs: real Ray, real shards, a real control server; and what kills survive."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from repertory.control import ControlUnavailable, Member
from repertory.errors import UsageError
from services.topology import control_of

LONG_SECONDS = 240.0
MARK = "REPERTORY_TEST_RUN"

pytestmark = pytest.mark.timeout(600)


class Train:
    """`repertory train` in a process of its own, and everything it starts."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self._mark = uuid.uuid4().hex

    def start(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "services.cli", *arguments],
            env={**os.environ, MARK: self._mark, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self) -> str:
        output, _ = self.process.communicate(timeout=LONG_SECONDS)
        assert self.process.returncode == 0, output
        assert "Traceback" not in output
        return output

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def members(self) -> dict[str, Member]:
        """As the control server has them now; none while it is away."""
        try:
            return control_of(self.run_dir).members()
        except (ControlUnavailable, UsageError):
            return {}

    def await_member(self, name: str, incarnation: int = 1) -> Member:
        """Once it is at work."""
        found: list[Member] = []

        def there() -> bool:
            member = self.members().get(name)
            if member is None or member.incarnation < incarnation:
                return False
            found.append(member)
            return "progress_at" in member.facts

        self.until(there)
        return found[-1]

    def env_steps(self) -> int:
        try:
            return control_of(self.run_dir).counters().get("env_steps", 0)
        except (ControlUnavailable, UsageError):
            return 0

    def env_steps_saved(self) -> int:
        newest = max(self.run_dir.glob("checkpoints/step_*"))
        return int(newest.name.removeprefix("step_"))

    def until(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + LONG_SECONDS
        while not condition():
            assert time.monotonic() < deadline
            with contextlib.suppress(subprocess.TimeoutExpired):  # woken if it ends
                self.process.wait(0.05)
                raise AssertionError(self.process.communicate()[0])

    def processes(self, word: bytes = b"") -> list[int]:
        """Everything that this run has started and that is still there."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (
                    self._mark.encode() in (process / "environ").read_bytes()
                    and word in (process / "cmdline").read_bytes()
                ):
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def control_server(self) -> int:
        """Its process id; it covers its environment, so that it is not found as the others are."""
        return int((self.run_dir / "control" / "server.pid").read_text())

    def assert_nothing_left(self) -> None:
        """Waits for the end of each that is still there."""
        deadline = time.monotonic() + 30.0
        while left := self.processes() + self._control_servers():
            _await_end(left[0], deadline - time.monotonic())

    def _control_servers(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):  # it takes its file away when it ends
            return [self.control_server()]
        return []

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for process_id in self.processes():
            os.kill(process_id, signal.SIGKILL)


def _await_end(process_id: int, timeout_seconds: float) -> None:
    try:
        watch = os.pidfd_open(process_id)
    except ProcessLookupError:
        return
    try:  # readable once it has ended
        assert select.select([watch], [], [], max(0.0, timeout_seconds))[0], process_id
    finally:
        os.close(watch)


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
    dqn(train, 8000)
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
    train.process.kill()
    train.process.communicate()
    train.assert_nothing_left()
    saved = train.env_steps_saved()
    train.start("resume", str(train.run_dir))
    output = train.finish()
    assert f"at step {saved}" in output
    assert any("restored" in line for line in _log(train, "shard-0"))
    train.assert_nothing_left()


def test_scaling_stopping_and_going_on(train: Train) -> None:
    dqn(train, 100_000)
    train.await_member("worker-1")
    _command("scale", str(train.run_dir), "--actors", "3")
    train.await_member("worker-2")
    _command("scale", str(train.run_dir), "--actors", "1")
    train.until(lambda: [name for name in train.members() if "worker" in name] == ["worker-0"])
    assert "worker-0" in _command("status", str(train.run_dir))
    _command("stop", str(train.run_dir))
    output = train.finish()
    assert "stopped by stop command" in output
    train.assert_nothing_left()
    # The command is in the control server's file still, and was obeyed once.
    before = train.env_steps_saved()
    train.start("resume", str(train.run_dir))
    train.until(lambda: train.env_steps() > before + 500)
    _command("stop", str(train.run_dir))
    train.finish()


def _log(train: Train, name: str) -> list[str]:
    lines = (train.run_dir / "logs" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["message"] for line in lines if line.startswith("{")]


def _command(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
