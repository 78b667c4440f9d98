"""The director as a Ray actor: hands out leases, hears how episodes ended, obeys pins.

One message does it all: an actor says what it has not begun, how its decisions ended, and how many
new ones it wants. What the director knows is in the control plane before an answer leaves, so that
its successor (Ray starts it again) goes on exactly where it was; an answer that was lost on the way
does no harm, since the actor does not name those decisions the next time, and they go out again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any, Literal

from repertory.control import Control, ControlUnavailable
from repertory.types import DecisionOutcome
from services.decision import Decision, lease_record
from services.director import Director
from services.hosts import Process, ProcessContext

logger = logging.getLogger(__name__)

EDITION_COUNTER = "director_edition"  # among the run's counters, where every process sees it


class DirectorHost(Process):
    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._control = Control(context.control, context.run_id)
        config = self.config
        self._director = Director(config.director, list(config.learners), config.seed)
        state = self._control.director_state()
        if state is not None:
            self._director.load_state(state)
        self._heartbeat = self.beat("director", self._facts)
        self._heartbeat.keep_progressing()

    def lease(
        self, actor: str, count: int, unplayed: Sequence[int], ended: Sequence[DecisionOutcome]
    ) -> list[Decision]:
        """`unplayed` are those that the actor still has and will play."""
        with self._lock:
            for one in ended:
                self._director.observe(one.outcome, one.decision)
            self._director.keep_only(actor, unplayed)
            decisions = self._director.lease(actor, count) if count > 0 else []
            self._remember()
        if decisions:
            self._heartbeat.event("decisions", **lease_record(actor, decisions))
        return decisions

    def observe_evaluation(self, learner: str, env_steps: int, mean: float) -> None:
        with self._lock:
            self._director.observe_evaluation(learner, env_steps, mean)
            self._remember()

    def forget(self, actor: str) -> None:
        """It is gone, and with it what it had not begun."""
        with self._lock:
            self._director.forget(actor)
            self._remember()

    def steer(self, command: Literal["pin", "bench", "release"], policy: str | None) -> None:
        with self._lock:
            if command == "release":
                self._director.release(policy)
            elif policy is not None:
                getattr(self._director, command)(policy)
            self._remember()

    def state(self) -> dict[str, Any]:
        with self._lock:
            return self._director.state()

    def report(self) -> dict[str, Any]:
        with self._lock:
            return self._director.report()

    def update_factors(self) -> dict[str, float]:
        with self._lock:
            return self._director.update_factors()

    def close(self) -> None:
        self._heartbeat.close()

    def _remember(self) -> None:
        try:
            self._control.save_director_state(self._director.state())
            self._control.set_counters(**{EDITION_COUNTER: self._director.edition})
        except ControlUnavailable as error:  # episodes do not wait for it
            logger.warning("%s", error)

    def _facts(self) -> dict[str, Any]:
        with self._lock:
            return {"director": self._director.report()}
