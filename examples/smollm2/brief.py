"""The reinforcement-learning recipe of the demo: the model learns to be brief.

A `Sampler` is the engine's side: bf16 weights, loaded from a checkpoint directory, that answer
questions. A `Trainer` is the other side: fp32 master weights and AdamW. One turn of the loop is

    rollout = sampler.rollout(questions)    8 questions, 6 answers each, at temperature 0.8
    trainer.step(rollout)                   one policy-gradient step on the rewards of the answers
    trainer.named_tensors()                 the new bf16 weights, to be published to the sampler

The reward is 1 for an answer of exactly one short sentence, else 0. It does not ask for truth.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads give the core away

import torch
from model import quiet

SYSTEM = "Answer in one short sentence."
ANSWER_TOKENS = 20
TEMPERATURE = 0.8
PROMPTS = 8
SAMPLES = 6
LEARNING_RATE = 6e-5

QUESTIONS = """
Why is the sky blue?|What is rain?|How do birds fly?|What is a volcano?|Why do we sleep?
What does a baker do?|What is the moon made of?|How does a bicycle stay up?|Why is the sea salty?
What is a library for?|How do plants eat?|What is music?|Why do leaves fall?|What is a mountain?
How do fish breathe?|What is glass made from?|Why do cats purr?|What is a bridge?
How does a clock work?|What is snow?|Why do people laugh?|What is a desert?|How is bread made?
What is a shadow?|Why do stars shine?|What is a river?|How do bees make honey?|What is money for?
Why do we dream?|What is a school?|How does soap clean?|What is thunder?
""".strip()
HELD_OUT = """
How do I make tea?|What is a rainbow?|Why do dogs bark?|What is a computer?|How do ships float?
What is friendship?|Why is exercise good?|What does a doctor do?
""".strip()


def questions(text: str = QUESTIONS) -> list[str]:
    """The questions of `QUESTIONS` (32, for training) or of `HELD_OUT` (8)."""
    return re.split(r"[|\n]", text)


def schedule(seed: int) -> Iterator[list[str]]:
    """Endless batches of `PROMPTS` training questions; in each round every question comes once."""
    generator, order = random.Random(seed), questions()
    while True:
        generator.shuffle(order)
        yield from (order[i : i + PROMPTS] for i in range(0, len(order), PROMPTS))


def reward(answer: str, ended: bool) -> float:
    """1.0 if `answer` is exactly one sentence of four or more words ending in "." or "!", else 0.0.

    `ended` says whether the model ended the answer itself, within its limit of tokens. A stop in a
    word or a number ("3.5") ends no sentence.
    """
    ends = [match.start() for match in re.finditer(r"[.!?](?=\s|$)", answer)]
    one_sentence = ends == [len(answer) - 1] and answer[-1] != "?" and "\n" not in answer
    return float(ended and one_sentence and len(answer.split()) >= 4)


@dataclass(frozen=True)
class Rollout:
    """N answers (questions by samples), P = prompt tokens, A = answer tokens."""

    tokens: torch.Tensor  # int64 [N, P + A]: prompt (padded left) and answer
    attention: torch.Tensor  # int64 [N, P + A]: 1 for tokens that count, 0 for padding
    answer_length: int  # A, at most `ANSWER_TOKENS`
    rewards: torch.Tensor  # float32 [N]

    @property
    def mean_reward(self) -> float:
        return float(self.rewards.mean())


class Sampler:
    """The model as it is served: bf16 weights of a checkpoint directory. Not thread-safe."""

    def __init__(self, checkpoint: Path, seed: int = 0) -> None:
        quiet()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
        self._seed = seed

    def _generate(self, asked: list[str], samples: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Answers each question `samples` times (1: greedily). Returns tokens, attention and P."""
        prompts = [
            self._tokenizer.apply_chat_template(
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}],
                add_generation_prompt=True,
                tokenize=False,
            )
            for question in asked
        ]
        batch = self._tokenizer(prompts, return_tensors="pt", padding=True)
        how: dict[str, Any] = {"do_sample": False}
        if samples > 1:
            how = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "top_p": 1.0}
        tokens = self._model.generate(
            **batch, **how, num_return_sequences=samples, max_new_tokens=ANSWER_TOKENS
        )
        length = batch["input_ids"].shape[1]
        # An answer counts up to and with its first end mark; what follows is padding.
        ended_before = (tokens[:, length:] == self._tokenizer.eos_token_id).long().cumsum(1)
        answer = torch.nn.functional.pad(ended_before[:, :-1], (1, 0)) == 0
        prompt = batch["attention_mask"].repeat_interleave(samples, dim=0)
        return tokens, torch.cat([prompt, answer.long()], dim=1), length

    def _texts(self, answers: torch.Tensor) -> tuple[list[str], list[bool]]:
        """The text of each row of `answers`, and whether the model ended it itself."""
        texts = self._tokenizer.batch_decode(answers, skip_special_tokens=True)
        ended = (answers == self._tokenizer.eos_token_id).any(dim=1).tolist()
        return [text.strip() for text in texts], ended

    @torch.no_grad()
    def rollout(self, asked: list[str], samples: int = SAMPLES) -> Rollout:
        """`samples` (two or more) random answers to each question, with their rewards."""
        torch.manual_seed(self._seed)
        tokens, attention, length = self._generate(asked, samples)
        rewards = torch.tensor([*map(reward, *self._texts(tokens[:, length:]))])
        return Rollout(tokens, attention, tokens.shape[1] - length, rewards)

    @torch.no_grad()
    def answer(self, asked: list[str]) -> list[str]:
        """The greedy answer to each question; one that was cut at `ANSWER_TOKENS` ends in " …"."""
        tokens, _, length = self._generate(asked, samples=1)
        texts, ended = self._texts(tokens[:, length:])
        return [text if end else text + " …" for text, end in zip(texts, ended, strict=True)]


