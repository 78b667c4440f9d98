"""Columns on the wire: what goes in comes out, and what does not fit is refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from replay_shards import encode_batch, encode_column, numbered

from buffer_server import wire
from buffer_server.draws import Draw, DrawRequest, Population, Selection
from buffer_server.proto import replay_pb2 as pb
from repertory.errors import UsageError
from repertory.types import ColumnSpec, TransitionBatch

SIGNATURE = numbered(0, 1).signature()
MAX_BYTES = 2**20


def through_bytes(message: Any) -> Any:
    return type(message).FromString(message.SerializeToString())


def assert_same(one: TransitionBatch, other: TransitionBatch) -> None:
    ours, theirs = one.columns(), other.columns()
    assert ours.keys() == theirs.keys()
    for name, column in ours.items():
        assert column.dtype == theirs[name].dtype
        np.testing.assert_array_equal(column, theirs[name])


@given(
    hnp.arrays(
        st.sampled_from([np.dtype(name) for name in wire.DTYPES]),
        hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5),
    )
)
def test_every_dtype_and_shape_comes_back_bit_for_bit(array: np.ndarray) -> None:
    column = through_bytes(encode_column("x", array))
    back = wire.decode_column(column, (array.dtype.str,), array.shape)
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.integers(0, 40))
def test_batches_come_back(count: int) -> None:
    request = pb.InsertRequest(columns=encode_batch(numbered(7, count)))
    columns = wire.read_items(through_bytes(request), SIGNATURE, MAX_BYTES)
    assert_same(TransitionBatch.from_columns(columns), numbered(7, count))


def test_columns_out_of_c_order_come_back() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    back = wire.decode_column(encode_column("x", array), ("<f4",), (4, 2, 3))
    np.testing.assert_array_equal(back, array)


def drawn(selection: Selection) -> Draw:
    return Draw(numbered(3, 4).columns(), selection, Population(9, 2.5, 4))


def test_samples_come_back_and_belong_to_the_caller() -> None:
    draw = drawn(Selection(np.arange(4), np.array([0.1, 0.2, 0.4, 0.3]), beta=0.5))
    back = wire.decode_draw(through_bytes(wire.encode_draw(draw)), SIGNATURE, MAX_BYTES)
    assert back.population == draw.population
    back, sample = back.sample(), draw.sample()
    assert_same(back.batch, sample.batch)
    np.testing.assert_array_equal(back.keys, sample.keys)
    np.testing.assert_array_equal(back.weights, sample.weights)
    arrays = [*back.batch.columns().values(), back.keys, back.weights]
    assert all(array.flags.writeable for array in arrays)


def test_received_inserts_are_not_copied() -> None:
    request = pb.InsertRequest(columns=encode_batch(numbered(0, 4)))
    columns = wire.read_items(request, SIGNATURE, MAX_BYTES)
    assert not any(column.flags.owndata for column in columns.values())


@pytest.mark.parametrize("dtype", [">f4", "<c8", "<U3", "<M8[s]", "|O"])
def test_other_dtypes_do_not_travel(dtype: str) -> None:
    with pytest.raises(UsageError, match=r"column x is .* does not travel"):
        encode_column("x", np.zeros(2, dtype))


def drop(columns: list[pb.Column]) -> None:
    del columns[2]


def spoil(place: int, **values: Any) -> Callable[[list[pb.Column]], None]:
    def change(columns: list[pb.Column]) -> None:
        column = columns[place]
        shape = values.pop("shape", None)
        if shape is not None:
            del column.shape[:]
            column.shape.extend(shape)
        for name, value in values.items():
            setattr(column, name, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop, "columns reward are missing"),
        (spoil(2, name="rewards"), "'rewards' is not in the signature"),
        (spoil(3, name="reward"), "'reward' is there twice"),
        (spoil(0, dtype=pb.FLOAT64), "observation came as <f8, but <f4"),
        (spoil(0, dtype=pb.DTYPE_UNSPECIFIED), "unknown dtype 0"),
        (spoil(0, dtype=99), "unknown dtype 99"),
        (spoil(0, shape=[]), "'observation' has 0 axes"),
        (spoil(0, shape=[4] * 9), "'observation' has 9 axes"),
        (spoil(0, shape=[4, 2]), r"shape \[4, 2\], but \[4, 3\]"),
        (spoil(0, shape=[2**32 - 1, 3]), "observation has 48 bytes, but"),
        (spoil(2, shape=[2**32 - 1]), r"reward came with the shape \[4294967295\]"),
        (spoil(0, data=b"x" * 47), "observation has 47 bytes"),
        (spoil(0, data=b""), "observation has 0 bytes"),
        (spoil(0, data=b"x" * 49), "observation has 49 bytes"),
        (spoil(7, data=b"\x00\x01\x02\x01"), "extras/boundary is boolean, but has bytes other"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    change: Callable[[list[pb.Column]], None], message: str
) -> None:
    columns = encode_batch(numbered(0, 4))
    change(columns)
    with pytest.raises(UsageError, match=message):
        wire.read_items(pb.InsertRequest(columns=columns), SIGNATURE, MAX_BYTES)


def test_no_columns_at_all_are_refused() -> None:
    with pytest.raises(UsageError, match="observation, action, reward"):
        wire.read_items(pb.InsertRequest(), SIGNATURE, MAX_BYTES)


@pytest.mark.parametrize("shape", [[], [2, 2], [5]])
def test_keys_have_one_axis_and_its_length(shape: list[int]) -> None:
    column = pb.Column(dtype=pb.INT64, shape=shape, data=bytes(32))
    with pytest.raises(UsageError, match="keys"):
        wire.decode_vector(column, wire.KEYS, "keys")


def test_a_sample_without_all_its_probabilities_is_refused() -> None:
    draw = drawn(Selection(np.arange(4), np.ones(3)))
    with pytest.raises(UsageError, match="4 items came with 4 keys, 3 probabilities"):
        wire.decode_draw(wire.encode_draw(draw), SIGNATURE, MAX_BYTES)


@given(
    st.builds(
        DrawRequest,
        size=st.integers(10, 2**32 - 1),
        own_items=st.integers(0, 10),
        own_policy=st.integers(0, 2**31 - 1),
        max_age=st.none() | st.integers(0, 2**63),
        partial=st.booleans(),
        consumer=st.none() | st.integers(0, 2**31 - 1),
    )
)
def test_requests_come_back(wanted: DrawRequest) -> None:
    request = pb.SampleRequest()
    wire.write_request(request, wanted)
    assert wire.read_request(through_bytes(request)) == wanted


@given(st.binary(min_size=1, max_size=200))
def test_bytes_are_a_message_or_refused(raw: bytes) -> None:
    with contextlib.suppress(UsageError):
        wire.parse(pb.InsertRequest, raw)


def test_malformed_bytes_are_refused() -> None:
    with pytest.raises(UsageError, match="3 bytes are not a InsertRequest"):
        wire.parse(pb.InsertRequest, b"\xff\xff\xff")


def test_the_signature_hash_is_the_documented_one() -> None:
    # printf '[["a","<f4",[2],1],["b","|u1",[],1]]' | sha256sum: the first 8 bytes, little-endian
    signature = {"b": ColumnSpec("uint8", ()), "a": ColumnSpec("float32", (2,))}
    assert wire.signature_hash(signature) == 0xBCCD3760C9B9CDBF


def test_signatures_come_back() -> None:
    back = wire.decode_signature(wire.encode_signature(SIGNATURE))
    assert back == SIGNATURE
    assert wire.signature_hash(back) == wire.signature_hash(SIGNATURE)
