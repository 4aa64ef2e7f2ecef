"""NeMo-RL's trainer, in processes of its own: five updates under 32 streams.

All calls follow the contract; buckets are made by SGLang's own class.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from quantise import Fp8, quantise
from random_models import IN_BLOCKS, make
from running import run
from server import Server

Serve = Callable[..., Server]


def test_nemo_between_rollouts(serve: Serve, bf16_llama: Path, tmp_path: Path, ranks: int) -> None:
    """No pause and no session: rollouts end, and the flush before the update waits for that."""
    found = run("nemo_trainer.py", serve(ranks), bf16_llama, tmp_path, ranks, rounds=True)
    assert max(map(len, found.values())) == 1


def test_nemo_in_a_session(serve: Serve, tmp_path: Path, ranks: int) -> None:
    """Of a model of three dtypes, so that a bucket brings weights without their scales."""
    architecture, fields = IN_BLOCKS["llama"]
    fields = fields | {"intermediate_size": 256, "max_position_embeddings": 4096}
    make(tmp_path / "bf16", architecture, fields, dtype="bfloat16")
    quantise(tmp_path / "bf16", tmp_path / "fp8", Fp8())
    server = serve(ranks, model=tmp_path / "fp8")
    options: dict[str, Any] = {"session": 1, "quantised": 1}
    found = run("nemo_trainer.py", server, tmp_path / "bf16", tmp_path / "out", ranks, **options)
    assert max(map(len, found.values())) >= 3, "no request spans several updates"
