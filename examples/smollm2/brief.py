"""The reinforcement-learning recipe of the demo: the model learns to be brief.

A `Sampler` asks a running engine. A `Trainer` is the other side: fp32 master weights and AdamW. One
turn of the loop is

    rollout = sampler.rollout(questions)    8 questions, 6 answers each, at temperature 0.8
    trainer.step(rollout)                   one policy-gradient step on the rewards of the answers
    trainer.named_tensors()                 the new bf16 weights, to be published to the engine

`Streams` are other clients of the same engine, which never stop asking.

The reward is 1 for an answer of exactly one short sentence, else 0. It does not ask for truth.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads give the core away

import syncline
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


class Prompts:
    """Questions as token ids, by the chat template of a checkpoint."""

    def __init__(self, checkpoint: Path) -> None:
        quiet()
        from transformers import AutoTokenizer

        self._tokenizer = AutoTokenizer.from_pretrained(checkpoint)

    def __call__(self, question: str) -> list[int]:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
        text = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=False
        )
        return list(self._tokenizer(text)["input_ids"])


def ended(reply: dict[str, Any]) -> bool:
    """Whether the model ended the answer itself."""
    return bool(reply["meta_info"]["finish_reason"]["type"] == "stop")


class Sampler:
    """Asks a running engine."""

    def __init__(self, engine: syncline.Client, prompts: Prompts, seed: int = 0) -> None:
        self._engine = engine
        self._prompts = prompts
        self._seed = seed

    def rollout(self, asked: list[str], samples: int = SAMPLES) -> Rollout:
        """`samples` (two or more) random answers to each question, with their rewards."""
        prompts = [self._prompts(question) for question in asked for _ in range(samples)]
        params = []
        for _ in prompts:
            self._seed += 1
            params.append(
                {
                    "temperature": TEMPERATURE,
                    "max_new_tokens": ANSWER_TOKENS,
                    "sampling_seed": self._seed,
                }
            )
        replies = self._engine.generate(input_ids=prompts, sampling_params=params)
        answers = [reply["output_ids"] for reply in replies]
        rewards = [reward(reply["text"].strip(), ended(reply)) for reply in replies]
        longest, length = max(map(len, prompts)), max(map(len, answers))
        tokens = torch.zeros(len(prompts), longest + length, dtype=torch.int64)
        attention = torch.zeros_like(tokens)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            begin, end = longest - len(prompt), longest + len(answer)
            tokens[row, begin:end] = torch.tensor(prompt + answer)
            attention[row, begin:end] = 1
        return Rollout(tokens, attention, length, torch.tensor(rewards))

    def answer(self, asked: list[str]) -> list[str]:
        """The greedy answer to each question; one that was cut at `ANSWER_TOKENS` ends in " …"."""
        replies = self._engine.generate(
            input_ids=[self._prompts(question) for question in asked],
            sampling_params={"temperature": 0, "max_new_tokens": ANSWER_TOKENS},
        )
        return [reply["text"].strip() + ("" if ended(reply) else " …") for reply in replies]


class Streams:
    """Clients that keep requests streaming, each in a thread, until `stop()`."""

    def __init__(self, engine: syncline.Client, prompts: list[list[int]], count: int) -> None:
        self._engine = engine
        self._prompts = prompts
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.finished = 0  # requests that ended
        self.aborted = 0  # of them, those that did not end by themselves
        self.tokens = 0
        self.across_versions = 0  # requests whose tokens come from more than one version
        self._pool = ThreadPoolExecutor(count)
        self._running = [self._pool.submit(self._run, i) for i in range(count)]

    def stop(self) -> None:
        """Waits for the requests that run. Raises what a client raised."""
        self._stop.set()
        for client in self._running:
            client.result()
        self._pool.shutdown()

    def _run(self, number: int) -> None:
        for turn in itertools.count(number):
            if self._stop.is_set():
                return
            meta: dict[str, Any] = {}
            for event in self._engine.stream(
                input_ids=self._prompts[turn % len(self._prompts)],
                sampling_params={"max_new_tokens": 120, "ignore_eos": True},
            ):
                meta = event["meta_info"]
            with self._lock:
                self.finished += 1
                self.aborted += meta["finish_reason"]["type"] == "abort"
                self.tokens += meta["completion_tokens"]
                self.across_versions += len(meta["weight_versions"]) > 1


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
