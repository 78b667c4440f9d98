"""The running episode of each copy: what it has returned, and under whose decisions it is played.

Within one episode policies may take turns. Each decision has an outcome of its own, which is told
when the episode ends; where it breaks, its decisions are given back instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np

from actors.casting import Assignment
from actors.player import Player
from actors.stepper import Step
from repertory.types import Array, DecisionOutcome, EpisodeOutcome

NOBODY = -1
FOR_EVER = np.iinfo(np.int64).max
# An episode that never ends must not fill the memory; the director gives such decisions up too.
MOST_STRETCHES = 10_000


@dataclass(frozen=True, slots=True)
class Stretch:
    """The steps of one episode that were played under one decision."""

    decision: int
    player: int
    version: int  # when it ended
    steps: int


class Episodes:
    def __init__(self, players: Sequence[Player], copies: int) -> None:
        self._players = players
        self.player = np.full(copies, NOBODY, np.int64)  # [B] who acts, by index
        self.episode_return = np.zeros(copies, np.float64)
        self.episode_length = np.zeros(copies, np.int64)
        self._decision = np.zeros(copies, np.int64)
        self._steps = np.zeros(copies, np.int64)  # that the decision holds for
        self._taken = np.zeros(copies, np.int64)  # of them
        self._past: list[list[Stretch]] = [[] for _ in range(copies)]  # earlier in this episode
        self._acting: list[tuple[int, Array]] = []
        self._first_everywhere = [(0, np.arange(copies))]
        self._steps_until_waiting = 0  # at least so many: not all copies move at every step

    def waiting(self) -> list[int]:
        """The copies where nobody is to act in the next step."""
        if self._steps_until_waiting > 0:
            return []
        left = self._steps - self._taken
        self._steps_until_waiting = int(left.min())
        waiting: list[int] = np.flatnonzero(left <= 0).tolist()
        return waiting

    def acting(self) -> Sequence[tuple[int, Array]]:
        """The players that act, each with the indices of its copies."""
        return self._acting

    def begin(self, copies: Sequence[int], assignments: Sequence[Assignment]) -> Array:
        """Puts somebody into each of these copies.

        Returns where [B] that is another than before, or the first of an episode.
        """
        before = self.player.copy()
        for copy, assignment in zip(copies, assignments, strict=True):
            if before[copy] != NOBODY:
                self._past[copy].append(self._stretch(copy))
                del self._past[copy][:-MOST_STRETCHES]
            self.player[copy] = assignment.player
            self._decision[copy] = assignment.decision
            self._steps[copy] = FOR_EVER if assignment.steps is None else assignment.steps
            self._taken[copy] = 0
        self._note_acting()
        return self.player != before

    def add(self, step: Step) -> None:
        if step.eventful:
            self.episode_return += np.where(step.valid, step.reward, 0)
            self.episode_length += step.valid
            self._taken += step.valid
        else:
            self.episode_return += step.reward
            self.episode_length += 1
            self._taken += 1
        self._steps_until_waiting -= 1

    def end(self, step: Step, env_steps: int) -> tuple[list[EpisodeOutcome], list[DecisionOutcome]]:
        """The outcomes of the episodes that this step ended, and of their decisions."""
        outcomes, decisions = [], []
        ended = np.flatnonzero(step.boundary & step.valid)
        for copy in ended.tolist():
            for stretch in (*self._past[copy], self._stretch(copy)):
                outcome = EpisodeOutcome(
                    policy_id=self._players[stretch.player].policy_id,
                    policy_version=stretch.version,
                    episode_return=float(self.episode_return[copy]),
                    length=stretch.steps,
                    terminated=bool(step.terminated[copy]),
                    env_steps=env_steps,
                )
                decisions.append(DecisionOutcome(stretch.decision, outcome))
            length = int(self.episode_length[copy])
            outcomes.append(
                outcome if outcome.length == length else replace(outcome, length=length)
            )
        self._clear(ended)
        return outcomes, decisions

    def lose(self, copies: Array) -> list[int]:
        """The episodes of the marked copies [B] are lost: the decisions that came to nothing.

        One under which no step was taken stays where it is, so that a copy that is broken for good
        keeps one, and not one more at each step.
        """
        unplayed: list[int] = []
        for copy in np.flatnonzero(copies):
            unplayed += [stretch.decision for stretch in self._past[copy]]
            self._past[copy] = []
            if self._taken[copy] > 0:
                unplayed.append(int(self._decision[copy]))
        self.episode_return[copies] = 0
        self.episode_length[copies] = 0
        self._clear(np.flatnonzero(copies & (self._taken > 0)))
        return unplayed

    def state(self) -> dict[str, Array]:
        past = [
            (copy, *astuple(stretch))
            for copy, stretches in enumerate(self._past)
            for stretch in stretches
        ]
        return {
            "player": self.player.copy(),
            "episode_return": self.episode_return.copy(),
            "episode_length": self.episode_length.copy(),
            "decision": self._decision.copy(),
            "steps": self._steps.copy(),
            "taken": self._taken.copy(),
            "past": np.array(past, np.int64).reshape(-1, 5),
        }

    def load_state(self, arrays: Mapping[str, Array]) -> None:
        self.player = arrays["player"].copy()
        self.episode_return = arrays["episode_return"].copy()
        self.episode_length = arrays["episode_length"].copy()
        self._decision = arrays["decision"].copy()
        self._steps = arrays["steps"].copy()
        self._taken = arrays["taken"].copy()
        self._past = [[] for _ in self.player]
        for copy, *stretch in arrays["past"].tolist():
            self._past[copy].append(Stretch(*stretch))
        self._note_acting()

    def _stretch(self, copy: int) -> Stretch:
        """The one that is being played."""
        player = int(self.player[copy])
        return Stretch(
            decision=int(self._decision[copy]),
            player=player,
            version=self._players[player].version,
            steps=int(self._taken[copy]),
        )

    def _clear(self, copies: Array) -> None:
        """Nobody is to act in the copies with these indices, in an episode that has not begun."""
        self.player[copies] = NOBODY
        self.episode_return[copies] = 0
        self.episode_length[copies] = 0
        self._steps[copies] = 0
        self._taken[copies] = 0
        self._steps_until_waiting = 0
        for copy in copies:
            self._past[copy] = []

    def _note_acting(self) -> None:
        self._steps_until_waiting = 0
        if not self.player.any():  # the same one everywhere, as nearly always
            self._acting = self._first_everywhere
            return
        self._acting = [
            (int(player), np.flatnonzero(self.player == player))
            for player in np.unique(self.player)
            if player != NOBODY
        ]
