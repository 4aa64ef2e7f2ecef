"""Digests of live weights over ranks, against an implementation of their definition in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from additive_digest import digest_of
from random_models import make
from safetensors.numpy import load_file

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "llama": ("Llama", {"num_attention_heads": 6, "num_key_value_heads": 2}, {"tp": 2}),
    "repeated key heads": (
        "Llama",
        {"num_attention_heads": 8, "num_key_value_heads": 2},
        {"tp": 4},
    ),
    "experts": (
        "Qwen3Moe",
        {
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 24,
        },
        {"tp": 4, "ep": 2},
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_digests_of_all_ranks(start_engine: Any, package: Any, tmp_path: Path, case: str) -> None:
    architecture, fields, ranks = MODELS[case]
    model, store, replica = tmp_path / "model", tmp_path / "store", tmp_path / "replica"
    make(model, architecture, fields)
    engine = start_engine(model, options=ranks)
    tensors = load_file(model / "model.safetensors")
    rng = np.random.default_rng(1)
    with package.Publisher(store, base=model) as publisher:
        for version in (1, 2):
            changed = next(iter(sorted(tensors)))
            tensors[changed] = tensors[changed] + rng.normal(0, 1, tensors[changed].shape).astype(
                np.float32
            )
            publisher.publish(version, tensors)
            engine.update(store, replica, version)
            found = engine.weights_digest(version)
            assert found["weight_version"] == str(version)
            assert found["digests"] == {
                name: digest_of(array.tobytes(), 4) for name, array in tensors.items()
            }
            assert found["equal"] is True
            assert found["equal_tensors"] == len(tensors)
    older = engine.weights_digest(1)
    assert older["equal"] is False
    assert older["different"] == [changed]
    with pytest.raises(package.Error):
        engine.weights_digest(9)
    engine.close()
