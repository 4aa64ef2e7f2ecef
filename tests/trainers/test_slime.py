"""slime's trainer, in processes of its own: five updates under 32 streams, in each of its forms.

All calls follow the contract; buckets are made by SGLang's own class. slime's pause ends what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from quantise import Int4, quantise
from random_models import IN_BLOCKS, make
from running import run
from server import Server

Serve = Callable[..., Server]
SMALL = {"num_hidden_layers": 2, "max_position_embeddings": 4096}


def check(server: Server, model: Path, out: Path, ranks: int, **options: Any) -> None:
    found = run("slime_trainer.py", server, model, out, ranks, aborts=True, **options)
    assert max(map(len, found.values())) == 1, "a request went on over a pause that ends all"


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {"form": "tensor"}),
        (2, {"form": "tensor"}),
        (1, {"form": "broadcast"}),
        (2, {"form": "broadcast", "flat": 1}),
        (1, {"form": "disk"}),
        (2, {"form": "disk", "pull": 1}),
        (1, {"form": "deltas", "pull": 1}),
        (2, {"form": "deltas", "pull": 1}),
    ],
    ids=lambda value: (
        "-".join(map(str, value.values())) if isinstance(value, dict) else f"tp{value}"
    ),
)
def test_slime(
    serve: Serve, bf16_llama: Path, tmp_path: Path, ranks: int, options: dict[str, Any]
) -> None:
    check(serve(ranks), bf16_llama, tmp_path, ranks, **options)


def test_slime_sends_experts_to_their_ranks(serve: Serve, tmp_path: Path) -> None:
    """Ranks send different tensors, and most buckets of experts are empty on one of them."""
    fields = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    fields |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    make(tmp_path / "moe", "Qwen3Moe", fields | SMALL, dtype="bfloat16")
    server = serve(2, "--ep", 2, model=tmp_path / "moe")
    check(server, tmp_path / "moe", tmp_path / "out", 2, form="tensor")


def test_slime_updates_a_quantised_model(serve: Serve, tmp_path: Path, ranks: int) -> None:
    """/post_process_weights before and after, as slime does for compressed tensors."""
    architecture, fields = IN_BLOCKS["llama"]
    small = fields | {"intermediate_size": 256} | SMALL
    make(tmp_path / "bf16", architecture, small, dtype="bfloat16")
    quantise(tmp_path / "bf16", tmp_path / "int4", Int4(32))
    server = serve(ranks, model=tmp_path / "int4")
    options = {"form": "tensor", "quantised": 1}
    check(server, tmp_path / "bf16", tmp_path / "out", ranks, **options)
