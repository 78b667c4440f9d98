"""How the director of a portfolio chooses: `director:` in a run's settings.

`strategy` decides who acts next; the rest says what it is told, for how long a choice holds, what
every member is sure of, and how learner time follows.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from pydantic import Field

from repertory.errors import UsageError
from repertory.settings import Settings, StrategySettings, part_default


class DirectorConfig(Settings):
    strategy: StrategySettings = part_default("ucb")
    # Of all choices, for each member that is not benched; strategies with an order of their own
    # (`scripted`, `round_robin`) are left alone.
    min_share: float = Field(default=0.05, ge=0, le=1)
    # What an episode counts: its return; the newest evaluated mean of the policy that acted; or how
    # fast the returns of that policy are changing, up or down.
    score: Literal["return", "evaluation", "progress"] = "return"
    # Environment steps of one copy after which the choice is made anew; null: with each episode.
    switch_every: int | None = Field(default=None, ge=1)
    lease: int = Field(default=4, ge=1, le=1000)  # choices handed out at once, per copy
    learner_share: Literal["equal", "by_choice"] = "equal"
    # Whether each learner makes its `updates_per_step`, or all together make as many as one would.
    updates: Literal["per_learner", "shared"] = "per_learner"

    def lease_size(self, copies: int) -> int:
        """How many choices an actor with so many copies asks for."""
        return self.lease * copies

    def require_room_for(self, members: Collection[str]) -> None:
        if len(members) * self.min_share > 1 + 1e-9:  # ten times 0.1 is a little more than 1
            raise UsageError(
                f"director.min_share = {self.min_share:g} is refused: {len(members)} members would "
                f"need {len(members) * self.min_share:.0%} of all choices; "
                f"give at most {1 / len(members):.3g}"
            )
