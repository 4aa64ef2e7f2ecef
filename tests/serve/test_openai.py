"""The /v1 routes, as the `openai` package uses them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from server import Server

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]


def client_of(server: Server, key: str = "none") -> openai.OpenAI:
    url = f"http://{server.host}:{server.port}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=120)


@pytest.fixture
def client(chat_server: Server) -> Iterator[openai.OpenAI]:
    with client_of(chat_server) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=QUESTION, temperature=0, max_tokens=30, user="me"
    )
    choice = reply.choices[0]
    assert choice.message.content == "The capital of France is Paris."
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.model == "smollm2"
    metadata: Any = reply.metadata  # type: ignore[attr-defined]
    assert metadata["weight_version"] == "default"
    assert metadata["weight_versions"][0]["end"] == reply.usage.completion_tokens


def test_a_chat_stream_is_the_reply_in_pieces(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="any",
        messages=QUESTION,
        temperature=0,
        max_completion_tokens=30,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == "The capital of France is Paris."
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 5
    assert len({chunk.id for chunk in chunks}) == 1


def test_chat_logprobs(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any", messages=QUESTION, temperature=0, max_tokens=4, logprobs=True, top_logprobs=2
    )
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(entry.token for entry in logprobs.content) == reply.choices[0].message.content
    for entry in logprobs.content:
        assert bytes(entry.bytes or []).decode() == entry.token
        assert entry.top_logprobs[0].token == entry.token
        assert len(entry.top_logprobs) == 2


def test_chat_parameters(client: openai.OpenAI) -> None:
    create: Callable[..., Any] = client.chat.completions.create
    options = {"model": "any", "messages": QUESTION, "max_tokens": 8, "n": 3, "temperature": 1.5}
    once = create(**options, seed=5, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5)
    again = create(**options, seed=5, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5)
    texts = [choice.message.content for choice in once.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert len(set(texts)) > 1
    assert [choice.index for choice in once.choices] == [0, 1, 2]
    banned = create(model="any", messages=QUESTION, max_tokens=1, temperature=0)
    assert banned.choices[0].message.content == "The"
    biased = create(
        model="any", messages=QUESTION, max_tokens=1, temperature=0, logit_bias={"504": -100}
    )
    assert biased.choices[0].message.content != "The"
    stopped = create(model="any", messages=QUESTION, temperature=0, stop=["France"])
    assert stopped.choices[0].message.content == "The capital of "
    extra = create(
        model="any",
        messages=QUESTION,
        temperature=0,
        extra_body={"top_k": 1, "min_tokens": 12, "ignore_eos": True, "rid": "mine"},
        max_tokens=12,
    )
    assert (extra.id, extra.usage.completion_tokens) == ("mine", 12)


def test_messages_in_parts_and_tools(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="any",
        messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}],
        temperature=0,
        max_tokens=30,
        tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}],
    )
    assert reply.choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    prompt = "The capital of France is"
    create: Callable[..., Any] = client.completions.create
    reply = create(model="any", prompt=prompt, temperature=0, max_tokens=2)
    assert reply.choices[0].text == " Paris."
    assert reply.choices[0].finish_reason == "length"
    two = create(model="any", prompt=[prompt, "Water"], temperature=0, max_tokens=2)
    assert [choice.index for choice in two.choices] == [0, 1]
    assert two.choices[0].text == " Paris."
    pieces = create(model="any", prompt=prompt, temperature=0, max_tokens=2, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == " Paris."


def test_prompts_of_ids(client: openai.OpenAI) -> None:
    create: Callable[..., Any] = client.completions.create
    one = create(model="any", prompt=[504, 3575], temperature=0, max_tokens=3)
    both = create(model="any", prompt=[[504, 3575], [504]], temperature=0, max_tokens=3)
    assert both.choices[0].text == one.choices[0].text
    assert len(both.choices) == 2


def test_completions_score_a_prompt(client: openai.OpenAI) -> None:
    """What evaluation harnesses do: echo, log-probabilities, nothing new."""
    prompt = "The capital of France is Paris"
    reply = client.completions.create(
        model="any", prompt=prompt, echo=True, logprobs=1, max_tokens=0, temperature=0
    )
    logprobs = reply.choices[0].logprobs
    assert reply.choices[0].text == prompt
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    assert logprobs.text_offset is not None
    assert "".join(logprobs.tokens) == prompt
    assert logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    assert logprobs.token_logprobs[-1] > -3
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert prompt[offset : offset + len(token)] == token


def test_refusals(client: openai.OpenAI) -> None:
    create: Callable[..., Any] = client.chat.completions.create
    for options, part in (
        ({"messages": []}, "messages"),
        ({"messages": QUESTION, "temperature": -1}, "temperature"),
        ({"messages": QUESTION, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": QUESTION, "top_logprobs": 2}, "top_logprobs"),
    ):
        with pytest.raises(openai.BadRequestError, match=part):
            create(model="any", **options)


def test_keys(start: Callable[..., Server]) -> None:
    server = start("--api-key", "secret")
    assert client_of(server, "secret").models.list().data
    with pytest.raises(openai.AuthenticationError):
        client_of(server, "wrong").models.list()
