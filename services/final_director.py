"""The director as it stood when a run ended: what an ensemble chooses by, in a run or an export.

Frozen: it is told of no outcome, so what it believes of each member stays as it was. Its draws come
from the seed it is given, not from where the run's generator happened to be: one seed gives the
same choices twice, another seed others. What the run had leased and not played is taken back.

Left out is the minimum share of each member (`director.min_share`): it is there so that everybody
goes on learning, and here nobody learns. Who was pinned or benched at the end still is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from repertory.director_config import DirectorConfig
from services.director import Director


@dataclass(frozen=True, slots=True)
class FinalDirector:
    config: DirectorConfig
    state: Mapping[str, Any]  # as `Director.state` gives it

    @property
    def members(self) -> tuple[str, ...]:
        return tuple(self.state["members"])

    def report(self) -> dict[str, Any]:
        """Shares, estimates and the rest, as they were at the end."""
        director = Director(self.config, self.members)
        director.load_state(self.state)
        return director.report()

    def chooser(self, seed: int) -> Director:
        """One that decides from here on, by the same strategy."""
        config = self.config.model_copy(update={"min_share": 0.0})
        director = Director(config, self.members, seed)
        director.load_state(
            {
                **self.state,
                "generator": director.state()["generator"],
                "floor": dict.fromkeys(self.members, 0.0),
            }
        )
        director.take_back()
        return director

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.model_dump(mode="json"), "state": dict(self.state)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FinalDirector:
        return cls(DirectorConfig.model_validate(document["config"]), document["state"])
