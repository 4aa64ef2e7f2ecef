"""The client of an engine's HTTP interface against a server that keeps what it is sent."""

from __future__ import annotations

import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

import numpy as np
import pytest
import safetensors.numpy
import syncline


class Request(NamedTuple):
    path: str
    query: dict[str, str]
    content_type: str
    body: bytes


class Engine(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[Request] = []
        self.status = 200
        self.reply: dict[str, Any] = {"success": True, "message": "Success"}


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_POST(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        query = dict(urllib.parse.parse_qsl(parts.query))
        kind = self.headers["Content-Type"]
        self.server.requests.append(Request(parts.path, query, kind, body))
        reply = json.dumps(self.server.reply).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(engine: Engine) -> syncline.Client:
    return syncline.Client(f"http://127.0.0.1:{engine.server_port}", timeout=60)


def sent(engine: Engine) -> list[tuple[str, Any]]:
    return [(request.path, json.loads(request.body)) for request in engine.requests]


def test_sessions(engine: Engine, client: syncline.Client) -> None:
    assert client.begin_update() == engine.reply
    client.begin_update(selector="draft", sync_base=False)
    assert client.end_update() == engine.reply
    client.end_update(abort=True)
    assert sent(engine) == [
        ("/begin_weight_update", {"selector": "all", "sync_base": True}),
        ("/begin_weight_update", {"selector": "draft", "sync_base": False}),
        ("/end_weight_update", {"abort": False}),
        ("/end_weight_update", {"abort": True}),
    ]


def test_tensors_are_sent_as_one_safetensors_file(engine: Engine, client: syncline.Client) -> None:
    tensors = {
        "odd": np.arange(5, dtype=np.uint8),
        "a/ü": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "empty": np.zeros((0, 3), np.float16),
        "scalar": np.float32(2.5),
    }
    reply = client.update_from_tensors(
        tensors, weight_version="a b&c", flush_cache=False, selector="target"
    )
    assert reply == engine.reply
    (request,) = engine.requests
    assert request.path == "/update_weights_from_tensor_raw"
    assert request.query == {
        "weight_version": "a b&c",
        "flush_cache": "false",
        "selector": "target",
    }
    assert request.content_type == "application/octet-stream"
    received = safetensors.numpy.load(request.body)
    assert sorted(received) == sorted(tensors)
    for name, value in tensors.items():
        assert received[name].dtype == value.dtype and received[name].shape == value.shape
        assert np.array_equal(received[name], value)


def test_defaults_of_tensors(engine: Engine, client: syncline.Client) -> None:
    client.update_from_tensors([("w", np.zeros(3, np.float32))])
    client.update_from_tensors({})
    assert [request.query for request in engine.requests] == [{"flush_cache": "true"}] * 2
    assert safetensors.numpy.load(engine.requests[1].body) == {}


def test_a_failure_has_the_engines_words(engine: Engine, client: syncline.Client) -> None:
    engine.status = 400
    engine.reply = {"success": False, "message": "w: expected F32, got F64"}
    with pytest.raises(syncline.InvalidArgumentError, match="w: expected F32, got F64"):
        client.update_from_tensors({"w": np.zeros(3)})


def test_names_that_cannot_be_sent(engine: Engine, client: syncline.Client) -> None:
    twice = [("w", np.zeros(1)), ("w", np.zeros(1))]
    with pytest.raises(syncline.InvalidArgumentError, match="'w' stands twice"):
        client.update_from_tensors(twice)
    with pytest.raises(syncline.InvalidArgumentError, match="'__metadata__' is not for a tensor"):
        client.update_from_tensors({"__metadata__": np.zeros(1)})
    assert engine.requests == []


def test_the_checker(engine: Engine, client: syncline.Client) -> None:
    engine.reply = {"success": True, "message": "Success.", "per_engine_checksum": "ab"}
    assert client.weights_checker()["per_engine_checksum"] == "ab"
    client.weights_checker(
        "compare", selector="draft", skip=("a", "b"), allow_quant_error=True, hash="sha256"
    )
    defaults = {
        "action": "checksum",
        "selector": "all",
        "skip_tensor_list": [],
        "allow_quant_error": False,
        "hash": "device",
    }
    compare = {
        "action": "compare",
        "selector": "draft",
        "skip_tensor_list": ["a", "b"],
        "allow_quant_error": True,
        "hash": "sha256",
    }
    assert sent(engine) == [("/weights_checker", defaults), ("/weights_checker", compare)]
    engine.status = 400
    engine.reply = {"success": False, "message": "check tensor equality failed:\nname=w"}
    with pytest.raises(syncline.InvalidArgumentError, match="name=w"):
        client.weights_checker("compare")
