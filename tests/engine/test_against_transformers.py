"""The served model against transformers on the same weights: greedy tokens and log-probabilities.

Both compute in bf16, in different orders, so two tokens whose logits lie closer than that error may
change places. What is asked for is that the outputs are equal up to such a place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prompts import PROMPTS

TOKENS = 64


class Reference:
    """SmolLM2 in transformers: in bf16 and in fp32."""

    def __init__(self, checkpoint: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch = torch
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint)
        self._models = {
            name: AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).eval()
            for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32))
        }

    def logits(self, ids: list[int], dtype: str) -> np.ndarray[Any, Any]:
        """[len(ids), vocabulary], in fp32."""
        with self._torch.no_grad():
            found = self._models[dtype](self._torch.tensor([ids])).logits[0]
        return found.float().numpy()

    def greedy(self, ids: list[int], count: int) -> list[int]:
        with self._torch.no_grad():
            found = self._models["bf16"].generate(
                self._torch.tensor([ids]), max_new_tokens=count, do_sample=False
            )
        return found[0, len(ids) :].tolist()


def log_softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Reference:
    return Reference(smollm2)


@pytest.fixture(scope="module", params=[1, 3], ids=["alone", "three ranks"])
def over_ranks(request: pytest.FixtureRequest, start_engine: Any, smollm2: Path) -> Any:
    """SmolLM2, of one rank and of three: it has 9 query and 3 key heads."""
    return start_engine(smollm2, options={"tp": request.param})


def test_greedy_tokens_equal_the_reference(over_ranks: Any, reference: Reference) -> None:
    prompts = [reference.tokenizer(text)["input_ids"] for text in PROMPTS]
    replies = over_ranks.generate(
        input_ids=prompts, sampling_params={"temperature": 0, "max_new_tokens": TOKENS}
    )
    for text, prompt, reply in zip(PROMPTS, prompts, replies, strict=True):
        expected = reference.greedy(prompt, TOKENS)
        found = reply["output_ids"]
        if found == expected:
            continue
        pairs = enumerate(zip(expected, found, strict=False))
        first = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(found)))
        assert first < min(len(expected), len(found)), f"{text!r}: one output ended early"
        context = prompt + expected[:first]
        near = reference.logits(context, "bf16")[-1]
        exact = reference.logits(context, "fp32")[-1]
        # Of the exact logits: those of bf16 lie on a grid that is as coarse as their error.
        gap = abs(exact[expected[first]] - exact[found[first]])
        error = np.abs(near - exact).max()
        assert gap <= error, (
            f"{text!r}: token {first} is {found[first]}, expected {expected[first]}; their exact "
            f"logits differ by {gap}, the reference's own error is {error}"
        )
        assert {expected[first], found[first]} <= set(np.argsort(near)[-3:].tolist()), text


def test_prompt_logprobs_are_as_near_to_fp32_as_the_reference(
    over_ranks: Any, reference: Reference
) -> None:
    ours: list[float] = []
    theirs: list[float] = []
    for text in PROMPTS:
        prompt = reference.tokenizer(text)["input_ids"]
        reply = over_ranks.generate(
            input_ids=prompt,
            sampling_params={"max_new_tokens": 0},
            return_logprob=True,
            logprob_start_len=0,
        )
        rows = reply["meta_info"]["input_token_logprobs"]
        assert [row[1] for row in rows] == prompt
        assert rows[0][0] is None
        found = np.array([row[0] for row in rows[1:]])
        at = np.arange(len(prompt) - 1), np.array(prompt[1:])
        exact = log_softmax(reference.logits(prompt, "fp32"))[at]
        near = log_softmax(reference.logits(prompt, "bf16"))[at]
        ours += np.abs(found - exact).tolist()
        theirs += np.abs(near - exact).tolist()
    assert np.mean(ours) <= 1.1 * np.mean(theirs)
    assert np.quantile(ours, 0.99) <= 0.2


def test_output_logprobs_are_of_the_tempered_distribution(
    engine: Any, reference: Reference
) -> None:
    prompt = reference.tokenizer(PROMPTS[2])["input_ids"]
    reply = engine.generate(
        input_ids=prompt,
        sampling_params={"max_new_tokens": 12, "temperature": 0.7, "sampling_seed": 5},
        return_logprob=True,
        top_logprobs_num=3,
    )
    output = reply["output_ids"]
    rows = reply["meta_info"]["output_token_logprobs"]
    assert [row[1] for row in rows] == output
    logits = reference.logits(prompt + output, "fp32")[len(prompt) - 1 : -1]
    exact = log_softmax(logits / 0.7)[np.arange(len(output)), output]
    assert np.abs(np.array([row[0] for row in rows]) - exact).max() < 0.4
    for row, top in zip(rows, reply["meta_info"]["output_top_logprobs"], strict=True):
        assert len(top) == 3
        assert top[0][0] >= top[1][0] >= top[2][0]
        assert row[0] <= top[0][0]


def test_samples_follow_the_distribution(engine: Any, reference: Reference) -> None:
    """The first token of 400 samples: its share lies within 5 standard errors of the probability."""
    prompt = reference.tokenizer("My favourite colour is")["input_ids"]
    share = np.exp(log_softmax(reference.logits(prompt, "fp32"))[-1])
    replies = engine.generate(
        input_ids=[prompt] * 400, sampling_params={"max_new_tokens": 1, "temperature": 1.0}
    )
    found = np.bincount([reply["output_ids"][0] for reply in replies], minlength=len(share))
    for token in np.argsort(share)[-5:]:
        error = np.sqrt(share[token] * (1 - share[token]) / 400)
        assert abs(found[token] / 400 - share[token]) < 5 * error + 0.01


def test_batch_equals_one_by_one(engine: Any, reference: Reference) -> None:
    """Requests that share a step do not see each other (up to the rounding of a larger product)."""
    prompts = [reference.tokenizer(text)["input_ids"] for text in PROMPTS[:8]]
    params = {"temperature": 0, "max_new_tokens": 4}
    together = engine.generate(input_ids=prompts, sampling_params=params)
    for prompt, reply in zip(prompts, together, strict=True):
        alone = engine.generate(input_ids=prompt, sampling_params=params)
        first = alone["output_ids"][0], reply["output_ids"][0]
        if first[0] != first[1]:
            logits = reference.logits(prompt, "fp32")[-1]
            assert abs(logits[first[0]] - logits[first[1]]) < 0.3
