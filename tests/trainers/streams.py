"""Many streamed requests to /generate at once, over plain sockets, and what must hold of them."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

PATIENCE = 60.0  # seconds after which a client gives up; no test needs them
SAMPLED = 16  # every so many events one is kept, to compare with the end of its stream


class BrokenStream(Exception):
    """A reply that is not a whole stream of events."""


@dataclass
class Answer:
    """A request, and what came of it."""

    rid: str
    wanted: int  # tokens
    prompt: list[int]
    events: int = 0
    kept: list[bytes] = field(default_factory=list)
    last: bytes = b""
    done: bool = False
    error: str = ""

    @property
    def reply(self) -> Any:
        return json.loads(self.last)


async def ask(port: int, answer: Answer, on_event: Callable[[], None]) -> None:
    """Sends a request and reads its stream to the end. What goes wrong is in `answer.error`."""
    body = json.dumps(
        {
            "rid": answer.rid,
            "input_ids": answer.prompt,
            "sampling_params": {
                "max_new_tokens": answer.wanted,
                "temperature": 1.0,
                "ignore_eos": True,
            },
            "stream": True,
        }
    ).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: engine\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(head.encode() + body)
            await _read(reader, answer, on_event)
        finally:
            writer.close()
    except (OSError, BrokenStream, asyncio.IncompleteReadError) as error:
        answer.error = f"{type(error).__name__}: {error}"


async def _read(reader: asyncio.StreamReader, answer: Answer, on_event: Callable[[], None]) -> None:
    status = await reader.readline()
    while await reader.readline() not in (b"\r\n", b""):
        pass
    if b" 200 " not in status:
        raise BrokenStream(f"{status!r}: {(await reader.read(4096))!r}")
    rest = b""
    while True:
        size = int(await reader.readline() or b"0", 16)
        if size == 0:
            break
        rest += (await reader.readexactly(size + 2))[:-2]
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if not line:
                continue
            if not line.startswith(b"data: ") or answer.done:
                raise BrokenStream(f"after {answer.events} events: {line[:200]!r}")
            if line == b"data: [DONE]":
                answer.done = True
                continue
            answer.last = line[6:]
            if answer.events % SAMPLED == 0:
                answer.kept.append(answer.last)
            answer.events += 1
            on_event()
    if not answer.done:
        raise BrokenStream(f"it ended after {answer.events} events, without [DONE]")


class Streams:
    """`count` clients on one thread, each with one request after the other until `finish`."""

    def __init__(self, port: int, count: int, tokens: tuple[int, int], seed: int = 1) -> None:
        self.port, self.count = port, count
        self._tokens = tokens
        self._dice = random.Random(seed)
        self._events = [0] * count
        self._ended = [0] * count
        self._going = True
        self._free = threading.Event()
        self._free.set()
        self.answers: list[Answer] = []
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()

    async def _run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self.count)))

    async def _client(self, number: int) -> None:
        def on_event() -> None:
            self._events[number] += 1

        while self._going:
            if not self._free.is_set():
                await asyncio.sleep(0.005)
                continue
            wanted = self._dice.randint(*self._tokens)
            prompt = [self._dice.randrange(3, 200) for _ in range(self._dice.randint(1, 9))]
            answer = Answer(f"{number}-{self._ended[number]}", wanted, prompt)
            self.answers.append(answer)
            await ask(self.port, answer, on_event)
            self._ended[number] += 1
            if answer.error:
                return

    def advance(self, events: int) -> None:
        """Waits until every client has received so many more."""
        goal = [before + events for before in self._events]
        end = time.monotonic() + PATIENCE
        while any(now < then for now, then in zip(self._events, goal, strict=True)):
            failed = [answer.error for answer in self.answers if answer.error]
            assert not failed, failed[:3]
            assert time.monotonic() < end, f"streams stand still: {self._events}"
            time.sleep(0.005)

    def hold(self) -> None:
        """No client begins another request."""
        self._free.clear()

    def release(self) -> None:
        self._free.set()

    def finish(self) -> list[Answer]:
        """Every request that was begun, after its end."""
        self._going = False
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "streams do not end"
        return self.answers

    def close(self) -> None:
        self._going = False


def check(answer: Answer, versions: Sequence[str], aborts: bool) -> list[str]:
    """Nothing of a stream was lost or came twice. The versions of its tokens, in order.

    `versions`: labels in the order in which they were served. `aborts`: requests may end early.
    """
    told = f"request {answer.rid}"
    assert not answer.error, f"{told}: {answer.error}"
    reply = answer.reply
    meta, output = reply["meta_info"], reply["output_ids"]
    assert meta["id"] == answer.rid, told
    reason = meta["finish_reason"]
    assert reason["type"] in (("length", "abort") if aborts else ("length",)), (told, reason)
    assert reason["type"] == "abort" or len(output) == answer.wanted, told
    assert len(output) <= answer.wanted, told
    assert meta["completion_tokens"] == len(output), told
    assert meta["prompt_tokens"] == len(answer.prompt), told
    for kept in answer.kept:
        before = json.loads(kept)["output_ids"]
        assert before == output[: len(before)], f"{told}: tokens changed after they were sent"
    spans = meta["weight_versions"]
    end = 0
    for span in spans:
        # Only a request that was ended before its first token has an empty span.
        assert span["start"] == end, (told, spans)
        assert span["end"] > end or (len(spans) == 1 and not output), (told, spans)
        end = span["end"]
    assert end == len(output), (told, spans)
    order = [versions.index(span["version"]) for span in spans]
    assert order == sorted(set(order)) != [], (told, spans)
    assert meta["weight_version"] == spans[-1]["version"], told
    return [span["version"] for span in spans]


def check_all(
    answers: Sequence[Answer], versions: Sequence[str], aborts: bool = False
) -> dict[str, list[str]]:
    """Checks every answer. By the id of its request, the versions of its tokens."""
    found = {answer.rid: check(answer, versions, aborts) for answer in answers}
    assert len(found) == len(answers), "an id came twice"
    return found
