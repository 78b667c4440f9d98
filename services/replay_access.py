"""Which tables the shards of a run hold, and how its processes reach them.

Which learners share a table is said by `repertory.table_layout`. The limiter of a replay holds
each learner's ratio of updates to environment steps, whatever the speeds of all sides: for each
item that comes in a learner may sample `updates_per_step * batch_size`, times a factor where the
director shares the updates out (`services.learner_time`). Where a step becomes several items
(hindsight), each lets a learner sample its part of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from buffer_server.sharded import ShardedConfig, ShardedReplay
from buffer_server.table_config import LimiterConfig, TableConfig, stretch_table, table_config
from repertory.config import LearnerConfig, OffPolicyConfig, RunConfig
from repertory.parts import lookup
from repertory.seeding import derive_seed
from repertory.settings import PartSettings
from repertory.specs import EnvSpec
from repertory.table_layout import (
    TableLayout,
    shared_extras,
    stretches_of,
    table_of,
    tables_of,
)
from repertory.types import ColumnSpec

UNIFORM = "uniform"
# With these a message costs next to nothing for each, and none is old when its turn comes.
MOST_BATCHES_AT_ONCE = 8


def batch_size(config: RunConfig, learner_config: LearnerConfig, actors: int) -> int:
    """Items per update; an on-policy item is a segment, and an update takes one of every copy."""
    if isinstance(learner_config, OffPolicyConfig):
        return learner_config.batch_size
    return config.env.copies * actors


def run_table(
    config: RunConfig,
    spec: EnvSpec,
    layout: TableLayout,
    extras: Mapping[str, Mapping[str, ColumnSpec]],
) -> TableConfig:
    """One table, of a run that has it in one piece; `extras` are those of each learner's policy."""
    readers = [config.learners[learner] for learner in layout.learners]
    # Where one of them normalises rewards, the table has what it needs for that.
    asking = max(readers, key=lambda reader: reader.normalize_reward)
    if layout.stretches:
        return stretch_table(config, asking, spec, shared_extras(layout, extras))
    table = table_config(config, asking, spec, shared_extras(layout, extras))
    if layout.segment_length is None:
        table = table.model_copy(update={"sampler": replay_sampler(config)})
    return table


def replay_sampler(config: RunConfig) -> PartSettings:
    """In a portfolio uniform sampling also knows whose experience an item is."""
    sampler: PartSettings = config.replay.sampler
    if len(config.learners) > 1 and sampler.name == UNIFORM:
        return lookup("sampler", "mixture").Config()
    return sampler


def sends_priorities(config: RunConfig) -> bool:
    return replay_sampler(config).name not in (UNIFORM, "mixture")


def shard_tables(
    config: RunConfig,
    spec: EnvSpec,
    extras: Mapping[str, Mapping[str, ColumnSpec]],
    *,
    actors: int,
    shards: int,
    index: int,
) -> dict[str, TableConfig]:
    """The tables of one shard of several."""
    tables: dict[str, TableConfig] = {}
    for name, layout in tables_of(config).items():
        table = run_table(config, spec, layout, extras)
        seed = derive_seed(config.seed, "replay", index)
        if layout.segment_length is None:
            bytes_ = table.capacity_bytes
            changes = {
                "capacity": math.ceil(table.capacity / shards),
                "capacity_bytes": None if bytes_ is None else math.ceil(bytes_ / shards),
                "limiter": (
                    LimiterConfig() if layout.stretches else _limiter(config, layout, shards)
                ),
                "seed": seed if index else table.seed,
            }
        else:
            # Room for two rounds of all actors, wherever they go.
            segments = config.env.copies * actors
            changes = {"capacity": (2 + config.max_lag) * segments}
        tables[name] = table.model_copy(update=changes)
    return tables


