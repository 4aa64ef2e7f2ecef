"""SmolLM2 in fp8 and in 4-bit integers gets another version while it generates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from forms import send_bucket
from payloads import chunks
from quantise import Fp8, Int4, kept, quantise, write
from quantised import shuffled, told
from server import Background, Server, eventually
from trainer import Trainer, load

pytestmark = pytest.mark.usefixtures("by_name")

FORMS: dict[str, Fp8 | Int4] = {"fp8": Fp8(), "int4": Int4(64)}
STREAMS = 4
TOKENS = 160
GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPTS = ["The capital of France is", "Once upon a time"]


@pytest.fixture(scope="module")
def next_step(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 in bf16 with other weights in two of its layers."""
    tensors = load(smollm2)
    for name, tensor in tensors.items():
        if name.startswith(("model.layers.11.", "model.layers.28.")):
            tensors[name] = (tensor.float() * 1.25).to(tensor.dtype)
    return write(smollm2, tmp_path_factory.mktemp("next") / "bf16", tensors, None)


class Streamed:
    """A streamed request on a thread of its own."""

    def __init__(self, server: Server, number: int) -> None:
        self.tokens = 0  # so far
        sampling = GREEDY | {"max_new_tokens": TOKENS}
        body = {"input_ids": [number + 3, 11], "sampling_params": sampling, "stream": True}
        self._call = Background(self._run, server, body)

    def _run(self, server: Server, body: Any) -> Any:
        last: Any = None
        for last in server.stream("/generate", body).events():
            assert len(last["output_ids"]) >= self.tokens, "a token was taken back"
            self.tokens = len(last["output_ids"])
        return last

    def result(self) -> Any:
        return self._call.result()


def texts(server: Server) -> list[Any]:
    sampling = GREEDY | {"max_new_tokens": 24}
    return [r["output_ids"] for r in server.generate(text=PROMPTS, sampling_params=sampling)]


def check(reply: Any) -> None:
    """Whole, and its tokens are first of the old version, then of the new one."""
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": TOKENS}
    assert len(reply["output_ids"]) == TOKENS
    spans = meta["weight_versions"]
    assert [span["version"] for span in spans] == ["default", "1"]
    assert spans[0]["start"] == 0 < spans[0]["end"] == spans[1]["start"] < spans[1]["end"]
    assert spans[1]["end"] == TOKENS


@pytest.mark.parametrize(("name", "scales"), [("fp8", "fp32"), ("fp8", "ue8m0"), ("int4", "auto")])
def test_a_session_while_streams_run(
    smollm2: Path, next_step: Path, tmp_path: Path, name: str, scales: str
) -> None:
    """What changes is sent during generation; the end comes in a pause between two tokens."""
    second = quantise(next_step, tmp_path / "second", FORMS[name])
    new = load(second)
    old = load(kept(smollm2, name, FORMS[name]))
    changed = {n: t for n, t in new.items() if not t.equal(old[n])}
    assert 0 < len(changed) < len(new) / 4
    options = ("--fp8-scales", scales, "--max-total-tokens", 4096)
    server = Server(kept(smollm2, name, FORMS[name]), *options)
    cold = None
    try:
        trainer = Trainer(server)
        before = texts(server)
        streams = [Streamed(server, number) for number in range(STREAMS)]
        trainer.begin().ok()
        for chunk in chunks(shuffled(changed, 1), 7):
            send_bucket(trainer, chunk).ok()
        eventually(lambda: all(s.tokens >= 4 for s in streams), "all streams generate")
        server.post("/pause_generation", {"mode": "in_place"}).ok()
        body = {"new_version": "1", "abort_all_requests": False}
        assert server.post("/update_weight_version", body).ok()["pending"] is True
        assert trainer.end().ok()["weight_version"] == "1"
        server.post("/continue_generation").ok()
        for stream in streams:
            check(stream.result())
        cold = Server(second, *options)
        after = texts(server)
        assert after == texts(cold) != before
        assert told(server) == told(cold)
    finally:
        server.close()
        if cold is not None:
            cold.close()
