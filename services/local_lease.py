"""The way to a director in the same process: a `Lease` of `actors.casting` that never waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from services.decision import Decision
from services.director import Director

ACTOR = "local"


class LocalLease:
    """`note` is told of what was handed out."""

    def __init__(self, director: Director, note: Callable[[Sequence[Decision]], None]) -> None:
        self._director = director
        self._note = note
        self._wanted = 0

    @property
    def edition(self) -> int:
        return self._director.edition

    def request(self, count: int) -> None:
        self._wanted = count

    def take(self) -> Sequence[Decision] | None:
        if not self._wanted:
            return None
        decisions = self._director.lease(ACTOR, self._wanted)
        self._wanted = 0
        self._note(decisions)
        return decisions

    def wait(self, timeout_seconds: float) -> None:
        """Nothing is ever under way."""

    def give_back(self, decisions: Sequence[int]) -> None:
        self._director.give_back(decisions)
