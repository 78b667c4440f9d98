"""The gate to the control server: who gets through, and what stays when it is closed."""

from __future__ import annotations

import gc
import os
import signal
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
from cluster_fakes import bring, node_in

from repertory import control as control_plane
from repertory.control import Claim, Control, ControlAddress, ControlTls, ControlUnavailable
from repertory.errors import UsageError
from services.clusters.authority import Authority, Issued
from services.clusters.control_gate import ControlGate
from services.clusters.node import Node
from services.embedded_redis import EmbeddedRedis

SECONDS = 10.0
TOKEN = b"of-the-cluster"


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        pause.wait(0.01)


def kill(server: EmbeddedRedis) -> None:
    assert server.process_id is not None
    os.kill(server.process_id, signal.SIGKILL)
    until(lambda: not server.alive())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "lab")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    folder = tmp_path_factory.mktemp("redis")
    (folder / "token").write_bytes(TOKEN)
    with EmbeddedRedis(folder / "control", folder / "token") as server:
        yield server


@pytest.fixture
def node(tmp_path: Path, authority: Authority) -> Node:
    with socket.create_server(("127.0.0.1", 0)) as trial:
        port = trial.getsockname()[1]
    return bring(node_in(tmp_path / "head", ports={"control": port}), authority, TOKEN)


@pytest.fixture
def gate(node: Node, server: EmbeddedRedis) -> Iterator[ControlGate]:
    with ControlGate(node, str(server.socket)) as gate:
        yield gate


@pytest.fixture
def client(node: Node, gate: ControlGate) -> Iterator[Any]:
    with node.control.connect() as client:
        yield client


def port_of(node: Node) -> int:
    return int(node.control_address.rpartition(":")[2])


def connected(node: Node) -> ssl.SSLSocket:
    """A connection of our own, after the handshake."""
    context = ssl.create_default_context(cafile=str(node.authority))
    context.load_cert_chain(node.certificate, node.key)
    plain = socket.create_connection(("127.0.0.1", port_of(node)), timeout=SECONDS)
    return context.wrap_socket(plain, server_hostname="127.0.0.1")


def written(folder: Path, issued: Issued) -> tuple[Path, Path]:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    return certificate, key


def half_connected(node: Node) -> socket.socket:
    """In the middle of a handshake: the gate has said its part and waits for ours."""
    stream = socket.create_connection(("127.0.0.1", port_of(node)), timeout=SECONDS)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(node.authority))
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1").do_handshake()
    stream.sendall(outgoing.read())
    assert stream.recv(100)
    return stream


# Who gets through


def test_who_has_certificate_and_password_gets_an_answer(client: Any) -> None:
    assert client.ping()


@pytest.mark.usefixtures("gate")
def test_the_address_still_works_when_it_was_sent_along(node: Node) -> None:
    address = ControlAddress.from_json(node.control.to_json())
    assert address == node.control
    with address.connect() as client:
        assert client.ping()


def answer(stream: socket.socket, question: bytes) -> bytes:
    """Nothing, where it is hung up on."""
    try:
        stream.sendall(question)
        return stream.recv(100)
    except TimeoutError:
        raise
    except OSError:
        return b""


def is_hung_up_on(address: ControlAddress) -> None:
    with address.connect() as client, pytest.raises(redis.ConnectionError) as error:
        client.ping()
    assert type(error.value) is redis.ConnectionError  # not that of a wrong password


@pytest.mark.usefixtures("gate")
def test_without_a_certificate_there_is_no_answer(node: Node) -> None:
    context = ssl.create_default_context(cafile=str(node.authority))
    with (
        socket.create_connection(("127.0.0.1", port_of(node)), timeout=SECONDS) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as stream,
    ):
        assert answer(stream, b"PING\r\n") == b""


@pytest.mark.usefixtures("gate")
def test_a_certificate_of_another_authority_gets_no_answer(node: Node, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "other").issue(["127.0.0.1"])
    tls = ControlTls(node.authority, *written(tmp_path, stranger))
    is_hung_up_on(replace(node.control, tls=tls))


