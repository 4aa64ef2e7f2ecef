"""Updates over HTTP: the sequences that trainers send, joined requests, and the live bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from harness import Cli
from safetensors.numpy import load_file
from server import Background, Server, eventually

PARAMS = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}


def tokens(server: Server) -> list[int]:
    reply = server.generate(input_ids=[5, 6, 7], sampling_params=PARAMS)
    return list(reply["output_ids"])


def update(server: Server, path: Path, version: str, **more: object) -> dict[str, object]:
    body = {"model_path": str(path), "weight_version": version, **more}
    return dict(server.post("/update_weights_from_disk", body).ok())


def live_equals(server: Server, path: Path) -> bool:
    expected = load_file(path / "model.safetensors")
    assert sorted(server.get("/export_weights").ok()) == sorted(expected)
    return all(
        server.get(f"/export_weights?name={name}").body == value.tobytes()
        for name, value in expected.items()
    )


def test_an_update_and_back(
    server: Server, small_llama: Path, other_checkpoint: Callable[..., Path]
) -> None:
    before = tokens(server)
    other = other_checkpoint(1)
    reply = update(server, other, "1")
    assert reply["success"] is True
    assert reply["num_paused_requests"] == 0
    assert reply["message"] == ("Succeeded to update model weights. Weight version updated to 1.")
    assert reply["stage_seconds"] > 0 and reply["apply_seconds"] > 0  # type: ignore[operator]
    info = server.get("/model_info").ok()
    assert (info["model_path"], info["weight_version"]) == (str(other), "1")
    assert info["served_model_name"] == str(small_llama)
    assert tokens(server) != before
    assert live_equals(server, other)
    update(server, small_llama, "2")
    assert tokens(server) == before
    assert live_equals(server, small_llama)


def test_live_bytes_and_numbers(server: Server, small_llama: Path) -> None:
    expected = load_file(small_llama / "model.safetensors")
    name = "model.layers.1.self_attn.k_proj.weight"
    raw = server.get(f"/export_weights?name={name}")
    assert raw.headers["content-type"] == "application/octet-stream"
    assert raw.headers["x-syncline-dtype"] == "F32"
    assert raw.headers["x-syncline-shape"] == "32,48"
    assert raw.body == expected[name].tobytes()
    for reply in (
        server.get(f"/get_weights_by_name?name={name}&truncate_size=3"),
        server.post("/get_weights_by_name", {"name": name, "truncate_size": 3}),
        server.request("GET", "/get_weights_by_name", {"name": name, "truncate_size": "3"}),
    ):
        assert np.array_equal(np.array(reply.ok(), np.float32), expected[name][:3])
    missing = server.post("/get_weights_by_name", {"name": "no.such.weight"})
    assert missing.status == 400
    assert missing.json["error"]["message"].startswith("Get parameter by name failed")
    assert server.get("/export_weights?name=no.such.weight").status == 400


def test_br_49_requests_for_one_version_share_one_load(
    server: Server, other_checkpoint: Callable[..., Path]
) -> None:
    five, six = other_checkpoint(5), other_checkpoint(6)
    calls = [Background(update, server, five, "5") for _ in range(8)]
    other = Background(update, server, six, "6")
    replies = [call.result() for call in calls]
    other.result()
    done = [reply for reply in replies if not reply["joined"] and not reply["already_loaded"]]
    assert all(reply["success"] for reply in replies)
    counted = server.get("/metrics").text
    loads = int(counted.split("\nsyncline_weight_updates_total ")[1].split("\n")[0])
    assert loads == len(done) + 1  # and one of version 6


def test_br_49_the_same_version_again(
    server: Server, other_checkpoint: Callable[..., Path]
) -> None:
    five = other_checkpoint(5)
    update(server, five, "5")
    again = update(server, five, "5")
    assert again["already_loaded"] is True
    assert "Already at weight version 5" in str(again["message"])


def test_br_01_new_bytes_under_old_names_are_loaded(
    server: Server, other_checkpoint: Callable[..., Path]
) -> None:
    one, two = other_checkpoint(1), other_checkpoint(2)
    update(server, one, "1")
    shard = one / "model.safetensors"
    with shard.open("r+b") as file:  # in place: the same file, size and label
        file.write((two / "model.safetensors").read_bytes())
    assert update(server, one, "1")["already_loaded"] is False
    assert live_equals(server, two)


def test_br_23_a_failed_update_leaves_all_as_it_was(
    server: Server, small_llama: Path, other_checkpoint: Callable[..., Path]
) -> None:
    before = tokens(server)
    broken = other_checkpoint(3)
    shard = broken / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    for path in (broken, broken / "gone"):
        reply = server.post("/update_weights_from_disk", {"model_path": str(path)})
        assert reply.status == 400
        assert reply.json["success"] is False
        assert reply.json["message"].startswith("Failed to update weights: ")
        assert reply.json["message"].endswith("\nRolling back to original weights.")
        assert str(path) in reply.json["message"]
    assert server.get("/model_info").ok()["model_path"] == str(small_llama)
    assert server.get("/model_info").ok()["weight_version"] == "default"
    assert tokens(server) == before
    update(server, other_checkpoint(4), "4")
    assert tokens(server) != before


def test_br_34_a_client_that_goes_away_in_an_update(
    server: Server, other_checkpoint: Callable[..., Path]
) -> None:
    one, two = other_checkpoint(1), other_checkpoint(2)
    connection = server.connect()
    body = {"model_path": str(one), "weight_version": "1"}
    server._send(connection, "POST", "/update_weights_from_disk", body, {})
    connection.close()
    assert server.get("/health").status == 200
    update(server, two, "2")
    assert live_equals(server, two)
    assert len(tokens(server)) == 16


def test_br_33_nothing_of_the_old_weights_is_reused(
    start: Callable[..., Server], server: Server, other_checkpoint: Callable[..., Path]
) -> None:
    tokens(server)
    other = other_checkpoint(1)
    update(server, other, "1")
    reply = server.generate(input_ids=[5, 6, 7], sampling_params=PARAMS)
    assert reply["meta_info"]["cached_tokens"] == 0
    assert reply["output_ids"] == tokens(start(model=other))


def test_an_update_with_a_flush_is_refused_in_place(
    server: Server, other_checkpoint: Callable[..., Path]
) -> None:
    running = Background(
        server.generate, input_ids=[1], sampling_params=PARAMS | {"max_new_tokens": 400}
    )
    eventually(
        lambda: server.get("/v1/loads").ok()["loads"][0]["num_used_tokens"] > 0, "it holds memory"
    )
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    other = other_checkpoint(1)
    reply = server.post("/update_weights_from_disk", {"model_path": str(other)})
    assert reply.status == 400
    assert "flush_cache" in reply.json["message"]
    update(server, other, "1", flush_cache=False)
    server.post("/continue_generation").ok()
    spans = running.result()["meta_info"]["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "1"]


def test_the_sequence_of_miles_with_disk_deltas(
    cli: Cli,
    server: Server,
    other_checkpoint: Callable[..., Path],
    small_llama: Path,
    tmp_path: Path,
) -> None:
    """pull(0); then for each step: pull while generating, pause, flush, update, continue."""
    store, local = tmp_path / "store", tmp_path / "local"
    cli.ok("publish", small_llama, "--to", store)
    pull = {"source_dir": str(store), "local_checkpoint_dir": str(local), "prefix": "weights"}
    assert server.post("/pull_weights", pull | {"target_version": 0}).ok()["message"] == "Success."
    for step in (1, 2):
        checkpoint = other_checkpoint(step)
        cli.ok("publish", checkpoint, "--to", store)
        running = [
            Background(
                server.generate, input_ids=[n + 1], sampling_params=PARAMS | {"max_new_tokens": 200}
            )
            for n in range(4)
        ]
        server.post("/pull_weights", pull | {"target_version": str(step)}).ok()
        server.post("/pause_generation", {"mode": "retract"}).ok()
        assert server.get("/flush_cache").status == 200
        update(server, local, str(step))
        server.post("/continue_generation", {}).ok()
        assert server.get("/get_model_info").ok()["weight_version"] == str(step)
        assert live_equals(server, checkpoint)
        for call in running:
            assert len(call.result()["output_ids"]) == 200
    missing = server.post("/pull_weights", pull | {"target_version": 9})
    assert missing.status == 400
    assert "9" in missing.json["message"]


@pytest.mark.parametrize(
    "path", ["/update_weights_from_disk", "/pull_weights", "/update_weight_version"]
)
def test_br_46_no_body_has_a_side_effect(server: Server, path: str) -> None:
    bomb = b"cos\nsystem\n(S'touch /tmp/syncline-owned'\ntR."
    deep = b'{"model_path":' + b"[" * 200000
    twice = b'{"model_path":"/a","model_path":"/b","new_version":"x","new_version":"y"}'
    for body in (bomb, deep, twice, b"[]", b"\xff\xfe{}", b"{", json.dumps({"x": 1}).encode()):
        reply = server.request("POST", path, body)
        assert reply.status == 400, body[:40]
    assert server.get("/model_info").ok()["weight_version"] == "default"
    assert not Path("/tmp/syncline-owned").exists()
