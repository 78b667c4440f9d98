"""Which tables the shards of a run hold, and how its processes reach them.

Which learners share a table is said by `repertory.table_layout`. The limiter of a replay holds the
ratio of updates to environment steps, whatever the speeds of both sides: for each item that comes
in it lets `updates_per_step * batch_size` be sampled, for all of its learners together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from buffer_server.sharded import ShardedConfig, ShardedReplay
from buffer_server.table_config import LimiterConfig, TableConfig, table_config
from repertory.config import LearnerConfig, OffPolicyConfig, OnPolicyConfig, RunConfig
from repertory.seeding import derive_seed
from repertory.specs import EnvSpec
from repertory.table_layout import SHARED_TABLE, TableLayout, shared_extras, table_of, tables_of
from repertory.types import ColumnSpec


def table_name(learner: str, learner_config: LearnerConfig) -> str:
    return learner if isinstance(learner_config, OnPolicyConfig) else SHARED_TABLE


def batch_size(config: RunConfig, learner_config: LearnerConfig, actors: int) -> int:
    """Items per update; an on-policy item is a segment, and an update takes one of every copy."""
    if isinstance(learner_config, OffPolicyConfig):
        return learner_config.batch_size
    return config.env.copies * actors


def shard_tables(
    config: RunConfig,
    spec: EnvSpec,
    extras: Mapping[str, Mapping[str, ColumnSpec]],
    *,
    actors: int,
    shards: int,
    index: int,
) -> dict[str, TableConfig]:
    """The tables of one shard of several; `extras` are those of each learner's policy."""
    tables: dict[str, TableConfig] = {}
    for name, layout in tables_of(config).items():
        readers = [config.learners[learner] for learner in layout.learners]
        # Where one of them normalises rewards, the table has what it needs for that.
        asking = max(readers, key=lambda reader: reader.normalize_reward)
        table = table_config(config, asking, spec, shared_extras(layout, extras))
        seed = derive_seed(config.seed, "replay", index)
        if layout.segment_length is None:
            bytes_ = table.capacity_bytes
            changes = {
                "capacity": math.ceil(table.capacity / shards),
                "capacity_bytes": None if bytes_ is None else math.ceil(bytes_ / shards),
                "limiter": _limiter(config, layout, shards),
                "seed": seed if index else table.seed,
            }
        else:
            # Room for two rounds of all actors, wherever they go.
            lag = config.topology.max_lag
            changes = {"capacity": (2 + lag) * batch_size(config, asking, actors)}
        tables[name] = table.model_copy(update=changes)
    return tables


def _limiter(config: RunConfig, layout: TableLayout, shards: int) -> LimiterConfig:
    readers = [
        reader
        for learner in layout.learners
        if isinstance(reader := config.learners[learner], OffPolicyConfig)
    ]
    samples_per_insert = sum(reader.updates_per_step * reader.batch_size for reader in readers)
    # One message of an actor: what it gathers, and what the end of an episode adds to it.
    largest_insert = config.topology.send_items + config.env.copies * layout.n_step
    largest_sample = max(reader.batch_size for reader in readers)
    least = max(samples_per_insert * largest_insert, float(largest_sample), 1.0)
    return LimiterConfig(
        # Nobody begins before it may: all wait for the last.
        min_size=max(1, max(reader.learning_starts for reader in readers) // shards),
        samples_per_insert=samples_per_insert,
        error_buffer=2 * least,
    )


def replay_for(
    config: RunConfig,
    learner: str,
    addresses: Sequence[str],
    *,
    caller: str,
    token_file: Path | None = None,
    prefetch: int = 0,
    seed: int = 0,
    window_bytes: int = 4 * 2**20,
) -> ShardedReplay:
    return ShardedReplay(
        ShardedConfig(
            addresses=tuple(addresses),
            table=table_of(config, learner),
            caller=caller,
            token_file=token_file,
            prefetch=prefetch,
            seed=seed,
            # An actor must feel the limiter: what is under way counts as not yet taken.
            insert_window_bytes=window_bytes,
            queue_bytes=window_bytes * len(addresses),
        )
    )
