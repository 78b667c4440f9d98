"""Desired state against observed state: which processes to start, end, or give up on.

Pure logic: the clock and what was observed come in, instructions go out, and nothing here knows
Ray. `services.distributed_run` observes and carries out.

A process that ends is started again after a pause that doubles with each failure in a row, drawn
at random so that a hundred workers do not come back at the same moment. Failures are forgotten
once it has been up for a while. One that says nothing for too long is ended, then the same holds.
After too many failures in a row the supervisor gives up on it: a mistake in the code does not heal.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from repertory.config import RestartConfig

Phase = Literal["waiting", "starting", "up", "ending", "finished", "given_up"]


@dataclass(frozen=True, slots=True)
class Observed:
    """One process that was started, as it looks now."""

    running: bool
    last_sign: float | None = None  # when it last said something, on the caller's clock
    finished: bool = False  # it ended because its work is done
    reason: str = ""  # why it ended


@dataclass(frozen=True, slots=True)
class Start:
    name: str
    incarnation: int  # 1 the first time
    after: str  # why the one before ended; empty the first time


@dataclass(frozen=True, slots=True)
class End:
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    name: str
    failures: int
    reason: str


Instruction = Start | End | GiveUp


@dataclass(slots=True)
class _Slot:
    phase: Phase = "waiting"
    since: float = 0.0  # of the phase
    until: float = 0.0  # of waiting
    incarnation: int = 0
    failures: int = 0  # in a row
    reason: str = ""  # why it is not up


@dataclass(frozen=True, slots=True)
class SlotStatus:
    """For people."""

    phase: Phase
    seconds: float  # for how long by now
    restarts: int
    reason: str


class Supervisor:
    """Call `step` every so often, and carry out what it returns, in order."""

    def __init__(self, config: RestartConfig, seed: int = 0) -> None:
        self._config = config
        self._rng = np.random.default_rng(seed)
        self._slots: dict[str, _Slot] = {}

    def step(
        self, now: float, wanted: Collection[str], observed: Mapping[str, Observed]
    ) -> list[Instruction]:
        """`observed` has every process that was started and whose end was not yet reported here."""
        instructions: list[Instruction] = []
        for name in [name for name in self._slots if name not in wanted]:
            instructions += self._dismiss(now, name, observed.get(name))
        for name in wanted:
            slot = self._slots.setdefault(name, _Slot(since=now))
            instructions += self._look_after(now, name, slot, observed.get(name))
        return instructions

    def status(self, now: float) -> dict[str, SlotStatus]:
        return {
            name: SlotStatus(
                slot.phase, max(0.0, now - slot.since), max(0, slot.incarnation - 1), slot.reason
            )
            for name, slot in self._slots.items()
        }

    def _dismiss(self, now: float, name: str, seen: Observed | None) -> list[Instruction]:
        slot = self._slots[name]
        if seen is None or not seen.running:
            del self._slots[name]
            return []
        if slot.phase == "ending":
            return []
        self._enter(slot, "ending", now, "no longer wanted")
        return [End(name, "no longer wanted")]

    def _look_after(
        self, now: float, name: str, slot: _Slot, seen: Observed | None
    ) -> list[Instruction]:
        if slot.phase in ("finished", "given_up"):
            return []
        if slot.phase == "waiting":
            if now < slot.until:
                return []
            slot.incarnation += 1
            after = slot.reason
            self._enter(slot, "starting", now, "")
            return [Start(name, slot.incarnation, after)]
        if seen is None or not seen.running:
            return self._ended(now, name, slot, seen)
        if slot.phase == "ending":
            return []
        return self._watch(now, name, slot, seen)

    def _watch(self, now: float, name: str, slot: _Slot, seen: Observed) -> list[Instruction]:
        config = self._config
        if slot.phase == "starting":
            if seen.last_sign is not None and seen.last_sign >= slot.since:
                self._enter(slot, "up", now, "")
                return []
            if now - slot.since <= config.start_seconds:
                return []
            reason = f"gave no sign of life in {config.start_seconds:g} s after it was started"
        else:
            last_sign = slot.since if seen.last_sign is None else max(slot.since, seen.last_sign)
            if now - slot.since >= config.healthy_seconds:
                slot.failures = 0
            if now - last_sign <= config.silence_seconds:
                return []
            reason = f"said nothing for {now - last_sign:.0f} s"
        self._enter(slot, "ending", now, reason)
        return [End(name, reason)]

    def _ended(
        self, now: float, name: str, slot: _Slot, seen: Observed | None
    ) -> list[Instruction]:
        if seen is not None and seen.finished:
            self._enter(slot, "finished", now, "its work is done")
            return []
        # What ended it by our own hand says more than that it was killed.
        given = "" if seen is None else seen.reason
        reason = slot.reason if slot.phase == "ending" else given or "it is gone"
        if slot.phase == "up" and now - slot.since >= self._config.healthy_seconds:
            slot.failures = 0
        slot.failures += 1
        if slot.failures > self._config.max_failures:
            self._enter(slot, "given_up", now, reason)
            return [GiveUp(name, slot.failures, reason)]
        self._enter(slot, "waiting", now, reason)
        slot.until = now + self._pause_seconds(slot.failures)
        return []

    def _pause_seconds(self, failures: int) -> float:
        bound = self._config.first_pause_seconds * 2.0 ** min(failures - 1, 30)
        return float(self._rng.uniform(0.5, 1.0)) * min(bound, self._config.longest_pause_seconds)

    def _enter(self, slot: _Slot, phase: Phase, now: float, reason: str) -> None:
        slot.phase, slot.since, slot.reason = phase, now, reason
