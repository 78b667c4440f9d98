"""Keeps one machine in its cluster: starts Ray there, and again when it ends, until told to stop.

On the head it also keeps the control server, the gate to it, and the dashboard. Each machine has
one keeper, a process that needs nobody's terminal. A machine that was cut off is given up by the
head, and its Ray ends; the keeper brings it back as a new member as soon as the head can be
reached. When the keeper itself is killed, a guardian ends everything it had started.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal

from repertory.checkpoints import write_atomically
from repertory.errors import RepertoryError, UsageError
from services.child_process import end_process, tied_to_parent
from services.clusters.control_gate import ControlGate
from services.clusters.node import Node
from services.embedded_redis import EmbeddedRedis
from services.guardian import Guardian
from services.ray_environment import quiet_ray
from services.signals import stop_on_signals

logger = logging.getLogger(__name__)

STATE = "state.json"
LOOK_SECONDS = 0.5
BEAT_SECONDS = 5.0  # it says at least so often that it is there
STOP_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 15.0
SETTLED_SECONDS = 60.0  # Ray that ran for so long begins anew with short pauses
# A machine that does not answer for so long is given up: sixteen seconds, or a little more.
HEALTH_PERIOD_MS, HEALTH_TIMEOUT_MS, HEALTH_FAILURES = 2000, 4000, 4
HEAD_AWAY_SECONDS = 20  # then a machine gives up the head, and tries to join again

Phase = Literal["starting", "ready", "waiting", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class KeeperState:
    """What a keeper says of itself, in its folder."""

    phase: Phase
    reason: str
    process_id: int
    started_at: float  # seconds since the epoch
    at: float
    restarts: int  # of Ray
    version: str  # of repertory

    @classmethod
    def read(cls, folder: Path) -> KeeperState | None:
        try:
            return cls(**json.loads((folder / STATE).read_text()))
        except (OSError, ValueError, TypeError):
            return None


def is_kept(folder: Path) -> bool:
    """Whether a keeper is at work there: it holds the lock as long as it lives."""
    try:
        with (folder / "lock").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
    except FileNotFoundError:
        return False
    return False


class Keeper:
    """Of one node. `run` returns when it was told to stop."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._logs = node.folder / "logs"
        self._logs.mkdir(exist_ok=True)
        self._stopping = threading.Event()
        self._restarts = 0
        self._started_at = time.time()
        self._phase: Phase = "stopped"
        self._reason = ""

    def run(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(_lock(self._node.folder))
            stack.enter_context(stop_on_signals(lambda name: self._stopping.set()))
            # As when a terminal or an ssh connection goes: what was started shall stay.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            self._say("starting")
            try:
                _make_private(Path(self._node.ray_folder))
                guardian = Guardian()
                stack.callback(guardian.clear)  # some of Ray's own end a little later
                stack.enter_context(guardian.marking())
                self._keep(stack)
            except Exception as error:
                self._say("failed", f"{type(error).__name__}: {error}")
                raise
        self._say("stopped")

    def _keep(self, stack: ExitStack) -> None:
        servers: list[_Child | EmbeddedRedis] = []
        next_start: dict[object, float] = defaultdict(float)  # not at once, where it ends at once
        if self._node.is_head:
            redis = EmbeddedRedis(self._node.folder / "control", self._node.token_file)
            stack.enter_context(redis)
            stack.enter_context(ControlGate(self._node, str(redis.socket)))
            servers.append(redis)
            if self._node.dashboard_port is not None:
                dashboard = self._dashboard()
                stack.callback(dashboard.stop)
                servers.append(dashboard)
        ray = _Child(self._ray_command(), self._environment(), self._logs / "ray.log")
        stack.callback(ray.stop)
        pause, began = FIRST_PAUSE_SECONDS, time.monotonic()
        ready, said_at = False, time.monotonic()
        while not self._stopping.wait(LOOK_SECONDS):
            if time.monotonic() - said_at > BEAT_SECONDS:
                said_at = time.monotonic()
                self._say(self._phase, self._reason)
            for server in servers:
                if not server.alive() and time.monotonic() > next_start[server]:
                    logger.info("starting %s", server)
                    next_start[server] = time.monotonic() + LONGEST_PAUSE_SECONDS
                    server.start()
            if not ray.alive():
                if ray.started:
                    ready = False
                    pause = _next_pause(pause, time.monotonic() - began)
                    self._restarts += 1
                    self._say("waiting", f"Ray ended: {ray.last_words()}")
                    if self._stopping.wait(pause):
                        return
                began = time.monotonic()
                ray.start()
            elif not ready and self._is_member():
                ready = True
                self._say("ready")

    def _is_member(self) -> bool:
        """Whether the head counts this machine among its own."""
        try:
            return any(
                one["alive"] and one["name"] == self._node.name for one in members(self._node)
            )
        except RepertoryError as error:
            logger.info("%s", error)
            return False

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, **self._node.ray_environment()}
        quiet_ray(environment)
        environment.update(
            RAY_START_HOOK="services.clusters.ray_hook.no_client_server",
            RAY_enable_metrics_collection="0",
            RAY_health_check_period_ms=str(HEALTH_PERIOD_MS),
            RAY_health_check_timeout_ms=str(HEALTH_TIMEOUT_MS),
            RAY_health_check_failure_threshold=str(HEALTH_FAILURES),
            RAY_gcs_rpc_server_reconnect_timeout_s=str(HEAD_AWAY_SECONDS),
        )
        return environment

    def _ray_command(self) -> list[str]:
        node = self._node
        place = (
            [
                *("--head", f"--port={node.ray_address.rpartition(':')[2]}"),
                *("--no-monitor", "--include-dashboard=false"),
            ]
            if node.is_head
            else [f"--address={node.ray_address}"]
        )
        return [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *place),
            f"--node-ip-address={node.address}",
            f"--node-name={node.name}",
            "--disable-usage-stats",
            *(f"--{name}={value}" for name, value in node.ray.items()),
        ]

    def _dashboard(self) -> _Child:
        node = self._node
        node.runs.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "services.cli", "dashboard", str(node.runs), "--json"),
            f"--port={node.dashboard_port}",
        ]
        # What it says first is a link that logs in, and nothing for a file.
        log = self._logs / "dashboard.log"
        return _Child(command, dict(os.environ), log, quiet=True)

    def _say(self, phase: Phase, reason: str = "") -> None:
        if (phase, reason) != (self._phase, self._reason):
            logger.info("%s %s", phase, reason)
            self._phase, self._reason = phase, reason
        state = KeeperState(
            phase,
            reason,
            os.getpid(),
            self._started_at,
            time.time(),
            self._restarts,
            self._node.version,
        )
        write_atomically(self._node.folder / STATE, json.dumps(asdict(state)).encode())


