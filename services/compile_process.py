"""A process that compiles a learner's steps, and where it puts them.

What was compiled is kept under a name that says all it depends on: the sources, the settings, the
shapes, torch and the processor; and once more by what was recorded of a step, which most settings
do not change: then a few seconds are enough.

Of all that want the same steps on one machine one has them compiled. It holds a lock, which ends
with the process, however that ends; the others wait for the result.
"""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

import learner
import repertory
from learner.ahead_of_time import FORM
from learner.compile_steps import Job
from repertory.config import LearnerConfig
from repertory.parts import lookup
from repertory.specs import EnvSpec
from repertory.types import Sample
from services.child_process import tied_to_parent

CACHE_VARIABLE = "REPERTORY_CACHE"
KILL_SECONDS = 10.0


def cache_folder() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "repertory" / "steps"


@dataclass(frozen=True)
class CompileTask:
    """The steps of a learner, for samples like this one."""

    config: LearnerConfig
    spec: EnvSpec
    threads: int
    sample: Sample

    @property
    def name(self) -> str:
        """Of the folder in the cache: other steps have another one."""
        algorithm = lookup("algorithm", self.config.algorithm)
        facts = {
            **self._here(),
            "algorithm": f"{algorithm.__module__}.{algorithm.__qualname__}",
            "config": self.config.model_dump(mode="json"),
            "spec": self.spec.to_json(),
            "sample": {name: str(spec) for name, spec in self.sample.batch.signature().items()},
            "items": len(self.sample.batch),
            "sources": _sources(algorithm),
        }
        return f"{self.config.algorithm.rpartition(':')[2]}-{_digest(facts)[:24]}"

    @property
    def name_of_known(self) -> str:
        """Of the folder of all that was compiled here for as many threads."""
        return f"known-{_digest(self._here())[:12]}"

    def job(self) -> Job:
        config, spec = self.config.model_dump(mode="json"), self.spec.to_json()
        return Job(config, spec, self.threads, self.sample)

    def _here(self) -> dict[str, Any]:
        """What machine code depends on besides what it was made of."""
        return {
            "form": FORM,
            "torch": torch.__version__,
            "processor": _processor(),
            "threads": self.threads,
        }


class CompileProcess:
    """Puts the steps of a task into a folder, and ends.

    It takes its share of the cores like anybody: with a lower priority a run that starts would
    leave it so little that its learner goes on uncompiled for longer than the start takes.
    """

    def __init__(self, task: CompileTask, folder: Path, lock: IO[bytes] | None) -> None:
        self._job = tempfile.TemporaryDirectory(prefix="repertory-compile-")
        job = Path(self._job.name)
        task.job().write(job)
        known = folder.parent / task.name_of_known
        known.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(task.threads),
            "TMPDIR": str(job),  # what a compiler that is killed leaves there goes with it
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(job / "inductor"),
        }
        command = [sys.executable, "-m", "learner.compile_steps", str(job), str(known), str(folder)]
        self._log = job / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                tied_to_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # with the compilers that it starts
                pass_fds=() if lock is None else (lock.fileno(),),
            )

    @classmethod
    def start(cls, task: CompileTask, folder: Path) -> CompileProcess | None:
        """None: another process is at it."""
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            return cls(task, folder, lock)  # which has the lock from here on

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def failure(self) -> str | None:
        """Why it has failed, if it has."""
        if not self._process.returncode:
            return None
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {self._process.returncode}"

    def wait(self, timeout_seconds: float) -> None:
        """Raises TimeoutExpired."""
        self._process.wait(timeout_seconds)

    def close(self) -> None:
        """Ends it, and all that it has started."""
        if self.running:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(KILL_SECONDS)
        self._job.cleanup()


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    told = {line for line in lines if line.startswith(("model name", "flags"))}
    return " ".join(sorted(told))


def _sources(algorithm: type) -> str:
    """A digest of all code that a step may be made of."""
    packages = (Path(learner.__file__).parent, Path(repertory.__file__).parent / "policies")
    files = {
        path for package in packages for kind in ("*.py", "*.h") for path in package.rglob(kind)
    }
    files.add(Path(inspect.getfile(algorithm)))
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
