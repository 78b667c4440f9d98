"""The way to the control server for other machines: TLS on both sides, then its own password.

The server itself listens on a unix socket only. Who shows no certificate of the cluster's authority
does not get as far as being asked for the password.
"""

from __future__ import annotations

import asyncio
import ssl
import threading

from repertory.closing import Closing
from repertory.errors import UsageError
from services.clusters.node import Node

CHUNK_BYTES = 2**16
HANDSHAKE_SECONDS = 10.0
START_SECONDS = 10.0


class ControlGate(Closing):
    """Open from the moment it is made, in a thread of its own."""

    def __init__(self, node: Node, socket_path: str) -> None:
        self._socket_path = socket_path
        host, _, port = node.control_address.rpartition(":")
        self._place = (node.address if host.strip("[]") == node.address else "", int(port))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(node.authority))
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(node.certificate, node.key)
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gate", daemon=True)
        self._thread.start()
        opening = asyncio.run_coroutine_threadsafe(self._open(), self._loop)
        try:
            self._server = opening.result(START_SECONDS)
        except OSError as error:
            self._stop_loop()
            raise UsageError(
                f"the control server cannot listen on {self._place[0] or '*'}:{port}: "
                f"{error.strerror or error}; choose another ports.control"
            ) from error

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(START_SECONDS)
        self._stop_loop()

    def _stop_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    async def _open(self) -> asyncio.Server:
        host, port = self._place
        return await asyncio.start_server(self._serve, host or None, port)

    async def _shut(self) -> None:
        self._server.close()
        await asyncio.sleep(0)  # those just accepted begin: one that never did would stay open
        while serving := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)
            await asyncio.sleep(0)
        for _ in range(2):  # for what was aborted to be closed
            await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            await writer.start_tls(self._context, ssl_handshake_timeout=HANDSHAKE_SECONDS)
            # While the server is started again it is not there: callers try again too.
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._socket_path)
            ends.append(inner_writer)
            passing = [
                asyncio.create_task(_pass_on(reader, inner_writer)),
                asyncio.create_task(_pass_on(inner_reader, writer)),
            ]
            try:
                await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in passing:
                    one.cancel()
                await asyncio.gather(*passing, return_exceptions=True)
        except (OSError, asyncio.CancelledError):  # whoever it was has gone, or the gate closes
            pass
        finally:
            for end in ends:
                end.transport.abort()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
