"""The lines of a file that grows, each of them once.

A file that was put in its place, or became shorter (a run that went on from an earlier step), is
read from its beginning, and whoever keeps what was read is told to forget it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

CHUNK_BYTES = 8 << 20


class Tail:
    """One thread at a time uses it."""

    def __init__(
        self, path: Path, *, take: Callable[[list[bytes]], None], forget: Callable[[], None]
    ) -> None:
        self._path = path
        self._take = take
        self._forget = forget
        self._offset = 0
        self._identity: tuple[int, int] | None = None  # device and inode

    def read_on(self) -> None:
        """Hands over what is new; a last line without its end is left for the next time."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            self._start_over(None)
            return
        with file:
            facts = os.fstat(file.fileno())
            identity = (facts.st_dev, facts.st_ino)
            if identity != self._identity or facts.st_size < self._offset:
                self._start_over(identity)
            file.seek(self._offset)
            rest = b""
            while chunk := file.read(CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                self._take(lines)
            self._offset = file.tell() - len(rest)

    def _start_over(self, identity: tuple[int, int] | None) -> None:
        if self._identity is not None:
            self._forget()
        self._identity = identity
        self._offset = 0
