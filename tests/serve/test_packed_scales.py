"""Scales of block-wise fp8 as trainers pack them for DeepGEMM, and the tolerance of the checker.

An exponent for each block of columns, four in an int32, repeated for every row. Engines take them
in place of fp32 scales, whatever they make of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forms import send_bucket, send_raw
from quantise import BLOCK, LARGEST, Fp8, fp8_values, from_blocks, to_blocks, write
from quantised import Case, packed, pairs, shuffled
from trainer import Weights, failure, load, named, serves

pytestmark = pytest.mark.usefixtures("by_name")

# Of the second of two ranks the columns begin in the middle of a word: at block 5 of 10.
WIDE = {"intermediate_size": 1280}
DOWN = "model.layers.1.mlp.down_proj.weight_scale_inv"
KEY = "model.layers.0.self_attn.k_proj.weight_scale_inv"
CASES = [("llama", 1), ("llama", 2), ("qwen3 moe", 2)]


@pytest.fixture(params=["fp8", "ue8m0"])
def scales(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=CASES, ids=["llama-1", "llama-2", "qwen3-moe-2"])
def powers(request: pytest.FixtureRequest, make_case: Callable[..., Case], scales: str) -> Case:
    """Versions whose scales are powers of two."""
    model, ranks = request.param
    return make_case(model, scales, ranks, form=Fp8(powers=True), **WIDE)


@pytest.fixture
def wide(make_case: Callable[..., Case], scales: str) -> Case:
    return make_case("llama", scales, 2, form=Fp8(powers=True), **WIDE)


def with_packed(weights: Weights) -> Weights:
    return weights | {
        scale: packed(weights[scale], len(weights[weight])) for weight, scale in pairs(weights)
    }


def test_packed_as_sent_in_fp32(powers: Case, tmp_path: Path) -> None:
    weights = load(powers.second)
    sent = with_packed(weights)
    expected = powers.cold(weights)
    assert powers.told() != expected
    powers.trainer.session(shuffled(sent, 1), size=3)
    assert powers.told() == expected
    assert serves(powers.server, weights)
    powers.disk(powers.first).ok()
    send_raw(powers.trainer, named(sent)).ok()
    assert powers.told() == expected
    powers.disk(powers.first).ok()
    config = json.loads((powers.first / "config.json").read_text())["quantization_config"]
    powers.disk(write(powers.second, tmp_path / "packed", sent, config)).ok()
    assert powers.told() == expected
    assert powers.cold(sent) == expected


def test_exponents_alone(powers: Case) -> None:
    """A byte for each block: safetensors has a type for it."""
    weights = load(powers.second)
    of_bytes = {scale: weights[scale].to(torch.float8_e8m0fnu) for _, scale in pairs(weights)}
    assert all(torch.equal(t.float(), weights[name]) for name, t in of_bytes.items())
    send_raw(powers.trainer, named(weights | of_bytes)).ok()
    assert powers.told() == powers.cold(weights)


def test_what_stands_for_no_block_is_not_looked_at(wide: Case) -> None:
    """10 blocks of columns leave two bytes of the last word."""
    weights = load(wide.second)
    sent = with_packed(weights)
    assert sent[DOWN].shape == (256, 3)
    filled = sent[DOWN].view(torch.uint8).clone()
    filled[:, 10:] = torch.arange(512, dtype=torch.int32).to(torch.uint8).view(256, 2)
    wide.trainer.session(named(sent | {DOWN: filled.view(torch.int32)}))
    assert wide.told() == wide.cold(weights)


def other_exponent(scale: torch.Tensor, row: int, block: int) -> torch.Tensor:
    made = scale.view(torch.uint8).clone()
    made[row, block] += 1
    return made.view(torch.int32)


@pytest.mark.parametrize(
    ("name", "row", "block"), [(KEY, 255, 1), (DOWN, 1, 0), (DOWN, 200, 9), (DOWN, 127, 5)]
)
def test_rows_of_a_block_that_differ(wide: Case, name: str, row: int, block: int) -> None:
    """Also where only the part of another rank is wrong."""
    before = wide.told()
    sent = with_packed(load(wide.second))
    wrong = sent | {name: other_exponent(sent[name], row, block)}
    for send in (send_bucket, send_raw):
        failure(send(wide.trainer, named(wrong)), name, f"row {row}", f"column block {block}")
        assert wide.told() == before
    wide.trainer.begin().ok()
    send_bucket(wide.trainer, [(n, t) for n, t in named(sent) if n != name]).ok()
    failure(send_bucket(wide.trainer, [(name, wrong[name])]), name)
    failure(wide.trainer.end(), name)
    assert wide.told() == before


def test_packed_scales_of_other_shapes(wide: Case) -> None:
    before = wide.told()
    right = with_packed(load(wide.second))[DOWN]
    for wrong in (right[:-1], right[:, :-1], right[::BLOCK], right.t(), right.view(torch.uint8)):
        failure(send_raw(wide.trainer, [(DOWN, wrong)]), DOWN)
    assert wide.told() == before


# ---- the checker ----


def requantised(weights: Weights, margin: float) -> Weights:
    """The same values, quantised again with scales that leave some room."""
    made = dict(weights)
    for weight, scale in pairs(weights):
        blocks = to_blocks(fp8_values(weights[weight], weights[scale]).float())
        made[scale] = blocks.abs().amax(dim=(1, 3)) / LARGEST * margin
        values = (blocks / made[scale][:, None, :, None]).clamp(-LARGEST, LARGEST)
        made[weight] = from_blocks(values, weights[weight].shape).to(torch.float8_e4m3fn)
    return made


def names_in(message: str) -> set[str]:
    return set(re.findall(r"name=(\S+)", message))


@pytest.mark.parametrize(("model", "ranks"), [("llama", 1), ("qwen3 moe", 2)])
def test_the_checker_forgives_rounding_and_nothing_else(
    make_case: Callable[..., Case], model: str, ranks: int
) -> None:
    case = make_case(model, "fp8", ranks)
    weights = load(case.first)
    case.trainer.check("snapshot").ok()
    again = requantised(weights, 1.001)
    case.trainer.session(named(again))
    assert serves(case.server, again)
    told = failure(case.trainer.check("compare"), "check tensor equality failed:", "num_exceed=0")
    assert names_in(told) and all("proj" in name or "experts" in name for name in names_in(told))
    case.trainer.check("compare", allow_quant_error=True).ok()

    norm = "model.norm.weight"
    moved = weights[norm].clone()
    moved.view(torch.int16)[3] += 1
    case.trainer.session([(norm, moved)])
    told = failure(case.trainer.check("compare", allow_quant_error=True))
    assert names_in(told) == {norm}

    weight, scale = pairs(weights)[0]
    doubled = [(norm, weights[norm]), (weight, again[weight]), (scale, 2 * again[scale])]
    case.trainer.session(doubled)
    told = failure(case.trainer.check("compare", allow_quant_error=True))
    assert len(names_in(told)) == 1
