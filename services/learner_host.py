"""The learner process as a Ray actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from learner.checkpoint import load_state_tree
from learner.loop import LearnerLoop
from repertory.parts import lookup
from repertory.seeding import derive_seed
from services.fit import choose_device
from services.hosts import Process, ProcessContext
from services.learner_process import LearnerProcess
from services.replay_access import batch_size, replay_for
from services.weights import WeightPublisher

PREFETCH = 2


class LearnerHost(Process):
    """One learner of the portfolio, from a checkpoint's state where there is one."""

    def __init__(
        self,
        context: ProcessContext,
        learner: str,
        epoch: int,
        actors: int,
        state: Mapping[str, Any] | None,
    ) -> None:
        super().__init__(context)
        config = self.config
        torch.set_num_threads(config.threads)
        learner_config = config.learners[learner]
        self._heartbeat = self.beat("learner", self._facts)
        algorithm = lookup("algorithm", learner_config.algorithm)(
            learner_config,
            device=choose_device(config.device),
            seed=derive_seed(config.seed, "learner", learner),
        )
        learner_state = algorithm.initial_state(self.spec)
        if state is not None:
            load_state_tree(learner_state, state)
        self._replay = replay_for(
            config,
            learner,
            context.shards,
            caller=context.name,
            prefetch=PREFETCH,
            seed=derive_seed(config.seed, "shards", learner),
        )
        loop = LearnerLoop(
            algorithm,
            learner_state,
            self._replay,
            batch_size=batch_size(config, learner_config, actors),
            send_priorities=config.replay.sampler.name != "uniform",
        )
        self._learner = LearnerProcess(
            learner,
            config,
            loop,
            algorithm.policy(learner_state),
            WeightPublisher(context.hub, learner, epoch, loop.updates),
            self._heartbeat,
        )

    def run(self) -> None:
        try:
            self._learner.run()
        finally:
            self._heartbeat.close()
            self._replay.close()

    def stop(self) -> None:
        self._learner.stopping.set()

    def pause(self, paused: bool) -> None:
        (self._learner.paused.set if paused else self._learner.paused.clear)()

    def checkpoint(self, timeout_seconds: float) -> dict[str, Any]:
        return self._learner.checkpoint(timeout_seconds)

    def _facts(self) -> dict[str, Any]:
        learner = getattr(self, "_learner", None)  # the heart beats before all is made
        return {} if learner is None else learner.facts()
