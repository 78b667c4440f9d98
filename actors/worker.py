"""One rollout process: acts with the newest weights it has, and sends what it sees.

Knows no Ray: weights come through a `Weights` for each player, experience goes through an `Inserts`
for each table, and signs of life through a heartbeat. `services.hosts` makes a Ray actor of it.

It acts without waiting for weights, a moment at a time; the replay's back-pressure is what slows it
down. Only where every player is on-policy and has made more rounds than `max_lag` allows beyond
what its learner has answered (see `Rounds`) does it wait for an answer: with `max_lag = 0` every
segment of a lone on-policy learner is made by its newest weights.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from actors.player import Player
from actors.rollout import Collected, Rollout
from actors.rounds import Rounds
from repertory.config import OnPolicyConfig, RunConfig
from repertory.errors import ReplayTimeout
from repertory.heartbeat import Heartbeat
from repertory.table_layout import table_of, tables_of
from repertory.types import (
    Array,
    DecisionOutcome,
    EpisodeOutcome,
    TransitionBatch,
    WeightSnapshot,
)

logger = logging.getLogger(__name__)

WAIT_SECONDS = 1.0  # how long to wait in one go: between two, stopping is looked at
STRETCH_SECONDS = 0.1  # about so long it acts before it looks at weights, orders and tables
LONGEST_GATHERING_SECONDS = 2.0  # what a slow environment gives is not held back for longer


class Weights(Protocol):
    """The newest weights of one player's policy."""

    version: int  # -1 before the first
    checksum: int
    published_at: float

    def newest(self) -> WeightSnapshot | None: ...

    def wait(self, timeout_seconds: float) -> WeightSnapshot | None: ...


class Inserts(Protocol):
    """Where experience goes: a `Replay`, as far as a worker needs it."""

    def insert(
        self,
        batch: TransitionBatch,
        priorities: Array | None = None,
        *,
        timeout_seconds: float | None = None,
    ) -> int: ...


