"""The base of every settings object: frozen, validated, unknown keys refused.

A replaceable part (algorithm, exploration, sampler ...) is a class with a nested `Config(Settings)`.
In another config the part stands as a field annotated with `part_field(kind)`: users write a short name,
or a mapping with `name` and the part's own settings, and get the part's validated `Config`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, SerializeAsAny

from repertory.errors import UsageError
from repertory.parts import PartKind, lookup


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class PartSettings(Settings):
    """Settings of a replaceable part; `name` says which part it is."""

    name: str


def part_field(kind: PartKind) -> Any:
    """The annotation of a field that holds a part's settings."""

    def validate(value: Any) -> Any:
        if isinstance(value, PartSettings):
            return value
        document = {"name": value} if isinstance(value, str) else value
        if not isinstance(document, dict) or not isinstance(document.get("name"), str):
            raise UsageError(f"{value!r} does not name a {kind}: give a name or {{name: ..., ...}}")
        return lookup(kind, document["name"]).Config.model_validate(document)

    return Annotated[SerializeAsAny[PartSettings], BeforeValidator(validate)]
