"""The network of the chaos tests does what it says when it is cut."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cut_proxy import CutProxy

WAIT_SECONDS = 5.0


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[CutProxy]:
    """To a server that says everything again."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "far"))
    server.listen()

    def echo(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # it may be cut while it answers
            while data := connection.recv(100):
                connection.sendall(data)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    with CutProxy(tmp_path / "near", tmp_path / "far") as made:
        yield made
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def call(folder: Path) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX)
    caller.settimeout(WAIT_SECONDS)
    caller.connect(str(folder / "near"))
    return caller


def ask(caller: socket.socket, word: bytes) -> bytes:
    caller.sendall(word)
    return caller.recv(100)


def test_words_pass_both_ways(proxy: CutProxy, tmp_path: Path) -> None:
    with call(tmp_path) as caller:
        assert ask(caller, b"hello") == b"hello"


def test_a_dropped_connection_ends_and_new_ones_too_until_it_is_healed(
    proxy: CutProxy, tmp_path: Path
) -> None:
    with call(tmp_path) as caller:
        assert ask(caller, b"hello") == b"hello"
        proxy.cut("dropped")
        assert caller.recv(100) == b""
    with call(tmp_path) as caller:
        assert caller.recv(100) == b""
    proxy.heal()
    with call(tmp_path) as caller:
        assert ask(caller, b"again") == b"again"


def test_while_it_is_silent_nothing_passes_and_nothing_is_lost(
    proxy: CutProxy, tmp_path: Path
) -> None:
    with call(tmp_path) as caller:
        assert ask(caller, b"hello") == b"hello"
        proxy.cut("silent")
        caller.sendall(b"are you there")
        caller.settimeout(0.2)
        with pytest.raises(TimeoutError):
            caller.recv(100)
        proxy.heal()
        caller.settimeout(WAIT_SECONDS)
        assert caller.recv(100) == b"are you there"


def test_an_answer_that_was_held_back_is_lost_and_the_connection_with_it(
    proxy: CutProxy, tmp_path: Path
) -> None:
    with call(tmp_path) as caller:
        assert ask(caller, b"hello") == b"hello"
        forwarded = proxy.forwarded_bytes
        proxy.cut("unanswered")
        caller.sendall(b"do it")
        deadline = time.monotonic() + WAIT_SECONDS
        while proxy.forwarded_bytes < forwarded + len(b"do it"):  # the server has got it
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        proxy.heal()
        with contextlib.suppress(ConnectionResetError):
            assert caller.recv(100) == b""
    with call(tmp_path) as caller:
        assert ask(caller, b"again") == b"again"


def test_where_nobody_serves_callers_are_turned_away(tmp_path: Path) -> None:
    with CutProxy(tmp_path / "near", tmp_path / "far"), call(tmp_path) as caller:
        assert caller.recv(100) == b""
