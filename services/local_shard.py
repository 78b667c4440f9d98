"""A replay shard inside this process: the same table, reached over gRPC through a unix socket."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from buffer_server.client import ClientConfig, ReplayClient
from buffer_server.server import ReplayServer, ServerConfig
from buffer_server.table import Table


class LocalShard:
    """Serves `table` from the moment it is made; `client` is the way to it."""

    def __init__(self, table: Table) -> None:
        # Socket paths may not be long, and a run directory's may be.
        self._folder = Path(tempfile.mkdtemp(prefix="repertory-"))
        try:
            address = f"unix:{self._folder / 'shard.sock'}"
            self._server = ReplayServer([table], ServerConfig(address=address))
            self._server.start()
            self.client = ReplayClient(ClientConfig(address=address, table=table.name))
        except BaseException:
            shutil.rmtree(self._folder)
            raise

    def close(self) -> None:
        self.client.close()
        self._server.stop()
        shutil.rmtree(self._folder)
