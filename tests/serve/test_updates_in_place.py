"""Engines without the memory to undo updates: generation waits, and a failure is not served."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from payloads import chunks
from server import Background, Server, eventually
from trainer import (
    OPTIONS,
    Borrow,
    Cold,
    Trainer,
    failure,
    greedy,
    load,
    named,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")


@pytest.fixture(params=[0, "32K"], ids=["none", "some"])
def in_place(request: pytest.FixtureRequest, borrow: Borrow, ranks: int) -> Trainer:
    """Of engines that can undo nothing, or only the first tensors that come."""
    memory = ("--undo-memory", request.param)
    return Trainer(borrow("--tp", ranks, *memory, *OPTIONS), ranks)


def test_updates_in_place(in_place: Trainer, cold: Cold, small_llama: Path) -> None:
    before = load(small_llama)
    new = step(before, 1)
    half = named(new)[::2]
    assert in_place.session(half, "1")["undoable"] is False
    expected = before | dict(half)
    assert state(in_place.server) == cold(small_llama, expected, "--tp", in_place.ranks)
    in_place.send(named(new), weight_version="2").ok()
    assert state(in_place.server) == cold(small_llama, new, "--tp", in_place.ranks)
    assert in_place.version() == "2"


def waiting(server: Server) -> Background:
    """A request that cannot be served yet."""
    call = Background(greedy, server)
    eventually(lambda: server.load() == 1, "the request has arrived")
    return call


def test_generation_waits_for_updates_in_place(in_place: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    old_text = greedy(in_place.server)
    in_place.begin().ok()
    call = waiting(in_place.server)
    for chunk in chunks(named(new), 5):
        in_place.send(chunk).ok()
        assert not call.done()
    assert in_place.server.get("/health").status == 200
    in_place.end().ok()
    assert call.result() == greedy(in_place.server) != old_text


def refuses(trainer: Trainer) -> None:
    """It holds no whole version, says so, and lives."""
    reply = trainer.server.post("/generate", {"input_ids": [1]})
    assert reply.status == 503
    assert "incomplete update" in reply.text
    assert "incomplete update" in trainer.open()["incomplete"]
    assert trainer.server.get("/health").status == 200


@pytest.mark.parametrize("how", ["failure", "abort", "another begin"])
def test_what_was_in_place_cannot_be_undone(
    in_place: Trainer, cold: Cold, small_llama: Path, how: str
) -> None:
    new = step(load(small_llama), 1)
    in_place.begin().ok()
    in_place.send(named(new)[:9]).ok()
    if how == "failure":
        failure(in_place.send([("no.such.weight", new["lm_head.weight"])]))
        failure(in_place.end(), "no.such.weight")
    elif how == "abort":
        in_place.end(abort=True).ok()
    else:
        in_place.begin().ok()
        in_place.end()
    refuses(in_place)
    in_place.send(named(new)[9:])
    refuses(in_place)  # these were never in doubt
    in_place.session(named(new), "2")
    assert in_place.open()["incomplete"] is None
    assert state(in_place.server) == cold(small_llama, new, "--tp", in_place.ranks)
    assert len(greedy(in_place.server)) == 16


def test_a_message_that_is_refused_has_written_nothing_in_place(
    in_place: Trainer, small_llama: Path
) -> None:
    """Its last tensor is wrong; the first ones were not touched."""
    before, text = state(in_place.server), greedy(in_place.server)
    new = step(load(small_llama), 1)
    wrong = [*named(new)[:-1], ("no.such.weight", new["lm_head.weight"])]
    failure(in_place.send(wrong), "no.such.weight")
    in_place.begin().ok()
    failure(in_place.send(wrong), "no.such.weight")
    failure(in_place.end(), "no.such.weight")
    assert (state(in_place.server), greedy(in_place.server)) == (before, text)


def test_generation_waits_after_a_checkpoint_inside_a_session(
    in_place: Trainer, small_llama: Path, other_checkpoint: Callable[..., Path]
) -> None:
    """Loaded or refused, the session goes on, and may write again."""
    new = step(load(small_llama), 1)
    other = other_checkpoint(2)
    for path, status in ((other, 200), (other / "gone", 400)):
        in_place.begin().ok()
        body = {"model_path": str(path)}
        assert in_place.server.post("/update_weights_from_disk", body).status == status
        call = waiting(in_place.server)
        for chunk in chunks(named(new), 3):
            in_place.send(chunk).ok()
            assert not call.done()
        in_place.end().ok()
        assert serves(in_place.server, new)
        assert call.result() == greedy(in_place.server)


def test_a_checkpoint_makes_an_incomplete_engine_whole(
    in_place: Trainer, small_llama: Path, other_checkpoint: Callable[..., Path]
) -> None:
    in_place.begin().ok()
    in_place.send(named(step(load(small_llama), 1))[:9]).ok()
    in_place.end(abort=True).ok()
    refuses(in_place)
    other = other_checkpoint(2)
    in_place.server.post("/update_weights_from_disk", {"model_path": str(other)}).ok()
    assert serves(in_place.server, load(other))
    assert len(greedy(in_place.server)) == 16
