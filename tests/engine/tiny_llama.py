"""A Llama of one layer with a byte-level tokenizer, made without torch: small enough for any test."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors_files import Tensor, write_checkpoint

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_SIZE, VOCABULARY = 32, 48, 4, 2, 8, 258
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_SIZE,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 257,
    "dtype": "bfloat16",
}


def shapes() -> dict[str, tuple[int, ...]]:
    layer = "model.layers.0."
    query, key = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
    return {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        layer + "input_layernorm.weight": (HIDDEN,),
        layer + "self_attn.q_proj.weight": (query, HIDDEN),
        layer + "self_attn.k_proj.weight": (key, HIDDEN),
        layer + "self_attn.v_proj.weight": (key, HIDDEN),
        layer + "self_attn.o_proj.weight": (HIDDEN, query),
        layer + "post_attention_layernorm.weight": (HIDDEN,),
        layer + "mlp.gate_proj.weight": (WIDE, HIDDEN),
        layer + "mlp.up_proj.weight": (WIDE, HIDDEN),
        layer + "mlp.down_proj.weight": (HIDDEN, WIDE),
        "model.norm.weight": (HIDDEN,),
    }


def bf16(values: np.ndarray) -> np.ndarray:
    """The bytes of fp32 values cut to bf16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


def weights(seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes().items():
        values = rng.normal(0, 0.1, shape) + (1.0 if "norm" in name else 0.0)
        made[name] = Tensor("BF16", shape, bf16(values).reshape(-1))
    return made


def write(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a whole model directory."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    directory.mkdir(parents=True, exist_ok=True)
    write_checkpoint(directory, tensors)
    (directory / "config.json").write_text(json.dumps(CONFIG))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<start>", "<end>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {
        "eos_token": "<end>",
        "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
