"""How the processes of a run reach a shard."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardLink:
    """Where a shard listens and where the others reach it: two, if something is in between."""

    listen: str
    connect: str
