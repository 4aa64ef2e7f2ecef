"""An engine over two and three hosts: it serves, pulls and updates, and one of them is cut off at every stage."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "serve"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from network import Host, HostConnection, Network, why_not
from random_models import make
from server import ENGINE, PATIENCE, Reply, Server, eventually

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "-")
PROMPT = [5, 17, 33, 41, 2, 99]
UNAVAILABLE = 14
LONG = {"max_new_tokens": 50000, "temperature": 0, "ignore_eos": True}
PORT = 29600


@pytest.fixture
def network() -> Iterator[Callable[[int], Network]]:
    made: list[Network] = []

    def make(count: int) -> Network:
        made.append(Network(count))
        return made[-1]

    yield make
    for each in made:
        each.close()


class HostServer(Server):
    """The part of an engine that runs on one host. Only that of node 0 speaks HTTP."""

    def __init__(self, host: Host, model: Path, *arguments: object) -> None:
        self.on = host
        command = [str(ENGINE), "--model", str(model), "--port", "0", "--skip-tokenizer-init"]
        command += ["--log-level", "warning", *map(str, arguments)]
        self.process = subprocess.Popen(
            host.command(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"SYNCLINE_RENDEZVOUS_TOKEN": "of this test"},
            text=True,
        )
        self.host, self.port = "127.0.0.1", 0
        self.headers = {}

    def connect(self) -> HostConnection:
        return HostConnection(self.on, self.host, self.port, PATIENCE)

    def end(self) -> tuple[int, str]:
        """Waits for its own end: exit status and what it said."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


class Engine:
    """An engine over all hosts of a network, one rank on each. On each host `local` is a folder of its own."""

    def __init__(self, network: Network, model: Path, folder: Path) -> None:
        self.network = network
        self.hosts = network.hosts
        self.local = folder / "local"
        self.local.mkdir()
        for host in self.hosts:
            own = folder / f"disk-{host.name}"
            own.mkdir()
            host.folders = {self.local: own}
        self.nodes = [
            HostServer(host, model, *self.options(i)) for i, host in enumerate(self.hosts)
        ]
        self.front = self.nodes[0]

    def options(self, node: int) -> list[object]:
        count = len(self.hosts)
        ranks = ["--tp", count, "--nnodes", count, "--node-rank", node]
        meet = ["--rendezvous", f"{self.hosts[0].address}:{PORT}", "--rendezvous-timeout", 60]
        return [*ranks, *meet, "--max-total-tokens", 60000]

    def disk(self, node: int) -> Path:
        """Where `local` of that host lies."""
        return self.hosts[node].folders[self.local]

    @property
    def replica(self) -> Path:
        return self.local / "replica"

    def greedy(self, count: int = 16) -> list[int]:
        sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        reply = self.front.generate(input_ids=PROMPT, sampling_params=sampling)
        return list(reply["output_ids"])

    def pull(self, store: Path, version: int) -> Reply:
        fields = {"source_dir": str(store), "local_checkpoint_dir": str(self.replica)}
        return self.front.post("/pull_weights", fields | {"target_version": version})

    def update(self, version: int) -> Reply:
        fields = {"model_path": str(self.replica), "weight_version": str(version)}
        return self.front.post("/update_weights_from_disk", fields)

    def marker(self, node: int) -> str | None:
        path = self.disk(node) / "replica" / ".weight_sync" / "state.json"
        return json.loads(path.read_text())["version"] if path.exists() else None

    def expect_failure(self, began: float, *reasons: str) -> None:
        """/health says 503 within 5 s, then all processes end with a status that says so."""
        eventually(lambda: self.front.get("/health").status == 503, "/health says 503")
        assert time.monotonic() - began < 5
        status, errors = self.front.end()
        assert status == UNAVAILABLE
        for reason in reasons:
            assert reason in errors
        for node in self.nodes[1:]:
            assert node.end()[0] == UNAVAILABLE

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.fixture
def engine_on(
    network: Callable[[int], Network], tmp_path: Path, host_model: Path
) -> Iterator[Callable[[int], Engine]]:
    started: list[Engine] = []

    def start(count: int) -> Engine:
        started.append(Engine(network(count), host_model, tmp_path))
        started[-1].front.wait_until_ready()
        return started[-1]

    yield start
    for engine in started:
        engine.close()


