"""One bidirectional stream to a shard, read by a thread of its own.

Whoever opens one gives the requests as an iterator, which gRPC runs in a thread of its own, and is
told of each answer and, once, of the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal

import grpc

from buffer_server.connection import Connection
from buffer_server.statuses import ReplayUnavailable
from repertory.errors import RepertoryError

# A request that waits for a limiter is answered at least this often, with the reason.
SLICE_SECONDS = 0.25

StreamMethod = Literal["InsertStream", "SampleStream", "UpdatePrioritiesStream"]


class Stream:
    """Open from the moment it is made."""

    def __init__(
        self,
        connection: Connection,
        method: StreamMethod,
        requests: Iterator[bytes],
        on_answer: Callable[[bytes], None],
        on_end: Callable[[RepertoryError], None],
    ) -> None:
        self._connection = connection
        self._on_answer = on_answer
        self._on_end = on_end
        self._call: Any = connection.open_stream(method, requests)
        threading.Thread(target=self._read, name=f"replay-{method}", daemon=True).start()

    def cancel(self) -> None:
        """Ends it soon; `on_end` is called then too, and must end the requests."""
        self._call.cancel()

    def _read(self) -> None:
        try:
            for raw in self._call:
                self._on_answer(raw)
            error: RepertoryError = ReplayUnavailable("the shard ended the stream")
        except grpc.RpcError as status:
            error = self._connection.translate(status)
        except RepertoryError as unreadable:
            self._call.cancel()
            error = unreadable
        self._on_end(error)
