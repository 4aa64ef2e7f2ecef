"""Requests with tensors that are refused: nothing has changed, nothing was run, memory is bounded."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from payloads import (
    NEW_HOME,
    define,
    dumps,
    encode,
    module,
    safetensors,
    sharing,
)
from trainer import (
    Trainer,
    failure,
    load,
    named,
    resident,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

NORM = "model.norm.weight"
HEAD = "lm_head.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


def test_wrong_numbers_of_payloads(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    new = step(load(small_llama), 1)
    for count in {0, trainer.ranks - 1, trainer.ranks + 1}:
        payloads = [encode(named(new)) for _ in range(count)]
        failure(
            trainer.post(payloads),
            f"serialized_named_tensors has {count} elements",
            f"{trainer.ranks} ranks",
        )
    assert state(trainer.server) == before


@pytest.mark.parametrize("value", [None, "text", 3, {}, [None], [3], [["YQ=="]]], ids=repr)
def test_payloads_of_another_type(single: Trainer, value: object) -> None:
    body = {"serialized_named_tensors": value}
    failure(single.server.post("/update_weights_from_tensor", body), "serialized_named_tensors")
    failure(single.server.post("/update_weights_from_tensor"), "serialized_named_tensors")


@pytest.mark.parametrize("text", ["YQ", "YQ==\n", "Y Q==", "Y-_=", "a", "ä===", "YQ===="])
def test_wrong_base64(single: Trainer, text: str) -> None:
    reply = single.post([text])
    failure(reply, "item 0", "Expected base64-encoded bytes")
    assert reply.json["object"] == "error"


def test_loaders_of_the_clients_are_not_run(single: Trainer, small_llama: Path) -> None:
    new = named(load(small_llama))
    for name in ("verl.workers.rollout.loader", "sharded_state", "dummy", "x" * 5000):
        message = failure(single.send(new, load_format=name), "load_format")
        assert name in message or len(message) < 1000


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Path]:
    """What bombs would make."""
    yield tmp_path / "made"
    assert not (tmp_path / "made").exists()


class Bomb:
    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.call


def bombs(target: Path) -> dict[str, Bomb]:
    return {
        "posix.system": Bomb(os.system, f"touch {target}"),
        "builtins.exec": Bomb(exec, f"open({str(target)!r}, 'w')"),
        "builtins.eval": Bomb(eval, f"open({str(target)!r}, 'w')"),
        "io.open": Bomb(open, str(target), "w"),
        "subprocess.Popen": Bomb(subprocess.Popen, ["touch", str(target)]),
        "torch.serialization.load": Bomb(torch.load, str(target)),
    }


def test_br46_code_in_payloads_is_not_run(
    trainer: Trainer, small_llama: Path, target: Path
) -> None:
    """In every place where a payload may hold an object; the class is named."""
    before = state(trainer.server)
    weight = load(small_llama)[NORM]
    for name, bomb in bombs(target).items():
        with module(NEW_HOME) as home:
            local = define(home, "LocalSerializedTensor", "values")
            inner = encode([(NORM, local([dumps(bomb)] * trainer.ranks))])
        bucket = {"flattened_tensor": bomb, "metadata": []}
        metadata = {"flattened_tensor": weight, "metadata": [bomb]}
        for blob, form in (
            (encode(bomb), None),
            (encode([(NORM, bomb)]), None),
            (encode([(bomb, weight)]), None),
            (inner, None),
            (encode(bucket), "flattened_bucket"),
            (encode(metadata), "flattened_bucket"),
        ):
            failure(trainer.post([blob] * trainer.ranks, load_format=form), name)
    assert state(trainer.server) == before


def huge_lengths() -> dict[str, bytes]:
    four = (0xFFFFFFFF).to_bytes(4, "little")
    eight = (1 << 62).to_bytes(8, "little")
    header = b"\x80\x05"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n"
    return {
        "bytes": header + b"B" + four + b"abc.",
        "text": header + b"X" + four + b"abc.",
        "long bytes": header + b"\x8e" + eight + b"abc.",
        "long text": header + b"\x8d" + eight + b"abc.",
        "frame": header + b"\x95" + eight + b"].",
        "integer": header + b"\x8b" + four + b"\x01.",
        "memo": header + b"]r" + four + b".",
        "nested": header + b"](" * 200000 + b"." + b"e" * 10,
        "marks": header + b"(" * 1000000 + b".",
        "no end": header + b"]" * 1000000,
        "nothing": b"",
        "rebuilt of nothing": header + tensor + b")R.",
    }


@pytest.mark.parametrize("case", huge_lengths())
def test_br46_lengths_that_lie(single: Trainer, case: str) -> None:
    before = resident(single.server)
    payload = base64.b64encode(huge_lengths()[case]).decode()
    for form in (None, "flattened_bucket", "direct"):
        failure(single.post([payload], load_format=form))
    assert resident(single.server) < before + (256 << 20)
    assert single.server.get("/health").status == 200


def test_br46_safetensors_that_lie(single: Trainer, small_llama: Path) -> None:
    before, held = state(single.server), resident(single.server)
    good = base64.b64decode(safetensors(named(load(small_llama))))

    def file(entry: dict[str, Any], data: bytes = b"") -> bytes:
        text = json.dumps({NORM: entry}).encode()
        return len(text).to_bytes(8, "little") + text + data

    wrong: dict[str, Any] = {"dtype": "F32", "shape": [48], "data_offsets": [0, 192]}
    for data in (
        b"",
        good[:7],
        good[:100],
        good[:-1],
        good + b"x",
        (1 << 62).to_bytes(8, "little") + good[8:],
        (1 << 32).to_bytes(8, "little") + good[8:],
        file(wrong),
        file(wrong | {"shape": [1 << 62, 1 << 62]}, bytes(192)),
        file(wrong | {"data_offsets": [0, 1 << 40]}, bytes(192)),
        file(wrong | {"dtype": "F99"}, bytes(192)),
        b"\x10\0\0\0\0\0\0\0" + b'{"a":' * 3 + b"{",
    ):
        text = base64.b64encode(data).decode()
        failure(single.post([text], load_format="safetensors"))
        raw = single.server.request("POST", "/update_weights_from_tensor_raw", data)
        assert raw.status == 400, raw.text
    assert state(single.server) == before
    assert resident(single.server) < held + (256 << 20)


def test_br46_wrong_bodies(single: Trainer) -> None:
    before = state(single.server)
    deep = b'{"serialized_named_tensors":' + b"[" * 200000
    for body in (deep, b"[]", b"\xff\xfe{}", b"{", b'"text"', b"cos\nsystem\n(S'true'\ntR."):
        for path in (
            "/update_weights_from_tensor",
            "/begin_weight_update",
            "/end_weight_update",
            "/post_process_weights",
            "/weights_checker",
        ):
            reply = single.server.request("POST", path, body)
            assert reply.status == 400, (path, body[:40])
    assert single.open()["open"] is False
    assert state(single.server) == before


def test_pickles_of_torch_save_and_of_plain_pickle(single: Trainer, small_llama: Path) -> None:
    for data in (pickle.dumps([(NORM, load(small_llama)[NORM])]), pickle.dumps({"a": object()})):
        failure(single.post([base64.b64encode(data).decode()]), "is not one of the classes")


def test_memory_behind_a_descriptor(trainer: Trainer, small_llama: Path) -> None:
    """Torch's default; the reply says what to use."""
    before = state(trainer.server)
    with sharing("file_descriptor"):
        failure(trainer.send(named(load(small_llama))), 'set_sharing_strategy("file_system")')
    assert state(trainer.server) == before


