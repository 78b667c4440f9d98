"""Checkpoints of a distributed run: what its processes hold, gathered by the head.

Learners answer with their state; replay shards write files of their own, at the same time. What is
written here, and how a run goes on from it, is all on this page.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray

from buffer_server.client import ClientConfig, ReplayClient
from repertory.checkpoints import Checkpoint
from repertory.config import RunConfig
from repertory.errors import RepertoryError
from repertory.policies.card import PolicyCard
from repertory.specs import EnvSpec
from repertory.types import WeightSnapshot
from services.blueprint import Blueprint
from services.run_record import RunRecord

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run has come; learners and replay restore themselves."""

    env_steps: int
    updates: Mapping[str, int]  # by learner
    director: Mapping[str, Any] | None

    @classmethod
    def at(cls, checkpoint: Checkpoint | None, learners: Iterable[str]) -> Standing:
        """Without a checkpoint it stands at the beginning."""
        if checkpoint is None:
            return cls(env_steps=0, updates=dict.fromkeys(learners, 0), director=None)
        counters = checkpoint.load("counters")
        director = checkpoint.load("director") if checkpoint.has("director") else None
        return cls(counters["env_steps"], counters["updates"], director)


class RunCheckpoints:
    """Of one run."""

    def __init__(
        self, config: RunConfig, spec: EnvSpec, blueprint: Blueprint, record: RunRecord
    ) -> None:
        self._config = config
        self._spec = spec
        self._blueprint = blueprint
        self._record = record

    def save(self, env_steps: int, learners: Mapping[str, Any]) -> dict[str, int]:
        """Learners and replay, as close together as they can be asked.

        Takes the learners' handles, None for one that is not running; returns their updates, of
        nobody where there is no checkpoint.
        """
        if not all(learners.values()):
            return {}  # one is being started: what was saved before is what it goes on from
        asked = [handle.checkpoint.remote(CHECKPOINT_SECONDS) for handle in learners.values()]
        self._save_shards()
        try:
            answers = ray.get(asked, timeout=CHECKPOINT_SECONDS)
        except ray.exceptions.RayError as error:
            logger.warning("no checkpoint: a learner did not answer (%s)", type(error).__name__)
            return {}
        updates = {name: one["updates"] for name, one in zip(learners, answers, strict=True)}
        sections: dict[str, Mapping[str, Any]] = {
            "counters": {"env_steps": env_steps, "updates": updates}
        }
        director = self._blueprint.direction.state()
        if director is not None:
            sections["director"] = director
        mean = self._record.evaluations.last_mean()
        for name, answer in zip(learners, answers, strict=True):
            sections[f"learner-{name}"] = answer["state"]
            sections[f"policy-{name}"] = self.card(answer["policy"], env_steps, mean).tree()
        self._record.checkpoint(env_steps, sections)
        return updates

    def card(self, snapshot: WeightSnapshot, env_steps: int, mean: float | None) -> PolicyCard:
        return PolicyCard(
            algorithm=self._config.learners[snapshot.policy].algorithm,
            policy_config=self._blueprint.policies[snapshot.policy].config,
            env_config=self._config.env,
            spec=self._spec,
            snapshot=snapshot,
            env_steps=env_steps,
            mean_return=mean,
        )

    def _save_shards(self) -> None:
        if not self._config.checkpoint.replay:
            return
        table = next(iter(self._blueprint.tables()))
        for address in self._blueprint.shard_addresses():
            config = ClientConfig(
                address=address, table=table, timeout_seconds=5.0, **self._blueprint.as_client
            )
            try:
                with ReplayClient(config) as client:
                    client.checkpoint(timeout_seconds=CHECKPOINT_SECONDS)
            except RepertoryError as error:  # its own checkpoints go on by the clock
                logger.warning("%s", error)
