"""A shard as a process of its own: restore, serve, write checkpoints, drain, exit.

    process = ShardProcess(config, say=print)
    process.run(on_ready)      # until SIGTERM, SIGINT or `stop`

The address is taken before anything is restored, so that a wrong one is refused at once; callers
that come early wait at the door. The first signal drains and writes a last checkpoint; a second
SIGINT ends it where it stands, and the checkpoint before stays.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from buffer_server.addresses import check_address, is_loopback, is_unix
from buffer_server.capacity import Capacity
from buffer_server.checkpoint import Restored, ShardCheckpoints
from buffer_server.metrics import ShardCollector
from buffer_server.resharding import ShardPlace
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.service import SavedCheckpoint
from buffer_server.statistics import ShardStatistics
from buffer_server.statuses import ReplayUnavailable
from buffer_server.table_config import TableConfig
from repertory.errors import RepertoryError, UsageError
from repertory.freed_memory import keep_freed_memory
from repertory.metrics_server import MetricsServer
from repertory.settings import Settings

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5  # between two looks whether the parent is still there
LONGEST_SAVE_SECONDS = 3600.0  # of one that is under way when the last one is wanted
INTERRUPTED = 130  # the exit code of a process that SIGINT ended

Say = Callable[[str], None]


class ShardConfig(Settings):
    tables: dict[str, TableConfig]
    server: ServerConfig
    checkpoint_dir: Path | None = None
    checkpoint_every_seconds: float = Field(default=300.0, ge=1.0, le=86_400.0)
    keep: int = Field(default=2, ge=1)  # checkpoints
    # Checkpoints of other shards, to take a part of; not looked at where it has one of its own.
    restore_from: tuple[Path, ...] = ()
    shard_index: int = Field(default=0, ge=0)
    shard_count: int = Field(default=1, ge=1)
    metrics_address: Annotated[str, AfterValidator(check_address)] | None = None
    drain_seconds: float = Field(default=10.0, ge=0.0, le=3600.0)  # for what is under way
    exit_with_parent: bool = False  # so that a supervisor that is killed leaves nobody behind

    @model_validator(mode="after")
    def _sensible(self) -> ShardConfig:
        if not self.tables:
            raise ValueError("a shard needs at least one table")
        if self.restore_from and self.checkpoint_dir is None:
            raise ValueError(
                "a shard that takes over from others needs a checkpoint_dir of its own: "
                "after a crash it must not begin with them again"
            )
        metrics = self.metrics_address
        if metrics is None:
            return self
        if is_unix(metrics):
            raise ValueError(f"metrics are served on host:port, not on {metrics}")
        if not is_loopback(metrics) and not self.server.insecure:
            raise ValueError(
                f"anybody could read the metrics on {metrics}: listen on 127.0.0.1, "
                "or choose insecure"
            )
        return self


@dataclass(frozen=True, slots=True)
class Ready:
    """Where a shard that serves can be reached."""

    address: str
    metrics: str | None
    process_id: int


class ShardProcess:
    """Built complete: tables restored, address taken. Then `run` once."""

    def __init__(self, config: ShardConfig, say: Say) -> None:
        self._config = config
        self._say = say
        self._parent = os.getppid()
        self._stopping = threading.Event()
        self._reason = "stopped"
        self._stack = ExitStack()
        place = ShardPlace(config.shard_index, config.shard_count)
        _refuse_more_than_memory(config)
        tables = {name: table.build(name) for name, table in config.tables.items()}
        with ExitStack() as stack:
            self._checkpoints: ShardCheckpoints | None = None
            if config.checkpoint_dir is not None:
                self._checkpoints = ShardCheckpoints(tables, config.checkpoint_dir, config.keep)
                stack.callback(self._checkpoints.close)
            self._server = ReplayServer(list(tables.values()), config.server, self._checkpoints)
            stack.callback(self._server.stop)
            if self._checkpoints is not None:
                self._restore(self._checkpoints, place)
            self._stack = stack.pop_all()

    def run(self, on_ready: Callable[[Ready], None]) -> None:
        keep_freed_memory()
        with self._stack, self._signals_stop():
            self._server.start()
            metrics = self._serve_metrics()
            timer = None if self._checkpoints is None else self._start_timer(self._checkpoints)
            on_ready(Ready(self._server.address, metrics, os.getpid()))
            self._wait()
            self._drain()
            if timer is not None:
                timer.stop()
            if self._checkpoints is not None:
                # One that a caller has asked for may be under way.
                saved = self._checkpoints.save(gently=False, wait_seconds=LONGEST_SAVE_SECONDS)
                self._say(f"last checkpoint: {_spoken(saved)}")

    def statistics(self) -> ShardStatistics:
        return self._server.statistics()

    def stop(self) -> None:
        """From any thread: as a signal does."""
        self._stopping.set()

    def _restore(self, checkpoints: ShardCheckpoints, place: ShardPlace) -> None:
        sources = self._config.restore_from
        restored = checkpoints.restore()
        if restored is not None:
            self._say(f"restored {_spoken_restored(restored)}")
            if sources:
                self._say("other shards' checkpoints are not looked at: it has its own")
        elif sources:
            restored = checkpoints.inherit(sources, place)
            shard = f"shard {place.index}/{place.count}"
            self._say(f"{shard} of {len(sources)} sources: {_spoken_restored(restored)}")
            checkpoints.save(gently=False)

    def _serve_metrics(self) -> str | None:
        if self._config.metrics_address is None:
            return None
        metrics = MetricsServer(self._config.metrics_address, ShardCollector(self._server))
        self._stack.callback(metrics.close)
        return metrics.address

    def _start_timer(self, checkpoints: ShardCheckpoints) -> CheckpointTimer:
        timer = CheckpointTimer(checkpoints, self._config.checkpoint_every_seconds)
        self._stack.callback(timer.stop)
        return timer

    def _wait(self) -> None:
        while not self._stopping.wait(LOOK_SECONDS):
            if self._config.exit_with_parent and os.getppid() != self._parent:
                self._reason = "the parent process is gone"
                return

    def _drain(self) -> None:
        self._say(f"{self._reason}: draining")
        left = self._server.drain(self._config.drain_seconds)
        if left:
            logger.warning(
                "%d requests were still under way after %g s", left, self._config.drain_seconds
            )

    @contextmanager
    def _signals_stop(self) -> Iterator[None]:
        def stop(number: int, _: FrameType | None) -> None:
            if self._stopping.is_set() and number == signal.SIGINT:
                os._exit(INTERRUPTED)  # threads of gRPC would hold up any other exit
            self._reason = signal.Signals(number).name
            self._stopping.set()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class CheckpointTimer:
    """Writes a checkpoint now and then, in a thread. One that fails is logged, and tried again."""

    def __init__(self, checkpoints: ShardCheckpoints, every_seconds: float) -> None:
        self._checkpoints = checkpoints
        self._every_seconds = every_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-checkpoints", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when none is under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        # At random: shards that start together do not write together.
        wait_seconds = random.SystemRandom().uniform(0.0, self._every_seconds)
        while not self._stopped.wait(wait_seconds):
            try:
                logger.info("checkpoint: %s", _spoken(self._checkpoints.save()))
            except ReplayUnavailable:
                pass  # somebody asked for one, which is being written: that will do
            except RepertoryError as error:
                logger.error("%s", error)
            except Exception:
                logger.exception("a checkpoint failed")
            wait_seconds = self._every_seconds


def _spoken(saved: SavedCheckpoint) -> str:
    size = f"{saved.nbytes / 1e6:.1f} MB in {saved.seconds:.1f} s"
    return f"{saved.items} items, {size}, {saved.path}"


def _spoken_restored(restored: Restored) -> str:
    return f"{restored.items} items, {restored.age_seconds:.0f} s old, from {restored.path}"


def _refuse_more_than_memory(config: ShardConfig) -> None:
    nbytes = sum(
        Capacity.within(table.signature, table.capacity, table.capacity_bytes).nbytes
        for table in config.tables.values()
    )
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > 0.9 * physical:
        raise UsageError(
            f"the tables take {nbytes / 2**30:.1f} GiB when full, this machine has "
            f"{physical / 2**30:.1f} GiB: lower their capacity, or set capacity_bytes"
        )
