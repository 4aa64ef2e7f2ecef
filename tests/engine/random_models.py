"""Small models with random weights, and what transformers and the engine make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float64]]

SIZES: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 48,
    "intermediate_size": 88,
    "num_hidden_layers": 3,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
}

# Sizes in whole blocks of 128 for two ranks: models to be quantised.
GROUPED = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "initializer_range": 0.1,
}
IN_BLOCKS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", GROUPED | {"attention_bias": True}),
    "qwen3 moe": (
        "Qwen3Moe",
        GROUPED | {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 256},
    ),
    "deepseek v3": (
        "DeepseekV3",
        GROUPED
        | {
            "num_key_value_heads": 4,
            "q_lora_rank": 192,
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 128,
            "v_head_dim": 128,
            "first_k_dense_replace": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 256,
            "n_shared_experts": 1,
            "n_group": 2,
            "topk_group": 1,
        },
    ),
}

# The rotary form of Llama 3, scaled beyond a short trained length.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make(
    path: Path,
    architecture: str,
    fields: dict[str, Any],
    dtype: str = "float32",
    seed: int = 3,
    shard: str = "1GB",
) -> None:
    """Saves the model of `architecture` ("Llama") with `fields` over SIZES, in files of at most `shard`.

    Norms, biases, routers and correction biases are drawn too, so that leaving one out, or choosing
    other experts, changes the result.
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    config = getattr(transformers, architecture + "Config")(**(SIZES | fields))
    model = getattr(transformers, architecture + "ForCausalLM")(config)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("mlp.gate.weight"):
                value.normal_(0, 0.5)
            elif name.endswith("e_score_correction_bias"):
                value.normal_(0, 0.3)
            elif name.endswith("bias"):
                value.normal_(0, 0.2)
            elif "norm" in name:
                value.normal_(1, 0.2)
    model.to(getattr(torch, dtype)).save_pretrained(path, max_shard_size=shard)


def load(path: Path, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), experts_implementation="eager"
    )
    return model.eval()


def expected(path: Path, ids: list[int], dtype: str) -> Rows:
    """The log-probability that transformers gives each token but the first."""
    import torch

    with torch.no_grad():
        logits = load(path, dtype)(torch.tensor([ids])).logits[0].double()
    rows = torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), torch.tensor(ids[1:])]
    return np.asarray(rows.numpy())


def expected_text(path: Path, ids: list[int], length: int) -> list[int]:
    """What transformers goes on with in fp32, always taking the likeliest token."""
    import torch

    model = load(path, "float32")
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        out = model.generate(torch.tensor([ids]), max_new_tokens=length, do_sample=False)
    return [int(token) for token in out[0, len(ids) :]]


def served(engine: Any, ids: list[int]) -> Rows:
    """The log-probability that the engine gives each token but the first."""
    reply = engine.generate(
        input_ids=ids,
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=0,
    )
    rows = reply["meta_info"]["input_token_logprobs"]
    assert [row[1] for row in rows] == ids
    return np.array([row[0] for row in rows[1:]])


def served_text(engine: Any, ids: list[int], length: int) -> list[int]:
    reply = engine.generate(
        input_ids=ids,
        sampling_params={"max_new_tokens": length, "temperature": 0, "ignore_eos": True},
    )
    return [int(token) for token in reply["output_ids"]]


def prompt(length: int = 150, seed: int = 5) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 200, length)]
