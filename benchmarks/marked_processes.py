"""Processes that were started with a mark in their environment, and all that those started.

They are found in /proc, so on Linux only. What a benchmark starts is ended by it, also what hides
in a session of its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

MARK = "REPERTORY_MEASURED_RUN"
LOOK_SECONDS = 0.05


def marked(mark: str) -> dict[int, str]:
    """Command lines by process id."""
    found: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                found[int(process.name)] = command
    return found


def end_marked(mark: str, patience_seconds: float) -> list[str]:
    """Waits for them so long, then kills them; returns who had to be killed."""
    deadline = time.monotonic() + patience_seconds
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
    killed = []
    for process_id, command in left.items():
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
            killed.append(command.replace("\0", " ").strip()[:60])
    return killed
