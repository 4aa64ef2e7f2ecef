"""Checksums of live weights, recomputed from the trainer's tensors by their description."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from shards import of_rank
from trainer import (
    Trainer,
    content,
    load,
    named,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

NORM = "model.norm.weight"

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]


def finish(x: Words) -> Words:
    """Murmur3's last step of 32-bit words."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    mixed: Words = x ^ (x >> np.uint32(16))
    return mixed


def rotated(x: Words, by: int) -> Words:
    turned: Words = (x << np.uint32(by)) | (x >> np.uint32(32 - by))
    return turned


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


@pytest.mark.parametrize("kind", ["device", "sha256"])
def test_hashes_recomputed_from_the_trainers_tensors(
    trainer: Trainer, small_llama: Path, kind: str
) -> None:
    weights = step(load(small_llama), 1)
    trainer.session(named(weights))
    reply = trainer.check("checksum", hash=kind).ok()
    digest = device_hash if kind == "device" else sha256
    for number, rank in enumerate(reply["ranks"]):
        expected = of_rank(weights, number, trainer.ranks)
        assert len(expected) == 13
        found = {name: rank["checksums"][name] for name in expected}
        assert found == {name: digest(content(tensor)) for name, tensor in expected.items()}


@pytest.mark.parametrize("kind", ["device", "sha256"])
def test_sums_over_hashes_recomputed(trainer: Trainer, kind: str) -> None:
    reply = trainer.check("checksum", hash=kind).ok()
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
    reply = trainer.check("checksum", skip_tensor_list=["layers.1", "lm_head"]).ok()
    for rank, full in zip(reply["ranks"], all_of_it.tensors, strict=True):
        left = {n: d for n, d in full.items() if "layers.1" not in n and "lm_head" not in n}
        assert rank["checksums"] == left
    assert reply["per_engine_checksum"] != all_of_it.per_engine
    skipped = set(all_of_it.tensors[0]) - set(reply["ranks"][0]["checksums"])
    assert skipped and set(reply["skipped"]) == skipped


def test_selectors(trainer: Trainer) -> None:
    target = trainer.check("checksum", selector="target").ok()
    assert target == trainer.check("checksum", selector="all").ok()
    draft = trainer.check("checksum", selector="draft").ok()
    assert draft["success"] is True
    assert all(rank["checksums"] == {} for rank in draft["ranks"])
