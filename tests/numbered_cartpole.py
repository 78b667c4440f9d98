"""CartPole whose every observation carries a number that no other has, in bits that do not matter.

The number is written into the last 12 bits of the four floats: what is left of each is right to
one part in two thousand, which is enough to balance a pole. 16 bits say which copy of the
environment it was, 32 which observation of that copy; the last of an episode and the first of the
next share theirs, so that from each number but the newest exactly one transition leads to the next.
So each transition in a replay can be told from every other, also after kills: one that is there
twice, one that is missing, and one that was put together from two are all seen.

Each copy keeps a small file in `folder` which says how far it has come, and whose it was. It is
mapped into memory, so that it is right even if the process is killed in its next instruction.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

BITS = 12
COUNT_BITS = 32
MASK = np.uint32((1 << BITS) - 1)
MOST_COPIES = 2 ** (4 * BITS - COUNT_BITS)

_RECORD = struct.Struct("<qdq")  # process, when it was made, the last number that was given out


class NumberedCartPole(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, folder: str) -> None:
        super().__init__(gym.make("CartPole-v1"))
        self.copy, self._record = _begin_record(Path(folder))
        self._count = 0
        self._over = False

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self._count += not self._over
        self._over = False
        return self._numbered(observation), info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._count += 1
        self._over = terminated or truncated
        return self._numbered(observation), reward, terminated, truncated, info

    def close(self) -> None:
        self._record.close()
        super().close()

    def _numbered(self, observation: Any) -> np.ndarray:
        struct.pack_into("<q", self._record, _RECORD.size - 8, self._count)
        return write_number(np.asarray(observation), self.copy << COUNT_BITS | self._count)


def write_number(observation: np.ndarray, number: int) -> np.ndarray:
    """A copy of the observation [4] that carries it."""
    parts = np.array([number >> BITS * place for place in range(4)], np.uint64) & np.uint64(MASK)
    bits = observation.astype(np.float32).view(np.uint32) & ~MASK
    return (bits | parts.astype(np.uint32)).view(np.float32)


def read_numbers(observation: np.ndarray) -> np.ndarray:
    """[B] of observations [B, 4]."""
    bits = np.ascontiguousarray(observation, np.float32).view(np.uint32) & MASK
    places = np.arange(4, dtype=np.uint64) * np.uint64(BITS)
    return (bits.astype(np.uint64) << places).sum(axis=1, dtype=np.uint64).astype(np.int64)


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """One copy of the environment, as its file tells of it."""

    copy: int
    process_id: int
    made_at: float  # seconds since the epoch
    count: int  # the newest number

    @property
    def transitions(self) -> range:
        """The numbers that one begins with."""
        first = (self.copy << COUNT_BITS) + 1
        return range(first, first + max(0, self.count - 1))


def records(folder: Path) -> Iterator[CopyRecord]:
    for path in sorted(folder.glob("copy-*")):
        yield CopyRecord(int(path.name.removeprefix("copy-")), *_RECORD.unpack(path.read_bytes()))


def _begin_record(folder: Path) -> tuple[int, mmap.mmap]:
    """The first number that nobody has taken."""
    copy = len(list(folder.glob("copy-*")))
    while copy < MOST_COPIES:
        try:
            file = os.open(folder / f"copy-{copy}", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            copy += 1
            continue
        try:
            os.write(file, _RECORD.pack(os.getpid(), time.time(), 0))
            return copy, mmap.mmap(file, _RECORD.size)
        finally:
            os.close(file)
    raise RuntimeError(f"{folder} has {MOST_COPIES} copies already: take another folder")
