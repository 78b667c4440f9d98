"""Who was chosen how often, who acted for how long, and what it cost. Kept by the director.

"Recent" is over the newest `RECENT` choices, or ended episodes. Regret compares with the best
member in hindsight: in a window of episodes, the highest mean return of any member minus the mean
of all. The sum goes on over windows that do not overlap, since the best member changes. A mean of a
few episodes that happened to go well would overstate it, so members with fewer are left out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RECENT = 200
FEWEST_RETURNS = 3


@dataclass(frozen=True, slots=True)
class Share:
    """Of one member, as fractions; 0 for all before anything has happened."""

    choices: float
    recent_choices: float
    env_steps: float
    recent_env_steps: float


@dataclass(frozen=True, slots=True)
class Regret:
    """In units of the return."""

    recent: float | None  # per episode, over the newest window; None before any episode
    total: float  # over all whole windows


class Tally:
    def __init__(self, members: Sequence[str]) -> None:
        self._members = tuple(members)
        self._choices = dict.fromkeys(self._members, 0)
        self._env_steps = dict.fromkeys(self._members, 0)
        self._recent_choices: deque[tuple[int, str]] = deque(maxlen=RECENT)  # number, member
        self._recent_episodes: deque[tuple[str, int, float]] = deque(maxlen=RECENT)
        self._since_window = 0  # episodes
        self._total_regret = 0.0

    def chosen(self, number: int, member: str) -> None:
        self._choices[member] += 1
        self._recent_choices.append((number, member))

    def take_back(self, number: int, member: str) -> None:
        self._choices[member] -= 1
        if (number, member) in self._recent_choices:
            self._recent_choices.remove((number, member))

    def ended(self, member: str, length: int, episode_return: float) -> None:
        self._env_steps[member] += length
        self._recent_episodes.append((member, length, episode_return))
        self._since_window += 1
        if self._since_window == RECENT:
            self._since_window = 0
            self._total_regret += RECENT * (self._regret() or 0.0)

    def shares(self) -> dict[str, Share]:
        recent_choices = dict.fromkeys(self._members, 0)
        for _, member in self._recent_choices:
            recent_choices[member] += 1
        recent_steps = dict.fromkeys(self._members, 0)
        for member, length, _ in self._recent_episodes:
            recent_steps[member] += length
        columns = [
            _fractions(counts)
            for counts in (self._choices, recent_choices, self._env_steps, recent_steps)
        ]
        return {member: Share(*(column[member] for column in columns)) for member in self._members}

    def regret(self) -> Regret:
        return Regret(self._regret(), self._total_regret)

    def state(self) -> dict[str, Any]:
        return {
            "choices": dict(self._choices),
            "env_steps": dict(self._env_steps),
            "recent_choices": [list(entry) for entry in self._recent_choices],
            "recent_episodes": [list(entry) for entry in self._recent_episodes],
            "since_window": self._since_window,
            "total_regret": self._total_regret,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._choices = {member: int(state["choices"][member]) for member in self._members}
        self._env_steps = {member: int(state["env_steps"][member]) for member in self._members}
        self._recent_choices.clear()
        self._recent_choices.extend((int(n), member) for n, member in state["recent_choices"])
        self._recent_episodes.clear()
        self._recent_episodes.extend(
            (member, int(length), float(value))
            for member, length, value in state["recent_episodes"]
        )
        self._since_window = int(state["since_window"])
        self._total_regret = float(state["total_regret"])

    def _regret(self) -> float | None:
        by_member: dict[str, list[float]] = {}
        for member, _, episode_return in self._recent_episodes:
            by_member.setdefault(member, []).append(episode_return)
        if not by_member:
            return None
        means = [
            sum(returns) / len(returns)
            for returns in by_member.values()
            if len(returns) >= FEWEST_RETURNS
        ]
        obtained = sum(sum(returns) for returns in by_member.values()) / len(self._recent_episodes)
        return max(0.0, max(means) - obtained) if means else 0.0


def _fractions(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {member: count / total if total else 0.0 for member, count in counts.items()}
