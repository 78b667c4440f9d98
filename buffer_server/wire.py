"""Batches and samples as messages and back: raw columns, checked before anything is made of them.

Both ends use it, `buffer_server.server` and `buffer_server.client`. What comes in is compared with
the signature that is expected: names, dtypes, shapes and the exact number of bytes. Everything that
does not fit is a `UsageError` that names the column, which the server answers INVALID_ARGUMENT.

Stacks travel as indices into the frames of their message. What is compressed is taken apart only
into memory of the size that its shape says, and only as much as the receiver allows.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar

import lz4.block
import numpy as np
from google.protobuf.message import DecodeError, Message

from buffer_server.draws import Draw, DrawRequest, Population, Selection
from buffer_server.frames import INDEX, Column, FrameStacks, frame_spec, stacked_names
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statuses import ReplayOverload
from repertory.errors import UsageError
from repertory.types import Array, ColumnSpec, Signature

M = TypeVar("M", bound=Message)
Items = pb.InsertRequest | pb.SampleResponse
Compression = Literal["none", "lz4"]

PROTOCOL_VERSION = 1
SERVICE = pb.DESCRIPTOR.services_by_name["Replay"].full_name
PROTOCOL_KEY = "repertory-protocol"  # in the metadata of every call
CALLER_KEY = "repertory-caller"
MAX_AXES = 8

# The allow-list. NumPy's own strings say the byte order: little-endian, always.
DTYPES: dict[str, pb.DType] = {
    "|b1": pb.BOOL,
    "|u1": pb.UINT8,
    "|i1": pb.INT8,
    "<u2": pb.UINT16,
    "<i2": pb.INT16,
    "<u4": pb.UINT32,
    "<i4": pb.INT32,
    "<u8": pb.UINT64,
    "<i8": pb.INT64,
    "<f2": pb.FLOAT16,
    "<f4": pb.FLOAT32,
    "<f8": pb.FLOAT64,
}
_NAMES = {number: name for name, number in DTYPES.items()}
_NUMPY = {number: np.dtype(name) for name, number in DTYPES.items()}
KEYS = ("<i8",)
PROBABILITIES = ("<f8",)
PRIORITIES = ("<f4", "<f8")
COMPRESSIONS: dict[Compression, pb.Compression] = {"none": pb.NONE, "lz4": pb.LZ4}
SMALLEST_COMPRESSED = 512  # bytes; less is not worth the call


class _Describes(Protocol):
    """A Column or a ColumnSignature."""

    @property
    def dtype(self) -> pb.DType: ...
    @property
    def shape(self) -> Sequence[int]: ...


def parse(kind: type[M], raw: bytes) -> M:
    """The message that these bytes hold."""
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise UsageError(
            f"{len(raw)} bytes are not a {kind.DESCRIPTOR.name}: the message is malformed"
        ) from error


def signature_hash(signature: Signature) -> int:
    """64 bits that tell signatures apart; how they come about is part of the protocol."""
    rows = sorted(
        [name, np.dtype(spec.dtype).str, list(spec.shape), spec.stack]
        for name, spec in signature.items()
    )
    text = json.dumps(rows, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def encode_signature(signature: Signature) -> list[pb.ColumnSignature]:
    return [
        pb.ColumnSignature(
            name=name,
            dtype=_number_of(name, np.dtype(spec.dtype)),
            shape=spec.shape,
            stack=spec.stack,
        )
        for name, spec in signature.items()
    ]


def decode_signature(columns: Iterable[pb.ColumnSignature]) -> dict[str, ColumnSpec]:
    return {
        column.name: ColumnSpec(
            _dtype_of(column.name, column), tuple(column.shape), max(1, column.stack)
        )
        for column in columns
    }


def write_items(
    message: Items, columns: Mapping[str, Column], compression: Compression = "none"
) -> None:
    """Into the message itself: one that is made apart would be copied into it."""
    frames = None
    for name, column in columns.items():
        if isinstance(column, FrameStacks):
            if frames is not None and frames is not column.frames:
                raise UsageError(f"column {name} has frames of its own: share them first")
            frames = column.frames
            write_column(message.columns.add(), name, column.index)
        else:
            write_column(message.columns.add(), name, column, compression)
    if frames is not None:
        write_column(message.frames, "", frames, compression, any_dtype=True)


def read_items(
    message: Items, signature: Signature, max_bytes: int, *, writable: bool = False
) -> dict[str, Column]:
    """Views of the received bytes, or, where somebody may write, copies.

    What is compressed may take `max_bytes` altogether.
    """
    columns: dict[str, Column] = {}
    count = _leading(message.columns[0]) if message.columns else 0
    frames = _read_frames(message, signature, count, max_bytes)
    left = max_bytes - (frames.nbytes if frames is not None and message.frames.compression else 0)
    for column in message.columns:
        name = column.name
        spec = signature.get(name)
        if spec is None or name in columns:
            problem = "not in the signature" if spec is None else "there twice"
            raise UsageError(f"column {name[:100]!r} is {problem}: describe the table first")
        if spec.stack > 1:
            index = decode_column(column, (INDEX.str,), (count, spec.stack))
            assert frames is not None
            columns[name] = FrameStacks(frames, index)
            continue
        array = decode_column(
            column,
            (_canonical(spec.dtype),),
            (count, *spec.shape),
            writable=writable,
            max_bytes=left,
        )
        left -= array.nbytes if column.compression else 0
        columns[name] = array
    missing = [name for name in signature if name not in columns]
    if missing:
        raise UsageError(f"the columns {', '.join(missing)} are missing: send the whole signature")
    return columns


def write_column(
    column: pb.Column,
    name: str,
    array: Array,
    compression: Compression = "none",
    *,
    any_dtype: bool = False,
) -> None:
    """Copies the array once; one that is not in C order is brought into it by that.

    Compressed are images, and only if that makes them smaller: numbers seldom get so.
    """
    column.name = name
    column.dtype = _number_of(name, array.dtype)
    column.shape.extend(array.shape)
    if (
        compression == "lz4"
        and (any_dtype or array.dtype == np.uint8)
        and array.nbytes >= SMALLEST_COMPRESSED
    ):
        smaller = lz4.block.compress(np.ascontiguousarray(array), store_size=False)
        if len(smaller) < array.nbytes:
            column.data, column.compression = smaller, pb.LZ4
            return
    column.data = array.tobytes()


def decode_vector(column: pb.Column, dtypes: tuple[str, ...], what: str) -> Array:
    """[B]: keys, probabilities or priorities, as a view."""
    if len(column.shape) != 1:
        raise UsageError(f"{what} came with the shape {list(column.shape)[:9]}: give one axis")
    return decode_column(column, dtypes, (column.shape[0],), what=what)


def decode_column(
    column: pb.Column,
    dtypes: tuple[str, ...],
    shape: tuple[int, ...],
    *,
    what: str = "",
    writable: bool = False,
    max_bytes: int | None = None,
) -> Array:
    """One array of exactly this shape and one of these dtypes. Nothing is cast.

    With `max_bytes` it may be compressed, if it takes no more than that when it no longer is.
    """
    # Every batch comes through here: what only an error needs is made only then.
    number = column.dtype
    if _NAMES.get(number) not in dtypes or column.shape[:] != [*shape]:
        raise UsageError(_misfit(column, dtypes, shape, what or f"column {column.name}"))
    dtype = _NUMPY[number]
    expected = math.prod(shape) * dtype.itemsize  # Python's integers: no overflow
    data: bytes | bytearray = column.data
    if column.compression:
        data = _decompressed(column, expected, max_bytes, what or f"column {column.name}")
    if len(data) != expected:
        raise UsageError(
            f"{what or f'column {column.name}'} has {len(data)} bytes, "
            f"but {_NAMES[number]} {list(shape)} takes {expected}"
        )
    if expected == 0:
        return np.zeros(shape, dtype)
    if number == pb.BOOL and np.frombuffer(data, np.uint8).max() > 1:
        raise UsageError(
            f"{what or f'column {column.name}'} is boolean, but has bytes other than 0 and 1"
        )
    array: Array = np.ndarray(shape, dtype, data)
    return array.copy() if writable and not array.flags.writeable else array


def write_request(request: pb.SampleRequest, draw: DrawRequest) -> None:
    request.size = draw.size
    request.own_items = draw.own_items
    request.partial = draw.partial
    if draw.own_policy is not None:
        request.own_policy = draw.own_policy
    if draw.max_age is not None:
        request.max_age_versions = draw.max_age
    if draw.consumer is not None:
        request.consumer = draw.consumer


def read_request(request: pb.SampleRequest) -> DrawRequest:
    return DrawRequest(
        size=request.size,
        own_items=request.own_items,
        own_policy=request.own_policy if request.HasField("own_policy") else None,
        max_age=request.max_age_versions if request.HasField("max_age_versions") else None,
        partial=request.partial,
        consumer=request.consumer if request.HasField("consumer") else None,
    )


def read_compression(request: pb.SampleRequest) -> Compression:
    for name, number in COMPRESSIONS.items():
        if request.compression == number:
            return name
    raise UsageError(
        f"the compression {request.compression} is not known here: use {', '.join(COMPRESSIONS)}"
    )


def encode_population(population: Population) -> pb.Population:
    return pb.Population(
        items=population.items, mass=population.mass, own_items=population.own_items
    )


def decode_population(message: pb.Population) -> Population:
    if not 0 <= message.mass < math.inf:
        raise UsageError(f"a population's mass came as {message.mass}: update the shard")
    return Population(message.items, message.mass, message.own_items)


def encode_draw(draw: Draw, compression: Compression = "none") -> pb.SampleResponse:
    selection = draw.selection
    response = pb.SampleResponse(beta=selection.beta, population=encode_population(draw.population))
    write_items(response, draw.columns, compression)
    write_column(response.keys, "", selection.keys)
    if selection.probabilities is not None:
        write_column(response.probabilities, "", selection.probabilities)
    return response


def decode_draw(
    response: pb.SampleResponse, signature: Signature, max_bytes: int, *, writable: bool = True
) -> Draw:
    """Arrays that the learner owns: torch takes no read-only memory. Stacks own theirs later.

    Who copies them anyway asks for views instead.
    """
    columns = read_items(response, signature, max_bytes, writable=writable)
    items = len(columns["reward"])
    keys = decode_vector(response.keys, KEYS, "keys")
    keys = keys.copy() if writable else keys
    probabilities = None
    if response.HasField("probabilities"):
        probabilities = decode_vector(response.probabilities, PROBABILITIES, "probabilities")
    given = items if probabilities is None else len(probabilities)
    if not items == len(keys) == given:
        raise UsageError(f"{items} items came with {len(keys)} keys, {given} probabilities")
    selection = Selection(keys, probabilities, response.beta)
    return Draw(columns, selection, decode_population(response.population))


def _misfit(column: pb.Column, dtypes: tuple[str, ...], shape: tuple[int, ...], what: str) -> str:
    """Says what is wrong with a column that is not what was expected."""
    came = _NAMES.get(column.dtype, f"unknown dtype {column.dtype}")
    if came not in dtypes:
        return f"{what} came as {came}, but {' or '.join(dtypes)} was expected"
    came_shape = list(column.shape)[: MAX_AXES + 1]
    return f"{what} came with the shape {came_shape}, but {list(shape)} was expected"


def _decompressed(column: pb.Column, expected: int, max_bytes: int | None, what: str) -> bytearray:
    """Never allocates more than `expected` bytes."""
    if column.compression != pb.LZ4 or max_bytes is None:
        raise UsageError(f"{what} came compressed as {column.compression}: send it as it is")
    if expected > max_bytes:
        raise ReplayOverload(
            f"{what} takes {expected} bytes when no longer compressed, but only {max_bytes} are "
            "allowed here: use smaller batches, or raise max_message_bytes"
        )
    try:
        data: bytearray = lz4.block.decompress(
            column.data, uncompressed_size=expected, return_bytearray=True
        )
    except (lz4.block.LZ4BlockError, ValueError) as error:
        raise UsageError(
            f"{what} cannot be decompressed to {expected} bytes: it is damaged"
        ) from error
    return data


def _read_frames(message: Items, signature: Signature, items: int, max_bytes: int) -> Array | None:
    """[count, ...], where a column of the signature is a stack."""
    frame = frame_spec(signature)
    if frame is None:
        if message.HasField("frames"):
            raise UsageError("frames came, but no column is a stack: describe the table first")
        return None
    if not message.HasField("frames"):
        raise UsageError("the frames are missing, which stacks name by their places")
    count = _leading(message.frames)
    most = items * sum(signature[name].stack for name in stacked_names(signature))
    if count > most:
        raise UsageError(f"{count} frames came, but {items} items show {most} at most")
    shape = (count, *frame.shape)
    return decode_column(message.frames, (frame.dtype,), shape, what="frames", max_bytes=max_bytes)


@functools.lru_cache(maxsize=256)
def _canonical(dtype: str) -> str:
    return np.dtype(dtype).str


def _leading(column: pb.Column) -> int:
    if not 1 <= len(column.shape) <= MAX_AXES:
        raise UsageError(
            f"column {column.name[:100]!r} has {len(column.shape)} axes: give 1 to {MAX_AXES}"
        )
    return column.shape[0]


def _number_of(name: str, dtype: np.dtype[np.generic]) -> pb.DType:
    number = DTYPES.get(dtype.str)
    if number is None:
        raise UsageError(
            f"column {name} is {dtype}, which does not travel: use one of {', '.join(DTYPES)}"
        )
    return number


def _dtype_of(name: str, column: _Describes) -> str:
    known = _NAMES.get(column.dtype)
    if known is None:
        raise UsageError(f"column {name} has the unknown dtype {column.dtype}: update this side")
    return known
