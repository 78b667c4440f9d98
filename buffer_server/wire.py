"""Batches and samples as messages and back: raw columns, checked before anything is made of them.

Both ends use it, `buffer_server.server` and `buffer_server.client`. What comes in is compared with
the signature that is expected: names, dtypes, shapes and the exact number of bytes. Everything that
does not fit is a `UsageError` that names the column, which the server answers INVALID_ARGUMENT.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from buffer_server.callers import Blocked
from buffer_server.draws import Draw, DrawRequest, Population, Selection
from buffer_server.frames import Column, stacked
from buffer_server.proto import replay_pb2 as pb
from buffer_server.statistics import ShardStatistics, TableStatistics
from repertory.errors import UsageError
from repertory.types import Array, ColumnSpec, Signature

M = TypeVar("M", bound=Message)

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


class _Columns(Protocol):
    """A repeated field of columns."""

    def add(self) -> pb.Column: ...


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


def write_column(column: pb.Column, name: str, array: Array) -> None:
    """Copies the array once; one that is not in C order is brought into it by that."""
    column.name = name
    column.dtype = _number_of(name, array.dtype)
    column.shape.extend(array.shape)
    column.data = array.tobytes()


def write_columns(columns: _Columns, arrays: Mapping[str, Column]) -> None:
    """Into the message itself: one that is made apart would be copied into it."""
    for name, array in arrays.items():
        write_column(columns.add(), name, stacked(array))


def decode_columns(
    columns: Sequence[pb.Column], signature: Signature, *, writable: bool = False
) -> dict[str, Column]:
    """Views of the received bytes, or, where somebody may write, copies."""
    arrays: dict[str, Column] = {}
    count = _leading(columns[0]) if columns else 0
    for column in columns:
        name = column.name
        spec = signature.get(name)
        if spec is None or name in arrays:
            problem = "not in the signature" if spec is None else "there twice"
            raise UsageError(f"column {name[:100]!r} is {problem}: describe the table first")
        dtypes = (_canonical(spec.dtype),)
        arrays[name] = decode_column(column, dtypes, (count, *spec.shape), writable=writable)
    missing = [name for name in signature if name not in arrays]
    if missing:
        raise UsageError(f"the columns {', '.join(missing)} are missing: send the whole signature")
    return arrays


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
) -> Array:
    """One array of exactly this shape and one of these dtypes. Nothing is cast."""
    dtype = _NUMPY.get(column.dtype)
    data = column.data
    # Python's integers: no overflow.
    expected = math.prod(shape) * (1 if dtype is None else dtype.itemsize)
    if (
        dtype is None
        or dtype.str not in dtypes
        or tuple(column.shape) != shape
        or len(data) != expected
    ):
        raise UsageError(_misfit(column, dtypes, shape, what or f"column {column.name}"))
    if expected == 0:
        return np.zeros(shape, dtype)
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max() > 1:
        raise UsageError(f"{what or column.name} is boolean, but has bytes other than 0 and 1")
    array: Array = np.frombuffer(data, dtype).reshape(shape)
    return array.copy() if writable else array


def write_request(request: pb.SampleRequest, draw: DrawRequest) -> None:
    request.size = draw.size
    request.own_items = draw.own_items
    request.partial = draw.partial
    if draw.own_policy is not None:
        request.own_policy = draw.own_policy
    if draw.max_age is not None:
        request.max_age_versions = draw.max_age


def read_request(request: pb.SampleRequest) -> DrawRequest:
    return DrawRequest(
        size=request.size,
        own_items=request.own_items,
        own_policy=request.own_policy if request.HasField("own_policy") else None,
        max_age=request.max_age_versions if request.HasField("max_age_versions") else None,
        partial=request.partial,
    )


def encode_population(population: Population) -> pb.Population:
    return pb.Population(
        items=population.items, mass=population.mass, own_items=population.own_items
    )


def decode_population(message: pb.Population) -> Population:
    if not 0 <= message.mass < math.inf:
        raise UsageError(f"a population's mass came as {message.mass}: update the shard")
    return Population(message.items, message.mass, message.own_items)


def encode_draw(draw: Draw) -> pb.SampleResponse:
    selection = draw.selection
    response = pb.SampleResponse(beta=selection.beta, population=encode_population(draw.population))
    write_columns(response.columns, draw.columns)
    write_column(response.keys, "", selection.keys)
    if selection.probabilities is not None:
        write_column(response.probabilities, "", selection.probabilities)
    return response


def decode_draw(response: pb.SampleResponse, signature: Signature) -> Draw:
    """Arrays that the learner owns: torch takes no read-only memory."""
    columns = decode_columns(response.columns, signature, writable=True)
    items = len(columns["reward"])
    keys = decode_vector(response.keys, KEYS, "keys").copy()
    probabilities = None
    if response.HasField("probabilities"):
        probabilities = decode_vector(response.probabilities, PROBABILITIES, "probabilities")
    given = items if probabilities is None else len(probabilities)
    if not items == len(keys) == given:
        raise UsageError(f"{items} items came with {len(keys)} keys, {given} probabilities")
    selection = Selection(keys, probabilities, response.beta)
    return Draw(columns, selection, decode_population(response.population))


def encode_statistics(name: str, table: TableStatistics) -> pb.TableStatistics:
    return pb.TableStatistics(
        name=name,
        size_items=table.size,
        capacity_items=table.capacity,
        size_bytes=table.size_nbytes,
        capacity_bytes=table.capacity_nbytes,
        inserted_items=table.inserted,
        sampled_items=table.sampled,
        duplicate_inserts=table.duplicate_inserts,
        limiter=pb.LimiterSettings(
            min_size=table.min_size,
            samples_per_insert=table.samples_per_insert,
            error_buffer=table.error_buffer,
        ),
        surplus=table.surplus,
        blocked=[
            pb.Blocked(
                caller=one.caller,
                operation=one.operation,
                items=one.items,
                seconds=one.seconds,
                reason=one.reason,
            )
            for one in table.blocked
        ],
    )


def decode_statistics(response: pb.StatisticsResponse) -> ShardStatistics:
    return ShardStatistics(
        tables={table.name: _decode_table(table) for table in response.tables},
        uptime_seconds=response.uptime_seconds,
        open_streams=response.open_streams,
        running_requests=response.running_requests,
        draining=response.draining,
    )


def _misfit(column: pb.Column, dtypes: tuple[str, ...], shape: tuple[int, ...], what: str) -> str:
    """Says what is wrong with a column that is not what was expected."""
    came = _NAMES.get(column.dtype, f"unknown dtype {column.dtype}")
    if came not in dtypes:
        return f"{what} came as {came}, but {' or '.join(dtypes)} was expected"
    if tuple(column.shape) != shape:
        came_shape = list(column.shape)[: MAX_AXES + 1]
        return f"{what} came with the shape {came_shape}, but {list(shape)} was expected"
    expected = math.prod(shape) * np.dtype(came).itemsize
    return f"{what} has {len(column.data)} bytes, but {came} {list(shape)} takes {expected}"


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


def _decode_table(table: pb.TableStatistics) -> TableStatistics:
    limiter = table.limiter
    has_ratio, has_buffer = (
        limiter.HasField("samples_per_insert"),
        limiter.HasField("error_buffer"),
    )
    return TableStatistics(
        size=table.size_items,
        capacity=table.capacity_items,
        size_nbytes=table.size_bytes,
        capacity_nbytes=table.capacity_bytes,
        inserted=table.inserted_items,
        sampled=table.sampled_items,
        duplicate_inserts=table.duplicate_inserts,
        min_size=limiter.min_size,
        samples_per_insert=limiter.samples_per_insert if has_ratio else None,
        error_buffer=limiter.error_buffer if has_buffer else None,
        surplus=table.surplus,
        blocked=tuple(
            Blocked(
                one.caller,
                "insert" if one.operation == "insert" else "sample",
                one.items,
                one.seconds,
                one.reason,
            )
            for one in table.blocked
        ),
    )
