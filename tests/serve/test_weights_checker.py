"""The weight checker over HTTP: acceptance list of SGLang's, hashes recomputed, and faults found by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from payloads import encode
from server import Reply
from trainer import (
    OPTIONS,
    Borrow,
    Cold,
    State,
    Trainer,
    Weights,
    failure,
    greedy,
    load,
    named,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

UP = "model.layers.0.mlp.up_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
FUSED_UP = "model.layers.0.mlp.gate_up_proj.weight"
FUSED_QUERY = "model.layers.0.self_attn.qkv_proj.weight"
NORM = "model.norm.weight"


def lines(reply: Reply) -> list[str]:
    """Of a comparison that has failed, one for each tensor."""
    assert reply.status == 400, reply.text
    assert reply.json["success"] is False
    first, *rest = str(reply.json["message"]).splitlines()
    assert first == "check tensor equality failed:"
    return rest


def names(reply: Reply) -> list[str]:
    return [re.search(r"name=(\S+)", line)[1] for line in lines(reply)]  # type: ignore[index]


# ---- the acceptance list ----


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_both_methods_with_and_without_a_body(trainer: Trainer, method: str) -> None:
    request = trainer.server.request
    for body in (None, {}, {"action": "checksum"}, {"selector": "all", "skip_tensor_list": None}):
        reply = request(method, "/weights_checker", body).ok()
        assert reply["success"] is True and reply["message"] == "Success."
        assert len(reply["ranks"]) == trainer.ranks
    assert request(method, "/weights_checker", {"action": "snapshot"}).status == 200
    assert request(method, "/weights_checker", {"action": "compare"}).status == 200


def test_unknown_actions(single: Trainer) -> None:
    before = state(single.server)
    for action in ("invalid", "", "Checksum", "reset"):
        failure(single.check(action), f"Unsupported action='{action}'")
    failure(single.check("checksum", selector="main"), "selector")
    failure(single.check("checksum", hash="md5"), "hash", "sha256")
    assert state(single.server) == before


def test_what_a_checksum_holds(trainer: Trainer) -> None:
    reply = trainer.check("checksum").ok()
    assert re.fullmatch("[0-9a-f]{64}", reply["per_engine_checksum"])
    assert reply["skipped"] == []
    for number, rank in enumerate(reply["ranks"]):
        assert set(rank) == {
            "checksums",
            "per_gpu_checksum",
            "parallelism_info",
            "derived_checksums",
        }
        assert rank["parallelism_info"] == [
            {
                "role": "target",
                "tp_rank": number,
                "tp_size": trainer.ranks,
                "dp_rank": 0,
                "dp_size": 1,
                "pp_rank": 0,
                "pp_size": 1,
                "rank": number,
                "size": trainer.ranks,
            }
        ]
        assert {FUSED_UP, FUSED_QUERY, NORM} <= set(rank["checksums"])
        for name, digits in rank["checksums"].items():
            assert re.fullmatch("[0-9a-f]{16}", digits)
            assert not re.search("cos_sin_cache|inv_freq|freqs_cis|_weight_fp32", name)


def test_two_checksums_without_an_update_are_equal(trainer: Trainer) -> None:
    first = trainer.check("checksum").ok()
    greedy(trainer.server)
    assert trainer.check("checksum").ok() == first


def test_an_update_changes_the_fused_parameters_hash(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    trainer.send([(UP, step(load(small_llama), 1)[UP])]).ok()
    after = state(trainer.server)
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert {name for name in old if old[name] != new[name]} == {FUSED_UP}
    assert before.per_engine != after.per_engine


def test_a_comparison_names_the_fused_parameter(trainer: Trainer, small_llama: Path) -> None:
    trainer.check("snapshot").ok()
    compared = trainer.check("compare").ok()
    assert compared["success"] is True and compared["message"] == "Success."
    assert compared["compared"] == sum(map(len, state(trainer.server).tensors))
    trainer.send([(UP, load(small_llama)[UP])]).ok()  # identical bytes
    trainer.check("compare").ok()
    changed = load(small_llama)[UP] + 0.5
    trainer.send([(UP, changed)]).ok()
    reply = trainer.check("compare")
    assert names(reply) == [FUSED_UP] * trainer.ranks
    for line in lines(reply):
        assert all(part in line for part in ("max_abs_err=", "mean_abs_err=", "num_exceed="))
        assert float(re.search(r"max_abs_err=(\S+)", line)[1]) == pytest.approx(0.5)  # type: ignore[index]


def test_a_comparison_needs_a_snapshot(borrow: Borrow) -> None:
    trainer = Trainer(borrow("--tp", 1, "--max-total-tokens", 2048))  # nobody else's
    failure(trainer.check("compare"), "snapshot")


def test_a_snapshot_replaces_the_last_one(trainer: Trainer, small_llama: Path) -> None:
    trainer.check("snapshot").ok()
    trainer.send(named(step(load(small_llama), 1))).ok()
    assert len(names(trainer.check("compare"))) > 1
    trainer.check("snapshot").ok()
    trainer.check("compare").ok()


# ---- reset ----


def test_br44_a_reset_then_a_full_update(trainer: Trainer, cold: Cold, small_llama: Path) -> None:
    """What trainers do at their start. Every tensor was overwritten, and every one came back."""
    weights = load(small_llama)
    first = state(trainer.server)
    trainer.check("snapshot").ok()
    assert trainer.check("reset_tensors").ok()["message"] == "Success."
    random = state(trainer.server)
    for old, new in zip(first.tensors, random.tensors, strict=True):
        assert all(new[name] != old[name] for name in old)
    failure(trainer.check("compare", skip_tensor_list=["weight"]), "nothing to compare")
    trainer.session(named(weights))
    assert trainer.check("compare").ok()["put_back"] == []
    assert state(trainer.server) == first == cold(small_llama, weights, "--tp", trainer.ranks)


def test_br44_a_comparison_right_after_a_reset_puts_all_back(trainer: Trainer) -> None:
    first, text = state(trainer.server), greedy(trainer.server)
    trainer.check("snapshot").ok()
    trainer.check("reset_tensors").ok()
    reply = trainer.check("compare")
    assert set(names(reply)) == set(first.tensors[0])
    assert set(reply.json["put_back"]) == set(first.tensors[0])
    assert (state(trainer.server), greedy(trainer.server)) == (first, text)


def test_br43_a_reset_then_a_part_of_an_update(trainer: Trainer, small_llama: Path) -> None:
    """The tensors that did not come are named, and have the snapshot's values again."""
    weights = load(small_llama)
    first = state(trainer.server)
    trainer.check("snapshot").ok()
    trainer.check("reset_tensors").ok()
    missing = {QUERY, NORM}
    trainer.session([(n, t) for n, t in named(weights) if n not in missing])
    reply = trainer.check("compare")
    assert set(names(reply)) == {FUSED_QUERY, NORM}
    assert set(reply.json["put_back"]) == {FUSED_QUERY, NORM}
    assert serves(trainer.server, weights)
    assert state(trainer.server) == first


