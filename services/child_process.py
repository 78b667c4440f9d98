"""Processes that end with the one that started them, however that one ends.

The kernel sends the signal when the *thread* that started the process ends (Linux,
PR_SET_PDEATHSIG): start such processes from a thread that lives as long as the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

# Set in the child before it becomes the command, and kept by it. A parent that was gone before
# this line sends nothing any more, so it is looked for.
_PRELUDE = """
import ctypes, os, sys
parent, number, *command = sys.argv[1:]
ctypes.CDLL(None).prctl(1, int(number))
if os.getppid() == int(parent):
    os.execv(command[0], command)
"""


def tied_to_parent(
    command: Sequence[str], death_signal: signal.Signals = signal.SIGKILL
) -> list[str]:
    """The command to run instead; where the system has no such signal, the command itself."""
    if not sys.platform.startswith("linux"):
        return list(command)
    prelude = [sys.executable, "-I", "-S", "-c", _PRELUDE]
    return [*prelude, str(os.getpid()), str(int(death_signal)), *command]


def end_process(process: subprocess.Popen[bytes], timeout_seconds: float) -> None:
    """Asks it to end, and ends it where it does not."""
    process.terminate()
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout_seconds)
