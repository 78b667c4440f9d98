"""The evaluator as a Ray actor."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from actors.evaluator import evaluate
from repertory.policies.policy import build_policy, policy_config
from services.hosts import Process, ProcessContext
from services.video import filmed


class EvaluatorHost(Process):
    """Plays whole episodes with weights it is given, until it is told to stop."""

    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        torch.set_num_threads(1)
        self._heartbeat = self.beat("evaluator")
        self._heartbeat.keep_progressing()
        self._stopping = threading.Event()

    def run(self) -> None:
        self._stopping.wait()
        self._heartbeat.close()

    def stop(self) -> None:
        self._stopping.set()

    def evaluate(
        self, learner: str, arrays: Mapping[str, Any], seed: int
    ) -> tuple[list[float], bytes | None]:
        """Returns, and where it is asked for a video: the head has the folder for it."""
        policy = build_policy(policy_config(self.context.policies[learner]), self.spec)
        policy.load_weights(arrays)
        config = self.config
        returns = evaluate(
            policy, config.env, self.spec, episodes=config.evaluation.episodes, seed=seed
        )
        return returns, filmed(policy, config, self.spec, seed)
