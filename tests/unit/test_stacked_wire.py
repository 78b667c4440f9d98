"""Stacks and compressed images on the wire: the same bits come out, and nothing is believed."""

from __future__ import annotations

import resource
from collections.abc import Callable

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pixel_envs import PixelCopy, collect, stacked_signature
from replay_shards import encode_column

from buffer_server import wire
from buffer_server.draws import Draw, Population, Selection
from buffer_server.frames import FrameStacks, share_frames, stacked
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statuses import ReplayOverload
from repertory.errors import RepertoryError, UsageError
from repertory.types import ColumnSpec, TransitionBatch

FRAME = (2, 16, 16)
MAX_BYTES = 2**20


def batch_of(count: int, *, still: bool = True) -> TransitionBatch:
    rng = np.random.default_rng(0)
    batch = collect([PixelCopy(rng, stack=3, frame=FRAME, ending=0.3) for _ in range(2)], 8)
    if still:  # most pixels are black, as in a game
        batch.observation[:, :, 2:] = 0
        batch.next_observation[:, :, 2:] = 0
    return batch.select(slice(0, count))


SIGNATURE = stacked_signature(batch_of(1), 3)


def insert_request(count: int = 4, compression: wire.Compression = "none") -> pb.InsertRequest:
    request = pb.InsertRequest()
    wire.write_items(request, share_frames(batch_of(count).columns(), SIGNATURE), compression)
    return request


@settings(deadline=None)
@given(st.integers(0, 8), st.sampled_from(["none", "lz4"]), st.booleans())
def test_stacks_come_back_bit_for_bit(
    count: int, compression: wire.Compression, still: bool
) -> None:
    batch, request = batch_of(count, still=still), pb.InsertRequest()
    wire.write_items(request, share_frames(batch.columns(), SIGNATURE), compression)
    received = pb.InsertRequest.FromString(request.SerializeToString())
    columns = wire.read_items(received, SIGNATURE, MAX_BYTES)
    assert columns.keys() == batch.columns().keys()
    for name, column in batch.columns().items():
        assert stacked(columns[name]).dtype == column.dtype
        np.testing.assert_array_equal(stacked(columns[name]), column)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_a_sample_of_stacks_belongs_to_the_caller(compression: wire.Compression) -> None:
    columns = share_frames(batch_of(4).columns(), SIGNATURE)
    draw = Draw(columns, Selection(np.arange(4)), Population(8, 8.0))
    response = pb.SampleResponse.FromString(wire.encode_draw(draw, compression).SerializeToString())
    sample = wire.decode_draw(response, SIGNATURE, MAX_BYTES).sample()
    for name, column in batch_of(4).columns().items():
        received = sample.batch.columns()[name]
        np.testing.assert_array_equal(received, column)
        assert received.flags.writeable


def test_each_frame_travels_once() -> None:
    batch = batch_of(8)
    frames = np.concatenate([batch.observation, batch.next_observation]).reshape(-1, 512)
    assert list(insert_request(8).frames.shape) == [len(np.unique(frames, axis=0)), *FRAME]


def test_received_frames_are_not_copied() -> None:
    columns = wire.read_items(insert_request(), SIGNATURE, MAX_BYTES)
    assert isinstance(columns["observation"], FrameStacks)
    assert not columns["observation"].frames.flags.owndata


def test_images_get_smaller_and_numbers_stay_as_they_are() -> None:
    plain, smaller = insert_request(8), insert_request(8, "lz4")
    assert smaller.frames.compression == pb.LZ4
    assert len(smaller.frames.data) < 0.2 * len(plain.frames.data)
    assert all(column.compression == pb.NONE for column in smaller.columns)


def test_noise_travels_as_it_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (4, 1000), dtype=np.uint8)
    column = pb.Column()
    wire.write_column(column, "x", noise, "lz4")
    assert column.compression == pb.NONE
    assert column.data == noise.tobytes()


def test_plain_bytes_are_compressed_too_but_not_other_numbers() -> None:
    batch = batch_of(8)
    request = pb.InsertRequest()
    wire.write_items(request, batch.columns(), "lz4")
    compressed = {column.name for column in request.columns if column.compression}
    assert compressed == {"observation", "next_observation"}
    columns = wire.read_items(request, batch.signature(), MAX_BYTES, writable=True)
    for name, column in batch.columns().items():
        np.testing.assert_array_equal(columns[name], column)
        assert columns[name].flags.writeable


