"""The evaluator as a Ray actor."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from actors.evaluator import evaluate
from repertory.policies.policy import build_policy, policy_config
from services.hosts import Process, ProcessContext


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

    def evaluate(self, learner: str, arrays: Mapping[str, Any], seed: int) -> list[float]:
        policy = build_policy(policy_config(self.context.policies[learner]), self.spec)
        policy.load_weights(arrays)
        return evaluate(
            policy, self.config.env, self.spec, episodes=self.config.evaluation.episodes, seed=seed
        )
