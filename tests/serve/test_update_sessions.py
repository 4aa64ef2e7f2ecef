"""Sessions of updates as trainers hold them, over HTTP: order, texts, undoing, and what is served."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from payloads import chunks, safetensors
from server import Background, Server, eventually
from trainer import (
    PROMPT,
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

ALREADY_OPEN = "a weight-update session is already open; call end_weight_update() first"
NOT_OPEN = "no weight-update session is open; call begin_weight_update() first"
BETWEEN = (
    "update_weights_from_tensor must run between begin_weight_update() and end_weight_update()"
)
SMALL = ("--max-total-tokens", 8192)
RANKS = [1, 2]


@pytest.fixture(params=RANKS, ids=["tp1", "tp2"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def trainer(borrow: Borrow, ranks: int) -> Trainer:
    return Trainer(borrow("--tp", ranks, *SMALL), ranks)


@pytest.fixture
def single(borrow: Borrow) -> Trainer:
    """With an engine of one rank."""
    return Trainer(borrow("--tp", 1, *SMALL))


# ---- order and texts ----


def test_begin_and_end_say_what_they_did(trainer: Trainer) -> None:
    begun = trainer.begin().ok()
    assert begun["success"] is True and begun["message"] == "Success"
    assert (begun["selector"], begun["sync_base"]) == ("all", True)
    assert trainer.open() == {
        "open": True,
        "selector": "all",
        "loaded": False,
        "weight_version_pending": None,
        "failure": None,
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
    trainer.send(named(step(load(small_llama), 1)))
    trainer.end(abort=True).ok()
    trainer.begin(selector="draft").ok()
    trainer.end().ok()
    assert state(trainer.server) == before


def test_a_session_for_adapters_refuses_base_tensors(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    trainer.begin(sync_base=False).ok()
    reply = trainer.send(named(step(load(small_llama), 1)))
    assert failure(reply) == ("base tensors arrived in a sync_base=False weight-update session")
    trainer.end().ok()
    assert state(trainer.server) == before


def test_sessions_that_are_required(borrow: Borrow, small_llama: Path) -> None:
    trainer = Trainer(borrow("--session", "required", *SMALL))
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
    trainer = Trainer(borrow("--session", "ignored", *SMALL))
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
    trainer = Trainer(borrow("--session-timeout", 0.2, "--session", "required", *SMALL))
    before = state(trainer.server)
    trainer.begin().ok()
    trainer.send(named(step(load(small_llama), 1)), weight_version="1")
    eventually(lambda: trainer.open()["open"] is False, "the session is undone")
    assert state(trainer.server) == before
    assert failure(trainer.end()) == NOT_OPEN
    assert trainer.version() == "default"


# ---- what is live after it ----


@pytest.mark.parametrize("part", ["nothing", "half", "a half of each pair", "all"])
def test_the_state_is_that_of_a_cold_engine(
    trainer: Trainer, cold: Cold, small_llama: Path, part: str
) -> None:
    before = load(small_llama)
    new = named(step(before, 1))
    some = {
        "nothing": [],
        "half": new[::2],
        "a half of each pair": [(n, t) for n, t in new if re.search("[qv]_proj|up_proj", n)],
        "all": new,
    }[part]
    trainer.session(some, "1")
    expected = before | dict(some)
    assert state(trainer.server) == cold(small_llama, expected, "--tp", trainer.ranks)
    assert serves(trainer.server, expected)


@pytest.mark.parametrize("ranks", RANKS, ids=["tp1", "tp2"])
@pytest.mark.parametrize("part", ["nothing", "half", "all"])
def test_br25_derived_weights_are_those_of_a_cold_engine(
    borrow: Borrow, cold: Cold, latent: Path, part: str, ranks: int
) -> None:
    before = load(latent)
    new = named(step(before, 1))
    half = [(n, t) for n, t in new if "layers.0" in n and "q_b_proj" not in n]
    some = {"nothing": [], "half": half, "all": new}[part]
    trainer = Trainer(borrow("--tp", ranks, *SMALL, model=latent), ranks)
    first = state(trainer.server)
    assert all(first.derived), "this model has weights that are derived"
    trainer.session(some, size=7)
    expected = cold(latent, before | dict(some), "--tp", ranks)
    assert state(trainer.server) == expected
    assert (expected.derived == first.derived) == (part == "nothing")
    trainer.session(named(before), size=7)
    assert state(trainer.server) == first  # A → B → A


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_br21_chunks_of_any_size_in_any_order(
    borrow: Borrow, cold: Cold, latent: Path, size: int
) -> None:
    """Halves of fused projections in different requests, in a session and without."""
    trainer = Trainer(borrow("--tp", 1, *SMALL, model=latent))
    before = load(latent)
    for seed, order in ((1, "given"), (2, "reversed"), (3, "shuffled")):
        weights = step(before, seed)
        tensors = named(weights)
        if order == "reversed":
            tensors.reverse()
        elif order == "shuffled":
            random.Random(seed).shuffle(tensors)
        if order == "given":
            for chunk in chunks(tensors, size):
                trainer.send(chunk).ok()
        else:
            trainer.session(tensors, size=size)
        assert state(trainer.server) == cold(latent, weights, "--tp", 1), order


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


# ---- memory that is too small for undoing ----


@pytest.fixture
def in_place(borrow: Borrow, ranks: int) -> Trainer:
    return Trainer(borrow("--tp", ranks, "--undo-memory", 0, *SMALL), ranks)


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
