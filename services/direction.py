"""The head's way to the director: what it tells it and asks of it, each with a deadline.

A portfolio of one has nobody to choose from: there is no director then, and all of this is silent.
The director is a Ray actor that Ray restarts, so that everybody's handle stays good; what it knows
is in the control plane (`services.director_host`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ray

from repertory.errors import RepertoryError
from services.director_host import DirectorHost
from services.hosts import ProcessContext

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0


class Direction:
    """Of one run. `actor` is what workers are given; None where there is nothing to decide."""

    def __init__(self, context: ProcessContext | None, where: Mapping[str, Any]) -> None:
        """`where`: options of Ray that say on which machine."""
        self.actor: Any = None
        if context is not None:
            self.actor = (
                ray.remote(DirectorHost)
                .options(
                    num_cpus=0,
                    max_restarts=-1,
                    max_task_retries=-1,
                    max_concurrency=8,
                    **where,
                )
                .remote(context)
            )

    def evaluated(self, learner: str, env_steps: int, mean: float) -> None:
        if self.actor is not None:
            self.actor.observe_evaluation.remote(learner, env_steps, mean)

    def forget(self, worker: str) -> None:
        """It is gone, and with it what it had not begun."""
        if self.actor is not None:
            self.actor.forget.remote(worker)

    def steer(self, command: str, policy: str | None) -> int:
        """Returns the edition that decisions have from now on; raises what a person should read."""
        if self.actor is None:
            raise RepertoryError(f"{command}: this run has one policy, there is nothing to choose")
        answer = self._ask(self.actor.steer.remote(command, policy))
        if answer is None:
            raise RepertoryError(f"{command}: the director did not answer; try again")
        if answer["error"] is not None:
            raise RepertoryError(answer["error"])
        return int(answer["edition"])

    def report(self) -> Mapping[str, Any] | None:
        """None where there is no director, or it does not answer just now."""
        return None if self.actor is None else self._ask(self.actor.report.remote())

    def state(self) -> Mapping[str, Any] | None:
        return None if self.actor is None else self._ask(self.actor.state.remote())

    def update_factors(self) -> Mapping[str, float] | None:
        return None if self.actor is None else self._ask(self.actor.update_factors.remote())

    def close(self) -> None:
        if self.actor is not None:
            self._ask(self.actor.close.remote())
            ray.kill(self.actor)

    def _ask(self, reference: Any) -> Any:
        try:
            return ray.get(reference, timeout=ANSWER_SECONDS)
        except ray.exceptions.RayError as error:
            logger.warning("the director is away: %s", type(error).__name__)
            return None