@pytest.mark.usefixtures("gate")
def test_a_gate_of_another_authority_is_not_believed(node: Node, tmp_path: Path) -> None:
    Authority(tmp_path / "other")
    tls = ControlTls(tmp_path / "other" / "authority.pem", node.certificate, node.key)
    with (
        replace(node.control, tls=tls).connect() as client,
        pytest.raises(redis.ConnectionError, match="certificate verify failed"),
    ):
        client.ping()


def test_an_authority_of_the_system_is_not_believed(
    node: Node,
    server: EmbeddedRedis,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Once: redis-py adds the cluster's authority to all of those that the system trusts, so that
    # each of them can make itself the head. (Reading them takes 70 ms for each connection, too.)
    tls = ControlTls(node.authority, *written(tmp_path, authority.issue(["gamma"])))
    written(node.folder, Authority(tmp_path / "public").issue([node.address]))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "public" / "authority.pem"))
    with (
        ControlGate(node, str(server.socket)),
        replace(node.control, tls=tls).connect() as client,
        pytest.raises(redis.ConnectionError, match="certificate verify failed"),
    ):
        client.ping()


def test_a_worker_cannot_pretend_to_be_the_head(
    node: Node, server: EmbeddedRedis, authority: Authority
) -> None:
    """Its certificate is of the cluster, and for another address."""
    elsewhere = replace(node, address="127.0.0.2", control_address=f"127.0.0.2:{port_of(node)}")
    written(elsewhere.folder, authority.issue(["beta", "10.0.0.2"]))
    with (
        ControlGate(elsewhere, str(server.socket)),
        elsewhere.control.connect() as client,
        pytest.raises(redis.ConnectionError, match="IP address mismatch"),
    ):
        client.ping()


@pytest.mark.usefixtures("gate")
def test_plain_text_gets_no_answer(node: Node) -> None:
    is_hung_up_on(ControlAddress(f"redis://127.0.0.1:{port_of(node)}/0", node.token_file))
    with socket.create_connection(("127.0.0.1", port_of(node)), timeout=SECONDS) as plain:
        assert answer(plain, b"AUTH of-the-cluster\r\nPING\r\n") == b""


@pytest.mark.usefixtures("gate")
def test_an_older_tls_gets_no_answer(node: Node) -> None:
    context = ssl.create_default_context(cafile=str(node.authority))
    context.load_cert_chain(node.certificate, node.key)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection(("127.0.0.1", port_of(node)), timeout=SECONDS) as plain,
        pytest.raises(OSError, match=r"protocol version|unexpected eof|EOF occurred|reset"),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


@pytest.mark.usefixtures("gate")
def test_without_the_password_the_server_does_nothing(node: Node) -> None:
    with connected(node) as stream:
        assert answer(stream, b"PING\r\n").startswith(b"-NOAUTH")
        assert answer(stream, b"AUTH wrong\r\n").startswith(b"-WRONGPASS")