def test_br44_derived_weights_and_skipped_tensors(borrow: Borrow, latent: Path) -> None:
    """What is left out is not scrambled either: all three sets are the same."""
    trainer = Trainer(borrow("--tp", 2, *OPTIONS, model=latent), 2)
    skip = ["layers.1.mlp", "kv_a_layernorm"]
    before = state(trainer.server)
    trainer.check("snapshot").ok()
    reset = trainer.check("reset_tensors", skip_tensor_list=skip).ok()
    skipped = {name for name in before.tensors[0] if any(part in name for part in skip)}
    assert skipped and set(reset["skipped"]) >= skipped
    after = state(trainer.server)
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert {name for name in old if old[name] == new[name]} == skipped
    sent = [(n, t) for n, t in named(load(latent)) if not any(part in n for part in skip)]
    trainer.session(sent, size=9)
    compared = trainer.check("compare", skip_tensor_list=skip).ok()
    assert compared["skipped"] == reset["skipped"]
    entries = sum(map(len, before.tensors)) + sum(map(len, before.derived))
    assert compared["compared"] == entries - 2 * len(skipped)
    trainer.check("compare").ok()  # also what was left out is as it was
    assert state(trainer.server) == before


# ---- faults are found, by name ----


def whole_then_reset(trainer: Trainer, new: Weights) -> None:
    """The engine knows what it is to hold; then it holds noise."""
    trainer.session(named(new))
    trainer.check("snapshot").ok()
    trainer.check("reset_tensors").ok()


