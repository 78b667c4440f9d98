"""Who may speak to a shard: tokens, TLS, versions, addresses, and what a health check hears."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError
from replay_shards import LONG_SECONDS, connect, make_table, numbered, write_token

from buffer_server import wire
from buffer_server.auth import read_token, token_metadata
from buffer_server.client import ClientConfig
from buffer_server.proto import replay_pb2 as pb
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.statuses import ReplayDenied, ReplayUnavailable
from repertory.errors import UsageError

UNARY = [
    method.name
    for method in pb.DESCRIPTOR.services_by_name["Replay"].methods
    if not method.name.endswith("Stream")
]
VERSION = (wire.PROTOCOL_KEY, str(wire.PROTOCOL_VERSION))
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    return write_token(tmp_path / "token")


@pytest.fixture
def server(token_file: Path) -> Iterator[ReplayServer]:
    with ReplayServer([make_table()], ServerConfig(token_file=token_file)) as running:
        yield running


def status(address: str, path: str, *metadata: tuple[str, str]) -> grpc.StatusCode:
    with grpc.insecure_channel(address) as channel:
        try:
            if path.endswith("Stream"):
                list(channel.stream_stream(path)(iter([b""]), timeout=10, metadata=metadata))
            else:
                channel.unary_unary(path)(b"", timeout=10, metadata=metadata)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    "path",
    [HEALTH, *(f"/{wire.SERVICE}/{name}" for name in (*UNARY, "InsertStream", "SampleStream"))],
)
def test_every_method_asks_for_the_token(path: str, server: ReplayServer) -> None:
    right = token_metadata("5" * 64)
    for given in ([], [token_metadata("5" * 63 + "6")], [token_metadata("")], [right, right]):
        code = status(server.address, path, VERSION, *given)
        assert code is grpc.StatusCode.UNAUTHENTICATED
    assert status(server.address, path, VERSION, right) is not grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("name", [*UNARY, "InsertStream", "SampleStream"])
def test_every_method_asks_for_the_version(name: str, server: ReplayServer) -> None:
    right = token_metadata("5" * 64)
    for given in ([], [(wire.PROTOCOL_KEY, "2")], [(wire.PROTOCOL_KEY, "one")]):
        code = status(server.address, f"/{wire.SERVICE}/{name}", right, *given)
        assert code is grpc.StatusCode.FAILED_PRECONDITION


def test_an_unknown_method_is_not_told_to_strangers(server: ReplayServer) -> None:
    path = f"/{wire.SERVICE}/Other"
    assert status(server.address, path) is grpc.StatusCode.UNAUTHENTICATED
    code = status(server.address, path, token_metadata("5" * 64))
    assert code is grpc.StatusCode.UNIMPLEMENTED


def test_a_client_with_another_token_is_denied(server: ReplayServer, tmp_path: Path) -> None:
    with pytest.raises(ReplayDenied, match="token is wrong or missing"):
        connect(server, token_file=write_token(tmp_path / "other", "6" * 64))


def test_health_follows_the_shard(server: ReplayServer, token_file: Path) -> None:
    with grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        token = (token_metadata("5" * 64),)
        for name in ("", wire.SERVICE):
            request = health_pb2.HealthCheckRequest(service=name)
            answer = stub.Check(request, timeout=10, metadata=token)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with connect(server, token_file=token_file) as client:
            client.drain(timeout_seconds=LONG_SECONDS)
        answer = stub.Check(request, timeout=10, metadata=token)
        assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.parametrize(
    ("content", "mode", "message"),
    [
        ("5" * 64, 0o644, "can be read by others"),
        ("5" * 31, 0o600, "holds no token"),
        ("ü" * 64, 0o600, "holds no token"),
        (None, 0o600, "cannot read token file"),
    ],
)
def test_a_token_file_holds_a_token_and_is_private(
    content: str | None, mode: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(UsageError, match=message):
        read_token(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"address": "127.0.0.1:0"}, "anybody could write to 127"),
        ({"address": "0.0.0.0:0"}, "anybody could write"),
        ({"address": "0.0.0.0:0", "token_file": "t"}, "can be reached by others"),
        ({"address": "example.org:1", "token_file": "t"}, "can be reached by others"),
        ({"address": "[::]:1", "token_file": "t"}, "can be reached by others"),
        ({"address": "127.0.0.1:0", "token_file": "t", "tls_key": "k"}, "one is missing"),
        ({"address": "unix:/a", "tls_client_authority": "k"}, "means nothing without"),
        ({"address": "unix:relative"}, "not the absolute path"),
        ({"address": "unix:/" + "a" * 107}, "shorter directory"),
        ({"address": "localhost"}, "is no address"),
        ({"address": "localhost:70000"}, "is no address"),
    ],
)
def test_an_open_door_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ServerConfig(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"address": "unix:/tmp/s"},
        {"address": "[::1]:0", "token_file": "t"},
        {"address": "0.0.0.0:0", "insecure": True},
        {"address": "0.0.0.0:0", "token_file": "t", "tls_certificate": "c", "tls_key": "k"},
    ],
)
def test_a_guarded_door_is_allowed(settings: dict[str, Any]) -> None:
    ServerConfig(**settings)


def test_a_socket_is_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "shard.sock"
    with ReplayServer([make_table()], ServerConfig(address=f"unix:{path}")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_port_that_is_taken_is_named(server: ReplayServer, token_file: Path) -> None:
    with pytest.raises(UsageError, match=f"cannot listen on {server.address}"):
        ReplayServer([make_table()], ServerConfig(address=server.address, token_file=token_file))


def openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, each with a certificate for 127.0.0.1 signed by it."""
    folder = tmp_path_factory.mktemp("certificates")
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for who in ("ours", "theirs"):
        authority, key = folder / f"{who}-ca.pem", folder / f"{who}-ca.key"
        subject = ("-subj", f"/CN={who}")
        openssl("req", "-x509", *curve, "-keyout", key, "-out", authority, *subject)
        request, pair = folder / f"{who}.csr", ("-keyout", folder / f"{who}.key")
        openssl("req", *curve, *pair, "-out", request, *subject)
        signed = ("-CA", authority, "-CAkey", key, "-CAcreateserial", "-extfile", names)
        openssl("x509", "-req", "-in", request, *signed, "-out", folder / f"{who}.pem")
    return folder


def test_mutual_tls_admits_only_its_own(certificates: Path, token_file: Path) -> None:
    def signed_by(who: str) -> dict[str, Path]:
        return {
            "tls_certificate": certificates / f"{who}.pem",
            "tls_key": certificates / f"{who}.key",
        }

    ours = certificates / "ours-ca.pem"
    config = ServerConfig(token_file=token_file, tls_client_authority=ours, **signed_by("ours"))
    with ReplayServer([make_table()], config) as server:
        quick = {"token_file": token_file, "attempts": 1, "timeout_seconds": 10.0}
        with connect(server, tls_authority=ours, **signed_by("ours"), **quick) as client:
            assert client.insert(numbered(0, 3)) == 3
        for wrong in (
            {},  # no TLS
            {"tls_authority": ours},  # no certificate of its own
            {"tls_authority": ours, **signed_by("theirs")},
            {"tls_authority": certificates / "theirs-ca.pem", **signed_by("ours")},
        ):
            with pytest.raises(ReplayUnavailable):
                connect(server, **wrong, **quick)


@pytest.mark.parametrize(
    "settings", [{"tls_certificate": "c"}, {"tls_certificate": "c", "tls_key": "k"}]
)
def test_half_a_clients_tls_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="tls_"):
        ClientConfig(address="127.0.0.1:1", table="replay", **settings)
