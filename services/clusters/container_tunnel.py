"""From a port of this machine to one that is open inside a container alone.

    python -m services.clusters.container_tunnel PORT -- docker compose ... exec -T head

Each connection runs that command with a small program at its end, which speaks through its
standard input and output. So nothing is published, and whoever may use the tunnel is whoever may
run commands in the container.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from repertory.errors import UsageError

CHUNK_BYTES = 2**16
CONNECTIONS = 32  # at once; browsers open a few, and each is a process
# With nothing but Python's own library: it runs in the container.
FAR_END = """
import socket, sys, threading
there = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=10)
there.settimeout(None)
def send():
    while data := sys.stdin.buffer.raw.read(65536):
        there.sendall(data)
    there.shutdown(socket.SHUT_WR)
threading.Thread(target=send, daemon=True).start()
while data := there.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
"""


class ContainerTunnel:
    """`serve` runs until it is cancelled."""

    def __init__(self, command: Sequence[str], port: int) -> None:
        self._command = [*command, "python", "-c", FAR_END, str(port)]
        self._port = port
        self._slots = asyncio.Semaphore(CONNECTIONS)

    async def open(self, local_port: int | None = None) -> asyncio.Server:
        port = self._port if local_port is None else local_port
        try:
            return await asyncio.start_server(self._connect, "127.0.0.1", port)
        except OSError as error:
            raise UsageError(f"cannot listen on port {port} here: {error.strerror}") from error

    async def serve(self) -> None:
        async with await self.open() as server:
            await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with self._slots:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                there = asyncio.create_task(_pass_on(reader, process.stdin))
                await _pass_on(process.stdout, writer)  # until the far end has said everything
                there.cancel()
            finally:
                writer.close()
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):  # one of the two has gone
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def main(words: Sequence[str]) -> None:
    if len(words) < 3 or not words[0].isdigit() or words[1] != "--":
        raise UsageError("give a port, --, and the command that runs others in the container")
    tunnel = ContainerTunnel(words[2:], int(words[0]))
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(tunnel.serve())


if __name__ == "__main__":
    main(sys.argv[1:])
