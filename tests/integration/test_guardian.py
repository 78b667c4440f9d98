"""Nothing outlives a head that is killed; a head that ends well is left alone."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Starts something that would stay for ever, and something of its own that is not marked.
HEAD = """
import subprocess, sys
from pathlib import Path
from services.guardian import Guardian
guardian = Guardian(Path(sys.argv[1]), grace_seconds=float(sys.argv[2]))
sleep = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
with guardian.marking():
    marked = subprocess.Popen(sleep, stdout=subprocess.DEVNULL)
other = subprocess.Popen(sleep, stdout=subprocess.DEVNULL)
print(marked.pid, other.pid, flush=True)
word = sys.stdin.read()
if word == "end well":
    guardian.close()
elif word == "clear":
    guardian.clear()
"""


class Head:
    def __init__(self, folder: Path, grace_seconds: float = 0.2) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HEAD, str(folder), str(grace_seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.marked, self.other = (
            os.pidfd_open(int(word)) for word in self._process.stdout.readline().split()
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end_well(self) -> None:
        self._process.communicate("end well", timeout=30)

    def clear(self) -> None:
        self._process.communicate("clear", timeout=30)

    def tidy(self) -> None:
        for watch in (self.marked, self.other):
            if not ended(watch, 0.0):
                signal.pidfd_send_signal(watch, signal.SIGKILL)
            os.close(watch)


def ended(watch: int, timeout_seconds: float) -> bool:
    return bool(select.select([watch], [], [], timeout_seconds)[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "sockets"
    made.mkdir()
    return made


def test_what_was_marked_ends_after_a_head_that_was_killed(folder: Path) -> None:
    head = Head(folder)
    head.kill()
    assert ended(head.marked, 30.0)
    assert not ended(head.other, 0.0)
    head.tidy()


def test_a_head_that_ends_well_leaves_nothing_to_do(folder: Path) -> None:
    head = Head(folder)
    head.end_well()
    # Twice as long as the guardian would have waited.
    assert not ended(head.marked, 0.4)
    assert folder.is_dir()
    head.tidy()


def test_a_head_that_has_ended_all_does_not_wait_for_the_rest(folder: Path) -> None:
    head = Head(folder, grace_seconds=3600.0)  # that of a head which was killed
    head.clear()
    assert ended(head.marked, 0.0)
    assert not ended(head.other, 0.0)
    head.tidy()
