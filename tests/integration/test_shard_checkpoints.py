"""A shard's checkpoints on disk: found again, refused when damaged, shared out among others."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import pytest
from replay_shards import LONG_SECONDS, make_table, numbered
from saved_states import numbers

import buffer_server.checkpoint
import repertory.array_files
from buffer_server.checkpoint import ShardCheckpoints
from buffer_server.resharding import ShardPlace
from buffer_server.snapshots import TableSnapshot
from buffer_server.statuses import ReplayUnavailable
from buffer_server.table import Table
from repertory.array_files import StreamedArray
from repertory.errors import CheckpointError, UsageError
from repertory.types import ColumnSpec

Open = Callable[..., ShardCheckpoints]


@pytest.fixture
def filled() -> Table:
    table = make_table("prioritized", 100)
    table.insert(numbered(0, 60))
    return table


def fresh() -> Table:
    return make_table("prioritized", 100)


@pytest.fixture
def open_in() -> Iterator[Open]:
    """Checkpoints of tables in a directory, which is given up at the end."""
    with ExitStack() as stack:

        def open_(directory: Path, *tables: Table) -> ShardCheckpoints:
            by_name = {table.name: table for table in tables}
            checkpoints = ShardCheckpoints(by_name, directory, keep=2)
            stack.callback(checkpoints.close)
            return checkpoints

        yield open_


def save(directory: Path, *tables: Table) -> Path:
    checkpoints = ShardCheckpoints({table.name: table for table in tables}, directory, keep=2)
    with closing(checkpoints):
        return checkpoints.save().path


def restored_from(directory: Path, table: Table) -> Table:
    with closing(ShardCheckpoints({table.name: table}, directory, keep=2)) as checkpoints:
        assert checkpoints.restore() is not None
    return table


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_a_shard_finds_its_tables_again(tmp_path: Path, filled: Table, open_in: Open) -> None:
    other = make_table("fifo", 10, name="queue/of my own")  # a name that is no file's
    other.insert(numbered(7, 3))
    save(tmp_path, filled, other)
    new, queue = fresh(), make_table("fifo", 10, name="queue/of my own")
    checkpoints = open_in(tmp_path, new, queue)
    restored = checkpoints.restore()
    assert restored is not None
    assert restored.items == 63
    assert 0 <= restored.age_seconds < LONG_SECONDS
    assert numbers(new) == list(range(60))
    assert numbers(queue) == [7, 8, 9]
    assert checkpoints.statistics().age_seconds is not None


def test_a_shard_without_checkpoints_starts_empty(tmp_path: Path, open_in: Open) -> None:
    checkpoints = open_in(tmp_path / "new", fresh())
    assert checkpoints.restore() is None
    assert checkpoints.statistics().path == ""


def test_the_last_ones_stay_and_the_statistics_name_the_newest(
    tmp_path: Path, filled: Table, open_in: Open
) -> None:
    checkpoints = open_in(tmp_path, filled)
    saved = [checkpoints.save() for _ in range(3)]
    names = sorted(path.name for path in tmp_path.glob("step_*"))
    assert names == [saved[1].path.name, saved[2].path.name]
    statistics = checkpoints.statistics()
    assert (statistics.path, statistics.items) == (str(saved[2].path), 60)
    assert statistics.nbytes == sum(file.stat().st_size for file in saved[2].path.iterdir())


def test_a_damaged_one_is_named_and_the_one_before_used(
    tmp_path: Path, filled: Table, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, filled)
    filled.insert(numbered(60, 5))
    newest = save(tmp_path, filled)
    flip_a_byte(newest / "table_0.safetensors")
    assert numbers(restored_from(tmp_path, fresh())) == list(range(60))
    assert newest.name in caplog.text


def test_where_all_are_damaged_the_shard_does_not_start_empty(
    tmp_path: Path, filled: Table, open_in: Open
) -> None:
    flip_a_byte(save(tmp_path, filled) / "table_0.safetensors")
    checkpoints = open_in(tmp_path, fresh())
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        checkpoints.restore()


def test_half_a_checkpoint_is_none(tmp_path: Path, filled: Table) -> None:
    path = save(tmp_path, filled)
    (tmp_path / ".step_000000000002.tmp").mkdir()
    (tmp_path / ".step_000000000002.tmp" / "table_0.safetensors").write_bytes(b"half")
    assert numbers(restored_from(tmp_path, fresh())) == list(range(60))
    assert save(tmp_path, filled).name == "step_000000000002"
    assert path.exists()
    assert not (tmp_path / ".step_000000000002.tmp").exists()


def test_a_full_disk_keeps_the_one_before_and_is_counted(
    tmp_path: Path, filled: Table, monkeypatch: pytest.MonkeyPatch, open_in: Open
) -> None:
    checkpoints = open_in(tmp_path, filled)
    checkpoints.save()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(repertory.array_files.os, "fsync", full)
    with pytest.raises(CheckpointError, match="No space left on device; the one before is kept"):
        checkpoints.save()
    monkeypatch.undo()
    assert checkpoints.statistics().failures == 1
    assert [path.name for path in tmp_path.glob("*step*")] == ["step_000000000001"]
    assert checkpoints.save().path.name == "step_000000000002"


def test_two_shards_cannot_share_a_directory(tmp_path: Path, filled: Table, open_in: Open) -> None:
    checkpoints = open_in(tmp_path, fresh())
    with pytest.raises(UsageError, match="belongs to a shard that is running"):
        open_in(tmp_path, filled)
    checkpoints.close()
    assert open_in(tmp_path, filled).restore() is None


def test_one_checkpoint_is_written_at_a_time(
    tmp_path: Path, filled: Table, monkeypatch: pytest.MonkeyPatch, open_in: Open
) -> None:
    at_disk, go_on = threading.Event(), threading.Event()

    def slow(snapshot: TableSnapshot) -> StreamedArray:
        at_disk.set()
        assert go_on.wait(LONG_SECONDS)
        return StreamedArray("<i8", (), lambda: [np.asarray(0)])

    monkeypatch.setattr(buffer_server.checkpoint, "_late", slow)
    checkpoints = open_in(tmp_path, filled)
    first = threading.Thread(target=checkpoints.save)
    first.start()
    assert at_disk.wait(LONG_SECONDS)
    with pytest.raises(ReplayUnavailable, match="writing a checkpoint already"):
        checkpoints.save()
    go_on.set()
    first.join(LONG_SECONDS)
    assert checkpoints.save(wait_seconds=LONG_SECONDS).items == 60


def test_a_table_of_another_signature_is_not_restored(
    tmp_path: Path, filled: Table, open_in: Open
) -> None:
    path = save(tmp_path, filled)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["files"]
    other = {**filled.signature, "reward": ColumnSpec("<f8", ())}
    table = Table("replay", other, 100, fresh()._sampler, fresh()._limiter, 0)
    checkpoints = open_in(tmp_path, table)
    with pytest.raises(CheckpointError, match=r"'replay' cannot be restored from .*reward"):
        checkpoints.restore()


def test_tables_that_came_or_went_are_named(
    tmp_path: Path, filled: Table, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path, filled)
    other = make_table(name="other")
    assert restored_from(tmp_path, other).size == 0
    assert "table 'replay' is not served any more, its 60 items are left out" in caplog.text
    assert "table 'other' starts empty" in caplog.text


@pytest.fixture
def three_shards(tmp_path: Path) -> list[Path]:
    directories = []
    for source in range(3):
        table = fresh()
        table.insert(numbered(60 * source, 50))
        directories.append(tmp_path / f"old-{source}")
        save(directories[-1], table)
    return directories


def test_two_shards_take_over_from_three(
    three_shards: list[Path], tmp_path: Path, open_in: Open
) -> None:
    found: list[int] = []
    for index in range(2):
        table = fresh()
        checkpoints = open_in(tmp_path / f"new-{index}", table)
        # The order in which the sources are named, and a path to one itself, make no difference.
        sources = three_shards if index else [*three_shards[:0:-1], *three_shards[0].glob("step*")]
        restored = checkpoints.inherit(sources, ShardPlace(index, 2))
        assert restored.items == table.size == 75
        found += numbers(table)
    expected = [60 * source + number for source in range(3) for number in range(50)]
    assert sorted(found) == expected


def test_items_without_room_are_left_out_loudly(
    three_shards: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, open_in: Open
) -> None:
    table = fresh()
    checkpoints = open_in(tmp_path / "new", table)
    checkpoints.inherit(three_shards, ShardPlace(0, 1))
    assert table.size == 100
    assert "room for 100 of its 150 items: the oldest are left out" in caplog.text


def test_callers_are_served_while_a_checkpoint_is_written(tmp_path: Path, open_in: Open) -> None:
    table = make_table("prioritized", 200_000)
    for first in range(0, 200_000, 1000):
        table.insert(numbered(first % 1000, 1000))
    checkpoints = open_in(tmp_path, table)
    saving = threading.Thread(target=checkpoints.save)
    saving.start()
    served, longest = 0, 0.0
    while saving.is_alive():
        begun = time.monotonic()
        table.insert(numbered(0, 10))
        table.sample(64, timeout_seconds=LONG_SECONDS)
        longest = max(longest, time.monotonic() - begun)
        served += 1
    saving.join()
    took = checkpoints.statistics().duration_seconds
    assert served > 10
    assert longest < took / 2
