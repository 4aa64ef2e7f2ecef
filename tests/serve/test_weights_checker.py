"""The weight checker over HTTP: acceptance list of SGLang's, hashes recomputed, and faults found by name."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from payloads import encode
from server import Reply
from trainer import (
    Borrow,
    Cold,
    State,
    Trainer,
    Weights,
    content,
    failure,
    greedy,
    load,
    named,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

SMALL = ("--max-total-tokens", 4096)
UP = "model.layers.0.mlp.up_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
FUSED_UP = "model.layers.0.mlp.gate_up_proj.weight"
FUSED_QUERY = "model.layers.0.self_attn.qkv_proj.weight"
NORM = "model.norm.weight"


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def trainer(request: pytest.FixtureRequest, borrow: Borrow) -> Trainer:
    ranks = int(request.param)
    return Trainer(borrow("--tp", ranks, *SMALL), ranks)


@pytest.fixture
def pair(borrow: Borrow) -> Trainer:
    return Trainer(borrow("--tp", 2, *SMALL), 2)


@pytest.fixture
def single(borrow: Borrow) -> Trainer:
    return Trainer(borrow("--tp", 1, *SMALL))


def check(trainer: Trainer, action: str, **fields: Any) -> Reply:
    return trainer.server.post("/weights_checker", {"action": action, **fields})


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
        failure(check(single, action), f"Unsupported action='{action}'")
    failure(check(single, "checksum", selector="main"), "selector")
    failure(check(single, "checksum", hash="md5"), "hash", "sha256")
    assert state(single.server) == before


def test_what_a_checksum_holds(trainer: Trainer) -> None:
    reply = check(trainer, "checksum").ok()
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
    first = check(trainer, "checksum").ok()
    greedy(trainer.server)
    assert check(trainer, "checksum").ok() == first


def test_an_update_changes_the_fused_parameters_hash(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    trainer.send([(UP, step(load(small_llama), 1)[UP])]).ok()
    after = state(trainer.server)
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert {name for name in old if old[name] != new[name]} == {FUSED_UP}
    assert before.per_engine != after.per_engine


def test_a_comparison_names_the_fused_parameter(trainer: Trainer, small_llama: Path) -> None:
    check(trainer, "snapshot").ok()
    compared = check(trainer, "compare").ok()
    assert compared["success"] is True and compared["message"] == "Success."
    assert compared["compared"] == sum(map(len, state(trainer.server).tensors))
    trainer.send([(UP, load(small_llama)[UP])]).ok()  # identical bytes
    check(trainer, "compare").ok()
    changed = load(small_llama)[UP] + 0.5
    trainer.send([(UP, changed)]).ok()
    reply = check(trainer, "compare")
    assert names(reply) == [FUSED_UP] * trainer.ranks
    for line in lines(reply):
        assert all(part in line for part in ("max_abs_err=", "mean_abs_err=", "num_exceed="))
        assert float(re.search(r"max_abs_err=(\S+)", line)[1]) == pytest.approx(0.5)  # type: ignore[index]


def test_a_comparison_needs_a_snapshot(borrow: Borrow) -> None:
    trainer = Trainer(borrow("--tp", 1, "--max-total-tokens", 2048))  # nobody else's
    failure(check(trainer, "compare"), "snapshot")


def test_a_snapshot_replaces_the_last_one(trainer: Trainer, small_llama: Path) -> None:
    check(trainer, "snapshot").ok()
    trainer.send(named(step(load(small_llama), 1))).ok()
    assert len(names(check(trainer, "compare"))) > 1
    check(trainer, "snapshot").ok()
    check(trainer, "compare").ok()


# ---- reset ----


def test_br44_a_reset_then_a_full_update(trainer: Trainer, cold: Cold, small_llama: Path) -> None:
    """What trainers do at their start. Every tensor was overwritten, and every one came back."""
    weights = load(small_llama)
    first = state(trainer.server)
    check(trainer, "snapshot").ok()
    assert check(trainer, "reset_tensors").ok()["message"] == "Success."
    random = state(trainer.server)
    for old, new in zip(first.tensors, random.tensors, strict=True):
        assert all(new[name] != old[name] for name in old)
    failure(check(trainer, "compare", skip_tensor_list=["weight"]), "nothing to compare")
    trainer.session(named(weights))
    assert check(trainer, "compare").ok()["put_back"] == []
    assert state(trainer.server) == first == cold(small_llama, weights, "--tp", trainer.ranks)


def test_br44_a_comparison_right_after_a_reset_puts_all_back(trainer: Trainer) -> None:
    first, text = state(trainer.server), greedy(trainer.server)
    check(trainer, "snapshot").ok()
    check(trainer, "reset_tensors").ok()
    reply = check(trainer, "compare")
    assert set(names(reply)) == set(first.tensors[0])
    assert set(reply.json["put_back"]) == set(first.tensors[0])
    assert (state(trainer.server), greedy(trainer.server)) == (first, text)


def test_br43_a_reset_then_a_part_of_an_update(trainer: Trainer, small_llama: Path) -> None:
    """The tensors that did not come are named, and have the snapshot's values again."""
    weights = load(small_llama)
    first = state(trainer.server)
    check(trainer, "snapshot").ok()
    check(trainer, "reset_tensors").ok()
    missing = {QUERY, NORM}
    trainer.session([(n, t) for n, t in named(weights) if n not in missing])
    reply = check(trainer, "compare")
    assert set(names(reply)) == {FUSED_QUERY, NORM}
    assert set(reply.json["put_back"]) == {FUSED_QUERY, NORM}
    assert serves(trainer.server, weights)
    assert state(trainer.server) == first