@pytest.mark.usefixtures("gate")
def test_the_wrong_password_is_told_as_such(node: Node, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("wrong")
    address = replace(node.control, password_file=tmp_path / "wrong")
    with (
        Control(address, "run-1") as control,
        pytest.raises(ControlUnavailable, match="refuses the password"),
    ):
        control.runs()


# What gets through


def test_big_values_pass_both_ways(client: Any) -> None:
    value = os.urandom(4 * 2**20).hex()
    client.set("big", value)
    assert client.get("big") == value
    client.delete("big")


def test_many_clients_get_their_own_answers(node: Node, gate: ControlGate) -> None:
    def use(name: str, wrong: list[str]) -> None:
        with node.control.connect(timeout_seconds=SECONDS) as client:
            for turn in range(20):
                client.set(name, turn)
                if client.get(name) != str(turn):
                    wrong.append(name)

    wrong: list[str] = []
    users = [threading.Thread(target=use, args=[f"user-{n}", wrong]) for n in range(10)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert wrong == []


def test_who_waits_for_something_is_woken_through_it(node: Node, client: Any) -> None:
    answers = []

    def wait() -> None:
        with node.control.connect(timeout_seconds=SECONDS) as other:
            answers.append(other.blpop(["queue"], timeout=SECONDS / 2))

    waiting = threading.Thread(target=wait)
    waiting.start()
    client.rpush("queue", "hello")
    waiting.join()
    assert answers == [("queue", "hello")]


def test_clients_come_back_when_the_server_was_killed(
    node: Node, gate: ControlGate, server: EmbeddedRedis, client: Any
) -> None:
    client.set("kept", "1")
    kill(server)
    with pytest.raises(redis.RedisError):
        client.get("kept")
    server.start()
    assert client.ping()


def test_who_comes_while_the_server_is_away_is_told_at_once(
    node: Node, gate: ControlGate, server: EmbeddedRedis
) -> None:
    kill(server)
    try:
        with Control(node.control, "run-1", timeout_seconds=SECONDS) as control:
            began = time.monotonic()
            with pytest.raises(ControlUnavailable, match=r"127\.0\.0\.1"):
                control.runs()
            assert time.monotonic() - began < SECONDS
    finally:
        server.start()


# What runs claim of the machines


@pytest.fixture
def two_runs(node: Node, gate: ControlGate) -> Iterator[tuple[Control, Control]]:
    with Control(node.control, "run-1") as one, Control(node.control, "run-2") as other:
        yield one, other
        one.withdraw_claim()
        other.withdraw_claim()


def test_every_run_sees_what_the_others_claim(two_runs: tuple[Control, Control]) -> None:
    one, other = two_runs
    now = time.time()
    one.claim(Claim(2.0, None, now, now))
    other.claim(Claim(0.5, 3, now, now))
    assert (
        one.claims()
        == other.claims()
        == {
            "run-1": Claim(2.0, None, now, now),
            "run-2": Claim(0.5, 3, now, now),
        }
    )


def test_a_claim_said_again_replaces_the_older(two_runs: tuple[Control, Control]) -> None:
    one, other = two_runs
    now = time.time()
    one.claim(Claim(2.0, None, now, now))
    one.claim(Claim(2.0, 4, now, now))
    assert other.claims()["run-1"].actors == 4


def test_a_claim_not_said_again_ends(two_runs: tuple[Control, Control]) -> None:
    one, other = two_runs
    now = time.time()
    one.claim(Claim(2.0, None, 0.0, now - control_plane.CLAIM_SECONDS - 1))
    other.claim(Claim(2.0, None, 0.0, now))
    assert list(one.claims()) == ["run-2"]


def test_a_claim_taken_back_is_gone(two_runs: tuple[Control, Control]) -> None:
    one, other = two_runs
    now = time.time()
    one.claim(Claim(2.0, None, now, now))
    one.withdraw_claim()
    assert other.claims() == {}


def test_the_files_of_an_address_are_found_from_other_folders(
    node: Node, gate: ControlGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Once: only the password's file is made a whole path.
    monkeypatch.chdir(node.folder)
    tls = ControlTls(Path("authority.pem"), Path("certificate.pem"), Path("key.pem"))
    address = ControlAddress(node.control.url, Path("token"), tls)
    monkeypatch.chdir("/")
    with address.connect() as client:
        assert client.ping()


# What stays


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_connections_leave_nothing_behind(
    node: Node, gate: ControlGate, server: EmbeddedRedis
) -> None:
    def visit() -> None:
        with node.control.connect() as client:
            client.ping()
        connected(node).close()  # goodbye at once
        with socket.create_connection(("127.0.0.1", port_of(node))) as rude:
            rude.sendall(b"\x16\x03\x01 and no more")

    visit()
    with server.address.connect() as watcher:
        until(lambda: len(watcher.client_list()) == 1)
        files, threads = open_files(), threading.active_count()
        for _ in range(30):
            visit()
        until(lambda: len(watcher.client_list()) == 1)
        until(lambda: open_files() <= files)
        assert threading.active_count() == threads


def test_who_goes_without_a_word_leaves_nothing_behind(
    node: Node, gate: ControlGate, server: EmbeddedRedis
) -> None:
    with server.address.connect() as watcher:
        until(lambda: len(watcher.client_list()) == 1)
        stream = connected(node)
        until(lambda: len(watcher.client_list()) == 2)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()  # a reset, instead of an end
        until(lambda: len(watcher.client_list()) == 1)


class Said:
    """All that is said by a library in the background."""

    def __init__(self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        gc.collect()  # what is of others
        caplog.clear()
        self._caplog = caplog
        self._unraisable: list[str] = []
        monkeypatch.setattr(
            sys, "unraisablehook", lambda what: self._unraisable.append(repr(what.exc_value))
        )

    def everything(self) -> list[str]:
        gc.collect()
        return [*(record.getMessage() for record in self._caplog.records), *self._unraisable]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Said:
    return Said(caplog, monkeypatch)


def close_with(node: Node, server: EmbeddedRedis, kind: str) -> None:
    """Opens and closes a gate to which somebody of this kind is connected."""
    gate = ControlGate(node, str(server.socket))
    if kind == "nobody":
        gate.close()
    elif kind == "idle":
        with node.control.connect() as client:
            client.ping()
            gate.close()
    elif kind == "gone":
        with node.control.connect() as client:
            client.ping()
        gate.close()
    elif kind == "waiting":
        with connected(node) as stream:
            password = TOKEN.decode()
            stream.sendall(f"AUTH {password}\r\nBLPOP nothing 0\r\n".encode())
            assert stream.recv(100) == b"+OK\r\n"
            gate.close()
    elif kind == "deaf":
        with connected(node) as stream, server.address.connect() as client:
            client.set("large", "x" * 2**24)
            stream.sendall(f"AUTH {TOKEN.decode()}\r\n".encode() + b"GET large\r\n" * 4)
            assert stream.recv(5) == b"+OK\r\n"
            gate.close()
            client.delete("large")
    else:
        with half_connected(node):
            gate.close()
    del gate


KINDS = ["nobody", "idle", "gone", "waiting", "deaf", "in the handshake"]


@pytest.mark.parametrize("kind", KINDS)
def test_closing_says_nothing(node: Node, server: EmbeddedRedis, said: Said, kind: str) -> None:
    # Once: "Exception in callback StreamReaderProtocol.connection_made" for a task that was
    # cancelled, and transports that are still open when the loop is closed.
    close_with(node, server, kind)
    assert said.everything() == []


@pytest.mark.parametrize("kind", KINDS)
def test_closing_leaves_no_file_and_no_thread(node: Node, server: EmbeddedRedis, kind: str) -> None:
    # Once: the sockets of clients stay open.
    close_with(node, server, "nobody")
    gc.collect()
    with server.address.connect() as watcher:
        watcher.ping()
        files, threads = open_files(), threading.active_count()
        close_with(node, server, kind)
        assert (open_files(), threading.active_count()) == (files, threads)
        until(lambda: len(watcher.client_list()) == 1)


@pytest.mark.parametrize("kind", ["nobody", "idle", "in the handshake"])
def test_the_port_is_free_at_once(node: Node, server: EmbeddedRedis, kind: str) -> None:
    close_with(node, server, kind)
    with ControlGate(node, str(server.socket)), node.control.connect() as client:
        assert client.ping()


def test_who_is_connected_is_hung_up_on(node: Node, server: EmbeddedRedis) -> None:
    gate = ControlGate(node, str(server.socket))
    with connected(node) as stream:
        gate.close()
        stream.settimeout(2.0)
        assert answer(stream, b"") == b""


def test_a_server_that_ends_under_a_client_says_nothing(
    node: Node, server: EmbeddedRedis, said: Said
) -> None:
    gate = ControlGate(node, str(server.socket))
    with connected(node) as stream:
        stream.sendall(f"AUTH {TOKEN.decode()}\r\n".encode())
        assert stream.recv(100) == b"+OK\r\n"
        kill(server)
        try:
            assert stream.recv(100) == b""
        finally:
            server.start()
            gate.close()
    del gate
    assert said.everything() == []


def test_a_port_that_is_taken_is_told_and_nothing_stays(
    node: Node, server: EmbeddedRedis, said: Said
) -> None:
    threads = threading.active_count()
    with (
        socket.create_server(("127.0.0.1", port_of(node))),
        pytest.raises(UsageError, match=rf"127\.0\.0\.1:{port_of(node)}.*ports\.control"),
    ):
        ControlGate(node, str(server.socket))
    assert threading.active_count() == threads
    assert said.everything() == []
