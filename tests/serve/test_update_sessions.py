"""Sessions of updates as trainers hold them, over HTTP: order, texts, undoing, and what is served."""

from __future__ import annotations

from pathlib import Path

import pytest
from payloads import safetensors
from server import eventually
from trainer import (
    OPTIONS,
    PROMPT,
    Borrow,
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

ALREADY_OPEN = "a weight-update session is already open; call end_weight_update() first"
NOT_OPEN = "no weight-update session is open; call begin_weight_update() first"
BETWEEN = (
    "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()"
)


# ---- order and texts ----


def test_begin_and_end_say_what_they_did(trainer: Trainer) -> None:
    begun = trainer.begin().ok()
    assert begun["success"] is True and begun["message"] == "Success"
    assert (begun["selector"], begun["sync_base"]) == ("all", True)
    assert trainer.open() == {
        "open": True,
        "selector": "all",
        "loaded": False,
        "open_for_writes": False,
        "weight_version_pending": None,
        "failure": None,
        "pending": [],
        "incomplete": None,
    }
    ended = trainer.end().ok()
    assert ended["success"] is True and ended["message"] == "Success"
    assert (ended["aborted"], ended["weight_version"]) == (False, "default")
    assert trainer.open()["open"] is False


def test_an_end_without_a_session(trainer: Trainer) -> None:
    assert failure(trainer.end()) == NOT_OPEN
    assert failure(trainer.end(abort=True)) == NOT_OPEN
    trainer.begin().ok()
    trainer.end().ok()
    assert failure(trainer.end()) == NOT_OPEN


@pytest.mark.parametrize("other", [{"selector": "target"}, {"sync_base": False}], ids=str)
def test_a_begin_of_another_kind_leaves_the_open_session(
    single: Trainer, small_llama: Path, other: dict[str, object]
) -> None:
    new = step(load(small_llama), 1)
    single.begin().ok()
    single.send(named(new), weight_version="1").ok()
    assert failure(single.begin(**other)) == ALREADY_OPEN
    assert single.open()["weight_version_pending"] == "1"
    assert single.end().ok()["weight_version"] == "1"
    assert serves(single.server, new)


def test_the_same_begin_starts_anew(trainer: Trainer, small_llama: Path) -> None:
    """As a trainer does that has died between begin and end."""
    before = load(small_llama)
    first, second = step(before, 1), step(before, 2)
    trainer.begin(selector="target").ok()
    trainer.send(named(first), weight_version="1").ok()
    trainer.begin(selector="target").ok()
    assert trainer.open()["loaded"] is False
    assert trainer.open()["weight_version_pending"] is None
    half = dict(named(second)[::2])
    trainer.send(named(half)).ok()
    assert trainer.end().ok()["weight_version"] == "default"
    assert serves(trainer.server, before | half)


def test_a_begin_after_a_failure_starts_anew(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    trainer.begin().ok()
    failure(trainer.send([("no.such.weight", new["lm_head.weight"])]), "no.such.weight")
    trainer.begin().ok()
    assert trainer.open()["failure"] is None
    trainer.send(named(new)).ok()
    trainer.end().ok()
    assert serves(trainer.server, new)


@pytest.mark.parametrize("wrong", ["main", "", " ", "target,draft", "All", 3, ["all"]], ids=repr)
def test_selectors_that_there_are_not(single: Trainer, wrong: object) -> None:
    reply = single.begin(selector=wrong)
    failure(reply, "selector")
    assert reply.json["object"] == "error"
    assert single.open()["open"] is False


def test_the_end_may_come_from_another_client(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    trainer.begin().ok()
    trainer.send(named(new)).ok()
    Trainer(trainer.server, trainer.ranks).end(session_id="someone else's").ok()
    assert serves(trainer.server, new)


def test_unknown_fields_are_ignored(single: Trainer) -> None:
    single.begin(session_id="s", new_lora_names=[], prefix="weights").ok()
    single.end(session_id="s", expected_lora_checksums=None).ok()


def test_there_are_no_adapters_to_check(single: Trainer) -> None:
    single.begin().ok()
    failure(single.end(expected_lora_checksums={"a": {"b": "00"}}), "expected_lora_checksums")
    single.end().ok()


# ---- which updates a session takes ----


def test_a_selector_that_is_no_part_of_the_sessions(single: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    single.begin(selector="target").ok()
    for selector in ("all", "draft"):
        failure(single.send(named(new), selector=selector), "selector", selector, "target")
    assert single.open()["failure"] is None  # it was not the session's
    single.send(named(new), selector="target").ok()
    single.end().ok()
    assert serves(single.server, new)


def test_a_draft_session_of_an_engine_without_a_draft(trainer: Trainer, small_llama: Path) -> None:
    """It selects nothing: what is sent is nobody's, and changes nothing."""
    before = state(trainer.server)
    trainer.begin(selector="draft").ok()
    assert trainer.send(named(step(load(small_llama), 1))).ok()["tensors"] == 0
    trainer.end().ok()
    trainer.begin(selector="draft").ok()
    trainer.end(abort=True).ok()
    assert state(trainer.server) == before


def test_a_session_for_adapters_refuses_base_tensors(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    trainer.begin(sync_base=False).ok()
    reply = trainer.send(named(step(load(small_llama), 1)))
    assert failure(reply) == ("base tensors arrived in a sync_base=False weight-update session")
    trainer.end().ok()
    assert state(trainer.server) == before


def test_sessions_that_are_required(borrow: Borrow, small_llama: Path) -> None:
    trainer = Trainer(borrow("--session", "required", *OPTIONS))
    new = step(load(small_llama), 1)
    before = state(trainer.server)
    for reply in (
        trainer.send(named(new)),
        trainer.post([safetensors(named(new))], load_format="safetensors"),
    ):
        assert failure(reply) == BETWEEN
    assert state(trainer.server) == before
    trainer.session(named(new), "1")
    assert serves(trainer.server, new)
    assert trainer.version() == "1"


def test_sessions_that_are_ignored(borrow: Borrow, small_llama: Path) -> None:
    """Every update is live with its reply; begin and end change nothing, in any order."""
    trainer = Trainer(borrow("--session", "ignored", *OPTIONS))
    before = load(small_llama)
    new = step(before, 1)
    trainer.end().ok()
    trainer.begin().ok()
    trainer.begin(selector="target").ok()
    first = named(new)[:3]
    reply = trainer.send(first, weight_version="1").ok()
    assert reply["message"] == "Success Weight version updated to 1."
    assert serves(trainer.server, before | dict(first))
    trainer.end(abort=True).ok()
    assert serves(trainer.server, before | dict(first))
    assert trainer.version() == "1"


# ---- the label ----


def test_the_label_waits_for_the_end(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    trainer.begin().ok()
    reply = trainer.send(named(new), weight_version="7").ok()
    assert reply["message"] == "Success"
    assert reply["weight_version_pending"] == "7"
    assert trainer.version() == "default"
    assert trainer.open()["weight_version_pending"] == "7"
    body = {"new_version": "8", "abort_all_requests": False}
    labelled = trainer.server.post("/update_weight_version", body).ok()
    assert labelled["pending"] is True
    assert trainer.version() == "default"
    assert trainer.end().ok()["weight_version"] == "8"
    assert trainer.version() == "8"
    assert trainer.open()["weight_version_pending"] is None


def test_a_label_alone(trainer: Trainer) -> None:
    """As after writes of the weights past the server: no update comes, only the label."""
    before = state(trainer.server)
    trainer.begin().ok()
    body = {"new_version": "3", "abort_all_requests": False}
    trainer.server.post("/update_weight_version", body).ok()
    trainer.end().ok()
    assert trainer.version() == "3"
    assert state(trainer.server) == before


def test_requests_of_the_session_have_the_old_label(trainer: Trainer, small_llama: Path) -> None:
    old = greedy(trainer.server)
    trainer.begin().ok()
    trainer.send(named(step(load(small_llama), 1)), weight_version="1").ok()
    sampling = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
    reply = trainer.server.generate(input_ids=PROMPT, sampling_params=sampling)
    assert reply["meta_info"]["weight_version"] == "default"
    assert reply["output_ids"] == old
    trainer.end().ok()


# ---- undoing ----


def test_an_abort_leaves_weights_and_label(trainer: Trainer, small_llama: Path) -> None:
    before, text = state(trainer.server), greedy(trainer.server)
    trainer.begin().ok()
    trainer.send(named(step(load(small_llama), 1)), weight_version="1").ok()
    assert trainer.end(abort=True).ok()["aborted"] is True
    assert (state(trainer.server), greedy(trainer.server)) == (before, text)
    assert trainer.version() == "default"


def test_a_failed_update_undoes_the_session(trainer: Trainer, small_llama: Path) -> None:
    """The end says why; the next session is as any other."""
    before = state(trainer.server)
    new = step(load(small_llama), 1)
    tensors = named(new)
    trainer.begin().ok()
    trainer.send(tensors[:5], weight_version="1").ok()
    failure(trainer.send([("model.norm.weight", new["lm_head.weight"])]), "model.norm.weight")
    assert "model.norm.weight" in trainer.open()["failure"]
    failure(trainer.send(tensors[5:]), "the session has failed", "model.norm.weight")
    failure(trainer.end(), "the session was undone", "model.norm.weight")
    assert state(trainer.server) == before
    assert (trainer.version(), trainer.open()["open"]) == ("default", False)
    trainer.session(tensors, "2")
    assert serves(trainer.server, new)
    assert trainer.version() == "2"


def test_a_silent_session_is_undone(borrow: Borrow, small_llama: Path) -> None:
    trainer = Trainer(borrow("--session-timeout", 0.2, "--session", "required", *OPTIONS))
    before = state(trainer.server)
    trainer.begin().ok()
    trainer.send(named(step(load(small_llama), 1)), weight_version="1")
    eventually(lambda: trainer.open()["open"] is False, "the session is undone")
    assert state(trainer.server) == before
    assert failure(trainer.end()) == NOT_OPEN
    assert trainer.version() == "default"


# ---- slime's way ----


def test_slime_ends_and_begins_by_post_process_weights(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    post = trainer.server.post
    restore = {"restore_weights_before_load": True, "post_process_quantization": False}
    process = {"restore_weights_before_load": False, "post_process_quantization": True}
    assert post("/post_process_weights", restore).ok() == {"success": True, "message": "Success"}
    assert trainer.open()["open"] is True
    trainer.send(named(new), weight_version="1").ok()
    assert post("/post_process_weights", process).ok()["success"] is True
    assert trainer.open()["open"] is False
    assert trainer.version() == "1"
    assert serves(trainer.server, new)
    post("/post_process_weights", process).ok()  # nothing is open: nothing to do
    post("/post_process_weights", restore | process).ok()
    post("/post_process_weights", {}).ok()
    assert trainer.open()["open"] is False
    assert serves(trainer.server, new)


def test_slimes_end_tells_of_a_failure(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    trainer.server.post("/post_process_weights", {"restore_weights_before_load": True}).ok()
    trainer.send(named(step(load(small_llama), 1))).ok()
    failure(trainer.send([("no.such.weight", load(small_llama)["lm_head.weight"])]))
    end = trainer.server.post("/post_process_weights", {"post_process_quantization": True})
    failure(end, "no.such.weight")
    assert state(trainer.server) == before
