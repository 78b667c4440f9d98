"""The base of every settings object: frozen, validated, unknown keys refused.

A replaceable part (algorithm, exploration, sampler, strategy ...) is a class with a nested
`Config`. Where a part stands in another config, users write its short name, or a mapping with
`name` and the part's own settings; what the field then holds is the part's validated `Config`.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SerializeAsAny

from repertory.errors import UsageError
from repertory.parts import PartKind, lookup


class Settings(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


class PartSettings(Settings):
    """Settings of a replaceable part; `name` says which part it is."""

    name: str


class RelabelConfig(PartSettings):
    """Of a choice of goals in hindsight (`actors.goal_choices`)."""

    goals: int = Field(default=4, ge=1, le=100)  # with which each transition is repeated


def _validate_part(kind: PartKind, value: Any) -> Any:
    if isinstance(value, PartSettings):
        return value
    document = {"name": value} if isinstance(value, str) else value
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise UsageError(f"{value!r} does not name a {kind}: give a name or {{name: ..., ...}}")
    return lookup(kind, document["name"]).Config.model_validate(document)


def part_default(name: str) -> Any:
    """The default of a part's field: its short name, looked up when the settings are made."""
    return name


ExplorationSettings = Annotated[
    SerializeAsAny[PartSettings], BeforeValidator(partial(_validate_part, "exploration"))
]
SamplerSettings = Annotated[
    SerializeAsAny[PartSettings], BeforeValidator(partial(_validate_part, "sampler"))
]
# Of an off-policy learner; None: goals stay as they were.
RelabelSettings = Annotated[
    SerializeAsAny[RelabelConfig] | None,
    BeforeValidator(lambda value: None if value is None else _validate_part("relabel", value)),
]
StrategySettings = Annotated[
    SerializeAsAny[PartSettings], BeforeValidator(partial(_validate_part, "strategy"))
]
