"""Tensors in requests, in every form that trainers send, to engines of one and two ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forms import FORMS, send_raw
from payloads import (
    Named,
    chunks,
    empty_bucket,
    encode,
    safetensors,
    sglang_bucket,
    sharing,
    verl,
)
from random_models import make
from server import Reply, Server
from shards import of_rank
from trainer import (
    OPTIONS,
    Borrow,
    Cold,
    Trainer,
    content,
    exported,
    failure,
    greedy,
    load,
    named,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

NORM = "model.norm.weight"
HEAD = "lm_head.weight"
FUSED_QUERY = "model.layers.0.self_attn.qkv_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"


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
    trainer = Trainer(borrow("--tp", 2, *OPTIONS, model=latent), 2)
    new = step(load(latent), 1)
    by_type: dict[torch.dtype, list[tuple[str, torch.Tensor]]] = {}
    for name, tensor in new.items():
        by_type.setdefault(tensor.dtype, []).append((name, tensor))
    for tensors in by_type.values():  # buckets of the first generation have one type
        send(trainer, tensors).ok()
    assert state(trainer.server) == cold(latent, new, "--tp", 2)


def test_direct_takes_the_engines_own_names(
    trainer: Trainer, cold: Cold, small_llama: Path
) -> None:
    """Each rank gets its own shards."""
    new = step(load(small_llama), 1)
    shards = [of_rank(new, rank, trainer.ranks) for rank in range(trainer.ranks)]
    assert set(shards[0]) <= set(state(trainer.server).tensors[0])
    trainer.post([encode(named(shard)) for shard in shards], load_format="direct").ok()
    trainer.send([(name, new[name]) for name in ("model.embed_tokens.weight", HEAD)]).ok()
    assert state(trainer.server) == cold(small_llama, new, "--tp", trainer.ranks)


def test_direct_knows_no_other_names(single: Trainer, small_llama: Path) -> None:
    before = state(single.server)
    new = step(load(small_llama), 1)
    failure(single.send([(QUERY, new[QUERY])], load_format="direct"), QUERY)
    fused = of_rank(new, 0, 1)[FUSED_QUERY]
    wrong = [(NORM, new[NORM]), (FUSED_QUERY, fused[:-1])]
    failure(single.send(wrong, load_format="direct"), FUSED_QUERY)
    assert state(single.server) == before


def test_fused_names_are_refused_with_advice(single: Trainer, small_llama: Path) -> None:
    fused = of_rank(step(load(small_llama), 1), 0, 1)
    failure(single.send([(FUSED_QUERY, fused[FUSED_QUERY])]), FUSED_QUERY, QUERY)


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
    trainer = Trainer(borrow("--tp", ranks, *OPTIONS, model=latent), ranks)
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
    server = Server(model, *OPTIONS)
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
