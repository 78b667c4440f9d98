"""A rollout worker as a Ray actor."""

from __future__ import annotations

from typing import Any

import torch

from actors.casting import Solo
from actors.rollout import WorkerPlace, rollout_for
from actors.worker import RolloutWorker
from repertory.policies.policy import build_policy, policy_config
from repertory.table_layout import table_of
from services.hosts import Process, ProcessContext
from services.replay_access import replay_for
from services.weights import WeightSource

STOP_SECONDS = 30.0


class WorkerHost(Process):
    """A rollout process, for one learner's policy."""

    def __init__(self, context: ProcessContext, learner: str, index: int) -> None:
        super().__init__(context)
        torch.set_num_threads(1)
        self._heartbeat = self.beat("worker", self._facts)
        self._rollout = rollout_for(
            self.config,
            self.spec,
            {learner: build_policy(policy_config(context.policies[learner]), self.spec)},
            Solo(),
            WorkerPlace(index, context.incarnation),
        )
        self._replay = replay_for(
            self.config,
            learner,
            context.shards,
            caller=context.name,
            window_bytes=context.window_bytes,
        )
        self._worker = RolloutWorker(
            self.config,
            self._rollout,
            {table_of(self.config, learner): self._replay},
            {learner: WeightSource(context.hub, learner)},
            self._heartbeat,
            total_env_steps=context.counters.get("env_steps", 0),
        )

    def run(self) -> None:
        try:
            self._worker.run()
            self._replay.flush(timeout_seconds=STOP_SECONDS)
        finally:
            self._heartbeat.close()
            self._replay.close()
            self._rollout.close()

    def stop(self) -> None:
        self._worker.stopping.set()

    def pause(self, paused: bool) -> None:
        (self._worker.paused.set if paused else self._worker.paused.clear)()

    def _facts(self) -> dict[str, Any]:
        worker = getattr(self, "_worker", None)  # the heart beats before all is made
        if worker is None:
            return {}
        inserts = self._replay.client_statistics().inserts
        return {
            **worker.facts(),
            "lost_items": inserts.lost_items,  # by shards that came back without them
            "handed_over": inserts.handed_over,  # to others than the shard that was silent
        }
