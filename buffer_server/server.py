"""One shard: tables on a socket or a port.

    server = ReplayServer([table], ServerConfig(address="unix:/run/shard-0.sock"))
    server.start()
    ...
    server.drain(timeout_seconds=10.0)
    server.stop(grace_seconds=1.0)

`ReplayService` has the methods; this file has the doors: address, token, TLS, limits, health. Only
this machine can reach a shard by default. A socket is guarded by the file system, a port needs a
token, and one that others can reach needs TLS as well; `insecure` lifts that, and says so.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Annotated

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from pydantic import AfterValidator, Field, model_validator

from buffer_server.addresses import (
    UNIX_PREFIX,
    check_address,
    is_loopback,
    is_unix,
    read_pem,
)
from buffer_server.auth import TokenInterceptor, read_token
from buffer_server.reception import Kind, Limits
from buffer_server.request_times import Histogram
from buffer_server.service import Checkpoints, ReplayService
from buffer_server.statistics import ShardStatistics
from buffer_server.table import Table
from buffer_server.wire import SERVICE
from repertory.errors import UsageError
from repertory.settings import Settings

logger = logging.getLogger(__name__)


class ServerConfig(Settings):
    address: Annotated[str, AfterValidator(check_address)] = "127.0.0.1:0"  # port 0: any free one
    token_file: Path | None = None  # only its owner may read it
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_authority: Path | None = None  # callers must show a certificate that it signed
    insecure: bool = False  # open to others without token and TLS
    max_message_bytes: int = Field(default=64 * 2**20, ge=2**16, le=2**31 - 1)
    max_inflight_bytes: int = Field(default=512 * 2**20, ge=2**17)  # half of it for inserts
    max_clients: int = Field(default=1024, ge=1, le=65_536)  # connections
    idle_seconds: float = Field(default=600.0, ge=1, le=86_400)  # then a connection is closed
    workers: int = Field(default=8, ge=1, le=1024)  # threads for calls that do not wait
    max_waiting: int = Field(default=64, ge=1, le=4096)  # unary calls that wait for a limiter
    # Of all clients together: an actor has one, a learner two; a thread for each that is open.
    max_streams: int = Field(default=512, ge=1, le=4096)

    @model_validator(mode="after")
    def _roomy(self) -> ServerConfig:
        if self.max_inflight_bytes < 2 * self.max_message_bytes:
            raise ValueError(
                f"max_inflight_bytes {self.max_inflight_bytes} has no room for one insert and one "
                f"sample of max_message_bytes {self.max_message_bytes}: give at least "
                f"{2 * self.max_message_bytes}"
            )
        return self

    @model_validator(mode="after")
    def _safe(self) -> ServerConfig:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("TLS takes both tls_certificate and tls_key: one is missing")
        if self.tls_client_authority is not None and self.tls_certificate is None:
            raise ValueError("tls_client_authority means nothing without tls_certificate")
        if self.insecure or is_unix(self.address):
            return self
        if self.token_file is None:
            raise ValueError(
                f"anybody could write to {self.address}: give a token file, or use a unix: socket"
            )
        if not is_loopback(self.address) and self.tls_certificate is None:
            raise ValueError(
                f"{self.address} can be reached by others: give a TLS certificate and its key, "
                "listen on 127.0.0.1, or choose insecure"
            )
        return self

    @property
    def threads(self) -> int:
        """One for each stream and each wait, and always some for the rest."""
        return self.workers + self.max_waiting + self.max_streams


class ReplayServer:
    """Bound when made, serving from `start` on. Also a context manager, which starts and stops."""

    def __init__(
        self,
        tables: Sequence[Table],
        config: ServerConfig,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        by_name = {table.name: table for table in tables}
        if not tables or len(by_name) < len(tables):
            names = ", ".join(repr(table.name) for table in tables) or "none"
            raise UsageError(f"a shard needs tables with different names, not {names}")
        self.config = config
        self._health = health.HealthServicer()
        self._service = ReplayService(
            by_name,
            Limits(
                max_message_bytes=config.max_message_bytes,
                max_inflight_bytes=config.max_inflight_bytes,
                max_waiting=config.max_waiting,
                max_streams=config.max_streams,
            ),
            checkpoints,
            on_drain=lambda: self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING),
        )
        self._pool = ThreadPoolExecutor(config.threads, thread_name_prefix="replay")
        interceptors: list[grpc.ServerInterceptor] = (
            [] if config.token_file is None else [TokenInterceptor(read_token(config.token_file))]
        )
        self._server = grpc.server(
            self._pool,
            interceptors=interceptors,
            maximum_concurrent_rpcs=config.threads,
            options=[
                ("grpc.max_receive_message_length", config.max_message_bytes),
                ("grpc.max_send_message_length", config.max_message_bytes),
                ("grpc.max_concurrent_streams", config.threads),
                ("grpc.max_allowed_incoming_connections", config.max_clients),
                ("grpc.max_connection_idle_ms", round(1000 * config.idle_seconds)),
                ("grpc.so_reuseport", 0),  # a port that is taken is an error
                # Callers that wait may ping while nothing else moves.
                ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
                ("grpc.keepalive_permit_without_calls", 1),
            ],
        )
        self._server.add_generic_rpc_handlers((self._service.handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self.address = self._bind()

    def start(self) -> None:
        self._server.start()
        self._set_health(health_pb2.HealthCheckResponse.SERVING)
        if self.config.insecure and not is_loopback(self.address):
            logger.warning("%s is open to others, without token or TLS", self.address)
        logger.info("replay shard at %s", self.address)

    def drain(self, timeout_seconds: float) -> int:
        """No more work is taken; returns how many requests are still under way at the deadline."""
        return self._service.drain(timeout_seconds)

    def statistics(self) -> ShardStatistics:
        return self._service.statistics()

    def request_times(self) -> dict[Kind, Histogram]:
        return self._service.request_times()

    def stop(self, grace_seconds: float = 1.0) -> None:
        """Sends those who wait away, gives what is under way some time, then ends all calls."""
        self.drain(timeout_seconds=0.0)
        self._server.stop(grace_seconds).wait(grace_seconds + 5.0)
        self._pool.shutdown(wait=True)

    def __enter__(self) -> ReplayServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _set_health(self, status: int) -> None:
        for name in ("", SERVICE):
            self._health.set(name, status)

    def _bind(self) -> str:
        address = self.config.address
        if is_unix(address):
            _refuse_live_socket(Path(address.removeprefix(UNIX_PREFIX)))
        try:
            if self.config.tls_certificate is None or self.config.tls_key is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(
                    address, _credentials(self.config, self.config.tls_certificate)
                )
        except RuntimeError as error:
            raise UsageError(
                f"cannot listen on {address}: it is taken or not ours; choose another"
            ) from error
        if is_unix(address):
            os.chmod(address.removeprefix(UNIX_PREFIX), 0o600)
            return address
        return f"{address.rpartition(':')[0]}:{port}"


def _refuse_live_socket(path: Path) -> None:
    """gRPC puts its socket in the place of any other, also of one that is listened to.

    One that a killed process has left behind answers nobody, and may go.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise UsageError(f"cannot listen on {path}: it is a file, not a socket; choose another")
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(f"cannot listen on {path}: there is no folder {path.parent}") from None
        return
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            raise UsageError(f"cannot listen on {path}: {error.strerror}") from error
    raise UsageError(
        f"cannot listen on {path}: another server does; stop that one, or choose another"
    )


def _credentials(config: ServerConfig, certificate: Path) -> grpc.ServerCredentials:
    assert config.tls_key is not None
    pair = (read_pem(config.tls_key, "TLS key"), read_pem(certificate, "TLS certificate"))
    authority = config.tls_client_authority
    return grpc.ssl_server_credentials(
        [pair],
        root_certificates=None if authority is None else read_pem(authority, "client authority"),
        require_client_auth=authority is not None,
    )
