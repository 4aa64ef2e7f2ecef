"""Updates from tensors again and again: retries, and what is left of them in engine and sender."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forms import FORMS
from payloads import (
    chunks,
    encode,
)
from server import eventually
from trainer import (
    Cold,
    Trainer,
    failure,
    load,
    named,
    ranks_of,
    resident,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

NORM = "model.norm.weight"
HEAD = "lm_head.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize("form", ["list", "safetensors"])
def test_retries_are_idempotent(trainer: Trainer, small_llama: Path, form: str) -> None:
    """verl sends a request again when the reply is late."""
    new = step(load(small_llama), 1)
    tensors = named(new)
    for attempt in range(3):
        reply = FORMS[form](trainer, tensors).ok()
        assert reply["unchanged"] is (attempt > 0)
        assert serves(trainer.server, new)


def test_the_very_same_request_again(single: Trainer, small_llama: Path) -> None:
    """Its memory may be gone by then; then the retry says so, and what is live stays."""
    new = step(load(small_llama), 1)
    body = {"serialized_named_tensors": [encode(named(new))], "weight_version": "1"}
    single.server.post("/update_weights_from_tensor", body).ok()
    for _ in range(2):
        reply = single.server.post("/update_weights_from_tensor", body)
        assert reply.status == 200 or "is not there" in failure(reply)
        assert serves(single.server, new)
        assert single.version() == "1"


def test_br26_an_update_that_changes_nothing_is_told(single: Trainer, small_llama: Path) -> None:
    def counted() -> int:
        text = single.server.get("/metrics").text
        line = text.split("\nsyncline_weight_updates_unchanged_total ")[1]
        return int(line.split("\n")[0])

    before = counted()
    same = named(load(small_llama))
    assert single.send(same).ok()["unchanged"] is True
    assert counted() == before + 1
    assert single.session(same)["unchanged"] is True
    assert counted() == before + 2
    reply = single.send(named(step(load(small_llama), 1))).ok()
    assert reply["unchanged"] is False
    assert counted() == before + 2


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def mappings(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/")


def shared_objects() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}


def test_br41_nothing_is_left_of_a_hundred_updates(
    trainer: Trainer, cold: Cold, small_llama: Path
) -> None:
    """Of engine and sender: memory, descriptors, mappings, and objects in /dev/shm."""
    weights = load(small_llama)
    pids = [trainer.server.process.pid, *ranks_of(trainer.server)]
    assert len(pids) == trainer.ranks
    sizes: dict[int, int] = {}

    def held() -> list[int]:
        counts = [descriptors(os.getpid()), len(shared_objects())]
        return counts + [count(pid) for pid in pids for count in (descriptors, mappings)]

    def is_no_more(baseline: list[int]) -> bool:
        # The engine may still be closing the connection of the last request.
        return all(now <= then for now, then in zip(held(), baseline, strict=True))

    for update in range(1, 101):
        new = step(weights, update % 3)
        if update % 2:
            trainer.send(named(new), weight_version=str(update)).ok()
        else:
            trainer.session(named(new), str(update), size=16)
        del new
        if update == 2:
            baseline = held()
        sizes[update] = resident(trainer.server)
    eventually(lambda: is_no_more(baseline), "what the updates held is free")
    assert sizes[100] < sizes[10] + (8 << 20)
    assert state(trainer.server) == cold(small_llama, step(weights, 1), "--tp", trainer.ranks)


def test_br41_senders_may_let_go_at_once(single: Trainer, small_llama: Path) -> None:
    """The engine holds the memory of a payload until it has read it."""
    new = step(load(small_llama), 1)
    blob = encode([(name, tensor.clone()) for name, tensor in named(new)])  # all freed by now
    single.post([blob]).ok()
    assert serves(single.server, new)


def test_br41_poisoned_buffers_do_not_reach_the_engine(single: Trainer, small_llama: Path) -> None:
    """After the reply the sender may write what it likes where the tensors were."""
    new = step(load(small_llama), 1)
    expected = {name: tensor.clone() for name, tensor in new.items()}
    single.begin().ok()
    for chunk in chunks(named(new), 3):
        single.send(chunk).ok()
        for _, tensor in chunk:
            tensor.fill_(float("nan"))
    single.end().ok()
    assert serves(single.server, expected)
