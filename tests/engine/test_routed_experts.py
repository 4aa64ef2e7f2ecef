"""The experts that tokens go to, against transformers' routers."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import IN_BLOCKS, load, make, prompt
from test_architectures import CASES

MIXTURES = [case for case in CASES if "moe" in case or "deepseek" in case]
GREEDY = {"temperature": 0, "ignore_eos": True}
Experts = np.ndarray[Any, np.dtype[np.int32]]


def served(engine: Any, ids: list[int], length: int, start: int = 0) -> tuple[list[int], Experts]:
    """The whole text, and the experts of each of its tokens from `start` on but the last."""
    reply = engine.generate(
        input_ids=ids,
        sampling_params=GREEDY | {"max_new_tokens": length},
        return_routed_experts=True,
        routed_experts_start_len=start,
    )
    text = ids + [int(token) for token in reply["output_ids"]]
    numbers = np.frombuffer(base64.b64decode(reply["meta_info"]["routed_experts"]), np.int32)
    return text, numbers.reshape(len(text) - 1 - start, -1)


def expected(path: Path, ids: list[int]) -> Experts:
    """[tokens, layers · per token], each layer's ascending; zeros where a layer has no mixture."""
    import torch

    model = load(path, "float32")
    config = model.config
    rows = np.zeros((len(ids), config.num_hidden_layers, config.num_experts_per_tok), np.int32)
    hooks = []
    for number, layer in enumerate(model.model.layers):
        if not hasattr(layer.mlp, "experts"):
            continue

        def keep(_module: Any, inputs: Any, number: int = number) -> None:
            chosen = next(
                value
                for value in inputs[1:]
                if value.dtype in (torch.int32, torch.int64) and value.shape[0] == len(ids)
            )
            rows[:, number] = chosen.numpy()

        hooks.append(layer.mlp.experts.register_forward_pre_hook(keep))
    assert hooks
    with torch.no_grad():
        model(torch.tensor([ids]))
    return np.sort(rows, -1).reshape(len(ids), -1)


def ascending(experts: Experts, per_token: int = 3) -> Experts:
    return np.sort(experts.reshape(len(experts), -1, per_token), -1).reshape(len(experts), -1)


@pytest.mark.parametrize("case", MIXTURES)
def test_all_tokens_in_pieces(start_engine: Any, tmp_path: Path, case: str) -> None:
    make(tmp_path, *CASES[case])
    engine = start_engine(tmp_path, options={"chunked_prefill_size": 37})
    text, experts = served(engine, prompt(70), 20)
    assert (ascending(experts) == expected(tmp_path, text[:-1])).all()
    # The prompt lies in the cache now, but its experts do not.
    again, from_start = served(engine, prompt(70), 20)
    assert again == text
    assert (from_start == experts).all()
    _, rest = served(engine, prompt(70), 20, start=50)
    assert (rest == experts[50:]).all()
    engine.close()


@pytest.mark.parametrize("case", ["qwen3 moe", "deepseek v3"])
def test_over_ranks(start_engine: Any, tmp_path: Path, case: str) -> None:
    make(tmp_path, *CASES[case])
    engine = start_engine(tmp_path, options={"tp": 2, "ep": 2})
    text, experts = served(engine, prompt(40), 10)
    assert (ascending(experts) == expected(tmp_path, text[:-1])).all()
    engine.close()


def test_beside_requests_that_do_not_ask(start_engine: Any, tmp_path: Path) -> None:
    make(tmp_path, *IN_BLOCKS["qwen3 moe"])
    engine = start_engine(tmp_path)
    ids = prompt(40)
    _, alone = served(engine, ids, 8)
    replies = engine.generate(
        input_ids=[ids, ids[:20], ids],
        sampling_params=GREEDY | {"max_new_tokens": 8},
        return_routed_experts=[True, False, True],
    )
    found = [reply["meta_info"].get("routed_experts") for reply in replies]
    assert found[1] is None
    for text in (found[0], found[2]):
        numbers = np.frombuffer(base64.b64decode(text), np.int32)
        assert (numbers.reshape(alone.shape) == alone).all()
    engine.close()
