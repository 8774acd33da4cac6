"""A TCP proxy whose network can be cut, as a process: ``python -m bench.devices.faulty_proxy PORT``.

It listens on a free loopback port, prints this port, and forwards every connection to ``PORT``. Each line on its
standard input is an order, which it answers with ``ok``:

- ``hole``: data on the present connections is dropped silently; new connections are forwarded.
- ``down``: like ``hole``, and data on new connections is dropped too, until ``up``.
- ``reset``: the present connections are reset.
- ``up``: new connections are forwarded again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
from types import TracebackType

from bench.processes import ROOT, die_with_parent

_ORDERS = ("hole", "down", "reset", "up")
# Closing a socket with this option set sends a reset.
_LINGER_NONE = struct.pack("ii", 1, 0)


class _Forwarder:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._links: list[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = []
        self._generation = 0
        self._down = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            await self._swallow(reader)
            return
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            writer.close()
            return
        self._links.append((writer, other_writer))
        generation = self._generation
        await asyncio.gather(self._copy(reader, other_writer, generation), self._copy(other_reader, writer, generation))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, generation: int) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if generation != self._generation:
                    await self._swallow(reader)
                    return
                writer.write(data)
                await writer.drain()
            if generation == self._generation:
                writer.close()

    async def _swallow(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass

    def order(self, word: str) -> None:
        if word in ("hole", "down"):
            self._generation += 1
        if word in ("down", "up"):
            self._down = word == "down"
        if word == "reset":
            for link in self._links:
                for writer in link:
                    connection: socket.socket | None = writer.get_extra_info("socket")
                    if connection is not None and not writer.is_closing():
                        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
                        writer.transport.abort()
            self._links.clear()


async def _run(target_port: int) -> None:
    forwarder = _Forwarder(target_port)
    server = await asyncio.start_server(forwarder.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        forwarder.order(line.decode().strip())
        print("ok", flush=True)


class FaultyProxy:
    """Context manager that starts the proxy as a child process and gives it orders. ``port``: where it listens."""

    def __init__(self, target_port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.devices.faulty_proxy", str(target_port)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def __enter__(self) -> FaultyProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def order(self, word: str) -> None:
        """Give an order and wait until it is carried out. Raises ValueError for an unknown order."""
        if word not in _ORDERS:
            raise ValueError(f"no order {word!r}: {', '.join(_ORDERS)}")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


if __name__ == "__main__":
    die_with_parent()
    asyncio.run(_run(int(sys.argv[1])))
