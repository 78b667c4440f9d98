"""A Ray that does not start: it is started again, and nothing of the first attempt is left."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from repertory.errors import RepertoryError
from services.cluster import TRIES_TO_START, Cluster

pytestmark = pytest.mark.timeout(300)

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


class BusyMachine:
    """In place of `ray.init`: what it starts is there, but is not ready in time."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.started: list[subprocess.Popen[bytes]] = []
        self.folders: list[Path] = []

    def __call__(self, **options: Any) -> None:
        folder = Path(options["_temp_dir"])
        folder.mkdir()
        self.folders.append(folder.parent)
        self.started.append(subprocess.Popen(SLEEP))
        if len(self.started) <= self._failures:
            raise Exception("The current node timed out during startup.")  # as Ray does


def test_what_was_not_ready_in_time_is_ended_and_started_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = BusyMachine(failures=1)
    monkeypatch.setattr(ray, "init", machine)
    with Cluster():
        first, second = machine.started
        assert first.wait(30) == -signal.SIGKILL
        assert second.poll() is None
        assert [folder.exists() for folder in machine.folders] == [False, True]
    # Nor does anything stay behind that `ray.shutdown` does not end.
    assert second.poll() == -signal.SIGKILL
    assert not any(folder.exists() for folder in machine.folders)


def test_after_some_attempts_it_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = BusyMachine(failures=TRIES_TO_START)
    monkeypatch.setattr(ray, "init", machine)
    with pytest.raises(RepertoryError, match=r"3 times in a row: The current node timed out"):
        Cluster()
    assert [process.wait(30) for process in machine.started] == [-signal.SIGKILL] * TRIES_TO_START
    assert not any(folder.exists() for folder in machine.folders)
