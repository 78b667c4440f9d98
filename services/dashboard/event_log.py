"""What happened in a run, from its `events.jsonl`: lines for people, and who was chosen to act.

The director's decisions are many and have a table of their own; everything else is an event.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.dashboard.json_lines import parsed
from services.dashboard.schemas import DecisionLine, Event, Level
from services.dashboard.tail import Tail

EVENTS_KEPT = 20_000
DECISIONS_KEPT = 200

LEVELS: Mapping[str, Level] = {
    "finished": "good",
    "weights_caught_up": "good",
    "restarting": "warning",
    "weights_lag": "warning",
    "pending": "warning",
    "update_skipped": "warning",
    "checkpoint_failed": "bad",
    "failed": "bad",
}
FAULTS = ("restarting", "update_skipped", "checkpoint_failed", "failed")


class EventLog:
    """One thread at a time uses it."""

    def __init__(self, path: Path) -> None:
        self._tail = Tail(path, take=self._take, forget=self._forget)
        self._forget()

    def _forget(self) -> None:
        self._events: deque[Event] = deque(maxlen=EVENTS_KEPT)
        self._decisions: dict[int, DecisionLine] = {}
        self.count = 0  # lines that are events
        self.kinds: Counter[str] = Counter()
        self.started_at: float | None = None
        self.last_at: float | None = None
        self.last_start: Event | None = None  # of its newest life
        self.end: Event | None = None  # after it; None: it goes on, or ended without a word
        self.last_restart: dict[str, Event] = {}  # by process

    def read_on(self) -> None:
        self._tail.read_on()

    def after(self, number: int, limit: int) -> list[Event]:
        return [event for event in self._events if event.number > number][:limit]

    def newest(self, limit: int) -> list[Event]:
        return list(self._events)[-limit:]

    @property
    def decisions(self) -> list[DecisionLine]:
        """The newest first."""
        return sorted(self._decisions.values(), key=lambda line: -line.number)

    @property
    def faults(self) -> int:
        return sum(self.kinds[kind] for kind in FAULTS)

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            self._take_line(line)

    def _take_line(self, line: bytes) -> None:
        details = parsed(line)
        if details is None:
            return
        kind, at = str(details.pop("event", "")), details.pop("time", None)
        if not kind or not isinstance(at, int | float):
            return
        self.last_at = at
        if kind == "decisions":
            self._take_decisions(at, details)
        elif kind == "decisions_ended":
            self._take_outcomes(details)
        else:
            self._take_event(float(at), kind, details)

    def _take_event(self, at: float, kind: str, details: Mapping[str, Any]) -> None:
        self.count += 1
        self.kinds[kind] += 1
        level = LEVELS.get(kind, "plain")
        text = sentence(kind, details)
        event = Event(
            number=self.count, at=at, kind=kind, level=level, text=text, details=dict(details)
        )
        self._events.append(event)
        if kind in ("started", "resumed"):
            self.started_at = self.started_at or at
            self.last_start, self.end = event, None
        elif kind in ("finished", "failed"):
            self.end = event
        elif kind == "restarting":
            self.last_restart[str(details.get("member"))] = event

    def _take_decisions(self, at: float, details: Mapping[str, Any]) -> None:
        for number, policy, reason, probability in details.get("decisions", ()):
            self._decisions[number] = DecisionLine(
                at=at,
                actor=str(details.get("actor")),
                number=number,
                policy=policy,
                reason=reason,
                probability=probability,
            )
        while len(self._decisions) > DECISIONS_KEPT:
            del self._decisions[next(iter(self._decisions))]

    def _take_outcomes(self, details: Mapping[str, Any]) -> None:
        for number, _, _, episode_return, length in details.get("outcomes", ()):
            line = self._decisions.get(number)
            if line is not None:
                ended = episode_return if math.isfinite(episode_return) else None
                self._decisions[number] = line.model_copy(
                    update={"episode_return": ended, "length": length}
                )


def sentence(kind: str, details: Mapping[str, Any]) -> str:
    """An event in words."""
    said = dict(details)
    member = said.get("member")
    step = said.get("env_steps")
    at_step = f" at step {step:,}" if isinstance(step, int) else ""
    match kind:
        case "started":
            return f"started{at_step}" if step else "started"
        case "resumed":
            return f"went on{at_step}, from checkpoint {said.get('checkpoint')}"
        case "finished":
            by = said.get("stopped_by")
            return f"stopped by {by}{at_step}" if by else f"finished{at_step}"
        case "failed":
            last = str(said.get("traceback", "")).strip().splitlines()
            return f"failed{at_step}" + (f": {last[-1]}" if last else "")
        case "restarting":
            reason = f": {said['reason']}" if said.get("reason") else ""
            return f"{member} is started again{reason}"
        case "pending":
            return f"{member} has not begun yet: {said.get('reason')}"
        case "weights_lag":
            return f"{member} lags {said.get('versions')} versions behind {said.get('learner')}"
        case "weights_caught_up":
            return f"{member} has caught up with {said.get('learner')}"
        case "update_skipped":
            return f"{member} skipped an update: {said.get('reason')}"
        case "checkpoint_failed":
            return f"a checkpoint could not be written{at_step}"
        case "command":
            return _asked(said)
    words = [f"{key} {value}" for key, value in said.items() if key != "said_by"]
    return " ".join([kind.replace("_", " "), *words])[:500]


def _asked(said: Mapping[str, Any]) -> str:
    policy = said.get("policy")
    match said.get("name"):
        case "scale":
            return f"asked to scale to {said.get('actors')} actors"
        case "limiter":
            return f"asked for {said.get('updates_per_step')} updates per step of {policy}"
        case name:
            return f"asked to {name} {policy}" if policy else f"asked to {name}"
