"""A replay shard as a Ray actor. Imports no torch: shards are many, and small."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from buffer_server.process import ShardConfig, ShardProcess
from buffer_server.server import ServerConfig
from buffer_server.table_config import TableConfig
from services.hosts import Process, ProcessContext

logger = logging.getLogger(__name__)

CHECKPOINT_SECONDS = 60.0
# In a cluster actors come as machines do, and each has a stream to every shard.
MANY_CALLERS: dict[str, Any] = {"max_clients": 16_384, "max_streams": 4096}


class ShardHost(Process):
    """A replay shard."""

    def __init__(
        self, context: ProcessContext, index: int, listen: str, tables: Mapping[str, TableConfig]
    ) -> None:
        super().__init__(context)
        self._shard: ShardProcess | None = None
        self._heartbeat = self.beat("shard", self._facts)
        clustered = {} if self.node is None else {**self.node.as_server(), **MANY_CALLERS}
        config = ShardConfig(
            tables=dict(tables),
            server=ServerConfig(address=listen, **clustered),
            checkpoint_dir=self.folder / "replay" / f"shard-{index}",
            checkpoint_every_seconds=CHECKPOINT_SECONDS,
        )
        self._shard = ShardProcess(config, say=logger.info)

    def run(self) -> None:
        assert self._shard is not None
        try:
            self._shard.run(on_ready=lambda ready: self._heartbeat.keep_progressing())
        finally:
            self._heartbeat.close()

    def stop(self) -> None:
        assert self._shard is not None
        self._shard.stop()

    def _facts(self) -> dict[str, Any]:
        """All its tables together, and each with all that it says of itself."""
        if self._shard is None:  # the heart beats before all is restored
            return {}
        statistics = self._shard.statistics()
        tables = statistics.tables.values()
        return {
            "size": sum(table.size for table in tables),
            "size_bytes": sum(table.size_nbytes for table in tables),
            "inserted": sum(table.inserted for table in tables),
            "sampled": sum(table.sampled for table in tables),
            "evicted": sum(table.evicted for table in tables),
            "blocked": [f"{one.caller}: {one.reason}" for t in tables for one in t.blocked][:3],
            "tables": {name: asdict(table) for name, table in statistics.tables.items()},
            "requests": {name: asdict(one) for name, one in statistics.requests.items()},
        }
