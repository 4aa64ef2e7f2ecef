"""BR-34: an error, or a client that goes away, at every step of an update."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from payloads import encode
from server import Background, Server, eventually
from trainer import (
    Borrow,
    Cold,
    State,
    Trainer,
    failure,
    greedy,
    load,
    named,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

# A session of which nothing is heard is undone; what comes after that is refused.
TIMED = ("--session-timeout", 1, "--session", "required", "--max-total-tokens", 8192)
NORM = "model.norm.weight"
LONG = {"max_new_tokens": 600, "temperature": 0, "ignore_eos": True}


def hang_up(server: Server, path: str, body: Any = None, part: float = 1.0) -> None:
    """Sends a request, or the first part of its body, and goes away without a reply."""
    connection = server.connect()
    data = json.dumps({} if body is None else body).encode()
    connection.putrequest("POST", path)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Content-Length", str(len(data)))
    connection.endheaders(data[: int(part * len(data))])
    connection.close()


class Update:
    """One update with its weights, up to the step at which something happens."""

    def __init__(self, trainer: Trainer, tensors: list[tuple[str, torch.Tensor]]) -> None:
        self.trainer = trainer
        self.server = trainer.server
        self.tensors = tensors
        self.running: list[Background] = []
        self.kept: list[object] = []  # what was sent must live until it is read

    def pause(self, mode: str) -> None:
        """With requests that run."""
        for n in range(4):
            call = Background(self.server.generate, input_ids=[n + 3, 7], sampling_params=LONG)
            self.running.append(call)
        eventually(lambda: self.used() > 0, "requests hold the cache")
        self.server.post("/pause_generation", {"mode": mode}).ok()

    def used(self) -> int:
        return int(self.server.get("/v1/loads").ok()["loads"][0]["num_used_tokens"])

    def start(self) -> None:
        self.trainer.begin().ok()
        self.trainer.send(self.tensors[:7], weight_version="broken", flush_cache=False).ok()

    def chunk(self) -> dict[str, Any]:
        rest = self.tensors[7:]
        self.kept.append(rest)
        payloads = [encode(rest) for _ in range(self.trainer.ranks)]
        return {"serialized_named_tensors": payloads, "flush_cache": False}

    def is_open(self, session: bool = True) -> bool:
        return bool(self.trainer.open()["open"]) is session


def begin_fails(update: Update) -> None:
    update.pause("retract")
    failure(update.trainer.begin(selector="nobody"), "selector")


def begin_is_not_heard(update: Update) -> None:
    update.pause("in_place")
    hang_up(update.server, "/begin_weight_update")
    eventually(update.is_open, "the session is open")


def chunk_has_a_wrong_name(update: Update) -> None:
    update.pause("retract")
    update.start()
    failure(update.trainer.send([*update.tensors[7:], ("no.such.weight", torch.ones(3))]))


def chunk_has_a_wrong_shape(update: Update) -> None:
    update.start()
    failure(update.trainer.send([*update.tensors[7:-1], (NORM, torch.ones(47))]))


def chunk_is_no_payload(update: Update) -> None:
    update.start()
    failure(update.trainer.post(["????"] * update.trainer.ranks))
    failure(update.trainer.post(["AAAA"] * update.trainer.ranks))


def chunk_comes_in_part(update: Update) -> None:
    update.pause("in_place")
    update.start()
    hang_up(update.server, "/update_weights_from_tensor", update.chunk(), part=0.5)


def chunk_is_not_heard(update: Update) -> None:
    update.start()
    hang_up(update.server, "/update_weights_from_tensor", update.chunk())


def end_fails(update: Update) -> None:
    """It is to flush what requests that were paused since hold."""
    update.trainer.begin().ok()
    update.trainer.send(update.tensors, weight_version="broken", flush_cache=True).ok()
    update.pause("in_place")
    failure(update.trainer.end(), "the session was undone")


def end_is_not_heard(update: Update) -> None:
    update.pause("retract")
    update.start()
    update.trainer.send(update.tensors[7:], flush_cache=False).ok()
    hang_up(update.server, "/end_weight_update")
    eventually(lambda: update.is_open(False), "the session has ended")


def flush_fails(update: Update) -> None:
    update.start()
    update.pause("in_place")
    assert update.server.post("/flush_cache").status == 400
    failure(update.trainer.send(update.tensors[7:], flush_cache=True), "flush_cache")


def flush_is_not_heard(update: Update) -> None:
    update.pause("retract")
    update.start()
    hang_up(update.server, "/flush_cache")


def resume_fails(update: Update) -> None:
    update.pause("retract")
    update.start()
    assert update.server.request("POST", "/continue_generation", b"{").status == 400


def resume_is_not_heard(update: Update) -> None:
    update.pause("in_place")
    update.start()
    hang_up(update.server, "/continue_generation")


STEPS: list[Callable[[Update], None]] = [
    begin_fails,
    begin_is_not_heard,
    chunk_has_a_wrong_name,
    chunk_has_a_wrong_shape,
    chunk_is_no_payload,
    chunk_comes_in_part,
    chunk_is_not_heard,
    end_fails,
    end_is_not_heard,
    flush_fails,
    flush_is_not_heard,
    resume_fails,
    resume_is_not_heard,
]


def finish(update: Update, first: State, cold: Cold, model: Path) -> None:
    """Whatever has happened: nothing is mixed, nothing hangs, and the next update is whole."""
    trainer, server = update.trainer, update.server
    whole = cold(model, dict(update.tensors), "--tp", trainer.ranks)
    assert state(server) in (first, whole)
    assert trainer.version() == ("default" if state(server) == first else "broken")
    server.post("/continue_generation", {}).ok()
    for call in update.running:
        reply = call.result()
        assert len(reply["output_ids"]) == LONG["max_new_tokens"]
        versions = [span["version"] for span in reply["meta_info"]["weight_versions"]]
        assert versions in (["default"], ["broken"], ["default", "broken"])
    newest = step(load(model), 2)
    trainer.session(named(newest), "newest", size=1000)
    assert state(server) == cold(model, newest, "--tp", trainer.ranks)
    assert trainer.version() == "newest"
    assert len(greedy(server)) == 16


# Step, ranks, how the session is freed. What the time-out does is the same for all ranks.
CASES = [(broken, ranks, "abort") for broken in STEPS for ranks in (1, 2)]
CASES += [(broken, 1, "time-out") for broken in STEPS]
CASES += [(broken, 2, "time-out") for broken in (chunk_has_a_wrong_name, chunk_is_not_heard)]


@pytest.mark.parametrize(
    ("broken", "ranks", "freed"),
    CASES,
    ids=[f"{broken.__name__}-tp{ranks}-{freed}" for broken, ranks, freed in CASES],
)
def test_br34(
    borrow: Borrow,
    cold: Cold,
    small_llama: Path,
    broken: Callable[[Update], None],
    ranks: int,
    freed: str,
) -> None:
    trainer = Trainer(borrow("--tp", ranks, *TIMED), ranks)
    first = state(trainer.server)
    update = Update(trainer, named(step(load(small_llama), 1)))
    broken(update)
    for path in ("/health", "/health_generate"):
        assert trainer.server.get(path).status == 200
    if freed == "abort":
        reply = trainer.end(abort=True)
        assert reply.status == 200 or "no weight-update session is open" in failure(reply)
    eventually(lambda: update.is_open(False), "the session is freed")
    if broken is not end_is_not_heard:
        assert state(trainer.server) == first
    finish(update, first, cold, small_llama)


def test_br34_in_place_it_refuses_rather_than_serve_a_mix(
    borrow: Borrow, cold: Cold, small_llama: Path
) -> None:
    trainer = Trainer(borrow("--undo-memory", 0, *TIMED))
    update = Update(trainer, named(step(load(small_llama), 1)))
    update.start()
    waits = Background(trainer.server.post, "/generate", {"input_ids": [1]})
    eventually(lambda: not update.trainer.open()["open"], "the session is freed")
    eventually(waits.done, "the request is answered")
    for reply in (waits.result(), trainer.server.post("/generate", {"input_ids": [1]})):
        assert reply.status == 503
        assert "incomplete update" in reply.text
    assert trainer.server.get("/health").status == 200
    newest = step(load(small_llama), 2)
    trainer.session(named(newest), "newest", size=1000)
    assert state(trainer.server) == cold(small_llama, newest, "--tp", 1)
    assert len(greedy(trainer.server)) == 16
