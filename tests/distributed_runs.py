"""Distributed runs in processes of their own, and everything they start: to look at, and to kill.

`Train.start` takes the words of the command line; `Train.start_linked` starts a run whose shards
are behind proxies (`tests/linked_run.py`), so that they can be cut off from everybody.
"""

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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from repertory.control import ControlUnavailable, Member
from repertory.errors import UsageError
from services.run_control import control_of

LONG_SECONDS = 480.0  # only something broken takes this long, on a busy machine too
MARK = "REPERTORY_TEST_RUN"
TESTS = Path(__file__).parent


class Train:
    """`repertory train` in a process of its own, and everything it starts."""

    def __init__(self, folder: Path) -> None:
        self.run_dir = folder / "run"
        self._mark = uuid.uuid4().hex

    def start(self, *arguments: str, dashboard: bool = False) -> None:
        """Without a page for it, which would take its share of a small machine."""
        settings = () if dashboard or arguments[0] != "train" else ("--set", "log.dashboard=false")
        self._start("-m", "services.cli", *arguments, *settings)

    def start_linked(self, description: Mapping[str, Any]) -> None:
        """See `linked_run` for what the description holds besides the run directory."""
        file = self.run_dir.with_suffix(".json")
        file.write_text(json.dumps({**description, "run_dir": str(self.run_dir)}))
        self._start(str(TESTS / "linked_run.py"), str(file))

    def _start(self, *command: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, MARK: self._mark, "OMP_NUM_THREADS": "1"},
            cwd=TESTS,  # environments of the tests are found there
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, timeout_seconds: float = LONG_SECONDS) -> str:
        output, _ = self.process.communicate(timeout=timeout_seconds)
        assert self.process.returncode == 0, output
        assert "Traceback" not in output
        return output

    def fail(self, timeout_seconds: float = LONG_SECONDS) -> str:
        """What it said in the end, where it ends with an error as it should."""
        output, _ = self.process.communicate(timeout=timeout_seconds)
        assert self.process.returncode == 1, output
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
        if not select.select([watch], [], [], max(0.0, timeout_seconds))[0]:
            words = Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ")
            raise AssertionError(f"{process_id} is still there: {words.decode()}")
    finally:
        os.close(watch)


def log_of(train: Train, name: str) -> list[str]:
    lines = (train.run_dir / "logs" / f"{name}.jsonl").read_text().splitlines()
    return [json.loads(line)["message"] for line in lines if line.startswith("{")]


def command(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
