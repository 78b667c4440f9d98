"""Reverb's side: `python -m benchmarks.peers.reverb_peer` in benchmarks/.venv-reverb.

It imports nothing of what it is compared with. Every item is one transition that can be sampled
alone. What can be tuned is in a job's settings, and the benchmark tries them out first:

    writer      "trajectory" (TrajectoryWriter) or "legacy" (Writer: discouraged, but faster)
    chunk       steps that are compressed and sent together
    under_way   items that are not acknowledged yet
    frames      of pixels: one frame a step, items refer to five of them, instead of whole stacks
    dataset     "timestep" or "trajectory"
    workers     threads and streams of the dataset; -1: Reverb's choice
    in_flight   samples each of them has under way
    per_stream  samples before a stream is opened anew; -1: Reverb's choice
"""

from __future__ import annotations

import importlib.metadata
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

from benchmarks.peers.commands import Count, Job, TableJob, answer_commands, until
from benchmarks.peers.work import STACK, Array, Work, make_work

KEY_BATCHES = 16
PREFETCHED_BATCHES = 4

Step = Callable[[], int]


class ReverbSide:
    """A server, or one of its clients."""

    def __init__(self) -> None:
        self._works: dict[str, Work] = {}
        self._server: reverb.Server | None = None

    def serve(self, tables: list[TableJob]) -> str:
        self._server = reverb.Server([self._table(table) for table in tables])
        return f"localhost:{self._server.port}"

    def fill(self, job: Job, items: int) -> None:
        step, finish = self._writer(job)
        done = 0
        while done < items:
            done += step()
        finish()

    def insert(self, job: Job) -> Count:
        return until(job, *self._writer(job))

    def sample(self, job: Job) -> Count:
        batches = self._dataset(job)
        first = next(batches).data
        self._work(job.work).check({k: v.numpy() for k, v in first.items()}, job.batch)
        return until(job, lambda: len(next(batches).info.key))

    def update(self, job: Job) -> Count:
        client = reverb.Client(job.addresses[0])
        rng = np.random.default_rng(0)
        count = KEY_BATCHES * job.batch
        keys = [one.info.key for one in client.sample(job.table, count, emit_timesteps=False)]
        updates = itertools.cycle(
            [
                (keys[first : first + job.batch], rng.random(job.batch).tolist())
                for first in range(0, count, job.batch)
            ]
        )

        def step() -> int:
            client.mutate_priorities(job.table, dict(zip(*next(updates), strict=True)))
            return job.batch

        return until(job, step)

    def versions(self) -> dict[str, str]:
        names = ("dm-reverb", "tensorflow", "numpy")
        return {name: importlib.metadata.version(name) for name in names}

    def _table(self, table: TableJob) -> reverb.Table:
        selectors = {
            "uniform": reverb.selectors.Uniform(),
            "prioritized": reverb.selectors.Prioritized(0.6),
        }
        columns = self._work(table.work).columns
        return reverb.Table(
            name=table.name,
            sampler=selectors[table.sampler],
            remover=reverb.selectors.Fifo(),
            max_size=table.capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
            signature={
                name: tf.TensorSpec(column.shape, np.dtype(column.dtype), name=name)
                for name, column in columns.items()
            },
        )

    def _writer(self, job: Job) -> tuple[Step, Callable[[], None]]:
        """What inserts one transition, and what waits for all of them."""
        client, work = reverb.Client(job.addresses[0]), self._work(job.work)
        if job.settings["writer"] == "legacy":
            return _legacy_writer(client, job, work)
        return _trajectory_writer(client, job, work)

    def _dataset(self, job: Job) -> Iterator[Any]:
        kinds = {"timestep": reverb.TimestepDataset, "trajectory": reverb.TrajectoryDataset}
        columns = self._work(job.work).columns
        dataset = kinds[job.settings["dataset"]](
            server_address=job.addresses[0],
            table=job.table,
            dtypes={name: tf.as_dtype(np.dtype(column.dtype)) for name, column in columns.items()},
            shapes={name: tf.TensorShape(column.shape) for name, column in columns.items()},
            max_in_flight_samples_per_worker=job.settings["in_flight"],
            num_workers_per_iterator=job.settings["workers"],
            max_samples_per_stream=job.settings["per_stream"],
        )
        batches: Iterator[Any] = iter(
            dataset.batch(job.batch, drop_remainder=True).prefetch(PREFETCHED_BATCHES)
        )
        return batches

    def _work(self, name: str) -> Work:
        if name not in self._works:
            self._works[name] = make_work(name)
        return self._works[name]


def _legacy_writer(client: reverb.Client, job: Job, work: Work) -> tuple[Step, Callable[[], None]]:
    chunk = job.settings["chunk"]
    writer = client.writer(
        max_sequence_length=chunk, chunk_length=chunk, max_in_flight_items=job.settings["under_way"]
    )
    transitions = work.transitions()

    def step() -> int:
        writer.append(next(transitions))
        writer.create_item(job.table, num_timesteps=1, priority=1.0)
        return 1

    return step, writer.flush


def _trajectory_writer(
    client: reverb.Client, job: Job, work: Work
) -> tuple[Step, Callable[[], None]]:
    chunk, frames = job.settings["chunk"], job.settings.get("frames", False)
    alive = max(chunk, STACK + 1) if frames else chunk
    writer = client.trajectory_writer(num_keep_alive_refs=alive)
    steps = _frame_steps(work) if frames else work.transitions()
    for name in [*work.columns, "frame"]:
        writer.configure((name,), num_keep_alive_refs=alive, max_chunk_length=chunk)

    def step() -> int:
        data = next(steps)
        writer.append(data)
        # The first frames of an episode belong to no transition yet.
        if frames and len(data) == 1:
            return 0
        history = writer.history
        item = _of_frames(history) if frames else {name: history[name][-1] for name in data}
        writer.create_item(job.table, 1.0, item)
        writer.flush(block_until_num_items=job.settings["under_way"])
        return 1

    return step, writer.flush


def _frame_steps(work: Work) -> Iterator[dict[str, Array]]:
    """Each transition with the newest frame of its next observation; before them, four frames."""
    assert work.frames is not None
    for place, transition in enumerate(work.transitions()):
        step = place % len(work)
        if step == 0:
            yield from ({"frame": frame} for frame in work.frames[:STACK])
        scalars = {name: value for name, value in transition.items() if "observation" not in name}
        yield {**scalars, "frame": work.frames[step + STACK]}


def _of_frames(history: Mapping[str, Any]) -> dict[str, Any]:
    item = {name: column[-1] for name, column in history.items() if name != "frame"}
    frames = history["frame"]
    return {**item, "observation": frames[-STACK - 1 : -1], "next_observation": frames[-STACK:]}


if __name__ == "__main__":
    answer_commands(ReverbSide())
