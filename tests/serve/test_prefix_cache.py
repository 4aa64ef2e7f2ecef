"""What requests share of the same prompt, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from server import Server, eventually

PARAMS = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
PROMPT = [3 + i * i % 50 for i in range(100)]


def generate(server: Server, ids: list[int] | None = None, **fields: Any) -> dict[str, Any]:
    return dict(server.generate(input_ids=ids or PROMPT, sampling_params=PARAMS, **fields))


def cached(reply: dict[str, Any]) -> int:
    return int(reply["meta_info"]["cached_tokens"])


def update(server: Server, path: Path, **fields: Any) -> None:
    server.post("/update_weights_from_disk", {"model_path": str(path)} | fields).ok()


def test_a_prompt_is_computed_once(server: Server) -> None:
    first = generate(server)
    again = generate(server)
    assert (cached(first), cached(again)) == (0, 96)
    assert again["output_ids"] == first["output_ids"]
    eventually(lambda: server.load() == 0, "idle again")
    state = server.get("/server_info").ok()["internal_states"][0]
    assert state["cached_tokens"] == 96
    assert 0 < state["cache_hit_rate"] < 1
    assert "\nsyncline_cached_tokens_total 96\n" in server.get("/metrics").text
    assert server.get("/flush_cache").status == 200
    assert cached(generate(server)) == 0


@pytest.mark.parametrize("fields", [{"weight_version": "1"}, {}])
def test_br_33_an_update_without_a_flush(
    start: Callable[..., Server],
    server: Server,
    other_checkpoint: Callable[..., Path],
    fields: dict[str, Any],
) -> None:
    """Prompt at version 1, update, the prompt again: nothing cached, output of a cold engine."""
    generate(server)
    assert cached(generate(server)) == 96
    other = other_checkpoint(1)
    update(server, other, flush_cache=False, **fields)
    after = generate(server)
    assert cached(after) == 0
    assert after["output_ids"] == generate(start(model=other))["output_ids"]
    assert cached(generate(server)) == 96


def test_partitions(server: Server) -> None:
    generate(server, extra_key="a")
    assert cached(generate(server, extra_key="b")) == 0
    assert cached(generate(server, cache_salt="a")) == 0
    assert cached(generate(server, extra_key="a", cache_salt="")) == 96
    batch = server.generate(
        input_ids=[PROMPT, PROMPT], sampling_params=PARAMS, extra_key=["a", "c"]
    )
    assert [cached(item) for item in batch] == [96, 0]
    assert server.post("/generate", {"input_ids": PROMPT, "extra_key": 4}).status == 400


def test_turned_off(start: Callable[..., Server]) -> None:
    server = start("--max-total-tokens", 4096, "--disable-radix-cache")
    assert cached(generate(server)) == cached(generate(server)) == 0
    assert server.get("/server_info").ok()["disable_radix_cache"] is True


def test_kept_across_versions_on_demand(
    start: Callable[..., Server], other_checkpoint: Callable[..., Path]
) -> None:
    server = start("--max-total-tokens", 4096, "--prefix-cache-across-versions")
    generate(server)
    update(server, other_checkpoint(1), flush_cache=False, weight_version="1")
    reply = generate(server)
    assert cached(reply) == 96
    assert reply["meta_info"]["prefill_weight_versions"] == [
        {"version": "default", "start": 0, "end": 96},
        {"version": "1", "start": 96, "end": 100},
    ]
    update(server, other_checkpoint(2), weight_version="2")  # flushes, as updates do
    assert cached(generate(server)) == 0


def test_openai_usage(server: Server) -> None:
    body = {"model": "any", "prompt": PROMPT, "max_tokens": 4}

    def cached_of(**fields: Any) -> int:
        usage = server.post("/v1/completions", body | fields).ok()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached_of(cache_salt="x") == 0
    assert cached_of() == 0
    assert cached_of(cache_salt="x") == 96


def test_with_two_ranks(start: Callable[..., Server]) -> None:
    server = start("--max-total-tokens", 4096, "--tp", 2)
    alone = start("--max-total-tokens", 4096, "--disable-radix-cache")
    first = generate(server)
    other = [*PROMPT[:50], *reversed(PROMPT[50:])]
    half = generate(server, other)
    assert cached(half) == 48
    assert first["output_ids"] == generate(alone)["output_ids"]
    assert half["output_ids"] == generate(alone, other)["output_ids"]
