"""The number of a run's actors in a cluster: what was asked for, or its share of what is there.

Machines join and leave, and other runs begin and end; every so often the run looks, says what it
claims, and follows. Outside of clusters the number stays as planned.
"""

from __future__ import annotations

import logging
import time

from repertory.control import Claim, Control, ControlUnavailable
from services.fair_share import share
from services.placement import Placement

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0


class Elastic:
    """Of one run: `look` as often as one likes."""

    def __init__(
        self, control: Control, placement: Placement, learner_cores: float, own_number: int | None
    ) -> None:
        """`learner_cores`: of all its learners together."""
        self.own_number = own_number  # that people asked for; None: its share
        self._control = control
        self._placement = placement
        self._learner_cores = learner_cores
        self._since = time.time()
        self._next_look = 0.0

    def look(self) -> int | None:
        """How many actors there shall be, where that may have changed."""
        if self._placement.node is None or time.monotonic() < self._next_look:
            return None
        self._next_look = time.monotonic() + LOOK_SECONDS
        claim = Claim(
            self._learner_cores if self._placement.home_acts else 0.0,
            self.own_number,
            self._since,
            time.time(),
        )
        try:
            self._control.claim(claim)
            claims = {**self._control.claims(), self._control.run_id: claim}
        except ControlUnavailable as error:
            logger.warning("%s; the number of actors stays for now", error)
            return None
        if self.own_number is not None:
            return self.own_number
        return share(self._placement.machines().cores_for_actors, claims, self._control.run_id)

    def close(self) -> None:
        if self._placement.node is not None:
            try:
                self._control.withdraw_claim()
            except ControlUnavailable as error:  # it ends by itself
                logger.warning("%s", error)
