"""Limits of what clients may ask for, over HTTP."""

from __future__ import annotations

import socket
from collections.abc import Callable

import openai
import pytest
from server import PATIENCE, Background, Server, eventually


def test_too_many_requests_that_wait(start: Callable[..., Server]) -> None:
    server = start("--max-queued-requests", 2)
    server.post("/pause_generation", {"mode": "retract"}).ok()
    params = {"max_new_tokens": 4, "temperature": 0}
    waiting = [
        Background(server.generate, input_ids=[i + 1, 2], sampling_params=params) for i in range(2)
    ]
    eventually(lambda: server.load() == 2, "they wait")
    for body in ({"input_ids": [1]}, {"input_ids": [[1], [2]]}, {"input_ids": [1], "stream": True}):
        reply = server.post("/generate", body)
        assert reply.status == 429
        assert reply.headers["retry-after"] == "1"
        assert "2 requests wait already" in reply.json["error"]["message"]
    client = openai.OpenAI(
        base_url=f"http://{server.host}:{server.port}/v1", api_key="none", max_retries=0
    )
    with pytest.raises(openai.RateLimitError, match="2 requests wait already"):
        client.completions.create(model="any", prompt=[1])  # type: ignore[arg-type]
    server.post("/continue_generation", {}).ok()
    assert all(call.result()["output_ids"] for call in waiting)
    assert server.generate(input_ids=[1], sampling_params=params)["output_ids"]


def _answer(server: Server, request: bytes) -> bytes:
    """All that comes until the server closes the connection."""
    with socket.create_connection((server.host, server.port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer


def test_sizes_times_and_connections(start: Callable[..., Server]) -> None:
    server = start(
        *("--max-body", "1K", "--max-header", "2K", "--header-timeout", 0.2),
        *("--idle-timeout", 0.5, "--max-connections", 3),
    )
    assert server.post("/generate", {"input_ids": "x" * 2000}).status == 413
    assert server.request("GET", "/health", **{"X-Long": "x" * 3000}).status == 431
    assert _answer(server, b"GET /health HTT").startswith(b"HTTP/1.1 408")
    assert _answer(server, b"") == b""  # idle
    held = [socket.create_connection((server.host, server.port)) for _ in range(3)]
    try:
        assert _answer(server, b"") == b""
    finally:
        for connection in held:
            connection.close()
    info = server.get("/server_info").ok()
    assert (info["max_body"], info["max_header"], info["max_connections"]) == (1024, 2048, 3)