def test_frames_of_any_dtype_are_compressed() -> None:
    frames = np.zeros((3, 500), np.float32)
    column = pb.Column()
    wire.write_column(column, "", frames, "lz4", any_dtype=True)
    assert column.compression == pb.LZ4
    back = wire.decode_column(column, ("<f4",), (3, 500), max_bytes=MAX_BYTES)
    np.testing.assert_array_equal(back, frames)


def test_stacks_with_frames_of_their_own_do_not_travel() -> None:
    columns = share_frames(batch_of(4).columns(), SIGNATURE)
    stacks = columns["observation"]
    assert isinstance(stacks, FrameStacks)
    columns["observation"] = FrameStacks(stacks.frames.copy(), stacks.index)
    with pytest.raises(UsageError, match="frames of its own"):
        wire.write_items(pb.InsertRequest(), columns)


# What nobody should send


def index_of(request: pb.InsertRequest) -> pb.Column:
    return next(column for column in request.columns if column.name == "observation")


def name_frame(number: int) -> Callable[[pb.InsertRequest], None]:
    def change(request: pb.InsertRequest) -> None:
        index = np.zeros((4, 3), np.int32)
        index[2, 1] = number
        index_of(request).data = index.tobytes()

    return change


def no_frames(request: pb.InsertRequest) -> None:
    request.ClearField("frames")


def no_axes(request: pb.InsertRequest) -> None:
    del request.frames.shape[:]


def other_frame(request: pb.InsertRequest) -> None:
    request.frames.CopyFrom(encode_column("", np.zeros((9, 2, 16, 15), np.uint8)))


def other_dtype(request: pb.InsertRequest) -> None:
    request.frames.CopyFrom(encode_column("", np.zeros((9, *FRAME), np.int8)))


def too_many_frames(request: pb.InsertRequest) -> None:
    request.frames.CopyFrom(encode_column("", np.zeros((25, *FRAME), np.uint8)))


def whole_stacks(request: pb.InsertRequest) -> None:
    index_of(request).CopyFrom(encode_column("observation", batch_of(4).observation))


def long_index(request: pb.InsertRequest) -> None:
    index_of(request).CopyFrom(encode_column("observation", np.zeros((4, 3), np.int64)))


def wide_index(request: pb.InsertRequest) -> None:
    index_of(request).CopyFrom(encode_column("observation", np.zeros((4, 4), np.int32)))


def short_frames(request: pb.InsertRequest) -> None:
    request.frames.data = request.frames.data[:-1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (name_frame(-1), r"frames -1 to 0, but \d+ are there"),
        (name_frame(2**31 - 1), "frames 0 to 2147483647"),
        (no_frames, "the frames are missing"),
        (no_axes, "has 0 axes"),
        (other_frame, r"frames came with the shape \[9, 2, 16, 15\], but \[9, 2, 16, 16\]"),
        (other_dtype, r"frames came as \|i1, but \|u1"),
        (too_many_frames, "25 frames came, but 4 items show 24 at most"),
        (whole_stacks, r"observation came as \|u1, but <i4"),
        (long_index, "observation came as <i8, but <i4"),
        (wide_index, r"observation came with the shape \[4, 4\], but \[4, 3\]"),
        (short_frames, r"frames has \d+ bytes"),
    ],
)
def test_frames_that_do_not_fit_are_refused(
    change: Callable[[pb.InsertRequest], None], message: str
) -> None:
    request = insert_request()
    change(request)
    with pytest.raises(UsageError, match=message):
        wire.read_items(request, SIGNATURE, MAX_BYTES)


def test_frames_for_columns_that_are_no_stacks_are_refused() -> None:
    batch, request = batch_of(2), pb.InsertRequest()
    wire.write_items(request, batch.columns())
    request.frames.CopyFrom(encode_column("", np.zeros((1, *FRAME), np.uint8)))
    with pytest.raises(UsageError, match="no column is a stack"):
        wire.read_items(request, batch.signature(), MAX_BYTES)