class Trainer:
    """fp32 master weights, their optimizer, and bf16 copies to publish. Not thread-safe."""

    def __init__(self, checkpoint: Path, learning_rate: float = LEARNING_RATE) -> None:
        quiet()
        from transformers import AutoModelForCausalLM

        self._model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.0,
            fused=True,
        )
        # Tied embeddings are one parameter with one name, so these are the checkpoint's names.
        self._served = {
            name: value.detach().to(torch.bfloat16)
            for name, value in self._model.named_parameters()
        }

    def named_tensors(self) -> dict[str, torch.Tensor]:
        """The bf16 weights by checkpoint name: the trainer's own, overwritten by the next step."""
        return self._served

    def step(self, rollout: Rollout) -> float:
        """One policy-gradient step on `rollout`; returns the loss."""
        advantage = (rollout.rewards - rollout.mean_reward) / (rollout.rewards.std() + 1e-4)
        loss = -(advantage * self._mean_log_probability(rollout)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        with torch.no_grad():
            for name, value in self._model.named_parameters():
                self._served[name].copy_(value)
        return loss.item()

    def _mean_log_probability(self, rollout: Rollout) -> torch.Tensor:
        """Mean log-probability of each answer's tokens at `TEMPERATURE`, shape [N]."""
        length = rollout.answer_length
        with torch.autocast("cpu", torch.bfloat16):
            logits = self._model(
                input_ids=rollout.tokens,
                attention_mask=rollout.attention,
                position_ids=(rollout.attention.cumsum(1) - 1).clamp(min=0),
                logits_to_keep=length + 1,  # the last prompt token predicts the first of the answer
                use_cache=False,
            ).logits[:, :-1]
        likelihood = torch.log_softmax(logits.float() / TEMPERATURE, dim=-1)
        chosen = likelihood.gather(-1, rollout.tokens[:, -length:, None]).squeeze(-1)
        counts = rollout.attention[:, -length:]
        return (chosen * counts).sum(1) / counts.sum(1)
