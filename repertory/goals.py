"""Goals that a policy can be sent after: how many there are, and where each is reached.

An environment names its own by an attribute `goals`: observations, as agents see them. Otherwise a
function gives them, named by dotted path, which gets the `EnvSpec` and returns any `Goals`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from repertory.errors import UsageError
from repertory.parts import load_attribute
from repertory.specs import EnvSpec
from repertory.types import Array

FROM_ENVIRONMENT = "environment"


class Goals(Protocol):
    """Goals counted from 0."""

    @property
    def count(self) -> int: ...

    def reached(self, observation: Array) -> Array:
        """[B, G] bool: which of the goals are reached where this [B, ...] is seen."""
        ...


class ObservedGoals:
    """Each goal is to see one observation, with each of its numbers off by `tolerance` at most."""

    def __init__(self, observations: Array, tolerance: float = 1e-3) -> None:
        self._observations = observations  # [G, ...]
        self._tolerance = tolerance

    @property
    def count(self) -> int:
        return len(self._observations)

    def reached(self, observation: Array) -> Array:
        distance = np.abs(observation[:, None] - self._observations[None])  # [B, G, ...]
        near: Array = (distance <= self._tolerance).reshape(*distance.shape[:2], -1).all(-1)
        return near


def goals_for(name: str, spec: EnvSpec) -> Goals:
    """By what a config says: `environment`, or `package.module:function`."""
    if name != FROM_ENVIRONMENT:
        goals: Goals = load_attribute(name, "the goals")(spec)
        return goals
    if not spec.named_goals:
        raise UsageError(
            f"{spec.env_id} names no goals of its own: give it an attribute `goals`, or set "
            "learner.goals=package.module:function"
        )
    flat = np.array(spec.named_goals, spec.observation_dtype)
    return ObservedGoals(flat.reshape(-1, *spec.observation_shape))
