"""Tables, batches and clients for tests of the replay service."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from buffer_server import wire
from buffer_server.client import ClientConfig, ReplayClient
from buffer_server.proto import replay_pb2 as pb
from buffer_server.rate_limiter import RateLimiter
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.sharded import ShardedConfig, ShardedReplay
from buffer_server.table import Table
from repertory.parts import lookup
from repertory.types import TransitionBatch

# Only something broken takes this long.
LONG_SECONDS = 30.0


def numbered(first: int, count: int) -> TransitionBatch:
    """Items whose every column tells their number."""
    number = np.arange(first, first + count, dtype=np.float32)
    rows = np.repeat(number[:, None], 3, axis=1)
    return TransitionBatch(
        observation=rows,
        action=rows[:, :2].copy(),
        reward=number,
        discount=number,
        next_observation=rows,
        policy_id=number.astype(np.int32),
        policy_version=number.astype(np.int64),
        extras={"boundary": number % 2 == 0, "frame": rows.astype(np.uint8)},
    )


def encode_column(name: str, array: np.ndarray) -> pb.Column:
    column = pb.Column()
    wire.write_column(column, name, array)
    return column


def encode_batch(batch: TransitionBatch) -> list[pb.Column]:
    return [encode_column(name, array) for name, array in batch.columns().items()]


def make_table(
    sampler: str = "uniform",
    capacity: int = 1000,
    *,
    name: str = "replay",
    seed: int = 0,
    limiter: RateLimiter | None = None,
    **settings: Any,
) -> Table:
    kind = lookup("sampler", sampler)
    return Table(
        name,
        numbered(0, 1).signature(),
        capacity,
        kind(kind.Config(**settings), capacity),
        limiter or RateLimiter(),
        seed,
    )


def connect(server: ReplayServer, **settings: Any) -> ReplayClient:
    arguments = {"address": server.address, "table": "replay", "timeout_seconds": LONG_SECONDS}
    return ReplayClient(ClientConfig(**{**arguments, **settings}))


@contextmanager
def serving(folder: Path) -> Iterator[Callable[..., str]]:
    """What starts a shard for a table and returns its address; at the end all are stopped."""
    servers: list[ReplayServer] = []

    def start(table: Table, **settings: Any) -> str:
        address = f"unix:{folder}/{len(servers)}.sock"
        server = ReplayServer([table], ServerConfig(address=address, **settings))
        servers.append(server)
        server.start()
        return address

    try:
        yield start
    finally:
        for server in servers:
            server.stop(grace_seconds=0.0)


def connect_all(*addresses: str, **settings: Any) -> ShardedReplay:
    arguments = {"table": "replay", "timeout_seconds": LONG_SECONDS}
    return ShardedReplay(ShardedConfig(addresses=addresses, **{**arguments, **settings}))


def write_token(path: Path, token: str = "5" * 64) -> Path:
    path.write_text(token)
    path.chmod(0o600)
    return path


def until(condition: Callable[[], Any]) -> None:
    """Looks again and again, letting others run: what a table says of its callers has no signal."""
    deadline = time.monotonic() + LONG_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.001)
