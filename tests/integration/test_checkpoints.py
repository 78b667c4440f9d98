"""Checkpoints are whole or refused by name, and a failed write keeps the one before."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from small_runs import small_run

import repertory.checkpoints
from repertory.api import load_policy, resume
from repertory.checkpoints import CheckpointStore, verify
from repertory.errors import CheckpointError


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_what_was_saved_is_loaded(store: CheckpointStore) -> None:
    saved = {"a": np.arange(6).reshape(2, 3), "b": {"c": [1.5, None, "x"], "d": np.array(True)}}
    store.save(10, {"part": saved})
    loaded = store.newest_valid().load("part")
    np.testing.assert_array_equal(loaded["a"], saved["a"])
    assert loaded["b"]["c"] == [1.5, None, "x"]
    assert loaded["b"]["d"].shape == ()


def test_the_last_n_are_kept_and_named_ones_stand_apart(store: CheckpointStore) -> None:
    store.save(1, {"part": {"x": 1}}, name="best")
    for step in (10, 20, 30):
        store.save(step, {"part": {"x": step}})
    assert [path.name for path in store.paths()] == ["step_000000000030", "step_000000000020"]
    assert store.named("best").load("part") == {"x": 1}


@pytest.mark.parametrize("file", ["part.safetensors", "part.json", "manifest.json"])
def test_a_corrupt_newest_is_refused_by_name_and_the_one_before_used(
    store: CheckpointStore, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (10, 20):
        store.save(step, {"part": {"x": np.full(50, step), "y": "some text to damage"}})
    flip_a_byte(store.paths()[0] / file)
    assert store.newest_valid().env_steps == 10
    assert "step_000000000020" in caplog.text


def test_a_truncated_or_missing_file_is_corrupt(store: CheckpointStore) -> None:
    path = store.save(10, {"part": {"x": np.zeros(50)}})
    weights = path / "part.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"part\.safetensors"):
        verify(path)
    weights.unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        verify(path)


def test_a_checkpoint_of_another_format_is_refused(store: CheckpointStore) -> None:
    path = store.save(10, {"part": {"x": 1}})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        verify(path)


def test_a_full_disk_keeps_the_checkpoint_before(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(10, {"part": {"x": np.zeros(3)}})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(repertory.checkpoints, "write_arrays", full)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(20, {"part": {"x": np.zeros(3)}})
    assert store.newest_valid().env_steps == 10
    assert [path.name for path in store.paths()[0].parent.iterdir()] == ["step_000000000010"]


def test_a_run_outlives_a_checkpoint_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save = CheckpointStore.save

    def fails_at_300(self: CheckpointStore, env_steps: int, *rest: object, **named: object) -> Path:
        if 300 <= env_steps < 600:
            raise CheckpointError("cannot write checkpoint: No space left on device")
        return save(self, env_steps, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(CheckpointStore, "save", fails_at_300)
    result = small_run("dqn", tmp_path / "run")
    assert result.env_steps == 1000
    assert "No space left" in caplog.text


def test_resume_uses_the_checkpoint_before_a_corrupt_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_run("td3", tmp_path / "run")
    newest = CheckpointStore(tmp_path / "run" / "checkpoints").paths()[0]
    flip_a_byte(newest / "learner-td3.safetensors")
    result = resume(tmp_path / "run", progress=False)
    assert newest.name in caplog.text
    assert result.env_steps == 1000
    assert verify(newest).env_steps == 1000  # written again, whole this time


def test_a_run_whose_checkpoints_are_all_corrupt_says_so(tmp_path: Path) -> None:
    small_run("dqn", tmp_path / "run")
    for path in CheckpointStore(tmp_path / "run" / "checkpoints").paths():
        (path / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="none of the checkpoints"):
        resume(tmp_path / "run", progress=False)


def test_a_corrupt_best_policy_is_refused(tmp_path: Path) -> None:
    small_run("dqn", tmp_path / "run")
    flip_a_byte(tmp_path / "run" / "checkpoints" / "best" / "policy.safetensors")
    with pytest.raises(CheckpointError, match="best is corrupt"):
        load_policy(tmp_path / "run")


def test_replay_can_be_left_out_and_the_run_still_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_run("dqn", tmp_path / "run", **{"checkpoint.replay": False})
    newest = CheckpointStore(tmp_path / "run" / "checkpoints").paths()[0]
    assert not (newest / "replay.safetensors").exists()
    assert resume(tmp_path / "run", steps=1200, progress=False).env_steps == 1200
    assert "no replay" in caplog.text


def test_a_run_without_checkpoints_cannot_be_resumed(tmp_path: Path) -> None:
    small_run("dqn", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        resume(tmp_path / "run", progress=False)
