"""Who acts in which copy of the environment: a casting is asked whenever a copy needs somebody.

A plain run has one player for ever (`Solo`). In a portfolio the director decides, and `Leased`
plays what it handed out: decisions come many at a time and are asked for in the background, so that
no step waits for a round trip. Knows neither Ray nor Redis: the way to the director is a `Lease`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from repertory.errors import UsageError


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who acts in a copy from now on, and for how long."""

    decision: int  # the number under which its outcome is reported
    player: int  # its index among the players of the rollout
    steps: int | None  # None: until the episode ends


class Casting(Protocol):
    def assign(self, copies: Sequence[int]) -> list[Assignment] | None:
        """Somebody for each of these copies; None where that is not yet known, to be asked again.

        It may wait for a moment, and no longer.
        """
        ...

    def give_back(self, decisions: Sequence[int]) -> None:
        """What was assigned and came to nothing: its episode is lost."""
        ...

    def state(self) -> dict[str, Any]: ...

    def load_state(self, state: Mapping[str, Any]) -> None: ...


class Solo:
    """The only player, in every copy, for ever."""

    def __init__(self) -> None:
        self._next_decision = 0

    def assign(self, copies: Sequence[int]) -> list[Assignment]:
        first = self._next_decision
        self._next_decision += len(copies)
        return [Assignment(first + k, player=0, steps=None) for k in range(len(copies))]

    def give_back(self, decisions: Sequence[int]) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {"next_decision": self._next_decision}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._next_decision = state["next_decision"]


class Decision(Protocol):
    """What a casting reads of one decision of the director."""

    @property
    def number(self) -> int: ...

    @property
    def policy(self) -> str: ...

    @property
    def edition(self) -> int: ...

    @property
    def steps(self) -> int | None: ...


class Lease(Protocol):
    """The way to the director. Nothing here waits but `wait`."""

    @property
    def edition(self) -> int:
        """The director's newest, as far as is known: decisions of an older one are void."""
        ...

    def request(self, count: int) -> None:
        """Asks for decisions. It is answered once, however long that takes and whoever dies."""
        ...

    def take(self) -> Sequence[Decision] | None:
        """The answer to the request, if it is there and was not taken."""
        ...

    def wait(self, timeout_seconds: float) -> None:
        """Until there is an answer to take, or the time is over."""
        ...

    def give_back(self, decisions: Sequence[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class KeptDecision:
    """One that went through a checkpoint."""

    number: int
    policy: str
    edition: int
    steps: int | None


class Leased:
    """Plays the director's decisions in the order in which they came.

    At most `room` are held; more are asked for when less than half of that is left. When the
    director's edition moves on, those not yet begun are given back and asked for anew: a command
    acts with the next episode.
    """

    def __init__(
        self, lease: Lease, players: Sequence[str], room: int, wait_seconds: float = 1.0
    ) -> None:
        self._lease = lease
        self._players = {name: index for index, name in enumerate(players)}
        self._room = room
        self._wait_seconds = wait_seconds
        self._held: deque[Decision] = deque()
        self._asking = False

    def assign(self, copies: Sequence[int]) -> list[Assignment] | None:
        needed = len(copies)
        if needed > self._room:
            raise UsageError(
                f"{needed} copies need somebody to act, and there is room for {self._room} "
                f"decisions: give at least {needed}"
            )
        self._receive()
        self._ask(needed)
        if len(self._held) < needed:
            self._lease.wait(self._wait_seconds)
            self._receive()
        if len(self._held) < needed:
            return None
        decisions = [self._held.popleft() for _ in range(needed)]
        self._ask(0)
        return [
            Assignment(decision.number, self._player(decision), decision.steps)
            for decision in decisions
        ]

    def give_back(self, decisions: Sequence[int]) -> None:
        self._lease.give_back(decisions)

    def state(self) -> dict[str, Any]:
        self._receive()  # what the director has handed out already is in nobody else's hands
        kept = [KeptDecision(d.number, d.policy, d.edition, d.steps) for d in self._held]
        return {"held": [asdict(decision) for decision in kept]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._held = deque(KeptDecision(**decision) for decision in state["held"])

    def _receive(self) -> None:
        decisions = self._lease.take()
        if decisions is not None:
            self._asking = False
            self._held.extend(decisions)
        newest = max([self._lease.edition, *(decision.edition for decision in self._held)])
        void = [decision.number for decision in self._held if decision.edition < newest]
        if void:
            self._held = deque(d for d in self._held if d.edition >= newest)
            self._lease.give_back(void)

    def _ask(self, needed: int) -> None:
        left = len(self._held)
        if not self._asking and (2 * left < self._room or left < needed):
            self._asking = True
            self._lease.request(self._room - left)

    def _player(self, decision: Decision) -> int:
        try:
            return self._players[decision.policy]
        except KeyError:
            raise UsageError(
                f"the director chose {decision.policy!r}, this rollout plays "
                f"{', '.join(self._players)}: give both the same learners"
            ) from None
