"""Updates while requests run: none is lost, and every token is that of one version, by transformers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import load as load_model
from server import Background, Server, eventually
from trainer import (
    PROMPT,
    Cold,
    Trainer,
    Weights,
    greedy,
    load,
    named,
    ranks_of,
    serves,
    step,
)
from transformers import DynamicCache

pytestmark = pytest.mark.usefixtures("by_name")

REQUESTS = 8
TOKENS = 800
GREEDY = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


class Streamed:
    """A streamed request on a thread of its own."""

    def __init__(self, server: Server, prompt: list[int], sampling: dict[str, Any]) -> None:
        self.prompt = prompt
        self.tokens = 0  # so far
        self._body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
        self._call = Background(self._run, server)

    def _run(self, server: Server) -> Any:
        last: Any = None
        for last in server.stream("/generate", self._body).events():
            self.tokens = len(last["output_ids"])
        return last

    def result(self) -> Any:
        return self._call.result()

    def done(self) -> bool:
        return self._call.done()


def start_streams(server: Server, sampling: dict[str, Any] = GREEDY) -> list[Streamed]:
    """All of them are generating."""
    streams = [Streamed(server, [n + 3, 2 * n + 7, 11], sampling) for n in range(REQUESTS)]
    eventually(lambda: all(stream.tokens >= 8 for stream in streams), "all streams generate")
    return streams


class Oracle:
    """Logits of the two versions of the small model, by transformers."""

    def __init__(self, model: Path, old: Weights, new: Weights, cold: Cold) -> None:
        self.models = [load_model(cold.write(model, weights), "float32") for weights in (old, new)]

    def worst(
        self, prompt: list[int], output: list[int], begin: int, new: bool, cached: bool
    ) -> float:
        """How far output[begin:] is from the likeliest tokens, at most, in logits.

        `cached`: what came before `begin` is in the cache of the old version.
        """
        ids = torch.tensor([prompt + output])
        first = len(prompt) + begin - 1  # its logits are for output[begin]
        cache = DynamicCache()
        with torch.no_grad():
            if cached:
                self.models[0](ids[:, :first], cache=cache)
            logits = self.models[new](ids[:, first if cached else 0 : -1], cache=cache).logits[0]
        logits = logits[-(len(output) - begin) :]
        chosen = logits.gather(1, ids[0, first + 1 :, None])[:, 0]
        return float((logits.max(1).values - chosen).max())


NEAR = 1e-4


def check(oracle: Oracle, prompt: list[int], reply: Any, kept_cache: bool) -> int:
    """Every token is the likeliest one of the version that its span names. Number of spans."""
    output = list(reply["output_ids"])
    meta = reply["meta_info"]
    assert meta["finish_reason"]["type"] == "length"
    spans = meta["weight_versions"]
    assert [span["version"] for span in spans] in (["default"], ["1"], ["default", "1"])
    assert (spans[0]["start"], spans[-1]["end"]) == (0, len(output))
    assert meta["weight_version"] == spans[-1]["version"]
    for span in spans:
        new = span["version"] == "1"
        begin, end = span["start"], span["end"]
        cached = new and kept_cache and begin > 0
        assert oracle.worst(prompt, output[:end], begin, new, cached) < NEAR, span
    if len(spans) == 2:
        # The other version, or a mix of both, would have chosen otherwise.
        begin = spans[1]["start"]
        assert begin == spans[0]["end"]
        assert oracle.worst(prompt, output, begin, False, False) > NEAR
        assert oracle.worst(prompt, output, begin, True, not kept_cache) > NEAR
    return len(spans)


def oracle_of(model: Path, new: Weights, cold: Cold) -> Oracle:
    return Oracle(model, load(model), new, cold)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_br36_a_session_in_a_pause(
    trainer: Trainer, cold: Cold, small_llama: Path, mode: str
) -> None:
    """The order of miles: pause, flush unless in place, begin, chunks, label, end, continue."""
    server = trainer.server
    new = step(load(small_llama), 1)
    oracle = oracle_of(small_llama, new, cold)
    streams = start_streams(server)
    server.post("/pause_generation", {"mode": mode}).ok()
    if mode == "retract":
        assert server.get("/flush_cache").status == 200
    else:
        assert server.get("/flush_cache").status == 400
    trainer.session(named(new), "1")
    server.post("/continue_generation", {}).ok()
    replies = [stream.result() for stream in streams]
    assert all(len(reply["output_ids"]) == TOKENS for reply in replies)
    kept = mode == "in_place"
    spans = [
        check(oracle, stream.prompt, reply, kept)
        for stream, reply in zip(streams, replies, strict=True)
    ]
    assert 2 in spans, "no request was running when the pause came"
    assert serves(server, new)


def test_br36_no_token_between_pause_and_continue(trainer: Trainer, small_llama: Path) -> None:
    """What has come at the pause is all that is of the old version."""
    server = trainer.server
    streams = start_streams(server)
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    trainer.session(named(step(load(small_llama), 1)), "1", size=2)
    eventually(lambda: server.load() == REQUESTS, "the requests are there")
    told = [stream.tokens for stream in streams]
    server.post("/continue_generation", {}).ok()
    for stream, tokens in zip(streams, told, strict=True):
        spans = stream.result()["meta_info"]["weight_versions"]
        assert len(spans) == 2
        assert tokens <= spans[0]["end"]


def test_a_session_without_a_pause(trainer: Trainer, cold: Cold, small_llama: Path) -> None:
    """It waits for what runs; what comes after it is of the new version from the first token."""
    server = trainer.server
    new = step(load(small_llama), 1)
    oracle = oracle_of(small_llama, new, cold)
    sampling = GREEDY | {"max_new_tokens": 200}
    streams = start_streams(server, sampling)
    trainer.session(named(new), "1")
    late = [Streamed(server, [n + 3, 9], sampling) for n in range(2)]
    for stream in (*streams, *late):
        reply = stream.result()
        assert len(reply["output_ids"]) == 200
        assert check(oracle, stream.prompt, reply, kept_cache=False) == 1
    for stream in late:
        assert stream.result()["meta_info"]["weight_version"] == "1"


def test_updates_without_sessions_under_load(
    trainer: Trainer, cold: Cold, small_llama: Path
) -> None:
    """Requests that come one after the other while a trainer updates again and again."""
    server = trainer.server
    old = load(small_llama)
    new = step(old, 1)
    oracle = oracle_of(small_llama, new, cold)
    sampling = GREEDY | {"max_new_tokens": 20}
    replies: list[tuple[list[int], Any]] = []

    def ask(n: int) -> None:
        for m in range(12):
            prompt = [n + 3, m + 5]
            replies.append((prompt, server.generate(input_ids=prompt, sampling_params=sampling)))

    calls = [Background(ask, n) for n in range(4)]
    for weights, label in ((new, "1"), (old, "default"), (new, "1"), (old, "default"), (new, "1")):
        trainer.send(named(weights), weight_version=label).ok()
    for call in calls:
        call.result()
    assert len(replies) == 48
    for prompt, reply in replies:
        assert check(oracle, prompt, reply, kept_cache=False) == 1


def test_br32_a_flush_in_a_session(trainer: Trainer, small_llama: Path) -> None:
    """Refused while requests are paused in place, with a reason; accepted once they are retracted."""
    server = trainer.server
    before = greedy(server)
    tensors = named(step(load(small_llama), 1))
    streams = start_streams(server)
    server.post("/pause_generation", {"mode": "in_place"}).ok()
    trainer.begin().ok()
    refused = trainer.send(tensors, flush_cache=True)
    assert refused.status == 400
    assert "flush_cache" in refused.json["message"]
    assert "paused in place" in refused.json["message"]
    assert trainer.end(abort=True).status == 200
    server.post("/pause_generation", {"mode": "retract"}).ok()
    trainer.begin().ok()
    trainer.send(tensors, flush_cache=True, weight_version="1").ok()
    trainer.end().ok()
    server.post("/continue_generation", {}).ok()
    assert all(len(stream.result()["output_ids"]) == TOKENS for stream in streams)
    assert greedy(server) != before


def test_aborting_all_requests_with_an_update(trainer: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    streams = start_streams(trainer.server, GREEDY | {"max_new_tokens": 1900})
    trainer.send(named(new), abort_all_requests=True, weight_version="1").ok()
    for stream in streams:
        meta = stream.result()["meta_info"]
        assert meta["finish_reason"]["type"] == "abort"
        assert meta["weight_version"] == "default"
    assert serves(trainer.server, new)


def test_br36_a_slow_rank_delays_everybody(pair: Trainer, small_llama: Path) -> None:
    """The new version is live on both ranks or on none: not even its label is there before."""
    server = pair.server
    new = step(load(small_llama), 1)
    old_text = greedy(server)
    (rank,) = ranks_of(server)
    pair.begin().ok()
    pair.send(named(new), weight_version="1").ok()
    os.kill(rank, signal.SIGSTOP)
    try:
        end = Background(pair.end)
        asked = Background(server.generate, input_ids=PROMPT, sampling_params=GREEDY)
        for _ in range(20):
            assert pair.version() == "default"
            assert server.get("/health").status == 200
        assert not end.done() and not asked.done()
    finally:
        os.kill(rank, signal.SIGCONT)
    assert end.result().ok()["weight_version"] == "1"
    reply = asked.result()
    (span,) = reply["meta_info"]["weight_versions"]
    expected = old_text if span["version"] == "default" else greedy(server)
    assert reply["output_ids"][:16] == expected
    assert serves(server, new)
