"""The director as a Ray actor: hands out leases, hears how episodes ended, obeys pins.

One message does it all: an actor says what it has not begun, how its decisions ended, and how many
new ones it wants. What the director knows is in the control plane before an answer leaves, together
with the record of what it decided and heard, so that its successor (Ray starts it again) goes on
exactly where it was and the record has no gap; an answer that was lost on the way does no harm,
since the actor does not name those decisions the next time, and they go out again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from repertory.control import ControlUnavailable
from repertory.errors import UsageError
from repertory.types import DecisionOutcome
from services.decision import Decision, lease_record, outcomes_record
from services.director import Director
from services.hosts import Process, ProcessContext

logger = logging.getLogger(__name__)

RECORDS_KEPT = 1000  # while the control server is away

Steering = Literal["pin", "bench", "release"]


class DirectorHost(Process):
    def __init__(self, context: ProcessContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._control = self.control()
        config = self.config
        self._director = Director(config.director, list(config.learners), config.seed)
        state = self._control.director_state()
        if state is not None:
            self._director.load_state(state)
        self._unrecorded: deque[dict[str, Any]] = deque(maxlen=RECORDS_KEPT)
        self._heartbeat = self.beat("director", self._facts)
        self._heartbeat.keep_progressing()

    def lease(
        self, actor: str, count: int, unplayed: Sequence[int], ended: Sequence[DecisionOutcome]
    ) -> list[Decision]:
        """`unplayed` are those that the actor still has and will play."""
        with self._lock:
            heard = [one for one in ended if self._director.observe(one.outcome, one.decision)]
            self._director.keep_only(actor, unplayed)
            if heard:
                record = outcomes_record(actor, self._director.members, heard)
                self._record("decisions_ended", record)
            decisions = self._director.lease(actor, count) if count > 0 else []
            if decisions:
                self._record("decisions", lease_record(actor, decisions))
            self._remember()
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

    def steer(self, command: Steering, policy: str | None) -> dict[str, Any]:
        """The edition of what is decided from now on, or why it is refused."""
        with self._lock:
            try:
                if command == "release":
                    self._director.release(policy)
                elif policy is None:
                    raise UsageError(f"{command} takes the name of a policy")
                elif command == "pin":
                    self._director.pin(policy)
                else:
                    self._director.bench(policy)
            except UsageError as error:
                return {"error": str(error), "edition": self._director.edition}
            self._remember()
            return {"error": None, "edition": self._director.edition}

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

    def _record(self, kind: str, details: Mapping[str, Any]) -> None:
        name = self.context.name
        self._unrecorded.append({"kind": kind, "member": name, "said_by": name, **details})

    def _remember(self) -> None:
        try:
            self._control.save_director_state(self._director.state(), self._unrecorded)
        except ControlUnavailable as error:  # episodes do not wait for it
            logger.warning("%s", error)
            return
        self._unrecorded.clear()

    def _facts(self) -> dict[str, Any]:
        with self._lock:
            return {"director": self._director.report()}
