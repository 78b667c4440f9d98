"""Sees to it that nothing outlives the head, however that one ends.

    with Guardian() as guardian:
        with guardian.marking():     # whatever is started meanwhile, by whomever, is marked
            ray.init(...)

Ray's own agents stay behind for a minute or more when the process that started them is killed. A
small process of ours waits at the end of a pipe: if the head goes without a word, it gives what
carries the mark a moment to end, kills the rest, and takes away the folders it was told of.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from repertory.closing import Closing

MARK = "REPERTORY_GUARDIAN"
STOP_SECONDS = 30.0  # it needs a moment; a busy machine may give it late

# Started without site-packages, so that it is there at once and costs next to nothing.
_PROGRAM = """
import os, shutil, signal, sys, time
mark, grace_seconds, *folders = sys.argv[1:]
needle = mark.encode()

def marked():
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if needle in file.read():
                        yield int(name)
            except OSError:
                continue

for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
word = sys.stdin.read()
if word == "done":
    sys.exit()
if word == "end":
    grace_seconds = 0.3
deadline = time.monotonic() + float(grace_seconds)
while list(marked()) and time.monotonic() < deadline:
    time.sleep(0.1)
while left := list(marked()):
    for process_id in left:
        try:
            os.kill(process_id, signal.SIGKILL)
        except ProcessLookupError:
            pass
    time.sleep(0.1)
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""


class Guardian(Closing):
    """At its post from the moment it is made; `close` dismisses it."""

    def __init__(self, *folders: Path, grace_seconds: float = 3.0) -> None:
        """`folders` are what the head itself would take away at its end."""
        self._mark = f"{MARK}={uuid.uuid4().hex}"
        arguments = [self._mark, str(grace_seconds), *(str(folder) for folder in folders)]
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            cwd="/",
        )

    @contextmanager
    def marking(self) -> Iterator[None]:
        """Processes inherit the mark from whoever starts them, and pass it on."""
        name, _, value = self._mark.partition("=")
        os.environ[name] = value
        try:
            yield
        finally:
            del os.environ[name]

    def clear(self) -> None:
        """Ends what is marked, and the guardian goes with it.

        Sooner than where the head is gone: this one has ended all that had something to finish.
        """
        self._process.communicate("end", timeout=STOP_SECONDS)

    def close(self) -> None:
        self._process.communicate("done", timeout=STOP_SECONDS)
