"""Quantised models to be updated: their versions, and all that an engine tells of its weights."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import torch
from quantise import BLOCK, Fp8, Int4, quantise
from random_models import IN_BLOCKS, make
from server import Server
from trainer import OPTIONS, Cold, State, Trainer, Weights, content, named, state

# The format of a checkpoint, and what the engine is told to make of its scales.
SCHEMES: dict[str, tuple[Fp8 | Int4, str]] = {
    "fp8": (Fp8(), "fp32"),
    "ue8m0": (Fp8(), "ue8m0"),
    "int4": (Int4(32), "auto"),
}
# Models, schemes, ranks.
CASES = [
    (model, scheme, ranks)
    for model, ranks in (("llama", 1), ("qwen3 moe", 2), ("deepseek v3", 2))
    for scheme in SCHEMES
]
WEIGHTS = (".weight", ".weight_packed")  # of a quantised module
SCALES = (".weight_scale_inv", ".weight_scale")
DTYPES = {
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F8_E4M3": torch.float8_e4m3fn,
    "I32": torch.int32,
}


class Versions:
    """Checkpoints of random models, quantised, each made once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[object, Path] = {}

    def get(self, model: str, form: Fp8 | Int4, seed: int, **fields: Any) -> Path:
        """`fields` go over those of the model."""
        key = (model, form, seed, *fields.items())
        if key not in self._made:
            path = self._directory / f"version-{len(self._made)}"
            architecture, own = IN_BLOCKS[model]
            make(path / "bf16", architecture, own | fields, dtype="bfloat16", seed=seed)
            self._made[key] = quantise(path / "bf16", path / "quantised", form)
        return self._made[key]


@dataclasses.dataclass(frozen=True)
class Told:
    """What an engine tells of its weights: as it serves them, and of the checkpoint's tensors."""

    state: State
    digests: dict[str, Any]


def told(server: Server) -> Told:
    return Told(state(server), server.get("/weights_digest").ok()["digests"])


class ToldCold:
    """What engines tell that were started with given weights, each looked up once."""

    def __init__(self, cold: Cold) -> None:
        self._cold = cold
        self._known: dict[object, Told] = {}

    def __call__(self, model: Path, weights: Weights, *arguments: object) -> Told:
        parts = sorted((name, content(tensor)) for name, tensor in weights.items())
        key = (model, arguments, hash(tuple(parts)))
        if key not in self._known:
            server = Server(self._cold.write(model, weights), *arguments)
            try:
                self._known[key] = told(server)
            finally:
                server.close()
        return self._known[key]


@dataclasses.dataclass(frozen=True)
class Case:
    """An engine that was started with `first`, and `second`, another version."""

    trainer: Trainer
    first: Path
    second: Path
    arguments: tuple[object, ...]
    told_cold: ToldCold

    @property
    def server(self) -> Server:
        return self.trainer.server

    def told(self) -> Told:
        return told(self.server)

    def cold(self, weights: Weights) -> Told:
        return self.told_cold(self.first, weights, *self.arguments)

    def disk(self, path: Path, **fields: Any) -> Any:
        return self.server.post("/update_weights_from_disk", {"model_path": str(path)} | fields)


def arguments_of(scheme: str, ranks: int) -> tuple[object, ...]:
    return ("--tp", ranks, "--fp8-scales", SCHEMES[scheme][1], *OPTIONS)


def module_of(name: str) -> str:
    return name.rsplit(".", 1)[0]


def pairs(weights: Weights) -> list[tuple[str, str]]:
    """Names of the weight and the scale of every quantised module."""
    scales = {module_of(name): name for name in weights if name.endswith(SCALES)}
    found = [
        (n, scales[module_of(n)]) for n in weights if n.endswith(WEIGHTS) and module_of(n) in scales
    ]
    assert found
    return found


def shuffled(weights: Weights, seed: int) -> list[tuple[str, torch.Tensor]]:
    tensors = named(weights)
    random.Random(seed).shuffle(tensors)
    return tensors


def exports(server: Server) -> Weights:
    """What the engine holds, as tensors of a checkpoint."""
    made: Weights = {}
    for name in server.get("/export_weights").ok():
        reply = server.get(f"/export_weights?name={name}")
        assert reply.status == 200, reply.text
        shape = [int(size) for size in reply.headers["x-syncline-shape"].split(",")]
        dtype = DTYPES[reply.headers["x-syncline-dtype"]]
        made[name] = torch.frombuffer(bytearray(reply.body), dtype=dtype).reshape(shape)
    return made


def packed(scales: torch.Tensor, rows: int) -> torch.Tensor:
    """fp32 powers of two [blocks, blocks] as DeepGEMM has them: int32 [rows, words]."""
    exponents = (scales.contiguous().view(torch.int32) >> 23).repeat_interleave(BLOCK, dim=0)[:rows]
    words = -(-exponents.shape[1] // 4)
    filled = torch.zeros(rows, 4 * words, dtype=torch.uint8)
    filled[:, : exponents.shape[1]] = exponents.to(torch.uint8)
    return filled.view(torch.int32)
