"""How far one on-policy player has run ahead of its learner.

It makes rounds, of one segment for each copy; newer weights are the learner's answer to a round.
A segment begun with weights too old to count does not fill a round.
"""

from __future__ import annotations

from repertory.types import TransitionBatch


class Rounds:
    def __init__(self, copies: int, max_lag: int) -> None:
        self._copies = copies
        self._max_lag = max_lag
        self._version = 0
        self._oldest: int | None = None  # that counts for the round under way; None: between two
        self._fresh = 0  # segments of it
        self._unanswered = 0  # rounds

    @property
    def ahead(self) -> bool:
        """Whether another round would be more than the lag allows."""
        return self._unanswered > self._max_lag

    def answer(self, version: int) -> None:
        """There are newer weights. What is newer by several answers several."""
        self._unanswered = max(0, self._unanswered - (version - self._version))
        self._version = version

    def begin(self) -> None:
        """A step is about to be taken."""
        if self._oldest is None:
            # Weights that come during the round do not make old what was begun with these.
            self._oldest = self._version - self._max_lag

    def add(self, segments: TransitionBatch) -> None:
        assert self._oldest is not None
        self._fresh += int((segments.policy_version.min(axis=1) >= self._oldest).sum())
        if self._fresh >= self._copies:
            self._fresh, self._oldest = 0, None
            self._unanswered += 1