def test_br43_a_rank_that_was_left_out(pair: Trainer, small_llama: Path) -> None:
    """Rank 1 gets the last version's tensors."""
    old = load(small_llama)
    new = step(old, 1)
    whole_then_reset(pair, new)
    pair.post([encode(named(new)), encode(named(old))]).ok()
    reply = pair.check("compare")
    assert all(line.startswith("rank 1: ") for line in lines(reply))
    assert set(names(reply)) == set(state(pair.server).tensors[1])


def test_br43_two_tensors_of_equal_shape_swapped(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    whole_then_reset(trainer, new)
    other = QUERY.replace("layers.0", "layers.1")
    trainer.session(named(new | {QUERY: new[other], other: new[QUERY]}))
    fused = {FUSED_QUERY, FUSED_QUERY.replace("layers.0", "layers.1")}
    assert set(names(trainer.check("compare"))) == fused


@pytest.mark.parametrize("bit", [0, 13, 31])
def test_br43_a_bit_that_has_flipped(trainer: Trainer, small_llama: Path, bit: int) -> None:
    """In the last element of the last rank's part; nothing else is named."""
    new = step(load(small_llama), 1)
    whole_then_reset(trainer, new)
    wrong = new[UP].clone()
    words = wrong.view(torch.int32)
    words[-1, -1] ^= -(2**31) if bit == 31 else 1 << bit
    trainer.session(named(new | {UP: wrong}))
    reply = trainer.check("compare")
    assert names(reply) == [FUSED_UP]
    if trainer.ranks == 2:
        assert lines(reply)[0].startswith("rank 1: ")


@pytest.mark.parametrize("what", ["nothing", "zeros", "NaN", "the last version", "another's"])
def test_br43_what_was_meant_did_not_arrive(trainer: Trainer, small_llama: Path, what: str) -> None:
    """That the output has changed would pass for each of these."""
    old = load(small_llama)
    new = step(old, 1)
    whole_then_reset(trainer, new)
    other = QUERY.replace("layers.0", "layers.1")
    arrives = {
        "nothing": None,
        "zeros": torch.zeros_like(new[QUERY]),
        "NaN": torch.full_like(new[QUERY], float("nan")),
        "the last version": old[QUERY],
        "another's": new[other],
    }[what]
    tensors = dict(new)
    del tensors[QUERY]
    if arrives is not None:
        tensors[QUERY] = arrives
    trainer.session(named(tensors))
    reply = trainer.check("compare")
    assert set(names(reply)) == {FUSED_QUERY}
    if what == "nothing":
        assert serves(trainer.server, new)


def test_br43_back_to_the_first_version(trainer: Trainer, small_llama: Path) -> None:
    """A → B → A."""
    first = state(trainer.server)
    old = load(small_llama)
    seen: list[State] = []
    for weights in (step(old, 1), old, step(old, 1), old):
        trainer.session(named(weights))
        seen.append(state(trainer.server))
    assert seen[1] == seen[3] == first
    assert seen[0] == seen[2] != first


def test_the_checker_beside_a_session(trainer: Trainer, small_llama: Path) -> None:
    """It is of what is live, not of what is to come."""
    before = state(trainer.server)
    trainer.begin().ok()
    trainer.send(named(step(load(small_llama), 1))).ok()
    assert state(trainer.server) == before
    trainer.check("snapshot").ok()
    trainer.check("compare").ok()
    trainer.end().ok()
    assert len(names(trainer.check("compare"))) > 1
