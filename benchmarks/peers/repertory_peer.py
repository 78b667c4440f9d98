"""Our side of the comparison: `python -m benchmarks.peers.repertory_peer` in our own environment.

A writer sends columns of 256 items and has a window of bytes under way; a reader keeps eight
batches coming. With the setting `single_steps` the writer is given one transition at a time, as an
environment that is not vectorised gives them, and puts the columns together itself. With the
argument `--tcp` a shard listens on a port, as Reverb does, instead of a socket.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.peers.commands import Count, Job, TableJob, answer_commands, until
from benchmarks.peers.work import STACK, Work, make_work
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.sharded import ShardedConfig, ShardedReplay
from buffer_server.table_config import ColumnConfig, TableConfig
from repertory.parts import lookup
from repertory.types import TransitionBatch

TIMEOUT_SECONDS = 60.0
FILL_BATCH = 512
KEY_BATCHES = 16
PREFETCH = 8
WINDOW_BYTES = 8 * 2**20


class RepertorySide:
    """A shard, or a client of shards."""

    def __init__(self, *, tcp: bool = False) -> None:
        self._tcp = tcp
        self._works: dict[str, Work] = {}
        self._directory = tempfile.TemporaryDirectory(prefix="replay-benchmark-")
        self._server: ReplayServer | None = None

    def serve(self, tables: list[TableJob]) -> str:
        built = []
        for job in tables:
            table = self._table_config(job).build(job.name)
            for columns in self._work(job.work).batches(FILL_BATCH):
                if table.size >= job.filled:
                    break
                batch = TransitionBatch.from_columns(columns)
                table.insert(batch.select(slice(0, job.filled - table.size)))
            built.append(table)
        socket = f"unix:{Path(self._directory.name) / 'shard.sock'}"
        address = "127.0.0.1:0" if self._tcp else socket
        self._server = ReplayServer(built, ServerConfig(address=address, insecure=self._tcp))
        self._server.start()
        return self._server.address

    def fill(self, job: Job, items: int) -> None:
        batches = self._batches(job)
        with self._client(job) as client:
            for _ in range(-(-items // job.batch)):
                client.insert(next(batches))
            client.flush()

    def insert(self, job: Job) -> Count:
        batches = self._batches(job)
        with self._client(job) as client:
            return until(job, lambda: client.insert(next(batches)), client.flush)

    def sample(self, job: Job) -> Count:
        with self._client(job) as client:
            first = client.sample(job.batch, timeout_seconds=TIMEOUT_SECONDS)
            self._work(job.work).check(first.batch.columns(), job.batch)

            def step() -> int:
                return len(client.sample(job.batch, timeout_seconds=TIMEOUT_SECONDS).keys)

            return until(job, step)

    def update(self, job: Job) -> Count:
        rng = np.random.default_rng(0)
        with self._client(job) as client:
            keys = [
                client.sample(job.batch, timeout_seconds=TIMEOUT_SECONDS).keys
                for _ in range(KEY_BATCHES)
            ]
            updates = itertools.cycle([(part, rng.random(len(part))) for part in keys])

            def step() -> int:
                client.update_priorities(*next(updates))
                return job.batch

            return until(job, step, client.flush)

    def versions(self) -> dict[str, str]:
        names = ("repertory", "grpcio", "protobuf", "numpy")
        return {name: importlib.metadata.version(name) for name in names}

    def _client(self, job: Job) -> ShardedReplay:
        return ShardedReplay(
            ShardedConfig(
                addresses=tuple(job.addresses),
                table=job.table,
                prefetch=PREFETCH,
                batches_at_once=job.settings.get("batches_at_once", 1),
                insert_window_bytes=WINDOW_BYTES,
            )
        )

    def _table_config(self, table: TableJob) -> TableConfig:
        stacks = {"observation", "next_observation"} if table.work == "pixels" else set()
        return TableConfig(
            columns={
                name: ColumnConfig(
                    dtype=column.dtype, shape=column.shape, stack=STACK if name in stacks else 1
                )
                for name, column in self._work(table.work).columns.items()
            },
            capacity=table.capacity,
            sampler=lookup("sampler", table.sampler).Config(),
        )

    def _batches(self, job: Job) -> Iterator[TransitionBatch]:
        work = self._work(job.work)
        if not job.settings.get("single_steps", False):
            return map(TransitionBatch.from_columns, work.batches(job.batch))
        return _collected(work, job.batch)

    def _work(self, name: str) -> Work:
        if name not in self._works:
            self._works[name] = make_work(name)
        return self._works[name]


def _collected(work: Work, size: int) -> Iterator[TransitionBatch]:
    """Batches that are put together from single transitions."""
    transitions = work.transitions()
    while True:
        steps = list(itertools.islice(transitions, size))
        yield TransitionBatch.from_columns(
            {name: np.array([step[name] for step in steps]) for name in work.columns}
        )


if __name__ == "__main__":
    answer_commands(RepertorySide(tcp="--tcp" in sys.argv[1:]))