def compressed(data: bytes, shape: list[int]) -> pb.Column:
    return pb.Column(name="x", dtype=pb.UINT8, shape=shape, data=data, compression=pb.LZ4)


SOME = lz4.block.compress(bytes(1000), store_size=False)


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        (SOME[:-1], [1000]),
        (SOME[: len(SOME) // 2], [1000]),
        (b"", [1000]),
        (b"\xff" * 50, [1000]),
        (SOME, [999]),
        (SOME, [1001]),
        (SOME, [0]),
        (lz4.block.compress(bytes(1000)), [1000]),  # with its size in front
    ],
)
def test_damaged_compressed_bytes_are_refused(data: bytes, shape: list[int]) -> None:
    with pytest.raises(UsageError, match=r"column x (cannot be decompressed|has \d+ bytes)"):
        wire.decode_column(compressed(data, shape), ("|u1",), tuple(shape), max_bytes=MAX_BYTES)


@given(st.binary(max_size=200), st.integers(0, 2000))
def test_any_bytes_are_decompressed_exactly_or_refused(data: bytes, size: int) -> None:
    try:
        array = wire.decode_column(compressed(data, [size]), ("|u1",), (size,), max_bytes=MAX_BYTES)
    except RepertoryError:
        return
    assert array.shape == (size,)


def test_a_bomb_is_refused_before_it_takes_memory() -> None:
    size = 2**32 - 1
    bomb = compressed(lz4.block.compress(bytes(2**20), store_size=False), [size])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ReplayOverload, match="4294967295 bytes when no longer compressed, but"):
        wire.decode_column(bomb, ("|u1",), (size,), max_bytes=MAX_BYTES)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 2**10  # in KiB


def test_all_columns_of_a_message_share_what_they_may_take() -> None:
    signature = {name: ColumnSpec("|u1", (600,)) for name in ("a", "b")}
    request = pb.InsertRequest()
    wire.write_items(request, {name: np.zeros((1, 600), np.uint8) for name in signature}, "lz4")
    assert wire.read_items(request, signature, 1200).keys() == signature.keys()
    with pytest.raises(ReplayOverload, match=r"column b takes 600 bytes .* only 599"):
        wire.read_items(request, signature, 1199)


def test_frames_and_columns_share_what_they_may_take() -> None:
    signature = {"a": ColumnSpec("|u1", (600,)), "s": ColumnSpec("|u1", (1200,), stack=2)}
    columns = {"a": np.zeros((1, 600), np.uint8), "s": np.zeros((1, 1200), np.uint8)}
    request = pb.InsertRequest()
    wire.write_items(request, share_frames(columns, signature), "lz4")  # one frame of 600 bytes
    wire.read_items(request, signature, 1200)
    with pytest.raises(ReplayOverload, match=r"column a takes 600 bytes .* only 599"):
        wire.read_items(request, signature, 1199)


@pytest.mark.parametrize("number", [2, 99])
def test_another_compression_is_refused(number: int) -> None:
    column = compressed(SOME, [1000])
    column.compression = number
    with pytest.raises(UsageError, match=f"x came compressed as {number}"):
        wire.decode_column(column, ("|u1",), (1000,), max_bytes=MAX_BYTES)
    with pytest.raises(UsageError, match=f"compression {number} is not known"):
        wire.read_compression(pb.SampleRequest(compression=number))


def test_keys_do_not_come_compressed() -> None:
    data = lz4.block.compress(np.zeros(100, np.int64), store_size=False)
    column = pb.Column(dtype=pb.INT64, shape=[100], data=data, compression=pb.LZ4)
    with pytest.raises(UsageError, match="keys came compressed"):
        wire.decode_vector(column, wire.KEYS, "keys")


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_the_wanted_compression_comes_back(compression: wire.Compression) -> None:
    request = pb.SampleRequest(compression=wire.COMPRESSIONS[compression])
    assert wire.read_compression(request) == compression


def test_stacks_are_part_of_the_signature() -> None:
    back = wire.decode_signature(wire.encode_signature(SIGNATURE))
    assert back == SIGNATURE
    assert wire.signature_hash(SIGNATURE) != wire.signature_hash(batch_of(1).signature())
