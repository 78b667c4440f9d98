"""Compiled steps for a learner: from the cache at once, else by a process beside it.

What was compiled is kept under a name that says all it depends on: the sources, the settings, the
shapes, torch and the processor; and once more by what was recorded of a step, which most settings
do not change: then a few seconds are enough. A learner starts with its steps as they are written
and takes the compiled ones when they are there. Where that cannot be (no C++ compiler, a step that
cannot be recorded) it goes on as it is, and says so once.

On a GPU steps become CUDA graphs instead, in this process.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

import learner
import repertory
from learner.ahead_of_time import FORM, is_complete, keep, load_steps
from learner.captured import capture_step
from learner.compile_steps import COMPILED, Job
from learner.steps import steps_of
from repertory.config import LearnerConfig, OffPolicyConfig, RunConfig
from repertory.protocols import Algorithm
from repertory.specs import EnvSpec
from repertory.types import Sample
from services.child_process import tied_to_parent
from services.threads import local_threads, threads_of

logger = logging.getLogger(__name__)

CACHE_VARIABLE = "REPERTORY_CACHE"
WORTHWHILE_UPDATES = 2_000  # fewer do not pay for seconds of compiling
LOOK_SECONDS = 0.25
KILL_SECONDS = 10.0
DEADLINE_SECONDS = 600.0  # for a process that gets what others leave of the cores


class StepCompilation:
    """`attend` is called after every update, and costs nothing once all is done."""

    def __init__(
        self,
        algorithm: Algorithm[Any],
        config: LearnerConfig,
        spec: EnvSpec,
        *,
        threads: int,
        wait: bool = False,
        only_cached: bool = False,
        cache: Path | None = None,
    ) -> None:
        """`wait`: for what is compiled, after the first updates; `only_cached`: nothing is made."""
        self._algorithm = algorithm
        self._config = config
        self._spec = spec
        self._threads = threads
        self._wait = wait
        self._only_cached = only_cached
        self._cache = cache or cache_folder()
        self._steps = steps_of(algorithm)
        self._folder: Path | None = None  # of the compiled steps, once a sample tells their shapes
        self._process: subprocess.Popen[bytes] | None = None
        self._job: tempfile.TemporaryDirectory[str] | None = None
        self._deadline = 0.0
        self._look_at = 0.0
        self.done = not self._steps

    def attend(self, sample: Sample) -> None:
        """After an update with `sample`."""
        if self.done or not all(step.called for step in self._steps.values()):
            return
        if getattr(self._algorithm, "device", torch.device("cpu")).type == "cuda":
            for step in self._steps.values():
                assert step.arguments is not None
                capture_step(step, step.arguments)
            self._finish()
            return
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        if self._folder is None:
            self._folder = self._cache / self._key(sample)
        if self._take():
            return
        if self._process is None:
            if self._only_cached:
                self._finish()
                return
            self._start(sample)
        if self._wait:
            self._await()
        elif self._process is not None and self._process.poll() is not None:
            self._collect()
        elif now > self._deadline:
            self._give_up(f"not compiled after {DEADLINE_SECONDS:.0f} s")

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._end_process()
        self._finish()

    def _end_process(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(KILL_SECONDS)

    def _take(self) -> bool:
        """What is in the cache, if all of it is."""
        assert self._folder is not None
        if not is_complete(self._folder, self._steps):
            return False
        try:
            shared = load_steps(self._steps, self._folder)
        except Exception as error:
            self._give_up(f"{self._folder} cannot be loaded: {' '.join(str(error).split())[:300]}")
            return True
        logger.info("the steps of %s are compiled now", self._config.algorithm)
        if shared:
            self._threads = 1  # in each of those that share the rows
            torch.set_num_threads(1)
        self._finish()
        return True

    def _start(self, sample: Sample) -> None:
        self._job = tempfile.TemporaryDirectory(prefix="repertory-compile-")
        folder = Path(self._job.name)
        Job(
            self._config.model_dump(mode="json"), self._spec.to_json(), self._threads, sample
        ).write(folder)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self._threads),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        known = self._cache / f"known-{_digest(self._here())[:12]}"
        known.mkdir(mode=0o700, parents=True, exist_ok=True)
        command = [sys.executable, "-m", "learner.compile_steps", str(folder), str(known)]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                tied_to_parent(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,  # with the compilers that it starts
            )
        self._deadline = time.monotonic() + DEADLINE_SECONDS
        # Threads that wait for one of them, whose core the compiler has, are slower than one alone.
        torch.set_num_threads(max(1, self._threads - 1))

    def _await(self) -> None:
        assert self._process is not None
        logger.info("compiling the steps of %s", self._config.algorithm)
        try:
            self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up(f"not compiled after {DEADLINE_SECONDS:.0f} s")
            return
        self._collect()

    def _collect(self) -> None:
        """The process has ended: its files go into the cache, and from there into the steps."""
        assert self._process is not None
        assert self._job is not None
        assert self._folder is not None
        job = Path(self._job.name)
        if self._process.returncode != 0:
            lines = (job / "log").read_text(errors="replace").strip().splitlines()
            self._give_up(lines[-1][:300] if lines else f"exit code {self._process.returncode}")
            return
        keep(job / COMPILED, self._folder)
        if not self._take():
            self._give_up(f"{self._folder} is not complete")

    def _give_up(self, reason: str) -> None:
        logger.warning("the steps of %s stay uncompiled: %s", self._config.algorithm, reason)
        self._end_process()
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._process is not None:
            torch.set_num_threads(self._threads)
        if self._job is not None:
            self._job.cleanup()
            self._job = None

    def _key(self, sample: Sample) -> str:
        facts = {
            **self._here(),
            "algorithm": f"{type(self._algorithm).__module__}.{type(self._algorithm).__qualname__}",
            "config": self._config.model_dump(mode="json"),
            "spec": self._spec.to_json(),
            "sample": {name: str(spec) for name, spec in sample.batch.signature().items()},
            "items": len(sample.batch),
            "sources": _sources(type(self._algorithm)),
        }
        return f"{self._config.algorithm.rpartition(':')[2]}-{_digest(facts)[:24]}"

    def _here(self) -> dict[str, Any]:
        """What machine code depends on besides what it was made of."""
        return {
            "form": FORM,
            "torch": torch.__version__,
            "processor": _processor(),
            "threads": self._threads,
        }


def compilation_for(
    config: RunConfig, name: str, algorithm: Algorithm[Any], spec: EnvSpec, *, local: bool
) -> StepCompilation | None:
    """As `compile` says. `auto`: not in a local run, which would not be equal to the bit."""
    own = config.learners[name]
    if config.compile is False or (config.compile == "auto" and local):
        return None
    if config.topology.replicas > 1:  # they exchange gradients in the middle of a step
        return None
    asked = config.compile is True
    short = _steps_of_learning(config, own) < WORTHWHILE_UPDATES
    threads = local_threads(config) if local else threads_of(config, name)
    # A learner that stood still for it would be taken for dead by its supervisor.
    return StepCompilation(
        algorithm, own, spec, threads=threads, wait=asked and local, only_cached=short and not asked
    )


def _steps_of_learning(config: RunConfig, own: LearnerConfig) -> float:
    """That the whole run is made of, about."""
    if isinstance(own, OffPolicyConfig):
        return config.steps * own.updates_per_step
    epochs, minibatch = (getattr(own, name, 1) for name in ("epochs", "batch_size"))
    return float(config.steps * epochs / minibatch)


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def cache_folder() -> Path:
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "repertory" / "steps"


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
