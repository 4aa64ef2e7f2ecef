"""A Llama's parameters as the ranks of an engine hold them: fused along their rows, divided by heads."""

from __future__ import annotations

import torch
from trainer import Weights

NORM = "model.norm.weight"


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
