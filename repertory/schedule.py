"""A value that decays with environment steps and never below its floor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from repertory.settings import Settings


class Schedule(Settings):
    """From `start` to `final` over `steps` environment steps; `steps` 0 keeps `start` for ever.

    linear:       start + (final - start) * min(1, t / steps)
    exponential:  start * (final / start) ** min(1, t / steps)
    """

    start: float = Field(ge=0)
    final: float = Field(default=0.0, ge=0)  # the floor
    steps: int = Field(default=0, ge=0)
    shape: Literal["linear", "exponential"] = "linear"

    def at(self, env_steps: int) -> float:
        if self.steps == 0:
            return self.start
        fraction = min(1.0, env_steps / self.steps)
        if self.shape == "linear" or self.start == 0:
            return self.start + (self.final - self.start) * fraction
        # An exponential never reaches zero: decay towards a thousandth, then stand on the floor.
        floor = max(self.final, 1e-3 * self.start)
        return self.final if fraction == 1.0 else self.start * (floor / self.start) ** fraction
