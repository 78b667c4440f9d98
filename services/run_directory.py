"""The folder of a run: where each thing is, who may write, and how it is opened again."""

from __future__ import annotations

import fcntl
import importlib.metadata
import io
import json
import platform
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from repertory.checkpoints import CheckpointStore, write_atomically
from repertory.config import RunConfig
from repertory.errors import RepertoryError, RunDirectoryError, UsageError

RECORDED_PACKAGES = ("repertory", "torch", "gymnasium", "numpy", "mujoco")


class RunDirectory:
    def __init__(self, path: Path, config: RunConfig) -> None:
        self.path = path
        self.config = config
        self.metrics = path / "metrics.jsonl"
        self.events = path / "events.jsonl"
        self.evaluations = path / "evaluations.npz"
        self.tensorboard = path / "tensorboard"
        self.videos = path / "videos"
        self.checkpoints = CheckpointStore(path / "checkpoints", keep=config.checkpoint.keep)
        self._lock: TextIO | None = None

    @classmethod
    def create(cls, path: Path, config: RunConfig, *, overwrite: bool = False) -> RunDirectory:
        """A fresh folder with the resolved config and the versions in it."""
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                if not overwrite:
                    raise UsageError(
                        f"{path} is not empty: choose another --run-dir, go on with "
                        f"`repertory resume {path}`, or replace it with --overwrite"
                    )
                if not (path / "config.yaml").exists():
                    raise UsageError(f"{path} does not look like a run: it is not overwritten")
                shutil.rmtree(path)
            path.mkdir(parents=True, exist_ok=True)
            run = cls(path, config)
            run.lock()
            write_atomically(path / "versions.json", json.dumps(versions(), indent=1).encode())
            write_atomically(path / "config.yaml", config.to_yaml().encode())
        except OSError as error:
            raise RunDirectoryError.cannot_write(path, error) from error
        return run

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run, for reading or resuming."""
        try:
            text = (path / "config.yaml").read_text()
        except OSError:
            raise UsageError(
                f"{path} is not a run: it has no config.yaml; "
                f"`repertory train ENV --run-dir {path}` would make one"
            ) from None
        return cls(path, RunConfig.from_yaml(text))

    def update_config(self, config: RunConfig) -> None:
        """A run that goes on for longer says so in its folder."""
        if config != self.config:
            self.config = config
            write_atomically(self.path / "config.yaml", config.to_yaml().encode())

    def lock(self) -> None:
        """One writer at a time; the lock goes with the process, however it ends."""
        try:
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise RunDirectoryError.cannot_write(self.path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            raise RepertoryError(f"another process is training in {self.path}") from None
        self._lock = lock

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def record_event(self, kind: str, **details: Any) -> None:
        line = json.dumps({"time": time.time(), "event": kind, **details})
        with self.events.open("a") as file:
            file.write(line + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every row so far; a last line that is still being written is left out."""
        rows = []
        try:
            lines = self.metrics.read_text().splitlines()
        except FileNotFoundError:
            return []
        for line in lines:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def write_evaluations(self, arrays: Mapping[str, np.ndarray]) -> None:
        """`timesteps` [N] and `results` [N, episodes], as Stable-Baselines3 writes them."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        write_atomically(self.evaluations, buffer.getvalue())

    def read_evaluations(self, learner: str | None = None) -> dict[int, list[float]]:
        """Of one learner, or of whoever led."""
        return read_evaluations(self.evaluations, learner)


def read_evaluations(path: Path, learner: str | None = None) -> dict[int, list[float]]:
    """Returns by step; empty where there is no file yet, or nothing of this learner in it."""
    suffix = "" if learner is None else f"/{learner}"
    try:
        with np.load(path, allow_pickle=False) as file:
            if f"timesteps{suffix}" not in file:
                return {}
            return {
                int(step): [float(value) for value in results]
                for step, results in zip(
                    file[f"timesteps{suffix}"], file[f"results{suffix}"], strict=True
                )
            }
    except FileNotFoundError:
        return {}


def versions() -> dict[str, Any]:
    """What the run was made with."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: importlib.metadata.version(name) for name in RECORDED_PACKAGES},
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """The commit of the user's working folder, with a mark where files were changed since."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
