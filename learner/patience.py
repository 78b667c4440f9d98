"""How long an on-policy learner waits for segments before it asks for another round of them.

Workers make one round for each version of the weights, then wait. Where segments of a round are
lost, with a worker or a shard, nobody would ever go on; but to ask while a slow environment is
still at it makes rounds that are old before they arrive. So the patience follows what rounds take:
three times the last wait that ended by itself, and twice as long after each request in vain.
Pure logic: the clock comes in.
"""

from __future__ import annotations

LONGEST_SECONDS = 600.0  # that doubling leads to


class Patience:
    def __init__(self, shortest_seconds: float, now: float) -> None:
        self._shortest = shortest_seconds
        self._seconds = shortest_seconds
        self._since = now
        self._asked = False  # since the last batch

    def begin(self, now: float) -> None:
        """Waiting begins, or begins anew."""
        self._since = now

    def fed(self, now: float) -> None:
        """A batch has come."""
        if not self._asked:  # otherwise the wait says nothing about the time of a round
            self._seconds = max(self._shortest, 3 * (now - self._since))
        self._asked = False

    def exhausted(self, now: float) -> bool:
        """Whether to ask for another round; then waiting begins anew."""
        if now - self._since < self._seconds:
            return False
        self._since, self._asked = now, True
        self._seconds = max(self._seconds, min(2 * self._seconds, LONGEST_SECONDS))
        return True
