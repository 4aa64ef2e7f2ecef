"""Llamas of many shapes, with random weights, against transformers: log-probabilities of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import LLAMA3, expected, prompt, served
from random_models import make as make_model

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one key head": {"num_key_value_heads": 1},
    "as many key heads": {"num_key_value_heads": 6},
    "odd sizes": {"hidden_size": 54, "intermediate_size": 77, "head_dim": 18, "vocab_size": 203},
    "wide heads": {"head_dim": 160},
    "linear rope": {
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    },
    "llama3 rope": {"rope_parameters": LLAMA3},
    "yarn rope": {"rope_parameters": YARN},
}


def make(path: Path, fields: dict[str, Any], dtype: str) -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    make_model(path, "Llama", heads | fields, dtype)


@pytest.mark.parametrize("case", CASES)
def test_fp32(start_engine: Any, tmp_path: Path, case: str) -> None:
    """Equal to 1e-4; prompts go in pieces of 37 tokens, so attention over earlier pieces is seen."""
    make(tmp_path, CASES[case], "float32")
    engine = start_engine(tmp_path, options={"chunked_prefill_size": 37})
    ids = prompt()
    assert np.abs(served(engine, ids) - expected(tmp_path, ids, "float32")).max() < 1e-4
    engine.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", ["plain", "biases", "odd sizes"])
def test_half_precision(start_engine: Any, tmp_path: Path, case: str, dtype: str) -> None:
    """As near to fp32 as transformers is in that type."""
    make(tmp_path, CASES[case], dtype)
    engine = start_engine(tmp_path)
    ids = prompt()
    exact = expected(tmp_path, ids, "float32")
    ours = np.abs(served(engine, ids) - exact)
    theirs = np.abs(expected(tmp_path, ids, dtype) - exact)
    assert ours.mean() <= 1.1 * theirs.mean()
    engine.close()


def test_decoding_reads_what_the_prompt_wrote(start_engine: Any, tmp_path: Path) -> None:
    """Greedy tokens one by one, and the log-probabilities of the whole computed at once, agree."""
    make(tmp_path, {}, "float32")
    engine = start_engine(tmp_path, options={"max_total_tokens": 512})
    prompts = [prompt(3 + 11 * i, seed=i) for i in range(6)]
    replies = engine.generate(
        input_ids=prompts,
        sampling_params={"max_new_tokens": 60, "temperature": 0, "ignore_eos": True},
        return_logprob=True,
    )
    for start, reply in zip(prompts, replies, strict=True):
        rows = reply["meta_info"]["output_token_logprobs"]
        found = np.array([row[0] for row in rows])
        whole = served(engine, start + reply["output_ids"])[len(start) - 1 :]
        assert np.abs(found - whole).max() < 1e-4
    engine.close()
