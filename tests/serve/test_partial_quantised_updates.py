"""Parts of updates of quantised models: what is not sent stays, half a pair is not live."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from forms import send_bucket
from payloads import empty_bucket
from quantised import SCHEMES, Case, exports, module_of, pairs, shuffled
from trainer import Weights, failure, load, named

pytestmark = pytest.mark.usefixtures("by_name")


# ---- nothing, a half, one layer ----


def send_empty(case: Case) -> None:
    payloads = [empty_bucket() for _ in range(case.trainer.ranks)]
    case.trainer.post(payloads, load_format="flattened_bucket").ok()


def test_br28_sessions_that_send_nothing_change_nothing(case: Case) -> None:
    post = case.server.post
    both = {"restore_weights_before_load": True, "post_process_quantization": True}
    for path in (case.first, case.second):
        case.disk(path).ok()
        before = case.told()
        for _ in range(3):
            case.trainer.begin().ok()
            case.trainer.end().ok()
            assert case.told() == before
            post("/post_process_weights", both).ok()
            assert case.told() == before
        case.trainer.begin(sync_base=False).ok()
        case.trainer.end().ok()
        case.trainer.begin().ok()
        send_empty(case)
        case.trainer.end().ok()
        assert case.told() == before


def some_modules(weights: Weights, dice: random.Random) -> Weights:
    """About half of the modules, each whole."""
    chosen = {module for module in sorted({module_of(n) for n in weights}) if dice.random() < 0.5}
    return {name: tensor for name, tensor in weights.items() if module_of(name) in chosen}


def test_sessions_that_send_a_half(case: Case) -> None:
    """Halves of fused projections and single experts come, over a version that came before."""
    dice = random.Random(1)
    for path in (case.second, case.first):
        held = exports(case.server)
        half = some_modules(load(path), dice)
        for turn, size in ((0, 3), (1, 100000)):
            case.trainer.session(shuffled(half, turn), size=size)
            assert case.told() == case.cold(held | half)


def test_br28_one_layer(case: Case) -> None:
    """All that belongs to other layers keeps its bytes, also what is derived."""
    before = case.told()
    layer = {n: t for n, t in load(case.second).items() if n.startswith("model.layers.1.")}
    case.trainer.session(shuffled(layer, 1), size=5)
    after = case.told()
    for old, new in (
        *zip(before.state.tensors, after.state.tensors, strict=True),
        *zip(before.state.derived, after.state.derived, strict=True),
        (before.digests, after.digests),
    ):
        changed = {name for name in old if old[name] != new[name]}
        expected = {name for name in old if name.startswith("model.layers.1.")}
        assert changed <= expected
        # Powers of two may be the same again.
        assert all(name.endswith("_scale_inv") for name in expected - changed)
    assert after == case.cold(exports(case.server))


# ---- pairs of a weight and its scale ----


@pytest.mark.parametrize("which", [0, 1], ids=["weight", "scale"])
def test_half_of_a_pair_fails_the_session(case: Case, which: int) -> None:
    before = case.told()
    weights = load(case.second)
    for pair in dict.fromkeys((pairs(weights)[0], pairs(weights)[-1])):
        missing = pair[1 - which]
        case.trainer.begin().ok()
        sent = {name: tensor for name, tensor in weights.items() if name != missing}
        send_bucket(case.trainer, named(sent)).ok()
        came, lacks = (name.rsplit(".", 1)[1] for name in (pair[which], missing))
        end = case.trainer.end()
        failure(end, f"{module_of(missing)}: {came} has come without {lacks}")
        assert case.trainer.open()["open"] is False
        assert case.told() == before
    case.trainer.session(named(weights))
    assert case.told() == case.cold(weights)


def test_halves_wait_for_one_another_without_a_session(case: Case) -> None:
    """One tensor in each request, in random order."""
    weights = load(case.second)
    other = dict(both for pair in pairs(weights) for both in (pair, pair[::-1]))
    came: set[str] = set()
    for name, tensor in shuffled(weights, 1):
        pending = send_bucket(case.trainer, [(name, tensor)]).ok()["pending"]
        came.add(name)
        waiting = {module_of(n) for n in came if n in other and other[n] not in came}
        # Of modules that are stacked in one matrix, one is named.
        assert {text.split(":")[0] for text in pending} <= waiting
        assert len(pending) == len(set(pending))
        assert (pending == []) == (waiting == set())
        assert case.trainer.open()["open"] is False
    assert case.told() == case.cold(weights)


def test_what_waits_is_not_live(case: Case) -> None:
    """A checkpoint replaces it."""
    before = case.told()
    weights = load(case.second)
    weight, scale = pairs(weights)[0]
    assert send_bucket(case.trainer, [(weight, weights[weight])]).ok()["pending"] != []
    assert case.told() == before
    case.disk(case.second).ok()
    assert case.told() == case.cold(weights)
    assert send_bucket(case.trainer, [(scale, weights[scale])]).ok()["pending"] != []
    send_bucket(case.trainer, [(weight, weights[weight])]).ok()
    assert case.told() == case.cold(weights)


# ---- without the memory to undo ----


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("model", ["qwen3 moe", "deepseek v3"])
def test_updates_in_place(make_case: Callable[..., Case], model: str, scheme: str) -> None:
    """What is sent is written over the live weights, which are unpacked for it."""
    case = make_case(model, scheme, 2, "--undo-memory", 0)
    weights = load(case.second)
    for size in (1, 7):
        before = case.told()
        case.trainer.begin().ok()
        case.trainer.end().ok()
        assert case.told() == before
        held = exports(case.server)
        half = some_modules(weights, random.Random(size))
        end = case.trainer.session(shuffled(half, size), size=size)
        assert end["undoable"] is False
        assert case.told() == case.cold(held | half)
        case.trainer.session(shuffled(weights, size), size=size)
        assert case.told() == case.cold(weights)
        case.disk(case.first).ok()
        assert case.told() == case.cold(load(case.first))
