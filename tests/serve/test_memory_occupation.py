"""Memory that goes back to the system: how much, what is answered meanwhile, and trainers' ways."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forms import send_bucket, send_verl
from payloads import chunks
from quantised import SCHEMES, Case
from random_models import make
from server import Background, Reply, Server, eventually
from trainer import (
    OPTIONS,
    Cold,
    Trainer,
    Weights,
    failure,
    greedy,
    load,
    named,
    ranks_of,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

RELEASE, RESUME = "/release_memory_occupation", "/resume_memory_occupation"
REST = ["kv_cache", "cuda_graph"]
SAMPLING = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
MEBIBYTE = 1 << 20


def release(server: Server, *tags: str) -> Reply:
    return server.post(RELEASE, {"tags": list(tags)} if tags else {})


def resume(server: Server, *tags: str) -> Reply:
    return server.post(RESUME, {"tags": list(tags)} if tags else {})


def done(reply: Reply) -> None:
    """The JSON `null`, for clients call `.json()`."""
    assert (reply.status, reply.text) == (200, "null")


def refused(reply: Reply, *texts: str) -> None:
    assert reply.status == 400, reply.text
    message = reply.json["error"]["message"]
    assert reply.json == {"error": {"message": message}}
    for text in texts:
        assert text in message


def released(server: Server) -> list[str]:
    return list(server.get("/v1/loads").ok()["loads"][0]["memory_released"])


def ask(server: Server) -> Reply:
    return server.post("/generate", {"input_ids": [5, 17, 33], "sampling_params": SAMPLING})


def resident(server: Server) -> int:
    """Bytes in memory of all its ranks, those shared with nobody else."""
    total = 0
    for pid in [server.process.pid, *ranks_of(server)]:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        fields = {line.split()[0]: line.split() for line in lines}
        total += int(fields["Rss:"][1]) << 10
    return total


# ---- how much ----

# Large embeddings, many keys and values, and little to compute.
LAYERS, HEADS, HEAD, VOCABULARY, HIDDEN = 12, 16, 128, 131072, 256
FIELDS = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 8192,
}
KV_TOKEN = 2 * 2 * LAYERS * HEADS * HEAD  # bytes
TOKENS = 1536


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "model"
    make(path, "Llama", FIELDS, dtype="bfloat16")
    return path


@pytest.fixture
def large_server(large: Path, ranks: int) -> Iterator[Server]:
    server = Server(large, "--max-total-tokens", 4096, "--tp", ranks)
    yield server
    server.close()


def fill_cache(server: Server) -> None:
    prompt = [token % VOCABULARY for token in range(TOKENS)]
    server.generate(input_ids=prompt, sampling_params={"max_new_tokens": 1})


def test_the_system_gets_the_memory(
    large_server: Server, large: Path, ranks: int, cold: Cold
) -> None:
    trainer = Trainer(large_server, ranks)
    weights = sum(t.numel() * t.element_size() for t in load(large).values())
    cache = KV_TOKEN * TOKENS
    assert min(weights, cache) > 140 * MEBIBYTE
    fill_cache(large_server)
    full = resident(large_server)
    done(release(large_server, "kv_cache"))
    without_cache = resident(large_server)
    assert full - without_cache > 0.9 * cache
    done(release(large_server))
    without_both = resident(large_server)
    assert without_cache - without_both > 0.9 * weights
    assert large_server.get("/health").status == 200
    assert resident(large_server) < without_both + 8 * MEBIBYTE  # nothing touches it
    done(resume(large_server, "weights"))
    new = step(load(large), 1)
    trainer.begin().ok()
    for chunk in chunks(named(new), 24):
        send_bucket(trainer, chunk).ok()
    trainer.end().ok()
    done(resume(large_server, *REST))
    fill_cache(large_server)
    # The second arena has memory since the update: that goes, too.
    full = resident(large_server)
    done(release(large_server))
    assert full - resident(large_server) > 0.9 * (2 * weights + cache)
    done(resume(large_server))
    path = cold.write(large, new)
    body = {"model_path": str(path), "weight_version": "2"}
    large_server.post("/update_weights_from_disk", body).ok()
    other = Server(path, "--max-total-tokens", 4096, "--tp", ranks)
    try:
        assert state(large_server) == state(other)
        assert greedy(large_server) == greedy(other)
    finally:
        other.close()


# ---- as trainers do it ----


def check_serves(trainer: Trainer, cold: Cold, model: Path, weights: Weights) -> None:
    assert released(trainer.server) == []
    assert trainer.open()["incomplete"] is None
    assert state(trainer.server) == cold(model, weights, "--tp", trainer.ranks)
    assert serves(trainer.server, weights)
    assert len(greedy(trainer.server)) == 16


def test_miles_colocated(trainer: Trainer, cold: Cold, small_llama: Path) -> None:
    server = trainer.server
    for turn in range(3):
        greedy(server)
        assert server.get("/flush_cache").status == 200
        done(release(server, "kv_cache", "weights", "cuda_graph"))
        assert released(server) == ["kv_cache", "weights"]
        done(resume(server, "weights"))
        server.post("/pause_generation", {"mode": "retract"}).ok()
        assert server.get("/flush_cache").status == 200
        new = step(load(small_llama), turn)
        trainer.begin(selector="target").ok()
        for chunk in chunks(named(new), 5):
            send_bucket(trainer, chunk).ok()
        trainer.end().ok()
        server.post("/continue_generation").ok()
        done(resume(server, *REST))
        check_serves(trainer, cold, small_llama, new)


def test_nemo_rl(trainer: Trainer, cold: Cold, small_llama: Path) -> None:
    """Buckets without a session, so that fused parameters come in parts."""
    server = trainer.server
    assert server.get("/flush_cache").status == 200
    done(release(server, "kv_cache", "cuda_graph"))
    done(release(server, "weights"))
    done(resume(server, "weights"))
    assert server.get("/flush_cache").status == 200
    new = step(load(small_llama), 1)
    for chunk in chunks(named(new), 1):
        assert trainer.open()["incomplete"]
        send_bucket(trainer, chunk).ok()
    assert server.get("/flush_cache").status == 200
    done(resume(server, *REST))
    check_serves(trainer, cold, small_llama, new)


def test_verl(trainer: Trainer, cold: Cold, small_llama: Path) -> None:
    """With the default flush, and again after a try that was lost."""
    server = trainer.server
    for _ in range(2):
        done(release(server, "kv_cache", "weights"))
    for _ in range(2):
        done(resume(server, "weights"))
    new = step(load(small_llama), 2)
    for chunk in chunks(named(new), 3):
        for _ in range(2):
            send_verl(trainer, chunk).ok()
    for _ in range(2):
        done(resume(server, "kv_cache"))
    check_serves(trainer, cold, small_llama, new)


def test_a_checkpoint_brings_everything(
    trainer: Trainer, cold: Cold, small_llama: Path, other_checkpoint: Callable[..., Path]
) -> None:
    other = other_checkpoint(4)
    body = {"model_path": str(other), "weight_version": "4"}
    trainer.server.post("/update_weights_from_disk", body).ok()
    done(release(trainer.server))
    assert "released" in failure(trainer.server.post("/update_weights_from_disk", body))
    done(resume(trainer.server))
    reply = trainer.server.post("/update_weights_from_disk", body).ok()
    assert reply["already_loaded"] is False
    check_serves(trainer, cold, small_llama, load(other))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_weights(make_case: Callable[..., Case], scheme: str) -> None:
    case = make_case("deepseek v3", scheme, 2)
    done(release(case.server))
    done(resume(case.server))
    assert case.trainer.open()["incomplete"]
    case.trainer.session(named(load(case.second)), "2")
    assert case.trainer.open()["incomplete"] is None
    assert case.told() == case.cold(load(case.second))


# ---- what is answered in each state ----


def test_generation_in_each_state(single: Trainer, small_llama: Path) -> None:
    server = single.server
    old = greedy(server)
    done(release(server, "kv_cache"))
    waiting = Background(greedy, server)
    eventually(lambda: server.load() == 1, "it waits")
    for path in ("/health", "/health_generate", "/server_info", "/model_info"):
        assert server.get(path).status == 200
    done(resume(server, "kv_cache"))
    assert waiting.result() == old

    done(release(server, "weights"))
    assert ask(server).status == 503
    assert "the weights were released and not resumed yet" in ask(server).text
    refused_update = single.send(named(load(small_llama)))
    failure(refused_update, "/resume_memory_occupation (tags: weights) first")
    failure(single.begin(), "/resume_memory_occupation")
    failure(single.check("checksum"), "the memory of the weights is released")
    for path in ("/weights_digest", "/export_weights?name=lm_head.weight"):
        reply = server.get(path)
        assert reply.status == 400 and "the memory of the weights is released" in reply.text
    assert server.get("/health").status == 200

    done(resume(server, "weights"))
    assert ask(server).status == 503
    assert "tensors must be sent again: lm_head.weight" in ask(server).text
    everything = named(load(small_llama))
    single.send([t for t in everything if not t[0].startswith("model.norm")]).ok()
    assert ask(server).status == 503
    assert "1 tensors must be sent again: model.norm.weight" in single.open()["incomplete"]
    single.send([t for t in everything if t[0].startswith("model.norm")]).ok()
    assert greedy(server) == old


def test_what_waits_while_paused_is_computed_under_the_new_weights(
    trainer: Trainer, small_llama: Path
) -> None:
    server = trainer.server
    server.post("/pause_generation", {"mode": "retract"}).ok()
    waiting = Background(greedy, server)
    eventually(lambda: server.load() == 1, "it waits")
    done(release(server))
    done(resume(server, "weights"))
    trainer.session(named(step(load(small_llama), 3)), "3")
    done(resume(server, *REST))
    server.post("/continue_generation").ok()
    assert waiting.result() == greedy(server)
    assert trainer.version() == "3"


def test_memory_that_is_needed_stays(single: Trainer) -> None:
    server = single.server
    sampling = {"max_new_tokens": 16000, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [3], "rid": "long", "sampling_params": sampling}
    running = Background(server.post, "/generate", body)
    eventually(lambda: server.load() == 1, "it runs")
    for tags in ((), ("kv_cache",), ("weights",)):
        refused(release(server, *tags), "not idle")
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    refused(release(server), "1 requests are paused in place")
    assert released(server) == []
    server.post("/abort_request", {"rid": "long"})
    server.post("/continue_generation").ok()
    running.result().ok()
    eventually(lambda: server.load() == 0, "it is idle")
    single.begin().ok()
    refused(release(server), "a weight-update session is open")
    single.end(abort=True).ok()
    refused(release(server, "weights", "attic"), '"attic"')
    refused(resume(server, "attic"), '"attic"')
    assert len(greedy(server)) == 16


def test_twice_and_the_other_way_round(single: Trainer, small_llama: Path) -> None:
    server = single.server
    done(resume(server))
    done(release(server, "cuda_graph"))
    assert released(server) == []
    old = greedy(server)
    done(server.get(RELEASE))
    done(server.get(RELEASE))
    done(release(server, "weights"))
    assert server.get("/metrics").text.count("_released 1\n") == 2
    done(server.get(RESUME))
    single.session(named(load(small_llama)))
    done(release(server, "kv_cache"))
    done(resume(server))  # takes no weights away
    assert greedy(server) == old


# ---- with a backup ----


def test_with_a_backup_serving_goes_on_at_once(
    start: Callable[..., Server], ranks: int, tmp_path: Path
) -> None:
    arguments: list[Any] = ["--tp", ranks, *OPTIONS, "--enable-weights-cpu-backup"]
    server = start(*arguments, "--weights-backup-dir", tmp_path)
    before, old = state(server), greedy(server)
    done(release(server))
    assert released(server) == ["kv_cache", "weights"]
    assert list(tmp_path.iterdir()) == []
    waiting = Background(greedy, server)
    eventually(lambda: server.load() == 1, "it waits")
    done(resume(server, "weights"))
    done(resume(server, *REST))
    assert waiting.result() == old
    assert state(server) == before


def test_a_backup_without_a_directory_releases_nothing(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    server = start(*OPTIONS, "--enable-weights-cpu-backup", "--weights-backup-dir", gone)
    refused(release(server), str(gone))
    assert released(server) == []
    assert len(greedy(server)) == 16


def test_updates_in_place_bring_the_weights_back(
    start: Callable[..., Server], small_llama: Path
) -> None:
    server = start(*OPTIONS, "--undo-memory", 0)
    trainer = Trainer(server)
    done(release(server))
    done(resume(server))
    new = step(load(small_llama), 5)
    for tensor in named(new):
        trainer.send([tensor]).ok()
    assert trainer.open()["incomplete"] is None
    assert serves(server, new)
    assert len(greedy(server)) == 16
