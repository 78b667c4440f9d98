"""Learners' steps are compiled from the moment a run begins, while its processes start.

A learner looks for compiled steps after its first updates (`services.step_compilation`), some
seconds later. What it will learn from is known before: transitions of this environment, so many of
them. Steps that are in the cache, or that are made of more than plain transitions, are left to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from buffer_server.table_config import TableConfig
from learner.ahead_of_time import is_complete
from learner.steps import steps_of
from repertory.closing import Closing
from repertory.config import LearnerConfig, OffPolicyConfig, RunConfig
from repertory.parts import lookup
from repertory.protocols import Algorithm
from repertory.specs import EnvSpec
from repertory.table_layout import table_of, tables_of
from repertory.types import Array, ColumnSpec, Sample, TransitionBatch
from services.compile_process import CompileProcess, CompileTask, cache_folder
from services.fit import choose_device
from services.replay_access import run_table
from services.step_compilation import may_compile, worth_compiling
from services.threads import threads_of


class EarlyCompilation(Closing):
    """For all learners of a run on this machine; what is not compiled when it ends is not made."""

    def __init__(self, config: RunConfig, spec: EnvSpec) -> None:
        self.processes: list[CompileProcess] = []
        if may_compile(config) and choose_device(config.device).type == "cpu":
            for name in config.learners:
                self._start(config, name, spec)

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def _start(self, config: RunConfig, name: str, spec: EnvSpec) -> None:
        own = config.learners[name]
        if not (isinstance(own, OffPolicyConfig) and worth_compiling(config, name)):
            return
        layout = tables_of(config)[table_of(config, name)]
        extras = {reader: _extras(config.learners[reader], spec) for reader in layout.learners}
        steps = steps_of(_algorithm(own))
        plain = not any(extras.values()) and not own.stretches
        if not (steps and plain and spec.observation_kind == "vector"):
            return
        sample = _example(run_table(config, spec, layout, extras), own)
        task = CompileTask(own, spec, threads_of(config, name), sample)
        folder = cache_folder() / task.name
        if not is_complete(folder, steps):
            process = CompileProcess.start(task, folder)
            if process is not None:
                self.processes.append(process)


def _algorithm(config: LearnerConfig) -> Algorithm[Any]:
    made: Algorithm[Any] = lookup("algorithm", config.algorithm)(
        config, device=torch.device("cpu"), seed=0
    )
    return made


def _extras(config: LearnerConfig, spec: EnvSpec) -> Mapping[str, ColumnSpec]:
    """What its policy records beside its actions."""
    algorithm = _algorithm(config)
    return algorithm.policy(algorithm.initial_state(spec)).extras


def _example(table: TableConfig, own: OffPolicyConfig) -> Sample:
    """A batch as the learner's will be, of any numbers: a step does not depend on them."""
    rng, items = np.random.default_rng(0), own.batch_size
    columns: dict[str, Array] = {}
    for name, column in table.signature.items():
        shape = (items, *column.shape)
        if np.dtype(column.dtype).kind == "f":
            columns[name] = rng.uniform(-1, 1, shape).astype(column.dtype)
        else:  # an action, a policy's number, a version
            columns[name] = np.zeros(shape, column.dtype)
    columns["discount"][:] = own.gamma
    batch = TransitionBatch.from_columns(columns)
    return Sample(batch, np.arange(items), np.ones(items, np.float32))