class _Child:
    """One command that shall run. Its output goes to a file."""

    def __init__(
        self, command: list[str], environment: dict[str, str], log: Path, *, quiet: bool = False
    ) -> None:
        """`quiet`: only its errors are written down."""
        self._command = command
        self._environment = environment
        self._log = log
        self._quiet = quiet
        self._process: subprocess.Popen[bytes] | None = None

    def __str__(self) -> str:
        return self._log.stem

    @property
    def started(self) -> bool:
        return self._process is not None

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                tied_to_parent(self._command, signal.SIGTERM),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if self._quiet else log,
                stderr=log,
                env=self._environment | {"REPERTORY_GUARDIAN": os.environ["REPERTORY_GUARDIAN"]},
                cwd="/",  # where nobody has a package that is called as one of ours
                start_new_session=True,
            )

    def stop(self) -> None:
        if self._process is not None:
            end_process(self._process, STOP_SECONDS)

    def last_words(self) -> str:
        assert self._process is not None
        lines = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        said = f", {lines[0].strip()[:200]}" if lines else ""
        return f"exit code {self._process.returncode}{said}"


def members(node: Node, timeout_seconds: float = 30.0) -> list[dict[str, Any]]:
    """All machines of the cluster, as Ray has them. Asked in a process of its own.

    Ray connects once in a process, and to one cluster: a keeper outlives many.
    """
    environment = {**os.environ, **node.ray_environment()}
    environment.pop("REPERTORY_GUARDIAN", None)
    quiet_ray(environment)
    environment["RAY_NUM_REDIS_GET_RETRIES"] = "2"
    command = [sys.executable, "-m", "services.clusters.members", node.ray_address]
    try:
        done = subprocess.run(
            command,
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        document: list[dict[str, Any]] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise RepertoryError(f"the head at {node.ray_address} does not answer") from error
    return document


def _next_pause(pause: float, ran_seconds: float) -> float:
    if ran_seconds > SETTLED_SECONDS:
        return FIRST_PAUSE_SECONDS
    return min(2 * pause, LONGEST_PAUSE_SECONDS)


def _make_private(folder: Path) -> None:
    """In a place where others may have made something of that name before us."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to somebody else: choose another name for the cluster")
    folder.chmod(0o700)


def _lock(folder: Path) -> IO[bytes]:
    file = (folder / "lock").open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError(f"{folder} is kept already, on {socket.gethostname()}") from None
    return file
