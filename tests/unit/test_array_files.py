"""Streamed safetensors files: the library reads what we write, and we what it writes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from repertory.array_files import StreamedArray, map_arrays, write_arrays
from repertory.errors import CheckpointError
from repertory.types import Array

DTYPES = ("|b1", "|u1", "|i1", "<u2", "<i2", "<f2", "<u4", "<i4", "<f4", "<u8", "<i8", "<f8")
SHAPES = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.dictionaries(
    st.text(min_size=1, max_size=5).filter(lambda name: name != "__metadata__"),
    st.sampled_from(DTYPES).flatmap(lambda dtype: npst.arrays(np.dtype(dtype), SHAPES)),
    max_size=4,
)


def assert_same(one: dict[str, Array], other: dict[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert array.dtype == other[name].dtype
        np.testing.assert_array_equal(array, other[name])


def in_pieces(array: Array, *lengths: int) -> StreamedArray:
    ends = np.cumsum(lengths)
    pieces = np.split(array, ends)
    return StreamedArray(array.dtype.str, array.shape, lambda: pieces)


@settings(max_examples=100, deadline=None)
@given(arrays=ARRAYS)
def test_the_library_reads_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Array]
) -> None:
    path = tmp_path_factory.mktemp("files") / "file.safetensors"
    written = write_arrays(path, arrays)
    assert_same(load_file(path), arrays)
    assert_same(map_arrays(path), arrays)
    content = path.read_bytes()
    assert written.nbytes == len(content)
    assert written.sha256 == hashlib.sha256(content).hexdigest()


@settings(max_examples=50, deadline=None)
@given(arrays=ARRAYS)
def test_what_the_library_wrote_is_read(
    tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, Array]
) -> None:
    path = tmp_path_factory.mktemp("files") / "file.safetensors"
    save_file(arrays, path)
    assert_same(map_arrays(path), arrays)


def test_pieces_make_the_array_they_are_pieces_of(tmp_path: Path) -> None:
    array = np.arange(40, dtype=np.float32).reshape(10, 4)
    streamed = {"a": in_pieces(array, 3, 0, 5), "b": np.array([1], dtype=np.uint8)}
    write_arrays(tmp_path / "file", streamed)
    with safe_open(tmp_path / "file", framework="numpy") as file:
        np.testing.assert_array_equal(file.get_slice("a")[2:9], array[2:9])
        np.testing.assert_array_equal(file.get_tensor("b"), [1])


def test_pieces_that_are_not_contiguous_are_written_in_their_order(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.int64).reshape(3, 4)
    streamed = StreamedArray("<i8", (4, 3), lambda: [array.T[:1], array.T[1:]])
    write_arrays(tmp_path / "file", {"a": streamed})
    np.testing.assert_array_equal(load_file(tmp_path / "file")["a"], array.T)


def test_one_piece_is_in_memory_at_a_time(tmp_path: Path) -> None:
    alive: list[int] = []

    class Counted(np.ndarray):
        def __del__(self) -> None:
            alive.pop()

    def pieces() -> Iterator[Array]:
        for _ in range(5):
            piece = np.zeros(8, dtype=np.uint8).view(Counted)
            alive.append(1)
            assert len(alive) <= 2  # the one that is written, and its successor
            yield piece
            del piece

    write_arrays(tmp_path / "file", {"a": StreamedArray("|u1", (40,), pieces)})
    assert load_file(tmp_path / "file")["a"].shape == (40,)


@pytest.mark.parametrize(
    "pieces",
    [
        [np.zeros(2, np.float32)],  # too little
        [np.zeros(2, np.float32), np.zeros(2, np.float32)],  # too much
        [np.zeros(3, np.int32)],  # as many bytes of another kind
    ],
)
def test_pieces_that_were_not_announced_are_refused(pieces: list[Array], tmp_path: Path) -> None:
    streamed = StreamedArray("<f4", (3,), lambda: pieces)
    with pytest.raises(CheckpointError, match=r"a was announced as <f4 \[3\]"):
        write_arrays(tmp_path / "file", {"a": streamed})


@pytest.mark.parametrize("dtype", ["<U3", ">f4", "<c8", "O"])
def test_other_dtypes_are_refused(dtype: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be saved"):
        write_arrays(tmp_path / "file", {"a": np.zeros(2, dtype)})


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 16, b"\x02" + bytes(7) + b"[]", b"\x02" + bytes(7) + b"{x"]
)
def test_what_is_no_such_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        map_arrays(path)


def test_mapped_arrays_are_read_only(tmp_path: Path) -> None:
    write_arrays(tmp_path / "file", {"a": np.zeros(3)})
    with pytest.raises(ValueError, match="read-only"):
        map_arrays(tmp_path / "file")["a"][0] = 1.0
