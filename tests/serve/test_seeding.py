"""Engines that start with the live weights of another one."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from quantised import SCHEMES, Case, told
from server import Background, Server
from test_ranks import is_gone, ranks_of
from trainer import OPTIONS, Trainer, greedy, load, named, serves, state, step
from trainer import content as content_of

Start = Callable[..., Server]
MakeCase = Callable[..., Case]

# A receiver as SGLang has it: torch's own group, a broadcast for each parameter.
RECEIVER = """
import datetime, json, sys
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

name, port, sizes = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
timeout = datetime.timedelta(seconds=60)
store, _, _ = next(dist.rendezvous(f"tcp://127.0.0.1:{port}", 1, 2, timeout=timeout))
group, _ = c10d._new_process_group_helper(
    2, 1, [], dist.Backend("gloo"), c10d.PrefixStore(name, store), group_name=name, timeout=timeout)
c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
print("joined", flush=True)
sys.stdin.readline()
for size in sizes:
    tensor = torch.empty(size, dtype=torch.uint8)
    dist.broadcast(tensor, src=0, group=group)
    sys.stdout.buffer.write(tensor.numpy().tobytes())
"""


def url(server: Server) -> str:
    return f"http://{server.host}:{server.port}"


@pytest.fixture
def bare(tmp_path: Path) -> Callable[[Path], Path]:
    """A directory with the configuration of a model, and no weights."""

    def make(model: Path) -> Path:
        path = tmp_path / f"bare-{len(list(tmp_path.iterdir()))}"
        path.mkdir()
        for name in ("config.json", "generation_config.json"):
            if (model / name).exists():
                shutil.copy(model / name, path)
        return path

    return make


def test_the_new_engine_holds_what_the_seed_holds(
    borrow: Callable[..., Server],
    start: Start,
    bare: Callable[[Path], Path],
    ranks: int,
    small_llama: Path,
    by_name: None,
) -> None:
    arguments = ("--tp", ranks, *OPTIONS)
    seed = borrow(*arguments)
    new = step(load(small_llama), 1)
    Trainer(seed, ranks).session(named(new), "41")
    grown = start(*arguments, "--seed-from", url(seed), model=bare(small_llama))
    assert state(grown) == state(seed)
    assert serves(grown, new)
    assert Trainer(grown).version() == "41"
    assert greedy(grown) == greedy(seed)
    newer = step(new, 2)  # both are engines like any other
    for server in (grown, seed):
        Trainer(server, ranks).session(named(newer), "42")
        assert serves(server, newer)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_and_derived_weights(
    make_case: MakeCase, scheme: str, start: Start, bare: Callable[[Path], Path]
) -> None:
    case = make_case("deepseek v3", scheme, 2)
    case.disk(case.second, weight_version="2").ok()
    grown = start(*case.arguments, "--seed-from", url(case.server), model=bare(case.first))
    assert told(grown) == case.told() == case.cold(load(case.second))


def failed(server: Server) -> str:
    """What an engine said that could not start."""
    _, error = server.process.communicate(timeout=120)
    assert server.process.returncode not in (0, None)
    return str(error)


def test_another_engine_is_no_seed(
    borrow: Callable[..., Server], start: Start, small_llama: Path, tmp_path: Path
) -> None:
    seed = borrow(*OPTIONS)
    other = start("--tp", 2, "--seed-from", url(seed), wait=False)
    assert "is another engine" in failed(other)
    nobody = start("--seed-from", "http://127.0.0.1:9", wait=False)
    assert "127.0.0.1:9" in failed(nobody)
    nonsense = start("--seed-from", "here", wait=False)
    assert "here" in failed(nonsense)
    assert greedy(seed)


class Relay(http.server.BaseHTTPRequestHandler):
    """Hands requests on to a seed; `before_send` is called when it is asked to send."""

    seed: str
    before_send: Callable[[], None]

    def do_GET(self) -> None:
        self._relay(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/send_weights"):
            type(self).before_send()
        self._relay(body)

    def _relay(self, body: bytes | None) -> None:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.seed + self.path, body)
            ) as reply:
                content = reply.read()
        except OSError:
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def relay() -> Iterator[Callable[[Server, Callable[[], None]], str]]:
    servers = []

    def begin(seed: Server, before_send: Callable[[], None]) -> str:
        handler = type(
            "Handler", (Relay,), {"seed": url(seed), "before_send": staticmethod(before_send)}
        )
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True  # one may wait for an engine that never comes
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_seed_that_dies(
    start: Start, ranks: int, relay: Callable[..., str], small_llama: Path
) -> None:
    """Its groups stand by then."""
    seed = start("--tp", ranks, *OPTIONS)
    grown = start(
        "--tp", ranks, *OPTIONS, "--seed-from", relay(seed, seed.process.kill), wait=False
    )
    assert "no weights from http://127.0.0.1:" in failed(grown)


def test_a_new_engine_that_dies(
    start: Start,
    borrow: Callable[..., Server],
    ranks: int,
    relay: Callable[..., str],
    small_llama: Path,
) -> None:
    seed = borrow("--tp", ranks, *OPTIONS)
    made: list[Server] = []
    asked = threading.Event()

    def kill() -> None:
        asked.wait(60)
        made[0].process.kill()

    made.append(start("--tp", ranks, *OPTIONS, "--seed-from", relay(seed, kill), wait=False))
    asked.set()
    made[0].process.wait(120)
    assert serves(seed, load(small_llama))
    other = start("--tp", ranks, *OPTIONS, "--seed-from", url(seed))  # and seeds the next one
    assert state(other) == state(seed)
    assert greedy(seed)


def test_a_rank_of_the_new_engine_that_dies(
    start: Start, borrow: Callable[..., Server], relay: Callable[..., str]
) -> None:
    seed = borrow("--tp", 2, *OPTIONS)
    made: list[Server] = []
    there = threading.Event()

    def kill() -> None:
        there.wait(60)
        for pid in ranks_of(made[0]):
            os.kill(pid, 9)
            while not is_gone(pid):
                pass

    made.append(start("--tp", 2, *OPTIONS, "--seed-from", relay(seed, kill), wait=False))
    there.set()
    failed(made[0])
    assert greedy(seed)


def test_a_receiver_of_torch(start: Start, small_llama: Path) -> None:
    """Ports are its choice then, as SGLang's receivers have it."""
    pytest.importorskip("mooncake.engine")
    seed = start("--p2p", *OPTIONS)
    info = seed.get("/get_remote_instance_transfer_engine_info?rank=0").ok()
    places = info["remote_instance_transfer_engine_info"][1]
    sizes = [elements * size for _, elements, size in places.values()]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"master_address": "127.0.0.1", "ports": str(port), "group_name": "send_weights_x"}
    join = group | {"group_rank": 0, "world_size": 2, "backend": "gloo"}
    init = Background(seed.post, "/init_weights_send_group_for_remote_instance", join)
    receiver = subprocess.Popen(
        [sys.executable, "-c", RECEIVER, f"send_weights_x_{port}_0", str(port), json.dumps(sizes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == b"joined\n"
    assert init.result().ok()["ports"] == str(port)
    send = Background(seed.post, "/send_weights_to_remote_instance", group)
    content, _ = receiver.communicate(b"\n")
    sent = send.result().ok()
    assert sent["weight_version"] == "default"
    assert len(content) == sum(sizes)
    norm = load(small_llama)["model.norm.weight"]
    names = list(places)
    at = sum(sizes[: names.index("model.norm.weight")])
    found = content[at : at + sizes[names.index("model.norm.weight")]]
    assert found == content_of(norm)


def test_requests_that_cannot_be_met(borrow: Callable[..., Server]) -> None:
    seed = borrow(*OPTIONS)
    init = "/init_weights_send_group_for_remote_instance"
    group = {"master_address": "127.0.0.1", "group_rank": 0, "world_size": 2, "backend": "gloo"}
    assert "Expected 1 ports" in seed.post(init, group | {"ports": "1,2"}).text
    reply = seed.post(init, group | {"ports": "4001", "backend": "nccl"})
    assert reply.status == 400
    assert "backend" in reply.json["message"]
    reply = seed.post("/send_weights_to_remote_instance", {"group_name": "nobody"})
    assert reply.status == 400
    assert "Group nobody not in _weights_send_group" in reply.json["message"]
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(urllib.request.Request(url(seed) + init, b"[]"))
