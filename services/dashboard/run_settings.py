"""What a run was asked to do, from its `config.yaml`, without the classes behind it.

A run may use algorithms that are not importable where somebody looks at it; its settings are read
as plain values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from repertory.errors import UsageError

try:  # many times as fast, where it was built
    from yaml import CSafeLoader as Loader
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class RunSettings:
    text: str  # the file
    env: str
    learners: Mapping[str, str]  # name -> algorithm
    steps: int
    seed: int
    updates_per_step: Mapping[str, float]  # of off-policy learners
    learning_starts: int  # the latest
    director: Mapping[str, Any]

    @property
    def group(self) -> str:
        """Of runs that differ in their seed alone, as `repertory plot` puts them together."""
        return f"{'+'.join(self.learners)} on {self.env}"

    @classmethod
    def read(cls, path: Path) -> RunSettings:
        try:
            text = path.read_text()
            document = yaml.load(text, Loader=Loader)
            learners = document["learners"]
            off_policy = {name: one for name, one in learners.items() if "updates_per_step" in one}
            return cls(
                text=text,
                env=str(document["env"]["id"]),
                learners={str(name): str(one["algorithm"]) for name, one in learners.items()},
                steps=int(document["steps"]),
                seed=int(document["seed"]),
                updates_per_step={
                    name: float(one["updates_per_step"]) for name, one in off_policy.items()
                },
                learning_starts=max(
                    (int(one["learning_starts"]) for one in off_policy.values()), default=0
                ),
                director=document.get("director") or {},
            )
        except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path} is not the config of a run: {error}") from error
