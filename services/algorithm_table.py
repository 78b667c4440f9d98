"""The table of algorithms that `repertory algorithms` prints and docs/algorithms.md shows."""

from __future__ import annotations

import types
from dataclasses import astuple, dataclass
from typing import Any, Literal, Union, get_args, get_origin

from rich.table import Table

from repertory.config import LearnerConfig, OffPolicyConfig, OnPolicyConfig
from repertory.parts import SHORT_NAMES, lookup

SHARED_FIELDS = {*LearnerConfig.model_fields, *OffPolicyConfig.model_fields} | {
    *OnPolicyConfig.model_fields
}


@dataclass(frozen=True, slots=True)
class AlgorithmRow:
    name: str
    data: str
    actions: str
    observations: str
    options: str
    paper: str


def algorithm_rows() -> list[AlgorithmRow]:
    return [_row(name, lookup("algorithm", name)) for name in sorted(SHORT_NAMES["algorithm"])]


def algorithm_table() -> Table:
    rows = algorithm_rows()
    table = Table()
    table.add_column("name", min_width=max(len(row.name) for row in rows))
    for title in ("data", "actions", "observations", "options", "paper"):
        table.add_column(title)
    for row in rows:
        table.add_row(*astuple(row))
    return table


def _row(name: str, algorithm: Any) -> AlgorithmRow:
    bounded = ", bounded" if algorithm.needs_bounds else ""
    return AlgorithmRow(
        name=name,
        data=algorithm.data.replace("_", "-"),
        actions=", ".join(sorted(algorithm.action_kinds)).replace("_", "-") + bounded,
        observations=", ".join(sorted(algorithm.observation_kinds, reverse=True)),
        options=_options(algorithm.Config),
        paper=algorithm.paper,
    )


def _options(config: type[LearnerConfig]) -> str:
    """What can be switched on the algorithm itself: its own settings of a closed set of values."""
    options = []
    for name, field in config.model_fields.items():
        choices = [] if name in SHARED_FIELDS else _choices(field.annotation)
        if choices:
            options.append(name if choices == ["bool"] else f"{name} {'/'.join(choices)}")
    if issubclass(config, OffPolicyConfig):
        options += ["n_step", "prioritized"]
    return ", ".join(options) or "none"


def _choices(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["bool"]
    if get_origin(annotation) is Literal:
        return [str(value) for value in get_args(annotation)]
    if get_origin(annotation) in (Union, types.UnionType):
        return [choice for part in get_args(annotation) for choice in _choices(part)]
    return []
