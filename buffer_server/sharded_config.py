"""The settings of `ShardedReplay`."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from buffer_server.addresses import check_address
from buffer_server.connection import ConnectionConfig
from buffer_server.consumers import LARGEST_CONSUMER
from buffer_server.joining import MOST_SHARDS

Address = Annotated[str, AfterValidator(check_address)]


class ShardedConfig(ConnectionConfig):
    addresses: tuple[Address, ...] = Field(min_length=1, max_length=MOST_SHARDS)
    table: str
    seed: int = Field(default=0, ge=0, lt=2**32)  # of how batches are spread over the shards

    # Sampling.
    # Batches under way; 0: each when asked for. Queues are never read ahead.
    prefetch: int = Field(default=2, ge=0, le=64)
    # That one message of a shard may bring parts of, where no draw depends on another (no
    # priorities, no own items). The limiter lets all of them pass, or they are asked for singly.
    batches_at_once: int = Field(default=1, ge=1, le=64)
    own_policy: int | None = Field(default=None, ge=0)  # its place in the portfolio
    own_share: float = Field(default=0.0, ge=0, le=1)  # of each batch at least, where it has any
    # Whose ratio its samples count for, in a table that several share: a place in the portfolio.
    consumer: int | None = Field(default=None, ge=0, le=LARGEST_CONSUMER)
    max_age: int | None = Field(default=None, ge=0)  # in versions, see `DrawRequest`

    # Inserting.
    first_shard: int | None = Field(default=None, ge=0)  # None: at random
    # Bytes under way to each shard; 0: each insert waits for its acknowledgement.
    insert_window_bytes: int = Field(default=4 * 2**20, ge=0)
    queue_bytes: int = Field(default=32 * 2**20, ge=1)  # of all inserts not yet acknowledged
    when_full: Literal["wait", "drop"] = "wait"
    # Until what was sent to a shard that is away goes to the others; None: it waits for it.
    abandon_seconds: float | None = Field(default=60.0, gt=0)

    # Priorities.
    updates_under_way: int = Field(default=64, ge=1, le=4096)  # messages, to each shard

    # Shards that are away or slow.
    watch_seconds: float = Field(default=0.5, gt=0, le=60)  # how old news of a shard may be
    patience_seconds: float = Field(default=1.0, gt=0, le=600)  # with one that does not answer

    @model_validator(mode="after")
    def _fitting(self) -> ShardedConfig:
        twice = {address for address in self.addresses if self.addresses.count(address) > 1}
        if twice:
            raise ValueError(f"{', '.join(sorted(twice))} is named twice: name each shard once")
        if self.first_shard is not None and self.first_shard >= len(self.addresses):
            raise ValueError(
                f"first_shard {self.first_shard} is not there: "
                f"{len(self.addresses)} shards count from 0"
            )
        if self.own_share and self.own_policy is None:
            raise ValueError(f"own_share {self.own_share:g} takes own_policy: say whose items")
        return self

    def own_items(self, size: int) -> int:
        """How many items of a batch must be the policy's own: the share, rounded up."""
        return math.ceil(self.own_share * size)
