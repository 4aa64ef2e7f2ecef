"""Pause, continue, flush, labels, and what the server says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from server import Background, Server, eventually

LONG = {"max_new_tokens": 2000, "ignore_eos": True, "temperature": 0}
SHORT = LONG | {"max_new_tokens": 300}


def state(server: Server) -> dict[str, Any]:
    return dict(server.get("/server_info").ok()["internal_states"][0])


def run_many(server: Server, count: int, params: Any = LONG) -> list[Background]:
    return [
        Background(server.generate, input_ids=[i + 1, 2], sampling_params=params, rid=f"r{i}")
        for i in range(count)
    ]


def test_health_in_every_state(server: Server) -> None:
    for mode in ("abort", "retract", "in_place"):
        server.post("/pause_generation", {"mode": mode}).ok()
        for path in ("/health", "/health_generate"):
            reply = server.get(path)
            assert (reply.status, reply.body) == (200, b"")
        server.post("/continue_generation").ok()


def test_info(server: Server, small_llama: Any) -> None:
    info = server.get("/get_model_info").ok()
    assert info["model_path"] == info["served_model_name"] == str(small_llama)
    assert (info["model_type"], info["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert info["weight_version"] == "default"
    everything = server.get("/get_server_info").ok()
    assert everything["max_total_tokens"] == 4096
    assert everything["tp_size"] == everything["pp_size"] == 1
    assert state(server)["max_total_num_tokens"] >= 4096 - 64
    assert server.get("/weight_version").ok() == {"weight_version": "default"}
    assert server.get("/v1/models").ok()["data"][0]["id"] == str(small_llama)
    assert server.get("/").text.startswith("Syncline")


def test_metrics(server: Server) -> None:
    server.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 5, "ignore_eos": True})
    eventually(lambda: server.load() == 0, "the engine has told its figures")
    reply = server.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in reply.text.splitlines() if not line.startswith("#")]
    values = dict(line.split(" ", 1) for line in lines)
    assert values["syncline_prompt_tokens_total"] == "3"
    assert values["syncline_generated_tokens_total"] == "5"
    assert values["syncline_running_requests"] == "0"
    assert int(values["syncline_kv_tokens"]) >= 4096 - 64
    assert float(values["syncline_generation_seconds_sum"]) > 0


def test_unknown_paths_and_methods(server: Server) -> None:
    assert server.get("/update_weights_from_nowhere").status == 404
    wrong = server.get("/pause_generation")
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_requests_live_through_a_pause(server: Server, mode: str) -> None:
    """Those that run and those that come meanwhile end as if there had been none."""
    expected = server.generate(input_ids=[1, 2], sampling_params=LONG)["output_ids"]
    eventually(lambda: server.load() == 0, "idle again")
    running = run_many(server, 1)[0]
    eventually(lambda: server.load() == 1, "the request runs")
    reply = server.post("/pause_generation", {"mode": mode})
    assert reply.ok() == {"message": "Generation paused successfully.", "status": "ok"}
    late = Background(server.generate, input_ids=[1, 2], sampling_params=LONG)
    eventually(lambda: server.load() == 2, "the second request waits at the gate")
    assert state(server)["paused"] is True
    server.post("/continue_generation").ok()
    assert running.result()["output_ids"] == expected
    assert late.result()["output_ids"] == expected
    retractions = running.result()["meta_info"]["num_retractions"]
    assert retractions == (1 if mode == "retract" else 0)


def test_a_pause_that_aborts_returns_when_all_is_drained(server: Server) -> None:
    running = run_many(server, 4)
    eventually(lambda: server.load() == 4, "they run")
    server.post("/pause_generation").ok()  # abort is the default
    assert server.load() == 0
    for call in running:
        reason = call.result()["meta_info"]["finish_reason"]
        assert (reason["type"], reason["status_code"]) == ("abort", None)
    server.post("/continue_generation").ok()


def test_br_32_flush_while_paused_with_queued_requests(start: Callable[..., Server]) -> None:
    """64 requests, 8 slots: pause(retract), flush at once, continue; all 64 finish."""
    server = start("--max-running-requests", 8, "--max-total-tokens", 16384)
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    running = run_many(server, 64, SHORT)
    eventually(lambda: server.load() == 64, "all are there before the first one ends")
    server.post("/continue_generation").ok()
    eventually(lambda: state(server)["num_running_reqs"] == 8, "all slots are taken")
    refused = server.get("/flush_cache")
    assert refused.status == 400
    assert refused.text.startswith("Flush cache failed.")
    assert refused.headers["content-type"].startswith("text/plain")
    server.post("/pause_generation", {"mode": "retract"}).ok()
    assert server.get("/flush_cache").status == 200
    server.post("/continue_generation").ok()
    assert all(len(call.result()["output_ids"]) == 300 for call in running)


def test_flush_in_place_is_refused_and_waits_only_as_long_as_told(server: Server) -> None:
    running = run_many(server, 1)
    eventually(lambda: server.load() == 1, "it runs")
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    assert server.post("/flush_cache").status == 400
    late = server.post("/flush_cache?timeout=0.05")
    assert (late.status, late.text) == (400, "Timed out waiting for idle state.\n")
    server.post("/continue_generation").ok()
    running[0].result()
    assert server.get("/flush_cache?timeout=60").status == 200
    assert server.get("/flush_cache?timeout=soon").status == 400


def test_labels(server: Server) -> None:
    running = run_many(server, 1)[0]
    eventually(lambda: server.load() == 1, "it runs")
    body = {"new_version": "41", "abort_all_requests": False}
    assert server.post("/update_weight_version", body).ok() == {
        "success": True,
        "message": "Weight version updated to 41",
        "new_version": "41",
    }
    assert server.get("/model_info").ok()["weight_version"] == "41"
    meta = running.result()["meta_info"]
    spans = meta["weight_versions"]
    assert meta["weight_version"] == "41"
    assert [span["version"] for span in spans] == ["default", "41"]
    assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], 2000)
    eventually(lambda: server.load() == 0, "idle again")
    running = run_many(server, 1)[0]
    eventually(lambda: server.load() == 1, "it runs")
    server.post("/update_weight_version", {"new_version": "42"}).ok()  # aborts by default
    assert running.result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_abort_all_and_by_prefix(server: Server) -> None:
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    calls = [
        Background(server.generate, input_ids=[1], sampling_params=LONG, rid=rid)
        for rid in ("a::1", "a::2", "b::1")
    ]
    eventually(lambda: server.load() == 3, "they wait")
    server.post("/abort_request", {"rid": "a::", "prefix": True})
    for call in calls[:2]:
        assert call.result()["meta_info"]["finish_reason"]["type"] == "abort"
    assert not calls[2].done()
    server.post("/abort_request", {})  # names nothing
    assert server.load() == 1
    server.post("/abort_request", {"abort_all": True})
    assert calls[2].result()["meta_info"]["finish_reason"]["type"] == "abort"


def test_keys(start: Callable[..., Server]) -> None:
    server = start("--api-key", "user", "--admin-api-key", "boss")
    assert server.get("/health").status == 200
    assert server.get("/metrics").status == 200
    for key, normal, admin in (("none", 401, 401), ("user", 200, 401), ("boss", 401, 200)):
        bearer = {"Authorization": f"Bearer {key}"}
        assert server.request("GET", "/model_info", **bearer).status == normal
        assert server.request("POST", "/continue_generation", {}, **bearer).status == admin
        assert server.request("GET", "/flush_cache", **{"X-API-Key": key}).status == admin
    assert "boss" not in server.request("GET", "/server_info", Authorization="Bearer user").text
