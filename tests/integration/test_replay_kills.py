"""kill -9 of random shards under load: what is missing at the end was bounded and counted."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from replay_shards import LONG_SECONDS, until

from buffer_server.client import ClientConfig, ReplayClient
from buffer_server.sharded import ShardedConfig, ShardedReplay
from repertory.checkpoints import verify
from repertory.errors import ReplayTimeout
from repertory.types import TransitionBatch

logger = logging.getLogger(__name__)

SHARDS = 3
WRITERS = 2
ROWS = 16  # of one insert
PACE_SECONDS = 0.005  # between two: a hundred kills take minutes, and every row is looked at
MARK_EVERY = 5  # kills between two moments after which nothing may be lost any more
# Both go on with the other shards; where two cores run everything, a look at them may take this.
LONGEST_STOP_SECONDS = 6.0


def rows(writer: int, first: int) -> TransitionBatch:
    """Each row says whose it is and which one, and carries a checksum of itself."""
    number = np.arange(first, first + ROWS, dtype=np.int64)
    noise = np.random.default_rng((writer, first)).random((ROWS, 8), dtype=np.float32)
    checksum = [zlib.crc32(row.tobytes(), int(n)) for n, row in zip(number, noise, strict=True)]
    return TransitionBatch(
        observation=noise,
        action=np.zeros(ROWS, np.int64),
        reward=np.full(ROWS, writer, np.float32),
        discount=np.ones(ROWS, np.float32),
        next_observation=noise,
        policy_id=np.full(ROWS, writer, np.int32),
        policy_version=number,
        extras={"checksum": np.array(checksum, np.int64)},
    )


def assert_whole(batch: TransitionBatch) -> None:
    numbers, checksums = batch.policy_version, batch.extras["checksum"]
    for number, row, again, checksum in zip(
        numbers, batch.observation, batch.next_observation, checksums, strict=True
    ):
        assert zlib.crc32(row.tobytes(), int(number)) == checksum
        assert row.tobytes() == again.tobytes()


class Shard:
    """`repertory buffer-server`, started again after each kill as a supervisor would."""

    def __init__(self, folder: Path, index: int, tables: Path) -> None:
        self.address = f"unix:{folder}/{index}.sock"
        self._command = [
            sys.executable, "-m", "services.cli", "buffer-server", "--tables", str(tables),
            "--address", self.address, "--checkpoint-dir", str(folder / f"shard-{index}"),
            "--checkpoint-every", "1", "--exit-with-parent", "--json",
        ]  # fmt: skip
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert json.loads(self._process.stdout.readline())["address"] == self.address

    def kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(LONG_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def client(self) -> ReplayClient:
        return ReplayClient(ClientConfig(address=self.address, table="replay"))

    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[list[Shard]]:
    columns = {
        name: {"dtype": spec.dtype, "shape": list(spec.shape)}
        for name, spec in rows(0, 0).signature().items()
    }
    tables = tmp_path / "tables.yaml"
    # Large enough that nothing is overwritten: whatever is missing at the end was lost.
    tables.write_text(
        yaml.safe_dump({"tables": {"replay": {"capacity": 1_000_000, "columns": columns}}})
    )
    started = [Shard(tmp_path, index, tables) for index in range(SHARDS)]
    yield started
    for shard in started:
        shard.kill()


class Worker(threading.Thread):
    """Does one thing again and again, and notes the longest time that it took."""

    def __init__(self, shards: list[Shard], **settings: object) -> None:
        super().__init__(daemon=True)
        addresses = tuple(shard.address for shard in shards)
        self.replay = ShardedReplay(
            ShardedConfig(addresses=addresses, table="replay", abandon_seconds=None, **settings)
        )
        self.longest_seconds = 0.0
        self.done = 0
        self.failure: BaseException | None = None
        self.going = threading.Event()
        self.parked = threading.Event()
        self._pace = threading.Event()  # never set
        self.stopping = False
        self.going.set()
        self.start()

    def run(self) -> None:
        try:
            while not self.stopping:
                if not self.going.is_set():
                    self.parked.set()
                    self.going.wait()
                    self.parked.clear()
                    continue
                begin = time.monotonic()
                self.once()
                self.longest_seconds = max(self.longest_seconds, time.monotonic() - begin)
                self.done += 1
                self._pace.wait(PACE_SECONDS)
        except BaseException as error:
            self.failure = error

    def once(self) -> None:
        raise NotImplementedError

    def wait_for_more(self) -> None:
        enough = self.done + 20
        until(lambda: self.done >= enough or self.failure)
        assert self.failure is None, self.failure

    def wait_for_all_shards(self) -> None:
        until(lambda: all(state.up for state in self.replay.client_statistics().shards))


class Writer(Worker):
    def __init__(self, index: int, shards: list[Shard]) -> None:
        self.index = index
        self.next_row = 0
        super().__init__(shards, insert_window_bytes=2**18)

    def once(self) -> None:
        self.replay.insert(rows(self.index, self.next_row), timeout_seconds=LONG_SECONDS)
        self.next_row += ROWS

    def settle(self) -> int:
        """Stops, and waits until all it has sent is acknowledged; how many rows that are."""
        self.going.clear()
        assert self.parked.wait(LONG_SECONDS), self.failure
        self.replay.flush(timeout_seconds=LONG_SECONDS)
        return self.next_row


class Reader(Worker):
    def once(self) -> None:
        try:
            sample = self.replay.sample(64, timeout_seconds=LONG_SECONDS)
        except ReplayTimeout:
            if self.done:
                raise
            return
        assert_whole(sample.batch)


def present(shards: list[Shard], *, check: bool) -> list[tuple[int, int]]:
    """(writer, number) of every row in every shard, once it is in a checkpoint."""
    found: list[tuple[int, int]] = []
    for shard in shards:
        with shard.client() as client:
            table = verify(Path(client.checkpoint(timeout_seconds=120))).load("table_0")
        columns = {
            name.removeprefix("storage/columns/"): column
            for name, column in table.items()
            if name.startswith("storage/columns/")
        }
        batch = TransitionBatch.from_columns(columns)
        if check:
            assert_whole(batch)
        found += zip(batch.policy_id.tolist(), batch.policy_version.tolist(), strict=True)
    return found


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_kills_lose_only_what_no_checkpoint_had(shards: list[Shard], kills: int) -> None:
    chance = random.Random(kills)
    writers = [Writer(index, shards) for index in range(WRITERS)]
    reader = Reader(shards)
    workers: list[Worker] = [*writers, reader]
    durable: set[tuple[int, int]] = set()  # rows that were in a checkpoint at the last mark
    memory: list[int] = []
    for kill in range(kills):
        if kill % MARK_EVERY == 0:
            for writer in writers:
                writer.settle()
            durable = set(present(shards, check=False))
            memory.append(sum(shard.memory_bytes() for shard in shards))
            for writer in writers:
                writer.going.set()
        for worker in workers:
            worker.wait_for_more()
        shard = chance.choice(shards)
        shard.kill()
        shard.start()
        for worker in workers:
            worker.wait_for_all_shards()
    for writer in writers:
        writer.wait_for_more()  # with the next insert a writer hears what the last kill has cost
    sent = [writer.settle() for writer in writers]
    lost_reported = sum(writer.replay.client_statistics().inserts.lost_items for writer in writers)
    for worker in workers:
        worker.stopping = True
        worker.going.set()
        worker.join(LONG_SECONDS)
        assert worker.failure is None
    found = present(shards, check=True)
    for worker in workers:
        worker.replay.close()

    everything = {(w, n) for w in range(WRITERS) for n in range(sent[w])}
    missing = everything - set(found)
    assert len(found) == len(set(found)), "a row is there twice"
    assert set(found) <= everything
    assert not missing & durable
    assert lost_reported == len(missing)
    assert max(worker.longest_seconds for worker in workers) < LONGEST_STOP_SECONDS
    logger.info(
        "%d kills: %d rows sent, %d lost and reported, longest stop %.2f s, memory of shards %s MB",
        kills,
        len(everything),
        len(missing),
        max(worker.longest_seconds for worker in workers),
        [nbytes // 2**20 for nbytes in memory],
    )
