"""A replay shard inside this process: the same tables, reached over gRPC through a unix socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from buffer_server.client import ClientConfig, ReplayClient
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.table import Table


class LocalShard:
    """Serves the tables from the moment it is made; `clients` are the ways to them, by name."""

    def __init__(self, tables: Sequence[Table]) -> None:
        # Socket paths may not be long, and a run directory's may be.
        self._folder = Path(tempfile.mkdtemp(prefix="repertory-"))
        try:
            address = f"unix:{self._folder / 'shard.sock'}"
            self._server = ReplayServer(list(tables), ServerConfig(address=address))
            self._server.start()
            self.clients = {
                table.name: ReplayClient(ClientConfig(address=address, table=table.name))
                for table in tables
            }
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    def close(self) -> None:
        for client in self.clients.values():
            client.close()
        self._server.stop()
        shutil.rmtree(self._folder)
