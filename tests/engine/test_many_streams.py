"""A thousand streams that wait, and 64 that run: threads and memory stay, health answers."""

from __future__ import annotations

import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

IDLE = 1000
ACTIVE = 64


def status(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1])
    raise KeyError(field)


def open_stream(url: str, ids: list[int], count: int) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    params = {"max_new_tokens": count, "ignore_eos": True}
    body = {"input_ids": ids, "sampling_params": params, "stream": True}
    connection.request("POST", "/generate", json.dumps(body))
    return connection


def test_idle_streams_cost_no_threads(start_engine: Any, small_llama: Path) -> None:
    engine = start_engine(small_llama, options={"max_running_requests": ACTIVE})
    engine.generate(input_ids=[1, 2], sampling_params={"max_new_tokens": 4})
    threads, memory = status(engine.pid, "Threads"), status(engine.pid, "VmRSS")

    # They wait at the gate of a paused engine, each connection open.
    engine.pause("retract")
    idle = [open_stream(engine.url, [1 + i % 200, 2], 2) for i in range(IDLE)]
    deadline = time.monotonic() + 60
    while engine.server_info()["internal_states"][0]["num_waiting_reqs"] < IDLE:
        assert time.monotonic() < deadline, "requests do not arrive"
        time.sleep(0.05)
    assert engine.healthy()
    assert status(engine.pid, "Threads") == threads
    assert status(engine.pid, "VmRSS") - memory < 64 << 10, "64 KiB a waiting request at most"
    engine.resume()
    for connection in idle:
        last = connection.getresponse().read().decode().split("\n\n")
        assert last[-2] == "data: [DONE]"
        assert json.loads(last[-3][6:])["meta_info"]["completion_tokens"] == 2
        connection.close()

    # Connections that stay open without a request, beside streams that run.
    netloc = urlsplit(engine.url).netloc
    waiting = [http.client.HTTPConnection(netloc, timeout=120) for _ in range(IDLE)]
    for connection in waiting:
        connection.request("GET", "/get_weight_version")
        connection.getresponse().read()
    with ThreadPoolExecutor(ACTIVE) as pool:
        streams = [
            pool.submit(
                lambda i=i: list(
                    engine.stream(
                        input_ids=[1 + i, 2],
                        sampling_params={"max_new_tokens": 100, "ignore_eos": True},
                    )
                )
            )
            for i in range(ACTIVE)
        ]
        answered = 0
        while not all(stream.done() for stream in streams):
            assert engine.healthy()
            answered += 1
        assert answered > 0
        assert all(len(stream.result()[-1]["output_ids"]) == 100 for stream in streams)
    assert status(engine.pid, "Threads") == threads
    for connection in waiting:
        connection.close()


def test_client_that_goes_away_frees_its_request(start_engine: Any, small_llama: Path) -> None:
    engine = start_engine(small_llama)
    streams = [open_stream(engine.url, [1 + i, 2], 100_000) for i in range(8)]
    for stream in streams:
        stream.getresponse().readline()

    def wait_for(running: int) -> None:
        """The figures follow the replies: they are those of the step before."""
        deadline = time.monotonic() + 30
        while engine.server_info()["internal_states"][0]["num_running_reqs"] != running:
            assert time.monotonic() < deadline, f"never: {running} requests run"
            time.sleep(0.02)

    wait_for(8)
    for stream in streams:
        stream.close()
    wait_for(0)
