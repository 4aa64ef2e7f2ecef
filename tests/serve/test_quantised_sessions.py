"""Sessions of quantised models: many, on ranks that get different things, and such that fail."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from forms import send_bucket
from payloads import Named, chunks, sglang_bucket
from quantise import Fp8
from quantised import SCHEMES, Case, exports, module_of, pairs, shuffled
from trainer import Weights, failure, greedy, load, named, serves

pytestmark = pytest.mark.usefixtures("by_name")

MakeCase = Callable[..., Case]


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def without_shapes(weights: Weights) -> Weights:
    """What an export gives back: int4 modules repeat their shapes in tensors that nobody needs."""
    return {name: tensor for name, tensor in weights.items() if not name.endswith("_shape")}


def exact(make_case: MakeCase, model: str, scheme: str, *own: object) -> Case:
    """Two ranks; scales of fp8 are powers of two, so that no scheme rounds."""
    form = None if scheme == "int4" else Fp8(powers=True)
    return make_case(model, scheme, 2, *own, form=form)


def test_a_hundred_sessions(make_case: MakeCase, scheme: str) -> None:
    """Of some modules each, out of two versions. In the end every one is as it came last."""
    case = exact(make_case, "deepseek v3", scheme)
    sources = [without_shapes(load(path)) for path in (case.first, case.second)]
    held = dict(sources[0])
    modules = sorted({module_of(name) for name in held})
    dice = random.Random(5)
    for turn in range(100):
        chosen = set(dice.sample(modules, dice.randint(0, 6)))
        new = {n: t for n, t in sources[dice.randint(0, 1)].items() if module_of(n) in chosen}
        case.trainer.session(shuffled(new, turn), str(turn), size=dice.choice([2, 7, 100]))
        held |= new
    assert serves(case.server, held)
    assert case.told() == case.cold(held)
    assert case.trainer.version() == "99"


def test_experts_of_other_ranks(make_case: MakeCase, scheme: str) -> None:
    """Each rank holds half of the experts. What goes to one of them waits, and fails, as ever."""
    case = make_case("qwen3 moe", scheme, 2, "--ep", 2)
    weights = load(case.second)
    for expert in (0, 7):
        held = exports(case.server)
        before = case.told()
        own = [pair for pair in pairs(weights) if f"layers.1.mlp.experts.{expert}." in pair[0]]
        assert len(own) == 3
        (weight, scale), *others = own
        case.trainer.begin().ok()
        send_bucket(case.trainer, [(weight, weights[weight])]).ok()
        failure(case.trainer.end(), module_of(weight))
        assert case.told() == before
        reply = send_bucket(case.trainer, [(scale, weights[scale])]).ok()
        assert [text.split(":")[0] for text in reply["pending"]] == [module_of(weight)]
        reply = send_bucket(case.trainer, [(weight, weights[weight])]).ok()
        assert reply["pending"] == []
        case.trainer.session([(n, weights[n]) for pair in others for n in pair], size=1)
        sent = {n: weights[n] for pair in own for n in pair}
        assert case.told() == case.cold(held | sent)


def post_to_each(case: Case, ranks: list[Named]) -> None:
    payloads = [sglang_bucket(tensors) for tensors in ranks]
    case.trainer.post(payloads, load_format="flattened_bucket").ok()


def test_a_rank_that_gets_half_of_a_pair(make_case: MakeCase, scheme: str) -> None:
    case = make_case("llama", scheme, 2)
    before, text = case.told(), greedy(case.server)
    weights = load(case.second)
    all_of_them = named(weights)
    lacking = pairs(weights)[3][1]
    for rank in (0, 1):
        parts: list[Named] = [all_of_them, all_of_them]
        parts[rank] = [(name, tensor) for name, tensor in all_of_them if name != lacking]
        case.trainer.begin().ok()
        post_to_each(case, parts)
        failure(case.trainer.end(), module_of(lacking), f"rank {rank}")
        assert (case.told(), greedy(case.server)) == (before, text)
    case.trainer.session(all_of_them)
    assert case.told() == case.cold(weights)


def test_an_abort_after_a_part(make_case: MakeCase, scheme: str) -> None:
    case = make_case("deepseek v3", scheme, 2)
    before, text = case.told(), greedy(case.server)
    weights = load(case.second)
    for count in (1, 20, len(weights)):
        case.trainer.begin().ok()
        for chunk in chunks(shuffled(weights, count)[:count], 7):
            send_bucket(case.trainer, chunk).ok()
        assert case.trainer.end(abort=True).ok()["aborted"] is True
        assert (case.told(), greedy(case.server)) == (before, text)


def test_a_failure_in_place_is_mended_by_a_whole_update(make_case: MakeCase, scheme: str) -> None:
    """Nothing can be undone there. The engine does not generate until all weights have come."""
    case = make_case("deepseek v3", scheme, 2, "--undo-memory", 0)
    weights = load(case.second)
    lacking = pairs(weights)[3][1]
    generate = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2}}
    for mend in ("session", "disk"):
        case.trainer.begin().ok()
        sent = [(name, tensor) for name, tensor in shuffled(weights, 1) if name != lacking]
        for chunk in chunks(sent, 9):
            send_bucket(case.trainer, chunk).ok()
        failure(case.trainer.end(), module_of(lacking))
        assert "incomplete update" in case.trainer.open()["incomplete"]
        assert case.server.post("/generate", generate).status == 503
        if mend == "session":
            case.trainer.session(shuffled(weights, 2), size=9)
        else:
            case.disk(case.second).ok()
        assert case.trainer.open()["incomplete"] is None
        assert case.told() == case.cold(weights)
        assert len(greedy(case.server)) == 16
        case.disk(case.first).ok()


def test_direct_takes_fused_units(make_case: MakeCase, scheme: str) -> None:
    """Under the engine's names, as checkpoints lay them out: rows of q, k and v, of gate and up."""
    case = make_case("llama", scheme, 1)
    weights = load(case.second)
    held = exports(case.server)
    for block, parts, fused in (
        ("self_attn", "qkv", "qkv_proj"),
        ("mlp", ("gate", "up"), "gate_up_proj"),
    ):
        at = f"model.layers.1.{block}."
        own = {name: tensor for name, tensor in weights.items() if name.startswith(at)}
        kinds = [name.rsplit(".", 1)[1] for name in pairs(own)[0]]
        names = {kind: [f"{at}{part}_proj.{kind}" for part in parts] for kind in kinds}
        sent = [
            (f"{at}{fused}.{kind}", torch.cat([weights[name] for name in names[kind]]))
            for kind in kinds
        ]
        before = case.told()
        case.trainer.begin().ok()
        case.trainer.send(sent[:1], load_format="direct").ok()
        failure(case.trainer.end(), f"{at}{min(parts)}_proj", "without")
        assert case.told() == before
        case.trainer.send(sent, load_format="direct").ok()
        held |= {name: weights[name] for kind in kinds for name in names[kind]}
        assert case.told() == case.cold(held)


def test_a_begin_drops_what_waits(make_case: MakeCase, scheme: str) -> None:
    """As an abort does: a session starts from what is live."""
    case = make_case("llama", scheme, 2)
    weights = load(case.second)
    weight, scale = pairs(weights)[2]
    before = case.told()
    for begins in (True, False):
        assert send_bucket(case.trainer, [(weight, weights[weight])]).ok()["pending"] != []
        if begins:
            case.trainer.begin().ok()
        case.trainer.end(abort=True).ok()
        reply = send_bucket(case.trainer, [(scale, weights[scale])]).ok()
        assert [text.split(":")[0] for text in reply["pending"]] == [module_of(scale)]
        assert case.told() == before
        case.trainer.begin().ok()
        case.trainer.end().ok()
        assert case.told() == before
    for name in (weight, scale):
        reply = send_bucket(case.trainer, [(name, weights[name])]).ok()
    assert reply["pending"] == []
    sent = {name: weights[name] for name in (weight, scale)}
    assert case.told() == case.cold(load(case.first) | sent)
