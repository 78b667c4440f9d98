"""Arrays in a safetensors file, written piece by piece and read in place.

The format (https://github.com/huggingface/safetensors) is the length of the header in 8 bytes, the
header as JSON, then the arrays one after the other. The library writes arrays that are whole in
memory; a replay of many gigabytes goes on while it is saved, and is never in memory twice. What
`write_arrays` writes the library reads, and the other way round.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from repertory.errors import CheckpointError
from repertory.types import Array

ALIGNMENT = 8  # bytes: no element straddles a boundary of its own size
LONGEST_HEADER = 100_000_000  # bytes, as the library has it

_NAMES = {
    "|b1": "BOOL",
    "|u1": "U8",
    "|i1": "I8",
    "<u2": "U16",
    "<i2": "I16",
    "<f2": "F16",
    "<u4": "U32",
    "<i4": "I32",
    "<f4": "F32",
    "<u8": "U64",
    "<i8": "I64",
    "<f8": "F64",
}
_DTYPES = {name: np.dtype(dtype) for dtype, name in _NAMES.items()}


@dataclass(frozen=True, slots=True)
class StreamedArray:
    """An array that is made while it is written, along its first axis."""

    dtype: str
    shape: tuple[int, ...]
    chunks: Callable[[], Iterable[Array]]  # called once, when the pieces before it are on disk

    @property
    def nbytes(self) -> int:
        return np.dtype(self.dtype).itemsize * math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    nbytes: int
    sha256: str


def write_arrays(path: Path, arrays: Mapping[str, Array | StreamedArray]) -> WrittenFile:
    """Returns when all is safe on disk; the checksum is of what was given, not of what is there."""
    streams = {
        name: array if isinstance(array, StreamedArray) else _whole(array)
        for name, array in arrays.items()
    }
    # Wide elements first, as the library does: then every array is aligned.
    order = sorted(streams, key=lambda name: (-np.dtype(streams[name].dtype).itemsize, name))
    header: dict[str, object] = {}
    offset = 0
    for name in order:
        stream = streams[name]
        header[name] = {
            "dtype": _name_of(name, stream.dtype),
            "shape": stream.shape,
            "data_offsets": [offset, offset + stream.nbytes],
        }
        offset += stream.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text):
            digest.update(piece)
            file.write(piece)
        for name in order:
            for raw in _pieces(name, streams[name]):
                digest.update(raw)
                file.write(raw)
        file.flush()
        os.fsync(file.fileno())
    return WrittenFile(8 + len(text) + offset, digest.hexdigest())


def map_arrays(path: Path) -> dict[str, Array]:
    """Read-only views of the file: what is not looked at is not read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LONGEST_HEADER:
                raise CheckpointError(f"{path} is not a safetensors file: its header is too long")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        stored: Array = np.zeros(0, np.uint8)
        if path.stat().st_size > 8 + length:  # nothing cannot be mapped
            stored = np.asarray(np.memmap(path, np.uint8, mode="r", offset=8 + length))
        return {
            name: stored[slice(*entry["data_offsets"])]
            .view(_DTYPES[entry["dtype"]])
            .reshape(entry["shape"])
            for name, entry in header.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error


def _whole(array: Array) -> StreamedArray:
    return StreamedArray(array.dtype.str, array.shape, lambda: [array])


def _name_of(name: str, dtype: str) -> str:
    known = _NAMES.get(np.dtype(dtype).str)
    if known is None:
        raise CheckpointError(
            f"{name} is {dtype}, which cannot be saved: use one of {', '.join(_NAMES)}"
        )
    return known


def _pieces(name: str, stream: StreamedArray) -> Iterator[memoryview]:
    """The raw bytes of a stream, which must be what it announced: the header is written already."""
    left = stream.nbytes
    for chunk in stream.chunks():
        if chunk.dtype != np.dtype(stream.dtype) or chunk.nbytes > left:
            raise _misfit(name, stream)
        left -= chunk.nbytes
        yield np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).data
    if left:
        raise _misfit(name, stream)


def _misfit(name: str, stream: StreamedArray) -> CheckpointError:
    return CheckpointError(
        f"{name} was announced as {stream.dtype} {list(stream.shape)}, but came otherwise"
    )
