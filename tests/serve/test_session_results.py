"""What is live after a session: what a cold engine of the same weights holds."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from payloads import chunks
from trainer import (
    OPTIONS,
    Borrow,
    Cold,
    Trainer,
    load,
    named,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")


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


@pytest.mark.parametrize("ranks", [1, 2], ids=["tp1", "tp2"])
@pytest.mark.parametrize("part", ["nothing", "half", "all"])
def test_br25_derived_weights_are_those_of_a_cold_engine(
    borrow: Borrow, cold: Cold, latent: Path, part: str, ranks: int
) -> None:
    before = load(latent)
    new = named(step(before, 1))
    half = [(n, t) for n, t in new if "layers.0" in n and "q_b_proj" not in n]
    some = {"nothing": [], "half": half, "all": new}[part]
    trainer = Trainer(borrow("--tp", ranks, *OPTIONS, model=latent), ranks)
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
    trainer = Trainer(borrow("--tp", 1, *OPTIONS, model=latent))
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


def test_br28_sessions_without_tensors(
    borrow: Borrow, ranks: int, latent: Path, small_llama: Path
) -> None:
    """As of a trainer that sends adapters only: nothing is packed or derived twice."""
    for model in (small_llama, latent):
        trainer = Trainer(borrow("--tp", ranks, *OPTIONS, model=model), ranks)
        before = state(trainer.server)
        for sync_base in (True, False, True):
            trainer.begin(sync_base=sync_base).ok()
            trainer.end().ok()
            assert state(trainer.server) == before


def test_br28_what_is_not_sent_is_untouched(borrow: Borrow, ranks: int, latent: Path) -> None:
    trainer = Trainer(borrow("--tp", ranks, *OPTIONS, model=latent), ranks)
    before = state(trainer.server)
    name = "model.layers.0.mlp.down_proj.weight"
    trainer.session([(name, step(load(latent), 1)[name])])
    after = state(trainer.server)
    assert after.derived == before.derived
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert {each for each in old if old[each] != new[each]} == {name}
