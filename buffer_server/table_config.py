"""The settings a table is made of, and which table a learner of a run needs.

    tables:
      td3:
        capacity: 1000000
        sampler: {name: prioritized, alpha: 0.6}
        limiter: {min_size: 1000, samples_per_insert: 256, error_buffer: 65536}
        # or, where several learners share it, by their places in the portfolio:
        # limiter: {min_size: 1000, consumers: {0: 256, 1: 32}, consumer_buffer_items: 256}
        columns:
          observation: {dtype: <f4, shape: [17]}
          ...

`table_config` derives one from the settings of a run; a file like this says the same to a shard.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, ValidationError

from buffer_server.capacity import Capacity
from buffer_server.rate_limiter import RateLimiter
from buffer_server.table import Table
from repertory.config import LearnerConfig, OffPolicyConfig, OnPolicyConfig, RunConfig, read_yaml
from repertory.config_messages import explain
from repertory.errors import UsageError
from repertory.parts import lookup
from repertory.seeding import derive_seed
from repertory.settings import SamplerSettings, Settings, part_default
from repertory.specs import EnvSpec
from repertory.types import ColumnSpec

LARGEST_AXIS = 2**31 - 1


def _check_dtype(text: str) -> str:
    try:
        return np.dtype(text).str
    except TypeError as error:
        raise ValueError(f"{text!r} is not a dtype: write it as NumPy does, <f4 or |u1") from error


class ColumnConfig(Settings):
    dtype: Annotated[str, AfterValidator(_check_dtype)]
    shape: tuple[Annotated[int, Field(ge=0, le=LARGEST_AXIS)], ...] = ()
    stack: int = Field(default=1, ge=1, le=64)


class LimiterConfig(Settings):
    min_size: int = Field(default=1, ge=1)  # items before the first sample
    samples_per_insert: float | None = Field(default=None, gt=0)  # None: no ratio
    error_buffer: float | None = Field(default=None, gt=0)  # how far either side may run ahead
    # Instead of one ratio for all callers: the samples per insert of each learner that samples.
    consumers: dict[int, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    consumer_buffer_items: int | None = Field(default=None, ge=1)  # inserted items, for them

    def build(self) -> RateLimiter:
        return RateLimiter(
            min_size=self.min_size,
            samples_per_insert=self.samples_per_insert,
            error_buffer=self.error_buffer,
            consumers=self.consumers,
            consumer_buffer_items=self.consumer_buffer_items,
        )


class TableConfig(Settings):
    columns: dict[str, ColumnConfig]
    capacity: int = Field(default=1_000_000, ge=1)  # items
    capacity_bytes: int | None = Field(default=None, ge=1)  # whichever is reached first
    sampler: SamplerSettings = part_default("uniform")
    limiter: LimiterConfig = Field(default_factory=LimiterConfig)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @property
    def signature(self) -> dict[str, ColumnSpec]:
        return {
            name: ColumnSpec(config.dtype, config.shape, config.stack)
            for name, config in self.columns.items()
        }

    def build(self, name: str) -> Table:
        signature = self.signature
        capacity = Capacity.within(signature, self.capacity, self.capacity_bytes).items
        sampler = lookup("sampler", self.sampler.name)
        return Table(
            name,
            signature,
            capacity,
            sampler(self.sampler, capacity),
            self.limiter.build(),
            seed=self.seed,
            capacity_bytes=self.capacity_bytes,
        )


class TablesFile(Settings):
    tables: dict[str, TableConfig]


def read_tables(path: Path) -> dict[str, TableConfig]:
    """The tables of a file, or a UsageError with one sentence for the first thing wrong."""
    document = read_yaml(path)
    try:
        return TablesFile.model_validate(document).tables
    except ValidationError as error:
        sentence = explain(error, document, TablesFile, remedy="write it there")
        raise UsageError(f"{path}: {sentence}") from None


def table_config(
    config: RunConfig,
    learner_config: LearnerConfig,
    spec: EnvSpec,
    policy_extras: Mapping[str, ColumnSpec],
) -> TableConfig:
    """A replay for off-policy learners, a queue of segments for on-policy ones."""
    extras = dict(policy_extras)
    if learner_config.normalize_reward:
        extras["discounted_return"] = ColumnSpec("<f4", ())
    segment_length, capacity_bytes = None, None
    if isinstance(learner_config, OnPolicyConfig):
        segment_length = learner_config.segment_length
        extras["boundary"] = ColumnSpec("|b1", ())
        sampler = lookup("sampler", "fifo").Config()
        capacity = 2 * config.env.copies
    else:
        sampler = config.replay.sampler
        assert isinstance(learner_config, OffPolicyConfig)
        capacity = min(config.replay.capacity, config.steps * learner_config.items_per_step)
        capacity_bytes = config.replay.capacity_bytes
    signature = spec.transition_signature(extras, segment_length)
    if segment_length is None and spec.observation_kind == "pixels":
        # `ChannelFirst` joins a stack's frames as they are, one behind the other.
        for name in ("observation", "next_observation"):
            signature[name] = replace(signature[name], stack=config.env.frame_stack)
    _refuse_more_than_memory(Capacity.within(signature, capacity, capacity_bytes).nbytes, config)
    return TableConfig(
        columns={
            name: ColumnConfig(dtype=column.dtype, shape=column.shape, stack=column.stack)
            for name, column in signature.items()
        },
        capacity=capacity,
        capacity_bytes=capacity_bytes,
        sampler=sampler,
        seed=derive_seed(config.seed, "replay"),
    )


def stretch_table(
    config: RunConfig,
    learner_config: LearnerConfig,
    spec: EnvSpec,
    policy_extras: Mapping[str, ColumnSpec],
) -> TableConfig:
    """The second table of a learner of two levels: like its first, sampled evenly.

    It has no ratio to keep: how many goals there are in so many steps is the policy's business.
    """
    table = table_config(config, learner_config, spec, policy_extras)
    seed = derive_seed(config.seed, "replay", "stretches")
    return table.model_copy(update={"sampler": lookup("sampler", "uniform").Config(), "seed": seed})


def _refuse_more_than_memory(nbytes: int, config: RunConfig) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if nbytes > 0.9 * physical:
        raise UsageError(
            f"replay.capacity = {config.replay.capacity} is refused: it takes "
            f"{nbytes / 2**30:.1f} GiB when full, this machine has {physical / 2**30:.1f} GiB; "
            "lower it with --set replay.capacity=... or replay.capacity_bytes=..."
        )
