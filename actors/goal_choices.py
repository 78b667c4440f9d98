"""Which goals a transition is repeated with in hindsight (arXiv 1707.01495, sections 3.3 and 4.5).

A goal is one that the same episode achieved, named by the step that led to it:

    future      a step from this one on      j ~ U{t, ..., T - 1}
    final       the last step                j = T - 1
    episode     any step                     j ~ U{0, ..., T - 1}

`actors.hindsight` asks; a user's own choice has the same two methods and a `Config` derived from
`RelabelConfig`.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from repertory.settings import RelabelConfig
from repertory.types import Array


class GoalChoice(Protocol):
    def draw(self, length: int, rng: np.random.Generator) -> Array:
        """[T, k] steps of an episode of T = `length`; row t is for its step t."""
        ...


class Future:
    class Config(RelabelConfig):
        name: str = "future"

    def __init__(self, config: RelabelConfig) -> None:
        self._goals = config.goals

    def draw(self, length: int, rng: np.random.Generator) -> Array:
        own = np.arange(length)[:, None]  # [T, 1]
        return rng.integers(own, length, size=(length, self._goals))


class Final:
    """All k goals are the same one: more than one only adds weight."""

    class Config(RelabelConfig):
        name: str = "final"

    def __init__(self, config: RelabelConfig) -> None:
        self._goals = config.goals

    def draw(self, length: int, rng: np.random.Generator) -> Array:
        return np.full((length, self._goals), length - 1)


class Episode:
    class Config(RelabelConfig):
        name: str = "episode"

    def __init__(self, config: RelabelConfig) -> None:
        self._goals = config.goals

    def draw(self, length: int, rng: np.random.Generator) -> Array:
        return rng.integers(length, size=(length, self._goals))
