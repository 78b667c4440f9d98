"""The dashboard as a server: from where it listens and what it shows to a page that answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from repertory.errors import UsageError
from services.dashboard import pages
from services.dashboard.library import RunLibrary
from services.dashboard.routes import make_app
from services.dashboard.sessions import Sessions
from services.dashboard.site import Site
from services.run_control import CONTROL_FOLDER
from services.secret_file import secret_in
from services.signals import stop_on_signals

TOKEN_FILE = "dashboard_token"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
FIRST_PORT = 8600  # the first free one from here on: a tunnel can stay as it is
PORTS_TRIED = 50
GOODBYE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class DashboardConfig:
    runs: Path
    host: str = "127.0.0.1"
    port: int | None = None  # None: the first free one of ours; 0: any
    allow_hosts: tuple[str, ...] = ()  # names by which browsers may call it
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    read_only: bool = False

    def __post_init__(self) -> None:
        if not self.runs.is_dir():
            raise UsageError(f"{self.runs} is not a folder: name that of your runs, or of one run")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UsageError("--tls-certificate and --tls-key go together")
        if self.host not in ("127.0.0.1", "localhost", "::1") and not (
            self.tls_certificate or self.insecure
        ):
            raise UsageError(
                f"--host {self.host} can be reached by others: give --tls-certificate and "
                "--tls-key, or --insecure; or stay on this machine and use `ssh -L`"
            )

    @property
    def token_file(self) -> Path:
        """With the other secrets of a run, or in the folder of many."""
        private = self.runs / CONTROL_FOLDER
        return private / TOKEN_FILE if private.is_dir() else self.runs / f".{TOKEN_FILE}"


class Dashboard:
    """Listens when made; `run` serves until it is told to stop."""

    def __init__(self, config: DashboardConfig) -> None:
        self._socket = _listen(config.host, config.port)
        port = self._socket.getsockname()[1]
        scheme = "http" if config.tls_certificate is None else "https"
        shown = f"[{config.host}]" if ":" in config.host else config.host
        self.address = f"{scheme}://{shown}:{port}"
        self._site = Site(
            RunLibrary(config.runs, read_only=config.read_only),
            Sessions(secret_in(config.token_file)),
            secure=config.tls_certificate is not None,
        )
        app = make_app(self._site, {*LOOPBACK, shown.lower(), *map(str.lower, config.allow_hosts)})
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                server_header=False,
                lifespan="off",
                ssl_certfile=config.tls_certificate,
                ssl_keyfile=config.tls_key,
                timeout_graceful_shutdown=GOODBYE_SECONDS,
                h11_max_incomplete_event_size=64 << 10,
            ),
            self._site.closing,
        )

    def link(self) -> str:
        """An address that logs in, once."""
        return f"{self.address}/enter?code={self._site.sessions.link_code()}"

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        # Compressing it takes a moment, which the first page would have to wait for.
        threading.Thread(target=pages.plotly_script, name="plotly", daemon=True).start()
        try:
            with stop_on_signals(lambda name: self.stop()):
                on_ready()  # connections are taken from here on, and answered in a moment
                self._server.run(sockets=[self._socket])
        finally:
            self._site.library.close()
            self._socket.close()

    def stop(self) -> None:
        self._server.should_exit = True
        self._site.closing.set()


class _Server(uvicorn.Server):
    """Streams would hold it up for ever: they are told that it ends."""

    def __init__(self, config: uvicorn.Config, closing: threading.Event) -> None:
        super().__init__(config)
        self._closing = closing

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing.set()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are `Dashboard.run`'s: uvicorn would send them again once it has ended."""
        yield


def _listen(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = range(FIRST_PORT, FIRST_PORT + PORTS_TRIED) if port is None else [port]
    for number in ports:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, number))
            listener.listen(100)
        except OSError as error:
            listener.close()
            reason = error.strerror
        else:
            return listener
    tried = str(port) if port is not None else f"{FIRST_PORT} to {FIRST_PORT + PORTS_TRIED - 1}"
    raise UsageError(f"cannot listen on {host}, port {tried}: {reason}; choose another --port")
