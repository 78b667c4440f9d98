"""A network between two unix sockets that can be cut and healed.

    proxy = CutProxy(listen=folder / "in.sock", connect=folder / "out.sock")
    proxy.cut("dropped")     # connections are closed, and new ones as soon as they come
    proxy.cut("silent")      # connections stay and nothing passes: what was sent waits for the heal
    proxy.cut("unanswered")  # requests pass and answers do not; they are lost with the heal
    proxy.heal()

Whoever connects to `listen` speaks with whoever serves `connect`. While that one is not there,
callers are turned away, as they would be without a proxy.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path
from typing import Literal

from repertory.closing import Closing

Cut = Literal["dropped", "silent", "unanswered"]

CHUNK_BYTES = 2**16


class CutProxy(Closing):
    """Forwards from the moment it is made. Safe to share between threads."""

    def __init__(self, listen: Path, connect: Path) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._dropping = False
        self._passing = threading.Event()
        self._passing.set()
        self._answering = threading.Event()
        self._answering.set()
        self._closed = False
        self.forwarded_bytes = 0
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._door.bind(str(listen))
        self._door.listen(128)
        threading.Thread(target=self._welcome, name="cut-proxy", daemon=True).start()

    def cut(self, kind: Cut) -> None:
        if kind == "silent":
            self._passing.clear()
            return
        if kind == "unanswered":
            self._answering.clear()
            return
        with self._lock:
            self._dropping = True
        self._drop_all()

    def heal(self) -> None:
        if not self._answering.is_set():
            self._drop_all()
        with self._lock:
            self._dropping = False
        self._answering.set()
        self._passing.set()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._door.close()
        self._drop_all()
        self._answering.set()
        self._passing.set()

    def _welcome(self) -> None:
        while not self._closed:
            try:
                caller, _ = self._door.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with self._lock:
                self._open |= {caller, server}
                refused = self._dropping or self._closed
            try:
                if refused:
                    raise ConnectionRefusedError
                server.connect(str(self._connect))
            except OSError:  # nobody is there
                self._hang_up(caller, server)
                continue
            for source, sink, gate in (
                (caller, server, self._passing),
                (server, caller, self._answering),
            ):
                threading.Thread(target=self._pump, args=(source, sink, gate), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                self._passing.wait()
                gate.wait()
                sink.sendall(chunk)
                self.forwarded_bytes += len(chunk)
        self._hang_up(source, sink)

    def _drop_all(self) -> None:
        with self._lock:
            connections = list(self._open)
        self._hang_up(*connections)

    def _hang_up(self, *connections: socket.socket) -> None:
        with self._lock:
            self._open -= set(connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
            connection.close()
