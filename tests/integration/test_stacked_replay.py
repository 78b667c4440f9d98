"""Stacked pixels through a shard and through a whole run: the same numbers, fewer bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import lz4.block
import numpy as np
import pytest
from pixel_envs import PixelCopy, collect, stacked_signature
from replay_shards import LONG_SECONDS, connect
from small_runs import final_weights, timeless_metrics

from buffer_server import wire
from buffer_server.frames import share_frames
from buffer_server.proto import replay_pb2 as pb
from buffer_server.rate_limiter import RateLimiter
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.table import Table
from buffer_server.table_config import TableConfig
from repertory.api import train
from repertory.parts import lookup
from repertory.protocols import Replay
from repertory.types import Sample

METADATA = ((wire.PROTOCOL_KEY, str(wire.PROTOCOL_VERSION)),)


def copies(seed: int = 1) -> list[PixelCopy]:
    rng = np.random.default_rng(seed)
    return [PixelCopy(rng, stack=4, frame=(1, 20, 20), ending=0.1) for _ in range(3)]


def make_table(stack: int = 4) -> Table:
    kind = lookup("sampler", "prioritized")
    signature = stacked_signature(collect(copies(), 1), stack)
    return Table("replay", signature, 300, kind(kind.Config(), 300), RateLimiter(), 7)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReplayServer]:
    config = ServerConfig(address=f"unix:{tmp_path}/0.sock", max_message_bytes=2**20)
    with ReplayServer([make_table()], config) as server:
        yield server


def learn(replay: Replay) -> list[Sample]:
    envs, rng = copies(), np.random.default_rng(2)
    samples = []
    for step in range(80):
        replay.insert(collect(envs, 1 + step % 9), None)
        sample = replay.sample(16, timeout_seconds=LONG_SECONDS)
        replay.update_priorities(sample.keys, rng.random(16))
        samples.append(sample)
    return samples


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_shard_gives_the_samples_of_a_plain_table(compression: str, server: ReplayServer) -> None:
    expected = learn(make_table(stack=1))
    with connect(server, compression=compression) as client:
        received = learn(client)
    for one, other in zip(expected, received, strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.weights, other.weights)
        for name, column in one.batch.columns().items():
            np.testing.assert_array_equal(column, other.batch.columns()[name])
            assert other.batch.columns()[name].flags.writeable


def insert_request(sequence: int) -> pb.InsertRequest:
    batch = collect(copies(sequence), 4)
    signature = stacked_signature(batch, 4)
    request = pb.InsertRequest(
        table="replay",
        signature_hash=wire.signature_hash(signature),
        writer=b"w" * 16,
        sequence=sequence,
    )
    wire.write_items(request, share_frames(batch.columns(), signature))
    return request


def test_broken_frames_get_the_right_status(server: ReplayServer) -> None:
    garbage, bomb, beyond, good = (insert_request(sequence) for sequence in range(1, 5))
    garbage.frames.compression, garbage.frames.data = pb.LZ4, b"\xff" * 100
    # As many frames as 4096 items may show: more than a message may take when it is unpacked.
    del bomb.columns[:]
    for name, spec in stacked_signature(collect(copies(), 1), 4).items():
        dtype, shape = ("<i4", (4,)) if spec.stack > 1 else (spec.dtype, spec.shape)
        wire.write_column(bomb.columns.add(), name, np.zeros((4096, *shape), dtype))
    bomb.frames.shape[0] = 32_768
    bomb.frames.compression = pb.LZ4
    bomb.frames.data = lz4.block.compress(bytes(32_768 * 400), store_size=False)
    beyond.columns[0].data = np.full((4, 4), 10_000, np.int32).tobytes()
    expected = {
        "garbage": (garbage, grpc.StatusCode.INVALID_ARGUMENT, "cannot be decompressed"),
        "bomb": (bomb, grpc.StatusCode.RESOURCE_EXHAUSTED, "13107200 bytes when no longer"),
        "beyond": (beyond, grpc.StatusCode.INVALID_ARGUMENT, "frames 10000 to 10000, but"),
    }
    with grpc.insecure_channel(server.address) as channel:
        insert = channel.unary_unary(f"/{wire.SERVICE}/Insert")
        for name, (request, code, message) in expected.items():
            with pytest.raises(grpc.RpcError) as caught:
                insert(request.SerializeToString(), timeout=LONG_SECONDS, metadata=METADATA)
            assert caught.value.code() is code, name
            assert message in caught.value.details()
        insert(good.SerializeToString(), timeout=LONG_SECONDS, metadata=METADATA)
    with connect(server) as client:
        assert client.statistics().tables["replay"].size == 4


def pixel_run(run_dir: Path, **changes: Any) -> Any:
    settings = {
        "steps": 300,
        "env.copies": 2,
        "env.frame_stack": 4,
        "env.kwargs": {"layout": "none"},
        "learner.hidden_sizes": [8],
        "learner.batch_size": 8,
        "learner.random_steps": 60,
        "learner.learning_starts": 60,
        "learner.train_every": 8,
        "learner.updates_per_step": 0.125,
        "learner.n_step": 2,
        "replay.sampler": "prioritized",
        "replay.capacity": 150,
        "evaluation.every": 300,
        "evaluation.episodes": 1,
        "checkpoint.every": 150,
        **changes,
    }
    train("scripted_envs:Frames", "dqn", seed=3, run_dir=run_dir, settings=settings, progress=False)
    return final_weights(run_dir), timeless_metrics(run_dir)


def test_a_run_learns_the_same_from_frames_kept_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, metrics = pixel_run(tmp_path / "once")
    assert final_weights(tmp_path / "once", "table-replay")[
        "table-replay/storage/columns/observation"
    ].shape == (150, 4)
    over_grpc, grpc_metrics = pixel_run(tmp_path / "grpc", **{"replay.transport": "grpc"})
    signature = TableConfig.signature.fget
    assert signature is not None
    monkeypatch.setattr(
        TableConfig,
        "signature",
        property(
            lambda self: {
                name: type(column)(column.dtype, column.shape)
                for name, column in signature(self).items()
            }
        ),
    )
    plain, plain_metrics = pixel_run(tmp_path / "plain")
    saved = final_weights(tmp_path / "plain", "table-replay")[
        "table-replay/storage/columns/observation"
    ]
    assert saved.shape == (150, 4, 40, 36)
    for name, array in plain.items():
        np.testing.assert_array_equal(weights[name], array, err_msg=name)
        np.testing.assert_array_equal(over_grpc[name], array, err_msg=name)
    assert metrics == grpc_metrics == plain_metrics