def test_br44_derived_weights_and_skipped_tensors(borrow: Borrow, latent: Path) -> None:
    """What is left out is not scrambled either: all three sets are the same."""
    trainer = Trainer(borrow("--tp", 2, *SMALL, model=latent), 2)
    skip = ["layers.1.mlp", "kv_a_layernorm"]
    before = state(trainer.server)
    check(trainer, "snapshot").ok()
    reset = check(trainer, "reset_tensors", skip_tensor_list=skip).ok()
    skipped = {name for name in before.tensors[0] if any(part in name for part in skip)}
    assert skipped and set(reset["skipped"]) >= skipped
    after = state(trainer.server)
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert {name for name in old if old[name] == new[name]} == skipped
    sent = [(n, t) for n, t in named(load(latent)) if not any(part in n for part in skip)]
    trainer.session(sent, size=9)
    compared = check(trainer, "compare", skip_tensor_list=skip).ok()
    assert compared["skipped"] == reset["skipped"]
    assert compared["compared"] == sum(map(len, before.tensors)) - 2 * len(skipped)
    check(trainer, "compare").ok()  # also what was left out is as it was
    assert state(trainer.server) == before


# ---- hashes ----


def finish(x: np.ndarray) -> np.ndarray:
    """Murmur3's last step of 32-bit words."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def rotated(x: np.ndarray, by: int) -> np.ndarray:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def device_hash(data: bytes) -> str:
    """What SGLang computes of a tensor on a GPU, from its description in the contract."""
    words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
    if not len(words):
        return f"{0:016x}"
    index = np.arange(len(words), dtype=np.uint32)
    first = (index * np.uint32(0x27D4EB2D) + np.uint32(0x243F6A88)) ^ rotated(index, 15)
    second = (index * np.uint32(0x165667B1) + np.uint32(0x02C74EE7)) ^ rotated(index, 13)
    total = 0
    for begin in range(0, len(words), 8192):
        tile = slice(begin, begin + 8192)
        halves = []
        for mask in (first, second):
            mixed = finish(words[tile] ^ mask[tile])
            added = np.array([int(mixed.sum(dtype=np.uint64)) % 2**32], np.uint32)
            length = np.uint32(4 * len(words) % 2**32)
            halves.append(int(finish(added ^ length)[0]))
        total = (total + (halves[0] << 32 | halves[1])) % 2**64
    total = (total ^ total >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    total = (total ^ total >> 27) * 0x94D049BB133111EB % 2**64
    return f"{total ^ total >> 31:016x}"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "0000000000000000"),
        (bytes(4), "3d93a6540b54ef2a"),
        (b"\1", "1f3bb5b817d9ee21"),
        (bytes(range(256)), "ac371f47da03664b"),
        (bytes(i % 251 for i in range(40000)), "16307b978468d89d"),
        (bytes(256), "04f91fe4319d3c4e"),
        (np.arange(20000, dtype="<u4").tobytes(), "3fadc80e297acd67"),
    ],
)
def test_the_hash_recomputed_here_gives_the_contracts_vectors(data: bytes, expected: str) -> None:
    assert device_hash(data) == expected


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def part(tensor: torch.Tensor, axis: int, rank: int, ranks: int) -> torch.Tensor:
    return tensor.chunk(ranks, axis)[rank]


def of_rank(weights: Weights, rank: int, ranks: int) -> Weights:
    """A Llama's parameters as a rank holds them; without those whose rows may be padded."""
    made: Weights = {NORM: weights[NORM]}
    for layer in (0, 1):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{at}{name}.weight"] = weights[f"{at}{name}.weight"]
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            made[f"{at}{name}.weight"] = part(weights[f"{at}{name}.weight"], 1, rank, ranks)
        for block, parts, fused in (
            ("self_attn", "qkv", "qkv_proj"),
            ("mlp", ("gate", "up"), "gate_up_proj"),
        ):
            rows = [
                part(weights[f"{at}{block}.{piece}_proj.weight"], 0, rank, ranks) for piece in parts
            ]
            made[f"{at}{block}.{fused}.weight"] = torch.cat(rows)
    return made


