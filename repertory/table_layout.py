"""Which tables the learners of a run need, and which of them share one.

An on-policy learner has a queue of its own, under its name. Off-policy learners share a table where
the same items serve them: `replay`, and where that is impossible `replay-2`, `replay-3`, ...

    same n_step, same gamma        the items are the same
    n_step 1, another gamma        all but `discount` is the same, which is gamma or 0: the learner
                                   puts its own gamma there (`own_discount`)
    anything else                  n-step sums differ: a table of its own

Hindsight (`relabel`) adds items to a table, so it is shared only by learners that ask for the same.

A learner of two levels has a second table to itself, `NAME-stretches`: one item for each goal that
its policy has set.

A learner that normalises rewards needs discounted returns of its own gamma with each item, so it
shares only with the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from repertory.config import OffPolicyConfig, OnPolicyConfig, RunConfig
from repertory.errors import UsageError
from repertory.settings import RelabelConfig
from repertory.types import Array, ColumnSpec

SHARED_TABLE = "replay"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What one table holds, and who reads it."""

    learners: tuple[str, ...]  # in the order of the portfolio
    gamma: float
    n_step: int = 1
    segment_length: int | None = None  # of a queue; None: a replay of transitions
    stretches: bool = False  # a replay of stretches, the second table of its one reader
    discounted_return: bool = False  # whether a reader normalises rewards
    relabel: RelabelConfig | None = None  # goals in hindsight
    items_per_step: int = 1  # with it more than one, in the mean over whole episodes


def tables_of(config: RunConfig) -> dict[str, TableLayout]:
    """Every table of a run, those of the first learners first."""
    tables: dict[str, TableLayout] = {}
    for learner, learner_config in config.learners.items():
        if isinstance(learner_config, OnPolicyConfig):
            _put(
                tables,
                learner,
                TableLayout(
                    (learner,),
                    learner_config.gamma,
                    segment_length=learner_config.segment_length,
                    discounted_return=learner_config.normalize_reward,
                ),
            )
        else:
            assert isinstance(learner_config, OffPolicyConfig)
            _join_or_open(tables, learner, learner_config)
            if learner_config.stretches:
                name = f"{learner}-stretches"
                _put(tables, name, TableLayout((learner,), learner_config.gamma, stretches=True))
    return tables


def table_of(config: RunConfig, learner: str) -> str:
    """The name of the table that a learner reads."""
    return next(name for name, table in tables_of(config).items() if learner in table.learners)


def stretches_of(config: RunConfig, learner: str) -> str | None:
    """The name of a learner's second table, where it has one."""
    names = (n for n, t in tables_of(config).items() if t.stretches and learner in t.learners)
    return next(names, None)


def own_discount(discount: Array, gamma: float) -> Array:
    """One-step discounts of a table, for a learner with another gamma than the table's."""
    return np.where(discount == 0, 0, gamma).astype(discount.dtype)


def shared_extras(
    layout: TableLayout, extras: Mapping[str, Mapping[str, ColumnSpec]]
) -> dict[str, ColumnSpec]:
    """What the policies of a table's readers record; `extras` has that of each."""
    joined: dict[str, ColumnSpec] = {}
    for learner in layout.learners:
        for name, spec in extras[learner].items():
            if joined.setdefault(name, spec) != spec:
                raise UsageError(
                    f"the policies of {', '.join(layout.learners)} share a table and record "
                    f"{name!r} as {joined[name]} and {spec}: give one of them another n_step, or "
                    "what it records another name"
                )
    return joined


def _join_or_open(tables: dict[str, TableLayout], learner: str, config: OffPolicyConfig) -> None:
    for name, table in tables.items():
        if _fits(table, config):
            tables[name] = replace(
                table,
                learners=(*table.learners, learner),
                discounted_return=table.discounted_return or config.normalize_reward,
            )
            return
    replays = sum(table.segment_length is None and not table.stretches for table in tables.values())
    _put(
        tables,
        SHARED_TABLE if replays == 0 else f"{SHARED_TABLE}-{replays + 1}",
        TableLayout(
            (learner,),
            config.gamma,
            config.n_step,
            discounted_return=config.normalize_reward,
            relabel=config.relabel,
            items_per_step=config.items_per_step,
        ),
    )


def _fits(table: TableLayout, config: OffPolicyConfig) -> bool:
    if table.segment_length is not None or table.stretches or table.n_step != config.n_step:
        return False
    if table.relabel != config.relabel:
        return False
    if table.gamma == config.gamma:
        return True
    # A table of gamma 0 does not tell where an episode terminated.
    return config.n_step == 1 and table.gamma > 0 and not config.normalize_reward


def _put(tables: dict[str, TableLayout], name: str, layout: TableLayout) -> None:
    if name in tables:
        raise UsageError(
            f"a learner called {name!r} is refused: its table would have the name of one that "
            "other learners have; give it another name"
        )
    tables[name] = layout
