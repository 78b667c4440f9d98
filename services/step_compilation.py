"""Compiled steps for a learner: from the cache at once, else by a process beside it.

A learner starts with its steps as they are written and takes the compiled ones when they are there.
Where that cannot be (no C++ compiler, a step that cannot be recorded) it goes on as it is, and says
so once. On a GPU steps become CUDA graphs instead, in this process.
"""

from __future__ import annotations

import logging
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from learner.ahead_of_time import is_complete, load_steps
from learner.captured import capture_step
from learner.steps import steps_of
from repertory.config import LearnerConfig, OffPolicyConfig, RunConfig
from repertory.protocols import Algorithm
from repertory.specs import EnvSpec
from repertory.types import Sample
from services.compile_process import CompileProcess, CompileTask, cache_folder
from services.threads import local_threads, threads_of

logger = logging.getLogger(__name__)

WORTHWHILE_UPDATES = 2_000  # fewer do not pay for seconds of compiling
LOOK_SECONDS = 0.25
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
        self._process: CompileProcess | None = None
        self._deadline: float | None = None  # once somebody compiles
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
        task = CompileTask(self._config, self._spec, self._threads, sample)
        if self._folder is None:
            self._folder = self._cache / task.name
        if self._take():
            return
        if self._only_cached:
            self._finish()
        elif self._process is not None:
            self._watch()
        else:
            self._start(task)
        if self._deadline is not None and now > self._deadline:
            self._give_up(f"not compiled after {DEADLINE_SECONDS:.0f} s")

    def close(self) -> None:
        """Ends the process, if there is one."""
        self._finish()

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

    def _start(self, task: CompileTask) -> None:
        """Unless another process is at it already."""
        assert self._folder is not None
        if self._wait:
            self._process = CompileProcess(task, self._folder, lock=None)
            self._await()
            return
        self._process = CompileProcess.start(task, self._folder)
        if self._deadline is None:
            self._deadline = time.monotonic() + DEADLINE_SECONDS
            # Threads that wait for one whose core the compiler has are slower than one alone.
            torch.set_num_threads(max(1, self._threads - 1))

    def _await(self) -> None:
        assert self._process is not None
        logger.info("compiling the steps of %s", self._config.algorithm)
        try:
            self._process.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up(f"not compiled after {DEADLINE_SECONDS:.0f} s")
            return
        self._watch()

    def _watch(self) -> None:
        """Takes what the process has made, once it has ended."""
        assert self._process is not None
        if self._process.running:
            return
        if (failure := self._process.failure) is not None:
            self._give_up(failure)
        elif not self._take():
            self._give_up(f"{self._folder} is not complete")

    def _give_up(self, reason: str) -> None:
        logger.warning("the steps of %s stay uncompiled: %s", self._config.algorithm, reason)
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._deadline is not None:
            torch.set_num_threads(self._threads)
        if self._process is not None:
            self._process.close()


def compilation_for(
    config: RunConfig, name: str, algorithm: Algorithm[Any], spec: EnvSpec, *, local: bool
) -> StepCompilation | None:
    """As `compile` says. `auto`: not in a local run, which would not be equal to the bit."""
    if not may_compile(config) or (config.compile == "auto" and local):
        return None
    threads = local_threads(config) if local else threads_of(config, name)
    return StepCompilation(
        algorithm,
        config.learners[name],
        spec,
        threads=threads,
        # A learner that stood still for it would be taken for dead by its supervisor.
        wait=config.compile is True and local,
        only_cached=not worth_compiling(config, name),
    )


def may_compile(config: RunConfig) -> bool:
    # Replicas exchange gradients in the middle of a step.
    return config.compile is not False and config.topology.replicas == 1


def worth_compiling(config: RunConfig, name: str) -> bool:
    """Whether the run is long enough, or it is asked for."""
    return config.compile is True or _updates(config, name) >= WORTHWHILE_UPDATES


def _updates(config: RunConfig, name: str) -> float:
    """That the whole run is made of, about."""
    own = config.learners[name]
    if isinstance(own, OffPolicyConfig):
        return config.steps * own.updates_per_step
    epochs, minibatch = (getattr(own, name, 1) for name in ("epochs", "batch_size"))
    return float(config.steps * epochs / minibatch)
