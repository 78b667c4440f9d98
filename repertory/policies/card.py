"""A policy by itself: its settings, the environment it is for, and its weights.

This is what `best` checkpoints and exports hold, and all that is needed to act elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repertory.config import EnvConfig
from repertory.policies.policy import PolicyConfig, TorchPolicy, build_policy, policy_config
from repertory.specs import EnvSpec
from repertory.types import WeightSnapshot


@dataclass(frozen=True, slots=True)
class PolicyCard:
    algorithm: str
    policy_config: PolicyConfig
    env_config: EnvConfig
    spec: EnvSpec
    snapshot: WeightSnapshot
    env_steps: int
    mean_return: float | None  # of the evaluation that chose it, where there was one

    def description(self) -> dict[str, Any]:
        """Everything but the weights, as JSON."""
        return {
            "algorithm": self.algorithm,
            "policy_config": self.policy_config.model_dump(mode="json"),
            "env_config": self.env_config.model_dump(mode="json"),
            "spec": self.spec.to_json(),
            "policy": self.snapshot.policy,
            "version": self.snapshot.version,
            "checksum": self.snapshot.checksum,
            "env_steps": self.env_steps,
            "mean_return": self.mean_return,
        }

    def tree(self) -> dict[str, Any]:
        return {**self.description(), "weights": dict(self.snapshot.arrays)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> PolicyCard:
        return cls(
            algorithm=tree["algorithm"],
            policy_config=policy_config(tree["policy_config"]),
            env_config=EnvConfig.model_validate(tree["env_config"]),
            spec=EnvSpec.from_json(tree["spec"]),
            snapshot=WeightSnapshot(tree["policy"], tree["version"], tree["weights"]),
            env_steps=tree["env_steps"],
            mean_return=tree["mean_return"],
        )

    def build(self) -> TorchPolicy:
        """The policy with these weights, ready to act."""
        policy = build_policy(self.policy_config, self.spec)
        policy.load_weights(self.snapshot.arrays)
        return policy
