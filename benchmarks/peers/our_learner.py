"""Our learner: `python -m benchmarks.peers.our_learner`, put together as a local run does it.

A job's settings are dotted keys, as `--set` takes them.
"""

from __future__ import annotations

import importlib.metadata

import numpy as np
import torch

from benchmarks.peers.updates import (
    Array,
    Transitions,
    UpdateJob,
    Updates,
    answer_updates,
    transitions,
)
from buffer_server.table import Table
from repertory.config import OffPolicyConfig, RunConfig, resolve
from repertory.envs import probe
from repertory.freed_memory import keep_freed_memory
from repertory.table_layout import tables_of
from repertory.types import TransitionBatch
from services.local_learner import LocalLearner
from services.replay_access import run_table

UPDATES_AT_ONCE = 5
GAMMA = 0.99


def config_of(job: UpdateJob) -> RunConfig:
    settings = {
        "device": "cpu",
        "threads": job.threads,
        "steps": job.items,
        "replay.capacity": job.items,
        "learner.gamma": GAMMA,
        "learner.hidden_sizes": list(job.hidden),
        "learner.batch_size": job.batch,
    }
    if job.on_policy:
        settings |= {
            "env.copies": 1,
            "learner.segment_length": job.items,
            "learner.epochs": job.epochs,
            "learner.normalize_observation": False,
            "learner.normalize_reward": False,
        }
    return resolve(job.env_id, [job.algorithm], overrides=settings | dict(job.settings))


class OurUpdates:
    def __init__(self, job: UpdateJob) -> None:
        torch.set_num_threads(job.threads)
        keep_freed_memory()
        config = config_of(job)
        spec = probe(config.env)
        self._job = job
        (name,) = config.learners
        self._learner = LocalLearner(config, name, spec)
        ((table_name, layout),) = tables_of(config).items()
        extras = {name: self._learner.policy.extras}
        self._table: Table = run_table(config, spec, layout, extras).build(table_name)
        self._learner.read(self._table, self._table, layout)
        self._off_policy = isinstance(self._learner.config, OffPolicyConfig)
        self._made = transitions(job)
        if self._off_policy:
            self._table.insert(_batch(self._made, self._table))

    def run(self) -> int:
        if self._off_policy:
            self._learner.loop.run(UPDATES_AT_ONCE)
            return UPDATES_AT_ONCE
        # One segment, as the newest weights would have made it.
        segment = _batch(self._made, self._table, version=self._learner.updates)
        self._table.insert(segment)
        self._learner.learn(0)
        return self._job.epochs * -(-self._job.items // self._job.batch)


def _batch(made: Transitions, table: Table, version: int | None = None) -> TransitionBatch:
    """[N, ...] of single transitions, or [1, T, ...] where a version is given."""
    count = len(made.reward)
    columns: dict[str, Array] = {
        "observation": made.observation,
        "action": made.action,
        "reward": made.reward,
        "discount": np.where(made.terminated, 0.0, GAMMA),
        "next_observation": made.next_observation,
        "policy_id": np.zeros(count),
        "policy_version": np.full(count, version or 0),
        "extras/log_prob": np.full(count, -6.5),
        "extras/policy_action": made.action,
        "extras/boundary": made.terminated,
    }
    lead = () if version is None else (1,)
    fitting = {
        name: columns[name].astype(column.dtype).reshape(*lead, count, *columns[name].shape[1:])
        for name, column in table.signature.items()
    }
    return TransitionBatch.from_columns(fitting)


def build(job: UpdateJob) -> Updates:
    return OurUpdates(job)


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in ("repertory", "torch", "numpy")}


if __name__ == "__main__":
    answer_updates(build, versions)
