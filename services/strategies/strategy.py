"""What a strategy of choosing policies is, what it is told and what it says of itself.

The director asks it (`services.director`); nothing here knows Ray, Redis or an environment. A
strategy is seeded by the generator it is handed, and all it remembers is in `state()`, as JSON: it
survives being killed. `Windowed` has most of this ready for one's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True)
class Outcome:
    """One choice that has come to its end."""

    member: str
    score: float | None  # None: nothing can be said of it yet; see `director.score`
    length: int = 0  # environment steps for which the member acted
    env_steps: int = 0  # over all copies, when it ended
    # How likely the director was to choose this member; None where a person did, or nobody knows.
    probability: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a strategy believes of one member, for people; None where it has not seen it."""

    mean: float | None
    low: float | None
    high: float | None
    count: float  # scores behind it; discounted ones count less


class Strategy(Protocol):
    """Made from its `Config` and the names of all members, in the order of the portfolio."""

    # True: the order of its choices is the point, so the director adds no minimum share.
    exact: ClassVar[bool]

    def choose(self, candidates: Sequence[str], rng: np.random.Generator) -> str:
        """One of the candidates: the members that are not benched, at least one."""
        ...

    def observe(self, outcome: Outcome) -> None: ...

    def estimates(self) -> Mapping[str, Estimate]: ...

    def state(self) -> dict[str, Any]:
        """All that it remembers, as JSON."""
        ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


@runtime_checkable
class Anticipating(Protocol):
    """A strategy that also wants to know of choices whose outcome is not yet known.

    Choices are handed out many at a time: without this, one that looks best before its first
    outcome would get them all.
    """

    def expect(self, member: str) -> None:
        """This member was chosen, by the strategy or by somebody else."""
        ...

    def forget(self, member: str) -> None:
        """Such a choice was taken back: it will have no outcome."""
        ...


@runtime_checkable
class Randomised(Protocol):
    """A strategy that can say how likely it is to choose each candidate next."""

    def probabilities(self, candidates: Sequence[str]) -> Mapping[str, float]: ...
