"""Pauses, updates and probes at once: what others deadlock on.

Each test leaves requests in the state that it names, and none of its calls may hang.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save
from server import Background, Server, eventually

LONG = {"max_new_tokens": 3000, "ignore_eos": True, "temperature": 0}
Other = Callable[..., Path]


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    return start("--max-total-tokens", 16384)


def run_many(server: Server, count: int = 3) -> list[Background]:
    running = [
        Background(server.generate, input_ids=[i + 1, 2], sampling_params=LONG, rid=f"r{i}")
        for i in range(count)
    ]
    eventually(lambda: state(server)["num_running_reqs"] == count, "they run")
    return running


def state(server: Server) -> dict[str, Any]:
    return dict(server.get("/server_info").ok()["internal_states"][0])


def pause(server: Server, mode: str) -> None:
    server.post("/pause_generation", {"mode": mode}).ok()


def update(server: Server, path: Path, version: str, *, flush: bool = False) -> None:
    body = {"model_path": str(path), "weight_version": version, "flush_cache": flush}
    server.post("/update_weights_from_disk", body).ok()


def probe(server: Server) -> None:
    for path in ("/health", "/health_generate"):
        assert server.get(path).status == 200


def versions(call: Background) -> list[str]:
    meta = call.result()["meta_info"]
    assert meta["finish_reason"]["type"] == "length"
    spans = meta["weight_versions"]
    assert spans[0]["start"] == 0
    assert spans[-1]["end"] == 3000
    return [span["version"] for span in spans]


@contextmanager
def update_under_way(server: Server, path: Path, version: str) -> Iterator[Background]:
    """An update from disk that is under way; it has succeeded at the end."""
    body = {"model_path": str(path), "weight_version": version, "flush_cache": False}
    call = Background(server.post, "/update_weights_from_disk", body)
    yield call
    call.result().ok()


def test_an_update_while_requests_paused_in_place_hold_readers(
    server: Server, other_checkpoint: Other
) -> None:
    running = run_many(server)
    pause(server, "in_place")
    update(server, other_checkpoint(1), "1")
    probe(server)
    assert state(server)["num_running_reqs"] == 3
    server.post("/continue_generation").ok()
    assert [versions(call) for call in running] == [["default", "1"]] * 3


def test_a_writer_that_waits_when_the_pause_arrives(
    server: Server, other_checkpoint: Other
) -> None:
    """Unpaused, the update waits for the requests; the pause lets it run."""
    other = other_checkpoint(1)
    running = run_many(server)
    with update_under_way(server, other, "1") as call:
        eventually(lambda: gated(server) or call.done(), "it waits")
        pause(server, "in_place")
        call.result().ok()
    assert state(server)["paused"] is True
    server.post("/continue_generation").ok()
    for call in running:
        assert versions(call) in (["default", "1"], ["default"])


def gated(server: Server) -> bool:
    """Does an update close the gate? Then a request that comes waits behind it."""
    late = Background(server.generate, input_ids=[9], sampling_params=LONG, rid="late")
    try:
        eventually(lambda: state(server)["num_total_reqs"] >= 4 or late.done(), "it came")
        return bool(state(server)["num_waiting_reqs"] == 1)
    finally:
        server.post("/abort_request", {"rid": "late"})
        late.result()


def test_a_continue_during_an_update(server: Server, other_checkpoint: Other) -> None:
    """The update began while paused, so no token is computed between the continue and its end."""
    others = [other_checkpoint(1), other_checkpoint(2)]
    for mode in ("in_place", "retract"):
        running = run_many(server)
        pause(server, mode)
        for version, path in enumerate(others, 1):
            gate = Background(server.generate, input_ids=[8], sampling_params=LONG)
            eventually(lambda: state(server)["num_waiting_reqs"] > 0, "it waits")
            call = Background(update, server, path, f"{mode}{version}")
            after = Background(server.post, "/continue_generation")
            call.result()
            after.result().ok()
            if version == 1:
                pause(server, mode)
            running.append(gate)
        for call in running:
            assert call.result()["meta_info"]["finish_reason"]["type"] == "length"
        assert server.get("/model_info").ok()["weight_version"] == f"{mode}2"


def test_flush_with_residents(server: Server, other_checkpoint: Other) -> None:
    running = run_many(server)
    assert server.get("/flush_cache").status == 400
    pause(server, "in_place")
    assert server.get("/flush_cache").status == 400
    body = {"model_path": str(other_checkpoint(1)), "weight_version": "1"}  # which would flush
    refused = server.post("/update_weights_from_disk", body)
    assert refused.status == 400
    assert "paused in place" in refused.json["message"]
    pause(server, "retract")
    assert server.get("/flush_cache").status == 200
    server.post("/update_weights_from_disk", body).ok()
    server.post("/continue_generation").ok()
    assert [versions(call) for call in running] == [["default", "1"]] * 3


@pytest.mark.parametrize("mode", ["none", "in_place", "retract"])
def test_two_clients_that_update_at_once(
    server: Server, other_checkpoint: Other, mode: str
) -> None:
    others = [other_checkpoint(1), other_checkpoint(2)]
    running = run_many(server) if mode != "none" else []
    if mode != "none":
        pause(server, mode)
    calls = [Background(update, server, path, str(i)) for i, path in enumerate(others)]
    probe(server)
    for call in calls:
        call.result()
    last = server.get("/model_info").ok()
    assert last["model_path"] == str(others[int(last["weight_version"])])
    server.post("/continue_generation").ok()
    assert [versions(call)[-1] for call in running] == [last["weight_version"]] * len(running)


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_probes_answer_while_paused_and_during_an_update(
    server: Server, other_checkpoint: Other, mode: str
) -> None:
    other = other_checkpoint(1)
    pause(server, mode)
    waiting = Background(server.generate, input_ids=[1], sampling_params=LONG)
    eventually(lambda: server.load() == 1, "it waits at the gate")
    probe(server)
    with update_under_way(server, other, "1") as call:
        while not call.done():
            probe(server)
    assert not waiting.done()
    server.post("/continue_generation").ok()
    assert versions(waiting) == ["1"]


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_post_process_weights_while_paused_with_live_requests(
    server: Server, small_llama: Path, mode: str
) -> None:
    """slime's patch of SGLang hangs here."""
    running = run_many(server)
    pause(server, mode)
    tensors = load_file(small_llama / "model.safetensors")
    server.post("/post_process_weights", {"restore_weights_before_load": True}).ok()
    raw = "/update_weights_from_tensor_raw?weight_version=1&flush_cache=false"
    reply = server.request("POST", raw, save(tensors))
    assert reply.status == 200, reply.text
    server.post("/post_process_weights", {"post_process_quantization": True}).ok()
    probe(server)
    server.post("/continue_generation").ok()
    assert [versions(call) for call in running] == [["default", "1"]] * 3


def test_the_abort_loop_of_a_trainer_sees_gated_requests(server: Server) -> None:
    """slime sums running and waiting requests of /v1/loads until there are none."""

    def left() -> int:
        loads = server.get("/v1/loads?include=core").ok()["loads"]
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

    running = run_many(server)
    assert left() == 3
    pause(server, "retract")
    late = Background(server.generate, input_ids=[5], sampling_params=LONG)
    eventually(lambda: left() == 4, "retracted and gated requests count")
    server.post("/abort_request", {"abort_all": True})
    eventually(lambda: left() == 0, "all are aborted")
    for call in [*running, late]:
        assert call.result()["meta_info"]["finish_reason"]["type"] == "abort"
