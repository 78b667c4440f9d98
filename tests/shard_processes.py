"""A shard in a process of its own, which can be stopped in its tracks.

    python tests/shard_processes.py ADDRESS SAMPLER

serves an empty table until its standard input ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from replay_shards import make_table

from buffer_server.server import ReplayServer, ServerConfig


class ShardProcess:
    """There from the moment it is made, until the end of the context."""

    def __init__(self, address: str, sampler: str = "uniform") -> None:
        self.address = address
        command = [sys.executable, str(Path(__file__)), address, sampler]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "serving\n"

    def pause(self) -> None:
        """It keeps its connections and says nothing any more."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def __enter__(self) -> ShardProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._process:
            self._process.kill()


def main(address: str, sampler: str) -> None:
    with ReplayServer([make_table(sampler, 10_000)], ServerConfig(address=address)):
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
