"""An engine of several ranks on one host: what clients see, and what is left when a rank is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from random_models import make
from safetensors.numpy import load_file
from server import ENGINE, Reply, Server, eventually

Start = Callable[..., Server]
PROMPT = [5, 17, 33, 41, 2, 99]
UNAVAILABLE = 14  # exit status


def children(pid: int) -> list[int]:
    """Processes that this one has started and that are not gone."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines())
        except (OSError, ValueError):
            continue
        if int(fields["PPid"]) == pid and not fields["State"].startswith("Z"):
            found.append(int(fields["Pid"]))
    return sorted(found)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def ranks_of(server: Server) -> list[int]:
    """Processes of ranks 1 and up."""
    command = "syncline-engine"
    return [
        pid
        for pid in children(server.process.pid)
        if command in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
    ]


def shared_memory() -> set[str]:
    # Other tests keep folders of their own there.
    return {name for name in os.listdir("/dev/shm") if not Path("/dev/shm", name).is_dir()}


def greedy(server: Server, count: int = 24) -> list[int]:
    sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    reply = server.generate(input_ids=PROMPT, sampling_params=sampling)
    return list(reply["output_ids"])


def in_background(call: Callable[[], Reply]) -> tuple[threading.Thread, list[Reply]]:
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(call()))
    thread.start()
    return thread, replies


LONG = {"max_new_tokens": 50000, "temperature": 0, "ignore_eos": True}


def run_long(server: Server) -> tuple[threading.Thread, list[Reply]]:
    """A request that runs until something ends it."""
    body = {"input_ids": PROMPT, "sampling_params": LONG}
    call = in_background(lambda: server.post("/generate", body))
    eventually(lambda: server.load() == 1, "the request runs")
    return call


def expect_end(server: Server, ranks: list[int], reason: str) -> None:
    """The process ends by itself, says why, and nothing of it is left."""
    assert server.process.wait(60) == UNAVAILABLE
    assert reason in server.process.communicate()[1]
    for pid in ranks:
        eventually(lambda pid=pid: is_gone(pid), f"process {pid} is gone")


def test_the_same_text_as_one_rank(start: Start) -> None:
    alone = greedy(start("--max-total-tokens", 60000))
    server = start("--tp", 2, "--max-total-tokens", 60000)
    assert greedy(server) == alone
    info = server.get("/server_info").ok()
    assert (info["tp_size"], info["ep_size"], info["nnodes"], info["node_rank"]) == (2, 1, 1, 0)
    ranks = ranks_of(server)
    assert len(ranks) == 1
    assert server.stop() == 0
    for pid in ranks:
        eventually(lambda pid=pid: is_gone(pid), f"process {pid} is gone")


def test_updates_reach_all_ranks(start: Start, other_checkpoint: Callable[..., Path]) -> None:
    other = other_checkpoint(1)
    server = start("--tp", 2, "--max-total-tokens", 60000)
    before = greedy(server)
    body = {"model_path": str(other), "weight_version": "1"}
    server.post("/update_weights_from_disk", body).ok()
    assert greedy(server) == greedy(start("--max-total-tokens", 60000, model=other)) != before
    expected = load_file(other / "model.safetensors")
    for name, array in expected.items():
        reply = server.get(f"/export_weights?name={name}")
        assert reply.body == array.tobytes(), name
    digests = server.get("/weights_digest").ok()["digests"]
    assert digests == start(model=other).get("/weights_digest").ok()["digests"]
    rows = server.get("/get_weights_by_name?name=model.norm.weight").ok()
    assert rows == pytest.approx(expected["model.norm.weight"].tolist())


def test_a_directory_that_is_no_checkpoint_changes_nothing(start: Start, tmp_path: Path) -> None:
    server = start("--tp", 2, "--max-total-tokens", 60000)
    before = greedy(server)
    reply = server.post("/update_weights_from_disk", {"model_path": str(tmp_path)})
    assert reply.status == 400
    assert "rank 0 (host 127.0.0.1)" in reply.json["message"]
    assert greedy(server) == before


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_is_gone(start: Start, for_three: Path, how: signal.Signals) -> None:
    """Requests fail with a clear error, /health says 503 within 5 s, and nothing is left."""
    before = shared_memory()
    server = start("--tp", 3, "--max-total-tokens", 60000, model=for_three)
    ranks = ranks_of(server)
    assert len(ranks) == 2
    thread, replies = run_long(server)
    began = time.monotonic()
    os.kill(ranks[1], how)
    thread.join(30)
    assert not thread.is_alive(), "the request hangs"
    reason = "rank 2 (host 127.0.0.1"
    assert replies[0].status == 503
    assert reason in replies[0].text
    eventually(lambda: server.get("/health").status == 503, "/health says 503")
    assert time.monotonic() - began < 5
    refused = server.post("/generate", {"input_ids": PROMPT})
    assert refused.status == 503
    assert reason in refused.text
    expect_end(server, ranks, reason)
    assert shared_memory() <= before


