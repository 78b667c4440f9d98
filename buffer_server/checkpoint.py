"""A shard's tables on disk: written while they serve, and found again after a crash.

    DIR/step_000000000007/     the seventh checkpoint of this shard
        table_0.safetensors    one table: columns, sampler, limiter, ledger, generator
        table_0.json
        shard.safetensors      of each table the first key that is whole
        shard.json             names of the tables, and when it was begun
        manifest.json          sizes and checksums of all files

A checkpoint is there whole or not at all, and the one before stays until the next one is safe.
Whoever writes here owns the directory: a second shard that is given the same is refused.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from buffer_server.resharding import ShardPlace, inheritance
from buffer_server.saved_tables import SavedTable
from buffer_server.service import SavedCheckpoint
from buffer_server.snapshots import TableSnapshot
from buffer_server.statistics import CheckpointStatistics
from buffer_server.statuses import ReplayUnavailable
from buffer_server.table import Table
from repertory.array_files import StreamedArray
from repertory.checkpoints import Checkpoint, CheckpointStore, verify
from repertory.errors import CheckpointError, UsageError

logger = logging.getLogger(__name__)

SHARD = "shard"


@dataclass(frozen=True, slots=True)
class Restored:
    """What a shard found when it started."""

    path: Path
    items: int
    age_seconds: float


class ShardCheckpoints:
    """The checkpoints of one shard. Safe to share between threads; closing gives the folder up."""

    def __init__(self, tables: Mapping[str, Table], directory: Path, keep: int) -> None:
        self._tables = tables
        self._store = CheckpointStore(directory, keep)
        self._saving = threading.Lock()
        self._statistics = CheckpointStatistics("", None, 0.0, 0, 0, 0)
        self._begun_at: float | None = None  # the newest one, on the wall clock
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / ".lock").open("w")
        except OSError as error:
            raise UsageError(f"cannot write to {directory}: {error.strerror}") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UsageError(
                f"{directory} belongs to a shard that is running: give each shard its own"
            ) from error

    def save(self, *, gently: bool = True, wait_seconds: float = 0.0) -> SavedCheckpoint:
        """Returns when it is safe on disk. Raises if one is being written, and does not end.

        Gently: where callers are served meanwhile, see `buffer_server.snapshots`.
        """
        if not self._saving.acquire(timeout=wait_seconds):
            raise ReplayUnavailable("the shard is writing a checkpoint already: ask again later")
        try:
            return self._save(gently)
        except CheckpointError:
            self._statistics = replace(self._statistics, failures=self._statistics.failures + 1)
            raise
        finally:
            self._saving.release()

    def statistics(self) -> CheckpointStatistics:
        age = None if self._begun_at is None else max(0.0, time.time() - self._begun_at)
        return replace(self._statistics, age_seconds=age)

    def restore(self) -> Restored | None:
        """The newest checkpoint that is whole; None: there is none yet."""
        if not self._store.paths():
            return None
        checkpoint = self._store.newest_valid()
        saved, begun_at = _open(checkpoint)
        for name in saved.keys() - self._tables.keys():
            logger.warning(
                "%s: table %r is not served any more, its %d items are left out",
                checkpoint.path, name, saved[name].items,
            )  # fmt: skip
        for name, table in self._tables.items():
            if name in saved:
                arrays = saved[name].moved(table.capacity)
                _take_over(table, checkpoint.path, functools.partial(table.load_arrays, arrays))
            else:
                logger.warning("%s: table %r starts empty", checkpoint.path, name)
        self._begun_at = begun_at
        items = sum(table.size for table in self._tables.values())
        self._statistics = replace(self._statistics, path=str(checkpoint.path), items=items)
        return Restored(checkpoint.path, items, max(0.0, time.time() - begun_at))

    def inherit(self, sources: Sequence[Path], place: ShardPlace) -> Restored:
        """This shard's part of what other shards had, see `buffer_server.resharding`."""
        # In an order that is the same wherever they lie.
        checkpoints = sorted(map(_find, sources), key=_fingerprint)
        opened = [_open(checkpoint) for checkpoint in checkpoints]
        for name, table in self._tables.items():
            saved = [tables[name] for tables, _ in opened if name in tables]
            if len({frozenset(one.sampler) for one in saved}) > 1:
                raise CheckpointError(f"table {name!r} was saved with different samplers")
            if not saved:
                logger.warning("no source has a table %r: it starts empty", name)
                continue
            estate = inheritance(table, saved, place)
            _take_over(table, sources[0], functools.partial(table.inherit, estate))
            if table.size < estate.items:
                logger.warning(
                    "table %r has room for %d of its %d items: the oldest are left out",
                    name, table.size, estate.items,
                )  # fmt: skip
        oldest = min(begun_at for _, begun_at in opened)
        items = sum(table.size for table in self._tables.values())
        return Restored(sources[0], items, max(0.0, time.time() - oldest))

    def close(self) -> None:
        self._lock.close()

    def _save(self, gently: bool) -> SavedCheckpoint:
        begun, begun_at = time.monotonic(), time.time()
        snapshots = {name: table.snapshot() for name, table in self._tables.items()}
        names = {name: f"table_{place}" for place, name in enumerate(snapshots)}
        path = self._store.save(
            self._next_number(),
            {
                **{
                    names[name]: snapshot.arrays(gently=gently)
                    for name, snapshot in snapshots.items()
                },
                # Last: by now it is known what was overwritten before it was written.
                SHARD: {
                    "begun_at": begun_at,
                    "tables": {
                        name: {"section": names[name], "first_whole_key": _late(snapshot)}
                        for name, snapshot in snapshots.items()
                    },
                },
            },
        )
        for name, snapshot in snapshots.items():
            lost = len(snapshot.live) - snapshot.items
            if lost:
                logger.info("%s: %d items of table %r were overwritten meanwhile", path, lost, name)
        saved = SavedCheckpoint(
            path,
            items=sum(snapshot.items for snapshot in snapshots.values()),
            nbytes=sum(file.stat().st_size for file in path.iterdir()),
            seconds=time.monotonic() - begun,
        )
        self._begun_at = begun_at
        self._statistics = CheckpointStatistics(
            str(path),
            age_seconds=None,
            duration_seconds=saved.seconds,
            items=saved.items,
            nbytes=saved.nbytes,
            failures=self._statistics.failures,
        )
        return saved

    def _next_number(self) -> int:
        newest = next(iter(self._store.paths()), None)
        return 1 if newest is None else int(newest.name.rpartition("_")[2]) + 1


