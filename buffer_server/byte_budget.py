"""How many bytes of messages may be under way at once: so that many callers cannot fill the memory.

Inserts have a budget of their own. One that waits for samples keeps what it took, and must not hold
up the very samples it waits for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from buffer_server.statuses import ReplayUnavailable


class ByteBudget:
    """Safe to share between threads."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit = limit_nbytes
        self._taken = 0
        self._changed = threading.Condition()

    @property
    def taken_nbytes(self) -> int:
        return self._taken

    def take(self, nbytes: int, *, wait_seconds: float) -> None:
        """Raises where there is no room in time. A message alone is always taken."""
        with self._changed:

            def fits() -> bool:
                return self._taken == 0 or self._taken + nbytes <= self._limit

            if not self._changed.wait_for(fits, wait_seconds):
                raise ReplayUnavailable(
                    f"the shard is busy with {self._taken} bytes of messages, {nbytes} more are "
                    f"past its max_inflight_bytes: ask again"
                )
            self._taken += nbytes

    def give_back(self, nbytes: int) -> None:
        with self._changed:
            self._taken -= nbytes
            self._changed.notify_all()

    @contextmanager
    def hold(self, nbytes: int, *, wait_seconds: float) -> Iterator[None]:
        self.take(nbytes, wait_seconds=wait_seconds)
        try:
            yield
        finally:
            self.give_back(nbytes)
