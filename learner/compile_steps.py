"""Compiles the steps of a learner, in a process of its own.

    python -m learner.compile_steps JOB KNOWN FOLDER

The job is a folder with a learner's settings and one of its samples. The same update is made here
once more, and every step that it calls is compiled for what it was called with, unless one like it
is among the known; then all of them are in the folder. `services.compile_process` starts it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from learner.ahead_of_time import compile_steps, keep
from learner.steps import steps_of
from repertory.parts import lookup
from repertory.protocols import Algorithm
from repertory.specs import EnvSpec
from repertory.types import Sample, TransitionBatch

SETTINGS, SAMPLE = "job.json", "sample.npz"
MOST_UPDATES = 100  # in which every step is called at least once


@dataclass(frozen=True)
class Job:
    """What is needed to make a learner's update once more."""

    learner: dict[str, Any]  # its settings
    spec: dict[str, Any]
    threads: int
    sample: Sample

    def write(self, folder: Path) -> None:
        settings = {"learner": self.learner, "spec": self.spec, "threads": self.threads}
        (folder / SETTINGS).write_text(json.dumps(settings))
        arrays: dict[str, Any] = self.sample.batch.columns()
        np.savez(folder / SAMPLE, keys=self.sample.keys, weights=self.sample.weights, **arrays)

    @classmethod
    def read(cls, folder: Path) -> Job:
        settings = json.loads((folder / SETTINGS).read_text())
        with np.load(folder / SAMPLE) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
        keys, weights = columns.pop("keys"), columns.pop("weights")
        return cls(sample=Sample(TransitionBatch.from_columns(columns), keys, weights), **settings)

    def algorithm(self) -> Algorithm[Any]:
        kind = lookup("algorithm", self.learner["algorithm"])
        config = kind.Config.model_validate(self.learner)
        made: Algorithm[Any] = kind(config, device=torch.device("cpu"), seed=0)
        return made


def compile_job(job: Job, folder: Path, known: Path) -> None:
    """All steps of the algorithm, in `folder`."""
    algorithm = job.algorithm()
    state = algorithm.initial_state(EnvSpec.from_json(job.spec))
    steps, called = steps_of(algorithm), dict[str, tuple[Any, ...]]()
    for name, step in steps.items():
        step.function = _noting(step.function, name, called)
    for _ in range(MOST_UPDATES):
        algorithm.update(state, job.sample)
        if len(called) == len(steps):
            break
    path = compile_steps(
        {name: (steps[name], arguments) for name, arguments in called.items()}, known, job.threads
    )
    keep(path, folder)


def _noting(
    function: Callable[..., Any], name: str, called: dict[str, tuple[Any, ...]]
) -> Callable[..., Any]:
    def noted(*arguments: Any) -> Any:
        called.setdefault(name, arguments)
        return function(*arguments)

    return noted


def main() -> int:
    job, known, folder = (Path(name) for name in sys.argv[1:])
    compile_job(Job.read(job), folder, known)
    return 0


if __name__ == "__main__":
    sys.exit(main())