def _late(snapshot: TableSnapshot) -> StreamedArray:
    return StreamedArray("<i8", (), lambda: [np.asarray(snapshot.first_whole_key, dtype=np.int64)])


def _find(path: Path) -> Checkpoint:
    """A checkpoint itself, or the newest whole one of a shard's directory."""
    if (path / "manifest.json").exists():
        return verify(path)
    return CheckpointStore(path).newest_valid()


def _fingerprint(checkpoint: Checkpoint) -> str:
    return hashlib.sha256((checkpoint.path / "manifest.json").read_bytes()).hexdigest()


def _open(checkpoint: Checkpoint) -> tuple[dict[str, SavedTable], float]:
    """Its tables, and when it was begun."""
    try:
        shard = checkpoint.load(SHARD)
        tables = {
            name: SavedTable(
                name,
                checkpoint.load(entry["section"], mapped=True),
                int(entry["first_whole_key"]),
            )
            for name, entry in shard["tables"].items()
        }
        return tables, float(shard["begun_at"])
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{checkpoint.path} is no checkpoint of a shard: {error}") from error


def _take_over(table: Table, path: Path, load: Callable[[], None]) -> None:
    try:
        load()
    except UsageError as error:  # what would be the caller's mistake is the checkpoint's here
        raise CheckpointError(
            f"table {table.name!r} cannot be restored from {path}: {error}"
        ) from error