@pytest.fixture(scope="session")
def for_three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that three ranks can share."""
    path = tmp_path_factory.mktemp("for_three") / "model"
    heads = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16}
    make(path, "Llama", heads | {"intermediate_size": 96, "max_position_embeddings": 131072})
    return path


def test_a_stream_ends_with_the_reason(start: Start) -> None:
    server = start("--tp", 2, "--max-total-tokens", 60000)
    stream = server.stream(
        "/generate", {"input_ids": PROMPT, "sampling_params": LONG, "stream": True}
    )
    events = stream.events()
    next(events)
    os.kill(ranks_of(server)[0], signal.SIGKILL)
    last: Any = None
    for last in events:
        pass
    assert last["meta_info"]["finish_reason"]["type"] == "abort"
    assert "rank 1" in last["meta_info"]["finish_reason"]["message"]


def test_an_idle_engine_notices_too(start: Start) -> None:
    server = start("--tp", 2)
    ranks = ranks_of(server)
    os.kill(ranks[0], signal.SIGKILL)
    eventually(lambda: server.get("/health").status == 503, "/health says 503")
    expect_end(server, ranks, "rank 1 (host 127.0.0.1")


def test_requests_at_a_pause_are_told_too(start: Start) -> None:
    server = start("--tp", 2)
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    thread, replies = in_background(lambda: server.post("/generate", {"input_ids": PROMPT}))
    eventually(lambda: server.load() == 1, "the request waits")
    os.kill(ranks_of(server)[0], signal.SIGKILL)
    thread.join(30)
    assert replies[0].status == 503
    assert "rank 1" in replies[0].text


def test_ranks_end_with_rank_0(start: Start) -> None:
    server = start("--tp", 2)
    ranks = ranks_of(server)
    server.process.kill()
    for pid in ranks:
        eventually(lambda pid=pid: is_gone(pid), f"process {pid} is gone")


def test_a_model_that_cannot_be_divided(small_llama: Path) -> None:
    server = Server(small_llama, "--tp", 4, wait=False)
    _, errors = server.process.communicate(timeout=60)
    assert server.process.returncode == 2
    assert "num_attention_heads (6) cannot be divided evenly among 4 ranks" in errors


def test_sigterm_lets_requests_finish(start: Start) -> None:
    """Also where every process of the group gets the signal, as orchestrators send it."""
    server = start("--tp", 2, "--max-total-tokens", 60000, "--shutdown-timeout", 60)
    body = {"input_ids": PROMPT, "sampling_params": LONG | {"max_new_tokens": 400}}
    thread, replies = in_background(lambda: server.post("/generate", body))
    eventually(lambda: server.load() == 1, "the request runs")
    for pid in ranks_of(server):
        os.kill(pid, signal.SIGTERM)
    assert server.stop() == 0
    thread.join(30)
    assert len(replies[0].ok()["output_ids"]) == 400


def torchrun(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    return subprocess.Popen(
        command,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("shared_store", [True, False])
def test_torchrun_can_launch_the_ranks(start: Start, small_llama: Path, shared_store: bool) -> None:
    """Ranks meet through the store of torchrun's agent, or at a port that it has left free."""
    alone = greedy(start("--max-total-tokens", 4096))
    engine = [str(ENGINE), "--model", str(small_llama), "--skip-tokenizer-init"]
    engine += ["--tp", "2", "--port", "0", "--log-level", "warning"]
    environment = {} if shared_store else {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    process = torchrun(
        ["--standalone", "--nproc-per-node", "2", "--no-python", *engine],
        {"OMP_NUM_THREADS": "1"} | environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith('{"ready":true'), line or process.communicate()[1]
        server = Server.__new__(Server)
        server.host, server.port = "127.0.0.1", int(line.split(":")[-1].strip('"}\n'))
        server.headers = {}
        assert greedy(server) == alone
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
