"""Whole updates of quantised models over HTTP: the engine is then as if started with them.

An fp8 engine with ue8m0 scales and an int4 engine hold other bytes than their checkpoints: what is
sent is packed again, into the same places.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forms import FORMS, send_bucket
from payloads import Named, chunks
from quantise import write
from quantised import Case, exports, shuffled
from trainer import Borrow, failure, greedy, load, named, serves

pytestmark = pytest.mark.usefixtures("by_name")

# ---- everything is sent ----


def in_session(size: int) -> Callable[[Case, Path], None]:
    """In chunks of `size` tensors, in random order."""

    def receive(case: Case, path: Path) -> None:
        tensors = shuffled(load(path), size)
        case.trainer.begin().ok()
        for chunk in chunks(tensors, size):
            send_bucket(case.trainer, chunk).ok()
        case.trainer.end().ok()

    return receive


def without_session(form: str) -> Callable[[Case, Path], None]:
    def receive(case: Case, path: Path) -> None:
        reply = FORMS[form](case.trainer, named(load(path))).ok()
        assert (reply["pending"], reply["undoable"]) == ([], True)

    return receive


def from_disk(case: Case, path: Path) -> None:
    case.disk(path).ok()
    assert case.trainer.info()["model_path"] == str(path)


RECEIVERS: dict[str, Callable[[Case, Path], None]] = {
    "disk": from_disk,
    "list": without_session("list"),
    "bucket": without_session("bucket of SGLang"),
    "verl": without_session("verl"),
    "safetensors": without_session("safetensors"),
    "raw": without_session("raw"),
    **{f"session, {size} at once": in_session(size) for size in (1, 2, 3, 7, 100000)},
}


def test_br27_every_receiver_gives_the_state_of_a_cold_engine(case: Case) -> None:
    """A to B, back to A, and B twice."""
    first, second = (case.cold(load(path)) for path in (case.first, case.second))
    assert case.told() == first != second
    for receiver, receive in RECEIVERS.items():
        for path, expected in ((case.second, second), (case.first, first)):
            receive(case, path)
            assert case.told() == expected, f"{receiver}, {path}"
    for again in (from_disk, from_disk, in_session(7), in_session(7)):
        again(case, case.second)
        assert case.told() == second


def test_the_text_is_that_of_a_cold_engine(case: Case, borrow: Borrow) -> None:
    """Also of an engine that has been asked before, and that has one of its own."""
    before = greedy(case.server)
    in_session(7)(case, case.second)
    after = greedy(case.server)
    cold = borrow(*case.arguments, model=case.second)
    assert after == greedy(cold) != before


def test_the_same_again_is_unchanged(case: Case) -> None:
    second = load(case.second)
    assert case.trainer.session(named(second))["unchanged"] is False
    assert case.trainer.session(named(second))["unchanged"] is True
    assert case.disk(case.second).ok()["unchanged"] is True
    assert case.disk(case.first).ok()["unchanged"] is False


def test_fp32_scales_are_served_as_they_were_sent(case: Case) -> None:
    """And so is int4; ue8m0 rounds, and what it has rounded once stays."""
    in_session(7)(case, case.second)
    held = exports(case.server)
    sent = {name: t for name, t in load(case.second).items() if not name.endswith("_shape")}
    rounds = "ue8m0" in case.arguments
    assert serves(case.server, sent) != rounds
    told = case.told()
    case.trainer.session(named(held))
    assert case.told() == told
    assert serves(case.server, held)


# ---- failures ----


def test_br27_a_wrong_shape_in_the_last_tensor(case: Case, tmp_path: Path) -> None:
    """Weights, path and label are those of before; the next update is as ever."""
    before, text = case.told(), greedy(case.server)
    info = case.trainer.info()
    weights = load(case.second)
    last = max(weights)
    wrong = weights | {last: torch.cat([weights[last], weights[last][:1]])}
    config = json.loads((case.first / "config.json").read_text())
    path = write(case.second, tmp_path / "wrong", wrong, config["quantization_config"])
    failure(case.disk(path, weight_version="wrong"), last)
    for form in ("bucket of SGLang", "raw"):
        failure(FORMS[form](case.trainer, sorted(wrong.items())), last)
    assert (case.told(), greedy(case.server)) == (before, text)
    case.trainer.begin().ok()
    rest: Named = sorted(wrong.items())
    for chunk in chunks(rest[:-1], 7):
        case.trainer.send(chunk, weight_version="wrong", flush_cache=False).ok()
    failure(case.trainer.send(rest[-1:]), last)
    failure(case.trainer.end(), last)
    assert (case.told(), greedy(case.server)) == (before, text)
    after = case.trainer.info()
    for field in ("model_path", "weight_version"):
        assert after[field] == info[field]
    case.disk(case.second).ok()
    assert case.told() == case.cold(weights)