def samples_per_insert(
    config: RunConfig, layout: TableLayout, factors: Mapping[str, float] | None = None
) -> dict[int, float]:
    """Of each reader of a replay, by its place in the portfolio."""
    places = list(config.learners)
    ratios = {}
    for learner in layout.learners:
        reader = config.learners[learner]
        assert isinstance(reader, OffPolicyConfig)
        factor = 1.0 if factors is None else factors[learner]
        samples_per_step = factor * reader.updates_per_step * reader.batch_size
        ratios[places.index(learner)] = samples_per_step / layout.items_per_step
    return ratios


def _limiter(config: RunConfig, layout: TableLayout, shards: int) -> LimiterConfig:
    starts = [
        reader.learning_starts
        for learner in layout.learners
        if isinstance(reader := config.learners[learner], OffPolicyConfig)
    ]
    # One message of an actor: what it gathers, and what the end of an episode adds to it.
    largest_insert = layout.items_per_step * (
        config.topology.send_items + config.env.copies * layout.n_step
    )
    return LimiterConfig(
        # Nobody begins before it may: all wait for the last.
        min_size=max(1, layout.items_per_step * max(starts) // shards),
        consumers=samples_per_insert(config, layout),
        consumer_buffer_items=2 * largest_insert,
    )


def batches_at_once(config: RunConfig, learner: str, shards: int) -> int:
    """That a learner may draw with one message.

    No more than the limiter lets it be ahead of its actors anyway. One where draws depend on each
    other or on who else draws: by priorities, in portfolios, among replicas.
    """
    reader = config.learners[learner]
    alone = len(config.learners) == 1 and config.topology.replicas == 1
    if not (
        alone and isinstance(reader, OffPolicyConfig) and config.replay.sampler.name == UNIFORM
    ):
        return 1
    layout = tables_of(config)[table_of(config, learner)]
    limiter = _limiter(config, layout, shards)
    assert limiter.consumer_buffer_items is not None
    samples_ahead = samples_per_insert(config, layout)[0] * limiter.consumer_buffer_items
    return max(1, min(MOST_BATCHES_AT_ONCE, int(samples_ahead / 2 // reader.batch_size)))


def inserts_for(
    table: str,
    addresses: Sequence[str],
    *,
    caller: str,
    window_bytes: int,
    credentials: Mapping[str, Any],
) -> ShardedReplay:
    """An actor's way to one table."""
    return ShardedReplay(
        ShardedConfig(
            addresses=tuple(addresses),
            table=table,
            caller=caller,
            prefetch=0,
            # An actor must feel the limiter: what is under way counts as not yet taken.
            insert_window_bytes=window_bytes,
            queue_bytes=window_bytes * len(addresses),
            **credentials,
        )
    )


def samples_for(
    config: RunConfig,
    learner: str,
    addresses: Sequence[str],
    *,
    caller: str,
    prefetch: int,
    seed: int,
    credentials: Mapping[str, Any],
) -> ShardedReplay:
    """A learner's way to the table it reads: how much of it, and whose experience."""
    place, learner_config = list(config.learners).index(learner), config.learners[learner]
    wishes: dict[str, Any] = {}
    if isinstance(learner_config, OffPolicyConfig):
        wishes["consumer"] = place
        wishes["batches_at_once"] = batches_at_once(config, learner, len(addresses))
        if len(config.learners) > 1:
            wishes["own_policy"] = place
            wishes["own_share"] = learner_config.own_share
            wishes["max_age"] = learner_config.max_age
    return ShardedReplay(
        ShardedConfig(
            addresses=tuple(addresses),
            table=table_of(config, learner),
            caller=caller,
            prefetch=prefetch,
            seed=seed,
            **wishes,
            **credentials,
        )
    )


def stretches_for(
    config: RunConfig,
    learner: str,
    addresses: Sequence[str],
    *,
    caller: str,
    prefetch: int,
    seed: int,
    credentials: Mapping[str, Any],
) -> ShardedReplay | None:
    """A learner's way to its second table, where it has one."""
    table = stretches_of(config, learner)
    if table is None:
        return None
    return ShardedReplay(
        ShardedConfig(
            addresses=tuple(addresses),
            table=table,
            caller=caller,
            prefetch=prefetch,
            seed=seed,
            **credentials,
        )
    )