@pytest.fixture(scope="session")
def host_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that two and three ranks can share."""
    path = tmp_path_factory.mktemp("host_model") / "model"
    heads = {"num_attention_heads": 6, "num_key_value_heads": 6, "head_dim": 16}
    make(path, "Llama", heads | {"intermediate_size": 96, "max_position_embeddings": 131072})
    return path


@pytest.fixture
def published(package: Any, host_model: Path, tmp_path: Path) -> Path:
    """A store of versions 1 (full) to 3, each other weights than the one before."""
    import numpy as np
    from safetensors.numpy import load_file

    tensors = load_file(host_model / "model.safetensors")
    rng = np.random.default_rng(3)
    store = tmp_path / "store"
    with package.Publisher(store) as publisher:
        for version in (1, 2, 3):
            tensors = {
                name: array + rng.normal(0, 0.02, array.shape).astype(np.float32)
                for name, array in tensors.items()
            }
            publisher.publish(version, tensors)
    return store


@contextmanager
def locked(replica: Path) -> Iterator[None]:
    """Holds a replica's lock, so that whoever pulls it or reads it waits."""
    folder = replica / ".weight_sync"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def in_background(call: Callable[[], Reply]) -> tuple[threading.Thread, list[Reply]]:
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(call()))
    thread.start()
    return thread, replies


@pytest.mark.parametrize("count", [2, 3])
def test_serve_pull_update(engine_on: Callable[[int], Engine], published: Path, count: int) -> None:
    engine = engine_on(count)
    launched = engine.greedy()
    for version in (1, 3):
        reply = engine.pull(published, version).ok()
        assert reply["message"] == "Success."
        assert [host["host"] for host in reply["hosts"]] == [h.address for h in engine.hosts]
        assert {host["version"] for host in reply["hosts"]} == {version}
        assert [engine.marker(i) for i in range(count)] == [f"{version:06d}"] * count
        engine.update(version).ok()
        digest = engine.front.get(f"/weights_digest?version={version}").ok()
        assert digest["equal"] is True
        assert digest["equal_tensors"] == len(digest["digests"])
    updated = engine.greedy()
    assert updated != launched
    other = engine.front.get("/weights_digest?version=2").ok()
    assert other["equal"] is False
    assert sorted(other["different"]) == sorted(digest["digests"])
    assert engine.front.stop() == 0
    for node in engine.nodes[1:]:
        assert node.end()[0] == 0


def test_one_hosts_failure_is_named(engine_on: Callable[[int], Engine], published: Path) -> None:
    engine = engine_on(3)
    engine.pull(published, 1).ok()
    engine.update(1).ok()
    before = engine.greedy()
    # Host 2 cannot make progress: its journal folder is a file.
    blocked = engine.disk(1) / "replica" / ".weight_sync" / "journal"
    blocked.write_text("in the way")
    reply = engine.pull(published, 2)
    assert reply.status == 400
    message = reply.json["message"]
    assert f"host {engine.hosts[1].address} (node 1)" in message
    assert f"host {engine.hosts[0].address} (node 0) is at version 2" in message
    assert f"host {engine.hosts[1].address} (node 1) is at version 1" in message
    assert [host["version"] for host in reply.json["hosts"]] == [2, 1, 2]
    assert [engine.marker(i) for i in range(3)] == ["000002", "000001", "000002"]
    # The hosts' versions must not be mixed.
    refused = engine.update(2)
    assert refused.status == 400
    assert "the hosts do not hold the same" in refused.json["message"]
    assert engine.greedy() == before
    blocked.unlink()
    engine.pull(published, 2).ok()
    engine.update(2).ok()
    assert engine.front.get("/weights_digest?version=2").ok()["equal"] is True


def test_a_slow_pull_holds_up_nobody(engine_on: Callable[[int], Engine], published: Path) -> None:
    engine = engine_on(2)
    engine.pull(published, 1).ok()
    with locked(engine.disk(1) / "replica"):
        thread, replies = in_background(lambda: engine.pull(published, 2))
        eventually(lambda: engine.marker(0) == "000002", "host 1 has pulled")
        for _ in range(3):
            engine.greedy()
        engine.front.get("/weights_digest").ok()
        assert not replies
    thread.join(60)
    replies[0].ok()
    assert engine.marker(1) == "000002"