class RolloutWorker:
    """`run` returns when it is told to stop; everything gathered until then is sent.

    `replays` are named by table, `weights` by player; `report` takes what the director is to hear.
    """

    def __init__(
        self,
        config: RunConfig,
        rollout: Rollout,
        replays: Mapping[str, Inserts],
        weights: Mapping[str, Weights],
        heartbeat: Heartbeat,
        report: Callable[[Sequence[DecisionOutcome]], None] = lambda decisions: None,
        total_env_steps: int = 0,
    ) -> None:
        self._config = config
        self._rollout = rollout
        self._replays = replays
        self._weights = weights
        self._heartbeat = heartbeat
        self._report = report
        on_policy = [
            name for name, one in config.learners.items() if isinstance(one, OnPolicyConfig)
        ]
        self._rounds = {name: Rounds(config.env.copies, config.max_lag) for name in on_policy}
        self._send_items = dict.fromkeys(replays, config.topology.send_items)
        self._send_items |= {table_of(config, name): 1 for name in on_policy}
        # Whole episodes come at once where goals are relabelled: they go in pieces of this size.
        self._most_items = {
            table: config.topology.send_items * layout.items_per_step
            for table, layout in tables_of(config).items()
            if layout.relabel is not None
        }
        self._gathered: dict[str, list[TransitionBatch]] = {}
        self._gathered_items: Counter[str] = Counter()
        self._gathered_steps = 0
        self._outcomes: list[EpisodeOutcome] = []
        self._decisions: list[DecisionOutcome] = []
        self._gathering_since = time.monotonic()
        self._stretch = 1  # steps of every copy between two looks at anything else
        self._own_env_steps = 0
        self._rollout.env_steps = total_env_steps
        self.stopping = threading.Event()
        self.paused = threading.Event()

    def run(self) -> None:
        if not self._await_weights(self._all_have_weights):
            return
        while not self.stopping.is_set():
            enough = self._heartbeat.totals.get("env_steps", 0) >= self._config.steps
            if self.paused.is_set() or enough:
                self._send(tuple(self._gathered))
                self._heartbeat.progress()
                self.stopping.wait(WAIT_SECONDS / 10)
                continue
            for player in self._rollout.players:
                self._load(player, self._weights[player.name].newest())
            for rounds in self._rounds.values():
                rounds.begin()
            self._take(self._act())
            self._await_weights(lambda: not self._all_ahead())
        self._send(tuple(self._gathered))

    def facts(self) -> dict[str, Any]:
        """For the heartbeat."""
        facts: dict[str, Any] = {
            "env_steps": self._own_env_steps,
            "broken_episodes": self._rollout.broken_episodes,
            "weights": {name: _facts_of(weights) for name, weights in self._weights.items()},
        }
        first = self._weights[self._rollout.players[0].name]
        return {**facts, **_facts_of(first)}

    def _all_have_weights(self) -> bool:
        return all(weights.version >= 0 for weights in self._weights.values())

    def _all_ahead(self) -> bool:
        """Nobody here could act without its learner falling too far behind."""
        players = self._rollout.players
        return all(p.name in self._rounds and self._rounds[p.name].ahead for p in players)

    def _await_weights(self, enough: Callable[[], bool]) -> bool:
        """False: told to stop meanwhile."""
        players = self._rollout.players
        while not enough():
            for player in players:
                if self.stopping.is_set():
                    return False
                self._heartbeat.progress()
                newer = self._weights[player.name].wait(WAIT_SECONDS / len(players))
                self._load(player, newer)
        return True

    def _load(self, player: Player, snapshot: WeightSnapshot | None) -> None:
        if snapshot is None:
            return
        player.policy.load_weights(snapshot.arrays)
        player.version = snapshot.version
        if player.name in self._rounds:
            self._rounds[player.name].answer(snapshot.version)

    def _act(self) -> Collected:
        """Some steps at a time, where weights need not be the newest at each of them.

        An environment that is slow wakes a process whose caches are cold: what is done after every
        step is then paid several times over.
        """
        copies = self._config.env.copies
        # What a message still lacks, one item for each step.
        room = self._config.topology.send_items - max(self._gathered_items.values(), default=0)
        began = time.monotonic()
        collected = self._rollout.collect(max(1, min(self._stretch, room // copies)) * copies)
        if not self._rounds and collected.env_steps > 0:
            seconds = (time.monotonic() - began) * copies / collected.env_steps  # of a step
            self._stretch = int(STRETCH_SECONDS / seconds)
        return collected

    def _take(self, collected: Collected) -> None:
        self._heartbeat.progress()
        self._own_env_steps += collected.env_steps
        self._gathered_steps += collected.env_steps
        self._outcomes += collected.outcomes
        self._decisions += collected.decisions
        for table, batch in collected.batches.items():
            self._gathered.setdefault(table, []).append(batch)
            self._gathered_items[table] += len(batch)
            if table in self._rounds:  # the queue of an on-policy learner has its name
                self._rounds[table].add(batch)
        late = time.monotonic() - self._gathering_since > LONGEST_GATHERING_SECONDS
        due = [
            table
            for table, items in self._gathered_items.items()
            if late or items >= self._send_items[table]
        ]
        if late or due:
            self._send(due)

    def _send(self, tables: Sequence[str]) -> None:
        self._tell()
        self._gathering_since = time.monotonic()
        for table in tables:
            batch = TransitionBatch.concatenate(self._gathered.pop(table))
            del self._gathered_items[table]
            size = self._most_items.get(table, len(batch))
            for start in range(0, len(batch), size):
                self._send_piece(table, batch.select(slice(start, start + size)))

    def _send_piece(self, table: str, batch: TransitionBatch) -> None:
        while not self._insert(table, batch):
            self._heartbeat.progress()  # a limiter that holds actors is no fault
            if self.stopping.is_set():
                logger.warning("%d items were not sent", len(batch))
                self._heartbeat.count(items_not_sent=len(batch))
                return

    def _insert(self, table: str, batch: TransitionBatch) -> bool:
        try:
            self._replays[table].insert(batch, timeout_seconds=WAIT_SECONDS)
            return True
        except ReplayTimeout:
            return False

    def _tell(self) -> None:
        """Steps, episodes and decisions since the last time."""
        outcomes, decisions = self._outcomes, self._decisions
        self._heartbeat.count(soon=True, env_steps=self._gathered_steps, episodes=len(outcomes))
        if outcomes:
            last = self._rollout.players[outcomes[-1].policy_id]
            self._heartbeat.metrics(
                self._rollout.env_steps,
                {
                    "returns": [outcome.episode_return for outcome in outcomes],
                    "lengths": [outcome.length for outcome in outcomes],
                    "policy_ids": [outcome.policy_id for outcome in outcomes],
                    # Of who ended the last of them.
                    "policy_version": last.version,
                    "weights_age_seconds": _age_seconds(self._weights[last.name]),
                },
            )
        if decisions:
            self._report(decisions)
        self._gathered_steps, self._outcomes, self._decisions = 0, [], []
        # Schedules of exploration run over the steps of all workers together.
        total = self._heartbeat.totals.get("env_steps", 0)
        self._rollout.env_steps = max(self._rollout.env_steps, total)


def _facts_of(weights: Weights) -> dict[str, Any]:
    facts: dict[str, Any] = {"version": weights.version}
    if weights.version >= 0:
        facts["checksum"] = f"{weights.checksum:08x}"
        facts["weights_age_seconds"] = _age_seconds(weights)
    return facts


def _age_seconds(weights: Weights) -> float:
    return max(0.0, time.time() - weights.published_at)
