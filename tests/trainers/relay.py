"""A relay before an engine that loses some of its replies."""

from __future__ import annotations

import asyncio
import threading


class Relay:
    """Passes connections on to `target`; closes every `every`-th whose request starts with `lose`
    when the first byte of its reply comes, instead of passing it on.
    """

    def __init__(self, target: int, lose: bytes, every: int) -> None:
        self._target, self._lose, self._every = target, lose, every
        self._seen = 0
        self.lost = 0
        self.port = 0
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        ready.wait()

    async def _run(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await self._end.wait()
        server.close()

    async def _connection(self, client: asyncio.StreamReader, out: asyncio.StreamWriter) -> None:
        engine, request = await asyncio.open_connection("127.0.0.1", self._target)
        first = await client.read(65536)
        losing = False
        if first.startswith(self._lose):
            self._seen += 1
            losing = self._seen % self._every == 0
        request.write(first)
        sending = asyncio.create_task(_pass(client, request))
        reply = await engine.read(65536)
        if losing:
            self.lost += 1
        else:
            out.write(reply)
            receiving = asyncio.create_task(_pass(engine, out))
            await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_COMPLETED)
            receiving.cancel()
        sending.cancel()
        out.close()
        request.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()


async def _pass(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