@pytest.mark.parametrize("kind", ["device", "sha256"])
def test_hashes_recomputed_from_the_trainers_tensors(
    trainer: Trainer, small_llama: Path, kind: str
) -> None:
    weights = step(load(small_llama), 1)
    trainer.session(named(weights))
    reply = check(trainer, "checksum", hash=kind).ok()
    digest = device_hash if kind == "device" else sha256
    for number, rank in enumerate(reply["ranks"]):
        expected = of_rank(weights, number, trainer.ranks)
        assert len(expected) == 13
        found = {name: rank["checksums"][name] for name in expected}
        assert found == {name: digest(content(tensor)) for name, tensor in expected.items()}


@pytest.mark.parametrize("kind", ["device", "sha256"])
def test_sums_over_hashes_recomputed(trainer: Trainer, kind: str) -> None:
    reply = check(trainer, "checksum", hash=kind).ok()
    engine = hashlib.sha256()
    for rank in reply["ranks"]:
        gpu = hashlib.sha256()
        for name in sorted(rank["checksums"]):
            gpu.update(name.encode() + rank["checksums"][name].encode())
        assert rank["per_gpu_checksum"] == gpu.hexdigest()
        engine.update(gpu.hexdigest().encode())
    assert reply["per_engine_checksum"] == engine.hexdigest()


def test_a_list_of_skipped_names(trainer: Trainer) -> None:
    all_of_it = state(trainer.server)
    reply = check(trainer, "checksum", skip_tensor_list=["layers.1", "lm_head"]).ok()
    for rank, full in zip(reply["ranks"], all_of_it.tensors, strict=True):
        left = {n: d for n, d in full.items() if "layers.1" not in n and "lm_head" not in n}
        assert rank["checksums"] == left
    assert reply["per_engine_checksum"] != all_of_it.per_engine
    skipped = set(all_of_it.tensors[0]) - set(reply["ranks"][0]["checksums"])
    assert skipped and set(reply["skipped"]) == skipped


def test_selectors(trainer: Trainer) -> None:
    target = check(trainer, "checksum", selector="target").ok()
    assert target == check(trainer, "checksum", selector="all").ok()
    draft = check(trainer, "checksum", selector="draft").ok()
    assert draft["success"] is True
    assert all(rank["checksums"] == {} for rank in draft["ranks"])


# ---- faults are found, by name ----


def whole_then_reset(trainer: Trainer, new: Weights) -> None:
    """The engine knows what it is to hold; then it holds noise."""
    trainer.session(named(new))
    check(trainer, "snapshot").ok()
    check(trainer, "reset_tensors").ok()


def test_br43_a_rank_that_was_left_out(pair: Trainer, small_llama: Path) -> None:
    """Rank 1 gets the last version's tensors."""
    old = load(small_llama)
    new = step(old, 1)
    whole_then_reset(pair, new)
    pair.post([encode(named(new)), encode(named(old))]).ok()
    reply = check(pair, "compare")
    assert all(line.startswith("rank 1: ") for line in lines(reply))
    assert set(names(reply)) == set(state(pair.server).tensors[1])


def test_br43_two_tensors_of_equal_shape_swapped(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    whole_then_reset(trainer, new)
    other = QUERY.replace("layers.0", "layers.1")
    trainer.session(named(new | {QUERY: new[other], other: new[QUERY]}))
    fused = {FUSED_QUERY, FUSED_QUERY.replace("layers.0", "layers.1")}
    assert set(names(check(trainer, "compare"))) == fused


@pytest.mark.parametrize("bit", [0, 13, 31])
def test_br43_a_bit_that_has_flipped(trainer: Trainer, small_llama: Path, bit: int) -> None:
    """In the last element of the last rank's part; nothing else is named."""
    new = step(load(small_llama), 1)
    whole_then_reset(trainer, new)
    wrong = new[UP].clone()
    words = wrong.view(torch.int32)
    words[-1, -1] ^= -(2**31) if bit == 31 else 1 << bit
    trainer.session(named(new | {UP: wrong}))
    reply = check(trainer, "compare")
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
    reply = check(trainer, "compare")
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
    """It is of what is live, not of what is to come; a reset is not undone by an abort."""
    before = state(trainer.server)
    trainer.begin().ok()
    trainer.send(named(step(load(small_llama), 1))).ok()
    assert state(trainer.server) == before
    check(trainer, "snapshot").ok()
    check(trainer, "compare").ok()
    trainer.end().ok()
    assert len(names(check(trainer, "compare"))) > 1
