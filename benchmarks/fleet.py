"""The processes of one side: a server for each shard, some writers and one reader, all apart.

A side is started in its own environment and spoken to by the lines of `benchmarks.peers.commands`.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.commands import Count, Job, Settings, TableJob
from repertory.closing import Closing
from services.replay_access import MOST_BATCHES_AT_ONCE

ROOT = Path(__file__).parents[1]
ANSWER_SECONDS = 120.0  # only something broken takes this long
BATCH = 256
WARM_UP_SECONDS = 0.4
START_TOGETHER_SECONDS = 1.5  # until the slowest of several processes is ready and warm
NO_SETTINGS: Settings = {}
AS_LEARNERS: Settings = {"batches_at_once": MOST_BATCHES_AT_ONCE}  # draw uniformly, of ours


class PeerFailed(Exception):
    """A process of a side died, hung, or said what went wrong."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How a side's processes are started."""

    name: str
    python: Path
    module: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


class Process:
    """One process that answers commands, one line each. Several may be told before any answers."""

    def __init__(self, launch: Launch, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._name = launch.name
        self._answer_seconds = answer_seconds
        self._process = subprocess.Popen(
            [launch.python, "-m", launch.module, *launch.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # Reverb writes a line for every item
            cwd=ROOT,
            env={**os.environ, **launch.environment},
            text=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._commands, self._answers = self._process.stdin, self._process.stdout
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._answers, selectors.EVENT_READ)

    def tell(self, command: str, **arguments: Any) -> None:
        self._commands.write(json.dumps({"command": command, **arguments}) + "\n")
        self._commands.flush()

    def answer(self) -> Any:
        if not self._selector.select(self._answer_seconds):
            raise PeerFailed(
                f"a process of {self._name} gave no answer in {self._answer_seconds:g} s"
            )
        line = self._answers.readline()
        if not line:
            raise PeerFailed(f"a process of {self._name} ended: {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerFailed(f"a process of {self._name} failed:\n{answer['error']}")
        return answer["result"]

    def ask(self, command: str, **arguments: Any) -> Any:
        self.tell(command, **arguments)
        return self.answer()

    def close(self) -> None:
        self._selector.close()
        self._commands.close()
        self._answers.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Fleet(Closing):
    """One side with the same tables on every shard. Also a context manager, which ends it."""

    def __init__(
        self, launch: Launch, tables: Sequence[TableJob], *, writers: int = 1, shards: int = 1
    ) -> None:
        self.name = launch.name
        self._tables = {table.name: table for table in tables}
        self._servers: list[Process] = []
        self._clients: list[Process] = []
        try:
            for _ in range(shards):
                self._servers.append(Process(launch))
            for _ in range(1 + writers):
                self._clients.append(Process(launch))
            for server in self._servers:
                server.tell("serve", tables=[asdict(table) for table in tables])
            self._addresses = [server.answer() for server in self._servers]
            self.versions: dict[str, str] = self.reader.ask("versions")
        except BaseException:
            self.close()
            raise

    @property
    def reader(self) -> Process:
        return self._clients[0]

    @property
    def writers(self) -> list[Process]:
        return self._clients[1:]

    def fill(self, table: str, items: int, settings: Settings) -> None:
        job = self._job(table, 0.0, settings)
        self.writers[0].ask("fill", job=job, items=items)

    def rate(
        self,
        what: str,
        table: str,
        seconds: float,
        settings: Settings = NO_SETTINGS,
        *,
        shards: int | None = None,
    ) -> float:
        """Items per second of one client that inserts, samples or updates."""
        process = self.writers[0] if what == "insert" else self.reader
        job = self._job(table, seconds, settings, shards=shards)
        return _rate(Count(**process.ask(what, job=job)))

    def rates_together(
        self, table: str, seconds: float, settings: Settings, writers: int
    ) -> tuple[float, float]:
        """Items per second that go in and that come out while some write and one reads."""
        begin = time.monotonic() + START_TOGETHER_SECONDS
        job = self._job(table, seconds, settings, begin=begin)
        busy = self.writers[:writers]
        for writer in busy:
            writer.tell("insert", job=job)
        out = _rate(Count(**self.reader.ask("sample", job=job)))
        return sum(_rate(Count(**writer.answer())) for writer in busy), out

    def close(self) -> None:
        for process in [*self._clients, *self._servers]:
            process.close()

    def _job(
        self,
        table: str,
        seconds: float,
        settings: Settings,
        *,
        begin: float = 0.0,
        shards: int | None = None,
    ) -> dict[str, Any]:
        job = Job(
            addresses=self._addresses[:shards],
            table=table,
            work=self._tables[table].work,
            batch=BATCH,
            settings=settings,
            warm_up_seconds=WARM_UP_SECONDS,
            begin=begin,
            seconds=seconds,
        )
        return asdict(job)


def _rate(count: Count) -> float:
    return count.items / count.seconds
