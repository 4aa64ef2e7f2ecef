"""Tensors in requests, in every form that trainers send, to engines of one and two ranks."""

from __future__ import annotations

import base64
import json
import os
import pickle
import random
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
    OLD_HOME,
    Named,
    chunks,
    define,
    dumps,
    empty_bucket,
    encode,
    module,
    old_bucket,
    safetensors,
    sglang_bucket,
    sharing,
    verl,
)
from random_models import make
from server import Reply, Server
from trainer import (
    Borrow,
    Cold,
    Trainer,
    Weights,
    content,
    exported,
    failure,
    greedy,
    load,
    named,
    ranks_of,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

SMALL = ("--max-total-tokens", 4096)
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def trainer(borrow: Borrow, ranks: int) -> Trainer:
    return Trainer(borrow("--tp", ranks, *SMALL), ranks)


@pytest.fixture
def pair(borrow: Borrow) -> Trainer:
    """With an engine of two ranks."""
    return Trainer(borrow("--tp", 2, *SMALL), 2)


@pytest.fixture
def single(borrow: Borrow) -> Trainer:
    return Trainer(borrow("--tp", 1, *SMALL))


# ---- forms ----


def send_plain(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.send(tensors)


def send_dict(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([encode(dict(tensors)) for _ in range(trainer.ranks)])


def send_parameters(trainer: Trainer, tensors: Named) -> Reply:
    """As `model.named_parameters()` gives them."""
    return trainer.send([(name, torch.nn.Parameter(tensor)) for name, tensor in tensors])


def send_bucket(trainer: Trainer, tensors: Named) -> Reply:
    payloads = [sglang_bucket(tensors) for _ in range(trainer.ranks)]
    return trainer.post(payloads, load_format="flattened_bucket", flush_cache=False)


def send_old_bucket(trainer: Trainer, tensors: Named) -> Reply:
    payloads = [old_bucket(tensors) for _ in range(trainer.ranks)]
    return trainer.post(payloads, load_format="flattened_bucket", disable_draft_model=True)


def send_verl(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([verl([tensors] * trainer.ranks)] * trainer.ranks)


def send_old_verl(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([verl([tensors] * trainer.ranks, OLD_HOME)] * trainer.ranks)


def send_safetensors(trainer: Trainer, tensors: Named) -> Reply:
    """One payload stands for all ranks."""
    return trainer.post([safetensors(tensors)], load_format="safetensors")


def send_safetensors_of_each(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([safetensors(tensors)] * trainer.ranks, load_format="safetensors")


def send_raw(trainer: Trainer, tensors: Named, query: str = "") -> Reply:
    return trainer.server.request(
        "POST",
        "/update_weights_from_tensor_raw" + query,
        base64.b64decode(safetensors(tensors)),
        **{"Content-Type": "application/octet-stream"},
    )


FORMS: dict[str, Callable[[Trainer, Named], Reply]] = {
    "list": send_plain,
    "dict": send_dict,
    "parameters": send_parameters,
    "bucket of SGLang": send_bucket,
    "bucket, first generation": send_old_bucket,
    "verl": send_verl,
    "verl, older class": send_old_verl,
    "safetensors": send_safetensors,
    "safetensors of each rank": send_safetensors_of_each,
    "raw": send_raw,
}


@pytest.fixture(params=FORMS)
def send(request: pytest.FixtureRequest) -> Callable[[Trainer, Named], Reply]:
    return FORMS[request.param]


def test_every_form_gives_the_state_of_a_cold_engine(
    trainer: Trainer, cold: Cold, small_llama: Path, send: Callable[[Trainer, Named], Reply]
) -> None:
    new = step(load(small_llama), 1)
    reply = send(trainer, named(new)).ok()
    assert reply["success"] is True and reply["message"] == "Success"
    assert (reply["tensors"], reply["skipped_tensors"]) == (len(new), 0)
    assert (reply["unchanged"], reply["undoable"], reply["pending"]) == (False, True, [])
    assert reply["bytes"] == trainer.ranks * sum(len(content(t)) for t in new.values())
    assert state(trainer.server) == cold(small_llama, new, "--tp", trainer.ranks)
    assert serves(trainer.server, new)


def test_bf16_in_every_form(
    borrow: Borrow, cold: Cold, latent: Path, send: Callable[[Trainer, Named], Reply]
) -> None:
    """A model with 3-dimensional places: experts that are stacked, projections that are fused."""
    trainer = Trainer(borrow("--tp", 2, *SMALL, model=latent), 2)
    new = step(load(latent), 1)
    by_type: dict[torch.dtype, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in new.items():
        by_type.setdefault(tensor.dtype, []).append((name, tensor))
    for tensors in by_type.values():  # buckets of the first generation have one type
        send(trainer, tensors).ok()
    assert state(trainer.server) == cold(latent, new, "--tp", 2)


def engine_parameters(weights: Weights) -> Weights:
    """A Llama's tensors under the engine's names: fused along their rows."""
    order = ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]

    def position(name: str) -> int:
        return next((i for i, part in enumerate(order) if part in name), 0)

    fused: dict[str, list[torch.Tensor]] = {}
    for name in sorted(weights, key=position):
        target = re.sub(r"\b[qkv]_proj", "qkv_proj", name)
        target = re.sub(r"\b(gate|up)_proj", "gate_up_proj", target)
        fused.setdefault(target, []).append(weights[name])
    return {name: torch.cat(parts) for name, parts in fused.items()}


def test_direct_takes_the_engines_own_names(single: Trainer, cold: Cold, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    parameters = engine_parameters(new)
    rows = {"model.embed_tokens.weight", HEAD}
    inner = [(name, tensor) for name, tensor in parameters.items() if name not in rows]
    assert {name for name, _ in inner} <= set(state(single.server).tensors[0])
    single.send(inner, load_format="direct").ok()
    single.send([(name, new[name]) for name in sorted(rows)]).ok()
    assert state(single.server) == cold(small_llama, new, "--tp", 1)


def test_direct_knows_no_other_names(single: Trainer, small_llama: Path) -> None:
    before = state(single.server)
    new = step(load(small_llama), 1)
    failure(single.send([(QUERY, new[QUERY])], load_format="direct"), QUERY)
    fused = engine_parameters(new)
    name = "model.layers.0.self_attn.qkv_proj.weight"
    wrong = [(NORM, new[NORM]), (name, fused[name][:-1])]
    failure(single.send(wrong, load_format="direct"), name)
    assert state(single.server) == before


def test_fused_names_are_refused_with_advice(single: Trainer, small_llama: Path) -> None:
    fused = engine_parameters(step(load(small_llama), 1))
    name = "model.layers.0.self_attn.qkv_proj.weight"
    failure(single.send([(name, fused[name])]), name, QUERY)


@pytest.mark.parametrize("version", [None, "5"])
def test_the_raw_route_takes_its_fields_from_the_query(
    trainer: Trainer, small_llama: Path, version: str | None
) -> None:
    new = step(load(small_llama), 1)
    query = "?flush_cache=false&selector=target&abort_all_requests=false"
    query += f"&weight_version={version}" if version else ""
    reply = send_raw(trainer, named(new), query).ok()
    expected = f"Success Weight version updated to {version}." if version else "Success"
    assert reply["message"] == expected
    assert trainer.version() == (version or "default")
    assert serves(trainer.server, new)
    failure(send_raw(trainer, named(new), "?selector=main"), "selector")
    failure(send_raw(trainer, named(new), "?flush_cache=perhaps"), "flush_cache")


def test_ranks_may_get_different_tensors(pair: Trainer, small_llama: Path) -> None:
    """What a rank is not sent stays as it was: here the second half of a projection's rows."""
    before = load(small_llama)
    new = step(before, 1)
    mine = [(QUERY, new[QUERY]), (NORM, new[NORM])]
    other = [("model.layers.1.mlp.up_proj.weight", new["model.layers.1.mlp.up_proj.weight"])]
    pair.begin().ok()
    pair.post([encode(mine), encode(other)]).ok()
    empty = [empty_bucket(), sglang_bucket([(NORM, new[NORM])])]
    pair.post(empty, load_format="flattened_bucket").ok()
    pair.end().ok()
    query, up = before[QUERY].clone(), before[other[0][0]].clone()
    query[: len(query) // 2] = new[QUERY][: len(query) // 2]
    up[len(up) // 2 :] = other[0][1][len(up) // 2 :]
    expected = before | {QUERY: query, NORM: new[NORM], other[0][0]: up}
    assert serves(pair.server, expected)


def test_verls_ranks_take_their_own_bytes(pair: Trainer, small_llama: Path) -> None:
    before = load(small_llama)
    first, second = step(before, 1), step(before, 2)
    one = [(QUERY, first[QUERY]), (HEAD, first[HEAD])]
    two = [(QUERY, second[QUERY]), (HEAD, second[HEAD])]
    pair.post([verl([one, two])] * 2).ok()
    half = len(before[QUERY]) // 2
    assert exported(pair.server, QUERY) == content(
        torch.cat([first[QUERY][:half], second[QUERY][half:]])
    )
    failure(pair.post([verl([one])] * 2), "rank 1")


@pytest.mark.parametrize("strategy", ["file_system", "file_descriptor"])
def test_empty_payloads(trainer: Trainer, strategy: str) -> None:
    before = state(trainer.server)
    with sharing(strategy):
        payloads = [empty_bucket() for _ in range(trainer.ranks)]
        trainer.post(payloads, load_format="flattened_bucket").ok()
        trainer.send([]).ok()
        trainer.post([safetensors([])], load_format="safetensors").ok()
    assert state(trainer.server) == before


def test_blobs_that_are_the_same_for_all_ranks(trainer: Trainer, small_llama: Path) -> None:
    """As the contract allows: the sender keeps its tensors until the reply."""
    new = step(load(small_llama), 1)
    blob = encode(named(new))
    trainer.post([blob] * trainer.ranks).ok()
    assert serves(trainer.server, new)


# ---- names and types ----


def test_prefixes_of_wrappers_are_handled_by_name(single: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    prefixes = ["", "module.", "_orig_mod.", "_fsdp_wrapped_module.", "module._orig_mod."]
    wrapped = [(prefixes[i % 5] + name, tensor) for i, (name, tensor) in enumerate(named(new))]
    single.send(wrapped).ok()
    assert serves(single.server, new)
    failure(single.send([(NORM, new[NORM]), ("module." + NORM, new[NORM])]), NORM)


def test_br22_a_name_that_is_nobodys(trainer: Trainer, small_llama: Path) -> None:
    before = state(trainer.server)
    new = named(step(load(small_llama), 1))
    strange = ("model.language_model.norm.weight", torch.ones(48))
    for at in (0, len(new)):
        tensors = [*new[:at], strange, *new[at:]]
        failure(trainer.send(tensors), strange[0])
        failure(trainer.post([safetensors(tensors)], load_format="safetensors"), strange[0])
    assert state(trainer.server) == before


def test_br22_names_that_a_rule_leaves_out_are_counted(single: Trainer, small_llama: Path) -> None:
    new = step(load(small_llama), 1)
    rotary = ("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8))
    reply = single.send([*named(new), rotary]).ok()
    assert (reply["tensors"], reply["skipped_tensors"]) == (len(new), 1)
    assert serves(single.server, new)


@pytest.mark.parametrize("form", ["list", "bucket of SGLang", "safetensors"])
def test_br23_a_wrong_shape_in_the_last_tensor(
    trainer: Trainer, small_llama: Path, form: str
) -> None:
    """All else in the message was right; none of it is live."""
    before, text = state(trainer.server), greedy(trainer.server)
    new = step(load(small_llama), 1)
    last = torch.zeros(len(new[HEAD]) + 3, new[HEAD].shape[1])  # rows of a padded vocabulary
    tensors = [(n, t) for n, t in named(new) if n != HEAD] + [(HEAD, last)]
    failure(FORMS[form](trainer, tensors), HEAD, "304", "301")
    assert (state(trainer.server), greedy(trainer.server)) == (before, text)
    FORMS[form](trainer, named(new)).ok()
    assert serves(trainer.server, new)


def test_a_tensor_twice_in_a_message(single: Trainer, small_llama: Path) -> None:
    before = state(single.server)
    new = step(load(small_llama), 1)
    failure(single.send([(NORM, new[NORM]), (NORM, new[NORM])]), NORM, "twice")
    assert state(single.server) == before


def test_floats_of_other_types_are_converted(
    borrow: Borrow, cold: Cold, latent: Path, ranks: int
) -> None:
    """fp32 master weights to an engine in bf16, rounded as torch rounds them."""
    trainer = Trainer(borrow("--tp", ranks, *SMALL, model=latent), ranks)
    masters = {name: t.float() for name, t in step(load(latent), 1).items()}
    generator = torch.Generator().manual_seed(4)
    for tensor in masters.values():
        tensor += torch.randn(tensor.shape, generator=generator) * 1e-3
    rounded = {name: masters[name].to(old.dtype) for name, old in load(latent).items()}
    trainer.session(named(masters), size=5)
    assert serves(trainer.server, rounded)
    assert state(trainer.server) == cold(latent, rounded, "--tp", ranks)


def test_integers_are_not_weights(single: Trainer, small_llama: Path) -> None:
    before = state(single.server)
    for dtype in (torch.int32, torch.uint8, torch.bool, torch.complex64):
        failure(single.send([(NORM, load(small_llama)[NORM].to(dtype))]), NORM)
    assert state(single.server) == before


# ---- views (BR-40) ----


def strided(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same values as a 2-dimensional tensor, in other places of memory."""
    rows, columns = tensor.shape
    wide = torch.full((2 * rows + 1, 3 * columns + 2), 7.0, dtype=tensor.dtype)
    every_other = wide[1::2, 2::3]
    every_other.copy_(tensor)
    long = torch.full((rows * columns + 5,), 7.0, dtype=tensor.dtype)
    offset = long[5:].view(rows, columns)
    offset.copy_(tensor)
    return {
        "transposed": tensor.t().contiguous().t(),
        "every other": every_other,
        "at an offset": offset,
        "gradient": tensor.clone().requires_grad_(),
    }


@pytest.mark.parametrize("form", ["list", "dict", "bucket of SGLang", "verl"])
@pytest.mark.parametrize("kind", ["transposed", "every other", "at an offset", "gradient"])
def test_br40_views(trainer: Trainer, small_llama: Path, form: str, kind: str) -> None:
    new = step(load(small_llama), 1)
    views = [
        (name, strided(tensor)[kind] if tensor.dim() == 2 else tensor)
        for name, tensor in named(new)
    ]
    with torch.no_grad():
        FORMS[form](trainer, views).ok()
    assert serves(trainer.server, new)


def test_br40_expanded_and_overlapping(trainer: Trainer, small_llama: Path) -> None:
    before = load(small_llama)
    rows, columns = before[QUERY].shape
    expanded = torch.randn(rows, 1).expand(rows, columns)
    norm = torch.tensor(1.25).expand(before[NORM].shape)
    window = torch.randn(rows + columns).as_strided((rows, columns), (1, 1))
    name = "model.layers.1.self_attn.q_proj.weight"
    tensors = {QUERY: expanded, NORM: norm, name: window}
    trainer.send(named(tensors)).ok()
    assert serves(trainer.server, before | tensors)


def test_br40_scalars_and_empty_tensors_are_what_they_are(single: Trainer) -> None:
    """Neither is taken for a weight of another shape."""
    before = state(single.server)
    for tensor in (torch.tensor(1.0), torch.empty(0), torch.empty(0, 48), torch.ones(1)):
        failure(single.send([(NORM, tensor)]), NORM)
    assert state(single.server) == before


# ---- what is refused ----


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


def resident(server: Server) -> int:
    """Bytes."""
    text = Path(f"/proc/{server.process.pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


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

    def file(entry: dict[str, object], data: bytes = b"") -> bytes:
        text = json.dumps({NORM: entry}).encode()
        return len(text).to_bytes(8, "little") + text + data

    wrong = {"dtype": "F32", "shape": [48], "data_offsets": [0, 192]}
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
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
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


# ---- retries, and what is left behind ----


@pytest.mark.parametrize("form", ["list", "safetensors"])
def test_retries_are_idempotent(trainer: Trainer, small_llama: Path, form: str) -> None:
    """verl sends a request again when the reply is late."""
    new = step(load(small_llama), 1)
    tensors = named(new)
    for attempt in range(3):
        reply = FORMS[form](trainer, tensors).ok()
        assert reply["unchanged"] is (attempt > 0)
        assert serves(trainer.server, new)


def test_the_very_same_request_again(single: Trainer, small_llama: Path) -> None:
    """Its memory may be gone by then; then the retry says so, and what is live stays."""
    new = step(load(small_llama), 1)
    body = {"serialized_named_tensors": [encode(named(new))], "weight_version": "1"}
    single.server.post("/update_weights_from_tensor", body).ok()
    for _ in range(2):
        reply = single.server.post("/update_weights_from_tensor", body)
        assert reply.status == 200 or "is not there" in failure(reply)
        assert serves(single.server, new)
        assert single.version() == "1"


def test_br26_an_update_that_changes_nothing_is_told(single: Trainer, small_llama: Path) -> None:
    def counted() -> int:
        text = single.server.get("/metrics").text
        line = text.split("\nsyncline_weight_updates_unchanged_total ")[1]
        return int(line.split("\n")[0])

    before = counted()
    same = named(load(small_llama))
    assert single.send(same).ok()["unchanged"] is True
    assert counted() == before + 1
    assert single.session(same)["unchanged"] is True
    assert counted() == before + 2
    reply = single.send(named(step(load(small_llama), 1))).ok()
    assert reply["unchanged"] is False
    assert counted() == before + 2


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def mappings(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("/dev/shm/")


def shared_objects() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob(f"torch_{os.getpid()}_*")}


def test_br41_nothing_is_left_of_a_hundred_updates(
    trainer: Trainer, cold: Cold, small_llama: Path
) -> None:
    """Of engine and sender: memory, descriptors, mappings, and objects in /dev/shm."""
    weights = load(small_llama)
    pids = [trainer.server.process.pid, *ranks_of(trainer.server)]
    assert len(pids) == trainer.ranks
    own = os.getpid()
    held: dict[int, list[object]] = {}
    sizes: dict[int, int] = {}
    for update in range(1, 101):
        new = step(weights, update % 3)
        if update % 2:
            trainer.send(named(new), weight_version=str(update)).ok()
        else:
            trainer.session(named(new), str(update), size=16)
        del new
        held[update] = [descriptors(own), shared_objects()]
        held[update] += [(descriptors(pid), mappings(pid)) for pid in pids]
        sizes[update] = resident(trainer.server)
    assert held[100] == held[2]
    assert sizes[100] < sizes[10] + (8 << 20)
    assert state(trainer.server) == cold(small_llama, step(weights, 1), "--tp", trainer.ranks)


def test_br41_senders_may_let_go_at_once(single: Trainer, small_llama: Path) -> None:
    """The engine holds the memory of a payload until it has read it."""
    new = step(load(small_llama), 1)
    blob = encode([(name, tensor.clone()) for name, tensor in named(new)])  # all freed by now
    single.post([blob]).ok()
    assert serves(single.server, new)


def test_br41_poisoned_buffers_do_not_reach_the_engine(single: Trainer, small_llama: Path) -> None:
    """After the reply the sender may write what it likes where the tensors were."""
    new = step(load(small_llama), 1)
    expected = {name: tensor.clone() for name, tensor in new.items()}
    single.begin().ok()
    for chunk in chunks(named(new), 3):
        single.send(chunk).ok()
        for _, tensor in chunk:
            tensor.fill_(float("nan"))
    single.end().ok()
    assert serves(single.server, expected)


def test_br21_shuffled_chunks_without_a_session(
    trainer: Trainer, cold: Cold, small_llama: Path
) -> None:
    before = load(small_llama)
    for seed, size in enumerate((1, 2, 3, 7, 1000), 1):
        new = step(before, seed)
        tensors = named(new)
        random.Random(seed).shuffle(tensors)
        for chunk in chunks(tensors, size):
            trainer.send(chunk, flush_cache=False).ok()
        assert state(trainer.server) == cold(small_llama, new, "--tp", trainer.ranks), size


def test_br09_a_tied_head(tmp_path: Path, borrow: Borrow) -> None:
    """It follows the embedding; sent with it, it must be equal."""
    model = tmp_path / "tied"
    fields = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    make(model, "Llama", fields | {"tie_word_embeddings": True})
    server = Server(model, *SMALL)
    try:
        trainer = Trainer(server)
        embedding = "model.embed_tokens.weight"
        before = load(model)
        assert HEAD not in before
        new = step(before, 1)[embedding]
        text = greedy(server)
        trainer.send([(embedding, new)]).ok()
        assert greedy(server) != text
        assert trainer.send([(embedding, new), (HEAD, new)]).ok()["success"] is True
        failure(trainer.send([(embedding, new), (HEAD, new + 1)]), HEAD)
        assert serves(server, before | {embedding: new})
    finally:
        server.close()
