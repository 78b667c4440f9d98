"""The minimum share of every member, by bookkeeping rather than by luck. Used by the director.

With each choice every candidate is owed `share` of one, and whoever is chosen pays one back. Who
is owed a whole choice is due, whatever the strategy would say; of several, who is owed the most.

A member that is chosen often runs up credit, at most that of `CREDIT_CHOICES` choices: without
credit, one that a strategy chooses at random just often enough would also be forced in every gap;
without a limit, a former favourite could be left out for ever. So over any W choices a candidate
gets at least share * (W - CREDIT_CHOICES) - (number of candidates).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CREDIT_CHOICES = 200
_ROUNDING = 1e-9  # twenty times 0.05 is a whole choice


class MinimumShare:
    def __init__(self, share: float, members: Sequence[str]) -> None:
        self.share = share
        self._owed = dict.fromkeys(members, 0.0)  # negative: credit

    def due(self, candidates: Sequence[str]) -> str | None:
        """Who must be chosen now, if anybody; call it once for each choice, then `note`."""
        most = max(candidates, key=lambda member: self._owed[member])
        return most if self._owed[most] + self.share >= 1 - _ROUNDING else None

    def note(self, chosen: str, candidates: Sequence[str]) -> None:
        lowest = -self.share * CREDIT_CHOICES
        for member in candidates:
            self._owed[member] += self.share
        self._owed[chosen] = max(lowest, self._owed[chosen] - 1)

    def start_afresh(self, member: str) -> None:
        """A member comes back to the candidates: owed nothing for the time it was away."""
        self._owed[member] = 0.0

    def state(self) -> dict[str, float]:
        return dict(self._owed)

    def load_state(self, state: Mapping[str, float]) -> None:
        self._owed = {member: float(state[member]) for member in self._owed}
