"""A caller's way to one shard: the channel, the deadlines, the retries, and errors in our words.

`ReplayClient` has one, `ShardedReplay` one for each shard. A call that finds the shard gone is
repeated, after a pause that doubles and is drawn at random (so that a thousand actors do not come
back at the same moment), until its attempts or its time are used up.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from pydantic import Field, model_validator

from buffer_server import wire
from buffer_server.addresses import read_pem
from buffer_server.auth import read_token, token_metadata
from buffer_server.statuses import ReplayUnavailable, error_of
from repertory.errors import RepertoryError, ReplayTimeout
from repertory.settings import Settings

# The server says why it let a caller wait in vain; that must arrive before our own deadline.
GRACE_SECONDS = 1.0
STREAM_SECONDS = 3600.0  # a stream is opened anew after that


class ConnectionConfig(Settings):
    """How a caller speaks to any shard."""

    # Who calls, for people; host and process are added.
    caller: str = Field(default="", max_length=64, pattern=r"^[\x20-\x7e]*$")
    token_file: Path | None = None
    tls_authority: Path | None = None  # who signed the server's certificate; None: no TLS
    tls_certificate: Path | None = None  # what we show to a server that asks for it
    tls_key: Path | None = None
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600)  # of all calls but sampling
    attempts: int = Field(default=6, ge=1, le=100)  # of a call while the shard is gone
    first_pause_seconds: float = Field(default=0.05, gt=0)  # doubles with each attempt
    longest_pause_seconds: float = Field(default=2.0, gt=0)
    max_message_bytes: int = Field(default=64 * 2**20, ge=2**16, le=2**31 - 1)
    compression: wire.Compression = "none"  # of images, both ways; pays where the network is slow

    @model_validator(mode="after")
    def _whole(self) -> ConnectionConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("a client's certificate takes both tls_certificate and tls_key")
        if self.tls_certificate is not None and self.tls_authority is None:
            raise ValueError("tls_certificate means nothing without tls_authority")
        return self


class Connection:
    """One channel. Safe to share between threads."""

    def __init__(self, address: str, config: ConnectionConfig) -> None:
        self.address = address
        self.config = config
        name = f"{config.caller}@{socket.gethostname()}:{os.getpid()}"
        self._metadata: tuple[tuple[str, str | bytes], ...] = (
            (wire.PROTOCOL_KEY, str(wire.PROTOCOL_VERSION)),
            (wire.CALLER_KEY, name),
        )
        if config.token_file is not None:
            self._metadata += (token_metadata(read_token(config.token_file)),)
        self._channel = _open_channel(address, config)
        # Not a seeded one: that callers do not agree is its very purpose.
        self._jitter = random.SystemRandom()
        self._closed = threading.Event()

    def call(
        self, method: str, request: Message, response: type[wire.M], timeout_seconds: float
    ) -> wire.M:
        """One unary call, repeated while the shard is gone."""
        function: Any = self._channel.unary_unary(f"/{wire.SERVICE}/{method}")
        deadline = time.monotonic() + timeout_seconds
        raw = request.SerializeToString()
        attempt = 0
        while True:
            remaining = max(0.0, deadline - time.monotonic())
            try:
                answer = function(raw, timeout=remaining + GRACE_SECONDS, metadata=self._metadata)
                return wire.parse(response, answer)
            except grpc.RpcError as error:
                translated = self.translate(error)
                attempt += 1
                pause = self.pause_seconds(attempt)
                if (
                    not isinstance(translated, ReplayUnavailable)
                    or attempt >= self.config.attempts
                    or time.monotonic() + pause >= deadline
                ):
                    raise translated from None
                if self.sleep(pause):
                    raise translated from None
            except ValueError as error:  # how gRPC says that the channel is closed
                raise self._is_closed() from error

    def start(self, method: str, raw: bytes, timeout_seconds: float) -> Any:
        """One unary call under way, not repeated: a future of gRPC's, which `answer` reads."""
        try:
            function: Any = self._channel.unary_unary(f"/{wire.SERVICE}/{method}")
            return function.future(raw, timeout=timeout_seconds, metadata=self._metadata)
        except ValueError as error:
            raise self._is_closed() from error

    def answer(self, future: Any, response: type[wire.M], timeout_seconds: float) -> wire.M:
        """What a call that was started has brought."""
        try:
            return wire.parse(response, future.result(timeout=timeout_seconds + GRACE_SECONDS))
        except grpc.FutureCancelledError:
            raise self._is_closed() from None
        except grpc.FutureTimeoutError:
            raise ReplayTimeout(f"the replay shard at {self.address} did not answer") from None
        except grpc.RpcError as error:
            raise self.translate(error) from None

    def open_stream(self, method: str, requests: Iterator[bytes]) -> Any:
        """A stream of raw responses, which is also the handle to cancel it."""
        try:
            function: Any = self._channel.stream_stream(f"/{wire.SERVICE}/{method}")
            return function(requests, timeout=STREAM_SECONDS, metadata=self._metadata)
        except ValueError as error:
            raise self._is_closed() from error

    def pause_seconds(self, attempt: int) -> float:
        """Before attempt number `attempt` + 1: at random, up to a bound that doubles."""
        config = self.config
        bound = config.first_pause_seconds * 2.0 ** min(attempt, 30)
        return self._jitter.uniform(0.0, min(bound, config.longest_pause_seconds))

    def translate(self, error: grpc.RpcError) -> RepertoryError:
        code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
        details = (error.details() if isinstance(error, grpc.Call) else None) or code.name
        if code is grpc.StatusCode.CANCELLED:  # by a shard that stops, or by our own `close`
            if self._closed.is_set():
                return self._is_closed()
            code, details = grpc.StatusCode.UNAVAILABLE, "it stopped"
        if code is grpc.StatusCode.UNAVAILABLE and not details.startswith("the shard is"):
            details = f"not there ({details}); is it running?"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline Exceeded" in details:
            details = "no answer before the deadline; it may hang, or the network"
        return error_of(code, details, self.address)

    def sleep(self, seconds: float) -> bool:
        """Between attempts. True if the client was closed meanwhile."""
        return self._closed.wait(seconds)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    def _is_closed(self) -> RepertoryError:
        return ReplayUnavailable(f"this client of {self.address} was closed: make another")


def _open_channel(address: str, config: ConnectionConfig) -> grpc.Channel:
    options: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.enable_retries", 0),  # ours know which calls may be repeated
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one attempt to connect may take
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.keepalive_time_ms", 10_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.use_local_subchannel_pool", 1),  # a client's failures are its own
    ]
    if config.tls_authority is None:
        return grpc.insecure_channel(address, options=options)
    key, certificate = config.tls_key, config.tls_certificate
    credentials = grpc.ssl_channel_credentials(
        root_certificates=read_pem(config.tls_authority, "TLS authority"),
        private_key=None if key is None else read_pem(key, "TLS key"),
        certificate_chain=(
            None if certificate is None else read_pem(certificate, "TLS certificate")
        ),
    )
    return grpc.secure_channel(address, credentials, options=options)
