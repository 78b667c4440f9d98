"""Somebody who has no certificate, or no token, and tries every port in every way."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import grpc

from buffer_server.wire import SERVICE

SECONDS = 5.0
HTTP = b"GET / HTTP/1.1\r\nHost: stranger\r\n\r\n"
REDIS = b"PING\r\n"
HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HEALTH = "/grpc.health.v1.Health/Check"
# What may be asked without knowing anything: who is there, and what the replay holds.
METHODS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.InternalKVGcsService/InternalKVKeys",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ObjectManagerService/Pull",
    HEALTH,
    f"/{SERVICE}/Describe",
)
REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.UNIMPLEMENTED,
)


def plain_text(host: str, port: int) -> dict[str, bytes]:
    """What it answers to each greeting in the clear."""
    return {name: _ask(host, port, words) for name, words in _greetings().items()}


def tls_without_certificate(host: str, port: int) -> dict[str, bytes]:
    """The same, encrypted, by somebody who takes any certificate and shows none."""
    return tls(host, port, None, None)


def tls(host: str, port: int, certificate: Path | None, key: Path | None) -> dict[str, bytes]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return {name: _ask(host, port, words, context) for name, words in _greetings().items()}


def calls(host: str, port: int, credentials: grpc.ChannelCredentials | None) -> dict[str, str]:
    """What gRPC's methods give to somebody without the token; empty where all refuse."""
    address = f"{host}:{port}"
    channel = (
        grpc.insecure_channel(address)
        if credentials is None
        else grpc.secure_channel(address, credentials)
    )
    given = {}
    with channel:
        for method in METHODS:
            call = channel.unary_unary(method)
            try:
                given[method] = f"answered {call(b'', timeout=SECONDS)!r}"
            except grpc.RpcError as error:
                if error.code() not in REFUSALS:
                    given[method] = f"{error.code()}: {error.details()}"
    return given


def is_nothing(answer: bytes) -> bool:
    """Silence, a TLS alert, or a refusal without content."""
    return (
        answer == b""
        or answer.startswith(b"\x15\x03")
        or answer.startswith((b"HTTP/1.1 401", b"HTTP/1.1 400", b"HTTP/1.0 400"))
        or _is_only_http2_frames(answer)
    )


def _is_only_http2_frames(answer: bytes) -> bool:
    """Settings, pings, window updates and farewells say nothing; headers and data would."""
    place = 0
    while place + 9 <= len(answer):
        length, kind = int.from_bytes(answer[place : place + 3]), answer[place + 3]
        if kind not in (4, 6, 7, 8):
            return False
        place += 9 + length
    return len(answer) >= 9


def _greetings() -> dict[str, bytes]:
    return {"http": HTTP, "redis": REDIS, "http2": HTTP2}


def _ask(host: str, port: int, words: bytes, context: ssl.SSLContext | None = None) -> bytes:
    answer = b""
    try:
        with socket.create_connection((host, port), SECONDS) as plain:
            connection = plain if context is None else context.wrap_socket(plain)
            with connection:
                connection.settimeout(1.0)
                connection.sendall(words)
                while piece := connection.recv(4096):
                    answer += piece
    except OSError:  # refused, reset, timed out, an alert
        pass
    return answer
