"""/generate on a real model."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from server import Background, Server, eventually

GREEDY = {"temperature": 0, "max_new_tokens": 12}
PROMPT = "The capital of France is"


def test_text_and_meta_info(chat_server: Server) -> None:
    reply = chat_server.generate(text=PROMPT, sampling_params=GREEDY, rid="one")
    assert reply["text"].startswith(" Paris")
    assert len(reply["output_ids"]) == 12
    meta = reply["meta_info"]
    assert meta["id"] == "one"
    assert meta["finish_reason"] == {"type": "length", "length": 12}
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 12)
    assert meta["reasoning_tokens"] == meta["num_retractions"] == 0
    assert meta["weight_version"] == "default"
    assert meta["weight_versions"] == [{"version": "default", "start": 0, "end": 12}]
    assert meta["e2e_latency"] > 0


def test_a_batch_equals_its_parts(chat_server: Server) -> None:
    prompts = [PROMPT, "Water boils at", "One, two, three,"]
    alone = [chat_server.generate(text=text, sampling_params=GREEDY) for text in prompts]
    batch = chat_server.generate(text=prompts, sampling_params=GREEDY)
    assert [item["output_ids"] for item in batch] == [item["output_ids"] for item in alone]


def test_a_stream_is_cumulative_and_ends_as_the_reply(chat_server: Server) -> None:
    body = {"text": PROMPT, "sampling_params": GREEDY, "return_logprob": True}
    whole = chat_server.generate(**body)
    stream = chat_server.stream("/generate", body | {"stream": True})
    assert (stream.status, stream.content_type) == (200, "text/event-stream")
    events = list(stream.events())
    for before, after in itertools.pairwise(events):
        assert after["text"].startswith(before["text"])
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None
    last = events[-1]
    assert last["text"] == whole["text"]
    assert last["output_ids"] == whole["output_ids"]
    assert last["meta_info"]["finish_reason"] == whole["meta_info"]["finish_reason"]
    assert len(last["meta_info"]["output_token_logprobs"]) == 12


def test_a_streamed_batch_carries_indices(chat_server: Server) -> None:
    body = {"text": [PROMPT, "Water"], "sampling_params": GREEDY, "stream": True}
    last: dict[int, Any] = {}
    for event in chat_server.stream("/generate", body).events():
        last[event["index"]] = event
    assert sorted(last) == [0, 1]
    assert last[0]["text"].startswith(" Paris")


def test_logprobs_of_the_output_and_of_scoring_agree(chat_server: Server) -> None:
    """What generation says of its tokens is what a scoring call says of the same tokens."""
    asked = {"return_logprob": True, "top_logprobs_num": 3, "return_text_in_logprobs": True}
    reply = chat_server.generate(text=PROMPT, sampling_params=GREEDY, **asked)
    output = reply["meta_info"]["output_token_logprobs"]
    assert [entry[1] for entry in output] == reply["output_ids"]
    assert "".join(entry[2] for entry in output) == reply["text"]
    for entry, top in zip(output, reply["meta_info"]["output_top_logprobs"], strict=True):
        assert len(top) == 3
        assert top[0][:2] == entry[:2]  # greedy: the first choice
        assert top == sorted(top, key=lambda other: -other[0])
    prompt = chat_server.generate(
        text=PROMPT, sampling_params={"max_new_tokens": 0}, return_logprob=True, logprob_start_len=0
    )
    ids = [entry[1] for entry in prompt["meta_info"]["input_token_logprobs"]]
    assert prompt["output_ids"] == []
    score = chat_server.generate(
        input_ids=ids + reply["output_ids"],
        sampling_params={"max_new_tokens": 0},
        return_logprob=True,
        logprob_start_len=len(ids) - 1,
        token_ids_logprob=[5, 9],
    )["meta_info"]
    scored = score["input_token_logprobs"]
    assert scored[0][0] is None  # as in the reference, wherever it starts
    assert scored[0][1] == ids[-1]
    assert [entry[1] for entry in scored[1:]] == reply["output_ids"]
    # The two compute in other shapes, in bf16.
    differences = [abs(a[0] - b[0]) for a, b in zip(scored[1:], output, strict=True)]
    assert max(differences) < 0.4
    assert sum(differences) / len(differences) < 0.1
    assert [entry[1] for entry in score["input_token_ids_logprobs"][1]] == [5, 9]


def test_ids_in_ids_out(server: Server) -> None:
    reply = server.generate(input_ids=[1, 2, 3], sampling_params={"max_new_tokens": 4})
    assert len(reply["output_ids"]) == 4
    assert reply["text"] == ""
    refused = server.post("/generate", {"text": "A"})
    assert refused.status == 400
    assert "no tokenizer" in refused.json["error"]["message"]


def test_samples_of_one_prompt(server: Server) -> None:
    params = {"max_new_tokens": 8, "n": 3, "seed": 4}
    first = server.generate(input_ids=[1, 2], sampling_params=params)
    again = server.generate(input_ids=[1, 2], sampling_params=params)
    assert len(first) == 3
    outputs = [item["output_ids"] for item in first]
    assert outputs == [item["output_ids"] for item in again]
    assert outputs[0] != outputs[1]


def test_stops(chat_server: Server) -> None:
    free = chat_server.generate(text=PROMPT, sampling_params=GREEDY)
    reply = chat_server.generate(text=PROMPT, sampling_params=GREEDY | {"stop": ["never", "."]})
    assert reply["text"] == free["text"][: free["text"].index(".")]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": "."}
    token = free["output_ids"][2]
    reply = chat_server.generate(text=PROMPT, sampling_params=GREEDY | {"stop_token_ids": [token]})
    assert reply["output_ids"] == free["output_ids"][:3]
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}


def test_an_abort_is_a_reply_with_what_there_is(chat_server: Server) -> None:
    params = {"max_new_tokens": 2000, "ignore_eos": True}
    call = Background(chat_server.generate, text=PROMPT, sampling_params=params, rid="long")
    eventually(lambda: chat_server.load() == 1, "the request runs")
    refused = chat_server.post("/generate", {"text": "x", "rid": "long"})
    assert refused.status == 400
    assert "long" in refused.json["error"]["message"]
    aborted = chat_server.post("/abort_request", {"rid": "long", "abort_message": "enough"})
    assert (aborted.status, aborted.body) == (200, b"")
    reply = call.result()
    assert reply["meta_info"]["finish_reason"]["type"] == "abort"
    assert reply["meta_info"]["finish_reason"]["message"] == "enough"
    assert len(reply["output_ids"]) < 2000


def test_one_id_aborts_a_batch(chat_server: Server) -> None:
    params = {"max_new_tokens": 2000, "ignore_eos": True}
    call = Background(chat_server.generate, text=["a", "b"], sampling_params=params, rid="group")
    eventually(lambda: chat_server.load() == 2, "both run")
    chat_server.post("/abort_request", {"rid": "group"})
    assert [item["meta_info"]["finish_reason"]["type"] for item in call.result()] == ["abort"] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_aborts_its_requests(chat_server: Server, stream: bool) -> None:
    body = {
        "text": [PROMPT, "Water"],
        "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True},
        "stream": stream,
    }
    if stream:
        reader = chat_server.stream("/generate", body)
        next(reader.events())
        reader.close()
    else:
        connection = chat_server.connect()
        chat_server._send(connection, "POST", "/generate", body, {})
        eventually(lambda: chat_server.load() == 2, "both run")
        connection.close()
    eventually(lambda: chat_server.load() == 0, "they end")


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({}, "either text or input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [99999999]}, "input_ids"),
        ({"input_ids": [-1]}, "input_ids"),
        ({"input_ids": [1], "image_data": "x"}, "image_data"),
        ({"input_ids": [1], "lora_path": "adapter"}, "lora_path"),
        (
            {"input_ids": [1], "return_routed_experts": True},
            "return_routed_experts: expected a model",
        ),
        ({"input_ids": [1], "sampling_params": {"temperature": -1}}, "temperature"),
        ({"input_ids": [1], "sampling_params": {"top_p": "high"}}, "top_p"),
        ({"input_ids": [1], "sampling_params": {"json_schema": "{}"}}, "json_schema"),
        ({"input_ids": [1] * 9000}, "input_ids"),
    ],
)
def test_what_is_wrong_is_named(chat_server: Server, fields: dict[str, Any], part: str) -> None:
    reply = chat_server.post("/generate", fields)
    assert reply.status == 400
    told = reply.json.get("message") or reply.json["error"]["message"]
    assert part in told