def test_memory_that_is_gone(trainer: Trainer, small_llama: Path, tmp_path: Path) -> None:
    """The sender has ended: nothing changes, and the next update is as any other."""
    before = state(trainer.server)
    script = (
        "import sys, torch, torch.multiprocessing\n"
        "from payloads import encode\n"
        "torch.multiprocessing.set_sharing_strategy('file_system')\n"
        f"print(encode([({NORM!r}, torch.ones(48))]))\n"
    )
    here = Path(__file__).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    failure(trainer.post([done.stdout.strip()] * trainer.ranks), "is not there")
    assert state(trainer.server) == before
    new = step(load(small_llama), 1)
    trainer.send(named(new)).ok()
    assert serves(trainer.server, new)


def test_only_names_that_torch_gives_are_opened(single: Trainer) -> None:
    """A payload cannot make the engine read, or remove, another program's memory."""
    before = state(single.server)
    good = dumps([(NORM, torch.ones(48))])
    (name,) = re.findall(rb"/torch_\d+_\d+_\d+", good)
    other = Path("/dev/shm") / f"e2e_{os.getpid()}_".ljust(len(name) - 1, "x")
    other.write_bytes(b"\1" + bytes(63) + bytes(4 * 48))
    try:
        for wrong in (b"/" + other.name.encode(), b"/../".ljust(len(name), b"a"), bytes(len(name))):
            payload = base64.b64encode(good.replace(name, wrong)).decode()
            failure(single.post([payload]))
        assert other.read_bytes()[:1] == b"\1"
    finally:
        other.unlink()
    assert state(single.server) == before


def test_br37_one_rank_fails(pair: Trainer, small_llama: Path) -> None:
    """All answer with the fault of that one, at once, and none has changed."""
    before = state(pair.server)
    new = named(step(load(small_llama), 1))
    wrong = {
        "no.such.weight": [*new, ("no.such.weight", torch.ones(3))],
        NORM: [*new[:-1], (NORM, torch.ones(3))],
        "is not one of the classes": Bomb(exec, "1"),
    }
    for text, content in wrong.items():
        for rank in (0, 1):
            payloads = [encode(content if at == rank else new) for at in (0, 1)]
            failure(pair.post(payloads), f"rank {rank}", text)
            assert state(pair.server) == before
    pair.send(new).ok()
    assert serves(pair.server, dict(new))
