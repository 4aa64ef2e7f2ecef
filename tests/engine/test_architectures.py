"""Every architecture, small and with random weights, against transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import LLAMA3, expected, expected_text, make, prompt, served, served_text

GROUPED = {"num_attention_heads": 8, "num_key_value_heads": 2}
LATENT = {
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
V2 = LATENT | {"q_lora_rank": None, "n_shared_experts": 2, "routed_scaling_factor": 1.5}
V3 = LATENT | {
    "q_lora_rank": 28,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
}
MIXTURE = GROUPED | {
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
# Name of the architecture and fields of its configuration.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 3": ("Llama", GROUPED | {"head_dim": 16, "rope_parameters": LLAMA3}),
    "mistral": ("Mistral", GROUPED | {"head_dim": 16, "sliding_window": 23}),
    "mistral, no window": ("Mistral", GROUPED | {"head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2", GROUPED),
    "qwen2, windows": (
        "Qwen2",
        GROUPED | {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", GROUPED | {"head_dim": 24, "num_key_value_heads": 1}),
    "qwen3, odd": (
        "Qwen3",
        GROUPED
        | {"head_dim": 18, "hidden_size": 54, "intermediate_size": 77, "attention_bias": True},
    ),
    "qwen3 moe": ("Qwen3Moe", MIXTURE | {"norm_topk_prob": True}),
    "qwen3 moe, some layers": (
        "Qwen3Moe",
        MIXTURE | {"num_hidden_layers": 5, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
    ),
    "deepseek v2": ("DeepseekV2", V2),
    "deepseek v2, groups": (
        "DeepseekV2",
        V2
        | {
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "q_lora_rank": 17,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "deepseek v3": ("DeepseekV3", V3 | {"rope_parameters": YARN}),
    "deepseek v3, plain": (
        "DeepseekV3",
        V3
        | {
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_interleave": False,
            "num_hidden_layers": 2,
            "rms_norm_eps": 1e-4,
            "hidden_size": 52,
        },
    ),
}
SEEDS = (3, 11)
# What cannot be divided evenly among two ranks.
WHOLE_ONLY = {"qwen3, odd"}
# --tp and --ep; --ep for mixtures of experts only.
RANKS = [(2, 1), (4, 1), (2, 2), (4, 2)]
DIVIDED = [
    (case, tp, ep)
    for case in CASES
    if case not in WHOLE_ONLY
    for tp, ep in RANKS
    if ep == 1 or "num_experts" in CASES[case][1] or "n_routed_experts" in CASES[case][1]
]


def check_fp32(
    start_engine: Any, path: Path, case: str, seed: int, options: dict[str, Any]
) -> None:
    """Equal to 1e-4 for a prompt in pieces; the same greedy text, decoded through the cache."""
    make(path, *CASES[case], seed=seed)
    engine = start_engine(path, options={"chunked_prefill_size": 37} | options)
    ids = prompt(seed=seed)
    assert np.abs(served(engine, ids) - expected(path, ids, "float32")).max() < 1e-4
    short = ids[:30]
    assert served_text(engine, short, 40) == expected_text(path, short, 40)
    engine.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_fp32(start_engine: Any, tmp_path: Path, case: str, seed: int) -> None:
    check_fp32(start_engine, tmp_path, case, seed, {})


@pytest.mark.parametrize(("case", "tp", "ep"), DIVIDED)
def test_fp32_over_ranks(start_engine: Any, tmp_path: Path, case: str, tp: int, ep: int) -> None:
    check_fp32(start_engine, tmp_path, case, 5, {"tp": tp, "ep": ep})


def check_bf16(start_engine: Any, path: Path, case: str, options: dict[str, Any]) -> None:
    """As near to fp32 as transformers is in bf16.

    Both choose another expert here and there, which costs far more than rounding: so several models.
    """
    ours = theirs = 0.0
    for seed in (3, 5, 11):
        make(path, *CASES[case], dtype="bfloat16", seed=seed)
        engine = start_engine(path, options=options)
        ids = prompt(300)
        exact = expected(path, ids, "float32")
        ours += np.abs(served(engine, ids) - exact).mean()
        theirs += np.abs(expected(path, ids, "bfloat16") - exact).mean()
        engine.close()
    assert ours <= 1.1 * theirs


@pytest.mark.parametrize("case", CASES)
def test_bf16(start_engine: Any, tmp_path: Path, case: str) -> None:
    check_bf16(start_engine, tmp_path, case, {})


@pytest.mark.parametrize(
    ("case", "tp", "ep"),
    [
        ("llama 3", 2, 1),
        ("mistral", 4, 1),
        ("qwen3", 4, 1),
        ("qwen3 moe", 4, 2),
        ("deepseek v3", 2, 2),
        ("deepseek v3", 4, 1),
    ],
)
def test_bf16_over_ranks(start_engine: Any, tmp_path: Path, case: str, tp: int, ep: int) -> None:
    check_bf16(start_engine, tmp_path, case, {"tp": tp, "ep": ep})


def test_correction_bias_of_either_type_chooses_experts(start_engine: Any, tmp_path: Path) -> None:
    """Without it other experts are chosen; in a bf16 checkpoint it may be fp32, as the router may.

    The checkpoint also holds a draft's layer, which is not the model's.
    """
    import torch
    from safetensors.torch import load_file, save_file

    make(tmp_path, *CASES["deepseek v3"], dtype="bfloat16")
    ids = prompt()
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    found = {}
    for name in ("bf16", "fp32", "zero"):
        for key in tensors:
            if name != "bf16" and ".mlp.gate." in key:
                tensors[key] = tensors[key].float()
            if name == "zero" and key.endswith("e_score_correction_bias"):
                tensors[key] = torch.zeros_like(tensors[key])
        draft = {"model.layers.3.eh_proj.weight": torch.zeros(2, 2)}
        save_file(tensors | draft, file, metadata={"format": "pt"})
        engine = start_engine(tmp_path)
        found[name] = served(engine, ids)
        engine.close()
    assert np.abs(found["fp32"] - found["bf16"]).max() < 1e-5
    assert np.abs(found["zero"] - found["bf16"]).max() > 0.1