def test_sigterm_does_not_wait_for_another_hosts_pull(
    engine_on: Callable[[int], Engine], published: Path
) -> None:
    engine = engine_on(2)
    engine.pull(published, 1).ok()
    with locked(engine.disk(1) / "replica"):
        thread, replies = in_background(lambda: engine.pull(published, 2))
        eventually(lambda: engine.marker(0) == "000002", "host 1 has pulled")
        assert engine.front.stop() == 0
        assert engine.nodes[1].end()[0] == 0
        thread.join(30)
        assert replies[0].status == 400
        assert "cancelled" in replies[0].json["message"]
    assert engine.marker(1) == "000001"


def test_cut_off_while_idle(engine_on: Callable[[int], Engine]) -> None:
    engine = engine_on(2)
    began = time.monotonic()
    engine.network.cut(engine.hosts[1])
    engine.expect_failure(began, f"rank 1 (host {engine.hosts[1].address}", "silent")


def test_cut_off_while_it_generates(engine_on: Callable[[int], Engine]) -> None:
    engine = engine_on(3)
    body = {"input_ids": PROMPT, "sampling_params": LONG}
    thread, replies = in_background(lambda: engine.front.post("/generate", body))
    eventually(lambda: engine.front.load() == 1, "the request runs")
    began = time.monotonic()
    engine.network.cut(engine.hosts[2])
    thread.join(30)
    assert replies[0].status == 503
    assert f"rank 2 (host {engine.hosts[2].address}" in replies[0].text
    engine.expect_failure(began, f"rank 2 (host {engine.hosts[2].address}")


def test_cut_off_while_it_pulls(engine_on: Callable[[int], Engine], published: Path) -> None:
    """The others are at a version that the reply names."""
    engine = engine_on(2)
    engine.pull(published, 1).ok()
    with locked(engine.disk(1) / "replica"):
        thread, replies = in_background(lambda: engine.pull(published, 2))
        eventually(lambda: engine.marker(0) == "000002", "host 1 has pulled")
        began = time.monotonic()
        engine.network.cut(engine.hosts[1])
        thread.join(30)
        assert replies[0].status == 400
        message = replies[0].json["message"]
        assert f"host {engine.hosts[1].address} (node 1)" in message
        assert f"host {engine.hosts[0].address} (node 0) is at version 2" in message
        engine.expect_failure(began, "silent")


def test_cut_off_while_it_reads_an_update(
    engine_on: Callable[[int], Engine], published: Path
) -> None:
    engine = engine_on(2)
    engine.pull(published, 1).ok()
    with locked(engine.disk(1) / "replica"):
        thread, replies = in_background(lambda: engine.update(1))
        time.sleep(0.3)  # any stage of it is fine
        assert not replies
        began = time.monotonic()
        engine.network.cut(engine.hosts[1])
        thread.join(30)
        assert replies[0].status == 400
        assert f"rank 1 (host {engine.hosts[1].address}" in replies[0].json["message"]
        engine.expect_failure(began, "silent")


def test_cut_off_before_they_meet(
    network: Callable[[int], Network], host_model: Path, tmp_path: Path
) -> None:
    made = network(2)
    made.cut(made.hosts[1])
    engine = Engine.__new__(Engine)
    engine.network, engine.hosts = made, made.hosts
    nodes = []
    for i, host in enumerate(made.hosts):
        options = [*engine.options(i), "--rendezvous-timeout", 2]
        nodes.append(HostServer(host, host_model, *options))
    try:
        status, errors = nodes[0].end()
        assert status == 13  # a timeout
        assert "1 of 2 ranks is missing: 1" in errors
        status, errors = nodes[1].end()
        assert status == 13
        assert f"{made.hosts[0].address}:{PORT}" in errors
    finally:
        for node in nodes:
            node.close()


def test_a_stranger_at_the_rendezvous(
    network: Callable[[int], Network], host_model: Path, tmp_path: Path
) -> None:
    """Without the token nobody becomes a rank, and the engine comes up all the same."""
    made = network(2)
    engine = Engine.__new__(Engine)
    engine.network, engine.hosts = made, made.hosts
    front = HostServer(made.hosts[0], host_model, *engine.options(0))
    stranger = subprocess.run(
        made.hosts[1].command(
            [str(ENGINE), "--model", str(host_model), *map(str, engine.options(1))]
        ),
        env=os.environ | {"SYNCLINE_RENDEZVOUS_TOKEN": "guessed"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    node = HostServer(made.hosts[1], host_model, *engine.options(1))
    try:
        assert stranger.returncode == 12  # permission denied
        assert "token" in stranger.stderr
        front.wait_until_ready()
        front.generate(input_ids=PROMPT, sampling_params={"max_new_tokens": 2})
    finally:
        front.close()
        node.close()
