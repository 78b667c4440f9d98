"""Thousands of broken messages: the right status for each, and nothing grows or falls over."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np
import pytest
from replay_shards import (
    connect,
    encode_batch,
    encode_column,
    make_table,
    numbered,
    write_token,
)

from buffer_server import wire
from buffer_server.proto import replay_pb2 as pb
from buffer_server.rate_limiter import RateLimiter
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.table import Table

MAX_MESSAGE_BYTES = 2**17
GROWTH_BYTES = 32 * 2**20  # what allocators may keep; 3000 leaked inserts would be 10 times that
TOKEN = "7" * 64
METADATA = ((wire.PROTOCOL_KEY, "1"), ("authorization", f"Bearer {TOKEN}"))
Code = grpc.StatusCode


def insert_request(table: Table, sequence: int, rng: np.random.Generator) -> pb.InsertRequest:
    return pb.InsertRequest(
        table="replay",
        signature_hash=wire.signature_hash(table.signature),
        writer=b"w" * 16,
        sequence=sequence,
        columns=encode_batch(numbered(sequence, int(rng.integers(1, 9)))),
        priorities=None,
    )


def column_of(request: pb.InsertRequest, rng: np.random.Generator) -> pb.Column:
    return request.columns[int(rng.integers(len(request.columns)))]


def set_shape(column: pb.Column, shape: list[int]) -> None:
    del column.shape[:]
    column.shape.extend(shape)


# Each spoils a right request so that exactly one answer is right.
def short_data(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    column = column_of(request, rng)
    column.data = column.data[: int(rng.integers(len(column.data)))]
    return Code.INVALID_ARGUMENT


def long_data(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    column_of(request, rng).data += rng.bytes(int(rng.integers(1, 100)))
    return Code.INVALID_ARGUMENT


def other_dtype(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    column = column_of(request, rng)
    column.dtype = (column.dtype + int(rng.integers(1, 100))) % 101
    return Code.INVALID_ARGUMENT


def other_shape(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    set_shape(column_of(request, rng), rng.integers(9, 2**32, int(rng.integers(0, 12))).tolist())
    return Code.INVALID_ARGUMENT


def huge_count(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    for column in request.columns:
        set_shape(column, [2**32 - 1, *column.shape[1:]])
    return Code.INVALID_ARGUMENT


def no_column(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    del request.columns[int(rng.integers(len(request.columns)))]
    return Code.INVALID_ARGUMENT


def column_twice(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.columns.append(column_of(request, rng))
    return Code.INVALID_ARGUMENT


def bad_priorities(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    count = len(request.columns[0].data)  # never the number of items
    request.priorities.CopyFrom(encode_column("", np.ones(count, np.float32)))
    return Code.INVALID_ARGUMENT


def bad_writer(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.writer = rng.bytes(int(rng.integers(17, 2000)))
    return Code.INVALID_ARGUMENT


def bad_timeout(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.timeout_seconds = float(rng.choice([-1.0, np.nan, np.inf]))
    return Code.INVALID_ARGUMENT


def other_table(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.table = "x" * int(rng.integers(0, 5000))
    return Code.NOT_FOUND


def other_hash(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.signature_hash ^= int(rng.integers(1, 2**63))
    return Code.FAILED_PRECONDITION


def bad_compression(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    frames = next(column for column in request.columns if column.name == "extras/frame")
    frames.compression = pb.LZ4
    frames.data = rng.bytes(len(frames.data))
    return Code.INVALID_ARGUMENT


def unknown_compression(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    column_of(request, rng).compression = int(rng.integers(2, 1000))
    return Code.INVALID_ARGUMENT


def unasked_frames(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.frames.CopyFrom(encode_column("", np.zeros((3, 1, 4, 4), np.uint8)))
    return Code.INVALID_ARGUMENT


def too_large(request: pb.InsertRequest, rng: np.random.Generator) -> Code:
    request.columns[0].data = bytes(MAX_MESSAGE_BYTES + 1)
    return Code.RESOURCE_EXHAUSTED


SPOILERS: list[Callable[[pb.InsertRequest, np.random.Generator], Code]] = [
    short_data, long_data, other_dtype, other_shape, huge_count, no_column, column_twice,
    bad_priorities, bad_writer, bad_timeout, other_table, other_hash, bad_compression,
    unknown_compression, unasked_frames,
]  # fmt: skip

# Each spoils who asks instead of what.
STRANGERS: list[tuple[tuple[tuple[str, str], ...], Code]] = [
    (METADATA[:1], Code.UNAUTHENTICATED),
    ((METADATA[0], ("authorization", f"Bearer {TOKEN[:-1]}8")), Code.UNAUTHENTICATED),
    ((METADATA[0], ("authorization", TOKEN)), Code.UNAUTHENTICATED),
    (METADATA[1:], Code.FAILED_PRECONDITION),
    (((wire.PROTOCOL_KEY, "2"), METADATA[1]), Code.FAILED_PRECONDITION),
    (((wire.PROTOCOL_KEY, "x" * 500), METADATA[1]), Code.FAILED_PRECONDITION),
]


def answer(
    call: Callable[..., bytes], raw: bytes, metadata: tuple[tuple[str, str], ...] = METADATA
) -> Code:
    try:
        call(raw, timeout=30, metadata=metadata)
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


def resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("messages", [3000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_broken_messages_get_the_right_status_and_leave_nothing_behind(
    tmp_path: Path, messages: int
) -> None:
    rng = np.random.default_rng(0)
    table = make_table("prioritized", capacity=100)
    config = ServerConfig(
        address=f"unix:{tmp_path}/fuzz.sock",
        token_file=write_token(tmp_path / "token", TOKEN),
        max_message_bytes=MAX_MESSAGE_BYTES,
    )
    with ReplayServer([table], config) as server:
        with grpc.insecure_channel(server.address) as channel:
            insert = channel.unary_unary(f"/{wire.SERVICE}/Insert")
            before = 0
            for sequence in range(1, messages + 1):
                if sequence == messages // 5:  # by then every allocator has what it wants
                    before = resident_bytes()
                request = insert_request(table, sequence, rng)
                if sequence % 7 == 0:
                    metadata, expected = STRANGERS[sequence // 7 % len(STRANGERS)]
                    given = answer(insert, request.SerializeToString(), metadata)
                    assert given is expected, metadata
                    continue
                # gRPC itself refuses what is too large, and takes a tenth of a second for it.
                spoil = too_large if sequence % 100 == 0 else SPOILERS[sequence % len(SPOILERS)]
                expected = spoil(request, rng)
                assert answer(insert, request.SerializeToString()) is expected, spoil.__name__
            assert resident_bytes() - before < GROWTH_BYTES
        assert table.size == 0
        with connect(server, token_file=tmp_path / "token") as client:
            assert client.insert(numbered(0, 4)) == 4


def test_random_bytes_never_break_any_method(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    table = make_table("prioritized", capacity=100)
    table.insert(numbered(0, 50))
    requests = {
        "Insert": insert_request(table, 1, rng),
        "Sample": pb.SampleRequest(
            table="replay", signature_hash=wire.signature_hash(table.signature), size=4
        ),
        "UpdatePriorities": pb.UpdatePrioritiesRequest(
            table="replay",
            keys=encode_column("", np.arange(4)),
            priorities=encode_column("", np.ones(4)),
        ),
        "ConfigureLimiter": pb.ConfigureLimiterRequest(
            table="replay", settings=pb.LimiterSettings(min_size=1)
        ),
        "ConfigureConsumers": pb.ConfigureConsumersRequest(
            table="shared", samples_per_insert={0: 2.0, 1: 0.0}
        ),
        "Describe": pb.DescribeRequest(),
        "Statistics": pb.StatisticsRequest(),
    }
    allowed = {
        Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION,
        Code.RESOURCE_EXHAUSTED, Code.DEADLINE_EXCEEDED,
    }  # fmt: skip
    config = ServerConfig(address=f"unix:{tmp_path}/fuzz.sock")
    limiter = RateLimiter(consumers={0: 1.0}, consumer_buffer_items=8)
    shared = make_table(name="shared", limiter=limiter)
    with ReplayServer([table, shared], config) as server:
        with grpc.insecure_channel(server.address) as channel:
            for name, request in requests.items():
                call = channel.unary_unary(f"/{wire.SERVICE}/{name}")
                right = request.SerializeToString()
                assert answer(call, right) is Code.OK
                for _ in range(200):
                    assert answer(call, mangled(right, rng)) in allowed, name
        with connect(server) as client:
            client.configure_limiter(min_size=1)
            assert len(client.sample(4, timeout_seconds=10.0).batch) == 4


def mangled(raw: bytes, rng: np.random.Generator) -> bytes:
    """Cut off, some bytes changed, or nothing but noise."""
    kind = rng.integers(3)
    if kind == 0 or not raw:
        return rng.bytes(int(rng.integers(0, 300)))
    if kind == 1:
        return raw[: int(rng.integers(len(raw)))]
    changed = bytearray(raw)
    for place in rng.integers(len(raw), size=3):
        changed[place] = int(rng.integers(256))
    return bytes(changed)


def test_a_stream_ends_at_malformed_bytes_and_goes_on_after_a_refusal(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    table = make_table()
    config = ServerConfig(address=f"unix:{tmp_path}/fuzz.sock")
    with ReplayServer([table], config) as server, grpc.insecure_channel(server.address) as channel:
        good, bad = insert_request(table, 1, rng), insert_request(table, 2, rng)
        other_hash(bad, rng)
        raw = [bad.SerializeToString(), good.SerializeToString(), b"\xff\xff\xff"]
        stream = channel.stream_stream(f"/{wire.SERVICE}/InsertStream")(
            iter(raw), timeout=30, metadata=METADATA
        )
        refused = pb.InsertResponse.FromString(next(stream))
        assert (refused.sequence, refused.refusal.code) == (2, 9)  # 9: FAILED_PRECONDITION
        assert pb.InsertResponse.FromString(next(stream)).sequence == 1
        assert stream.code() is Code.INVALID_ARGUMENT  # waits for the end
    assert table.size > 0
