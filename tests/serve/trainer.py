"""A trainer of a small model: its steps, how it sends them, and what an engine then has to hold."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from payloads import Named, chunks, encode
from safetensors.torch import load_file, save_file
from server import Reply, Server

Weights = dict[str, torch.Tensor]
OPTIONS = ("--max-total-tokens", 16384)
PROMPT = [5, 17, 33, 41, 2, 99]


def load(model: Path) -> Weights:
    """All tensors of a checkpoint directory."""
    return {name: t for file in model.glob("*.safetensors") for name, t in load_file(file).items()}


def step(weights: Weights, seed: int) -> Weights:
    """The weights after a step: every tensor has changed."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, tensor in weights.items():
        noise = torch.randn(tensor.shape, generator=generator) * 0.02
        made[name] = (tensor.float() + noise).to(tensor.dtype)
    return made


def named(weights: Weights) -> list[tuple[str, torch.Tensor]]:
    return list(weights.items())


def content(tensor: torch.Tensor) -> bytes:
    """Packed, row-major."""
    flat = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


@dataclasses.dataclass(frozen=True)
class State:
    """Checksums of all that an engine serves from, by rank."""

    tensors: list[dict[str, str]]
    derived: list[dict[str, str]]
    per_engine: str


def state(server: Server) -> State:
    reply = server.post("/weights_checker", {"action": "checksum"}).ok()
    return State(
        [rank["checksums"] for rank in reply["ranks"]],
        [rank["derived_checksums"] for rank in reply["ranks"]],
        reply["per_engine_checksum"],
    )


class Cold:
    """The state of engines that were started with given weights, each looked up once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._known: dict[tuple[object, ...], State] = {}

    def __call__(self, model: Path, weights: Weights, *arguments: object) -> State:
        parts = sorted((name, content(tensor)) for name, tensor in weights.items())
        key = (model, arguments, hash(tuple(parts)))
        if key not in self._known:
            path = self.write(model, weights)
            server = Server(path, *arguments)
            self._known[key] = state(server)
            server.close()
        return self._known[key]

    def write(self, model: Path, weights: Weights) -> Path:
        """A checkpoint directory with these weights, and the rest as in `model`."""
        path = self._directory / f"cold-{len(list(self._directory.iterdir()))}"
        path.mkdir()
        save_file({n: t.contiguous() for n, t in weights.items()}, path / "model.safetensors")
        for name in ("config.json", "generation_config.json"):
            (path / name).write_bytes((model / name).read_bytes())
        return path


def serves(server: Server, weights: Weights) -> bool:
    """Does it hold exactly these bytes, by checkpoint name?"""
    assert sorted(server.get("/export_weights").ok()) == sorted(weights)
    return all(exported(server, name) == content(tensor) for name, tensor in weights.items())


def exported(server: Server, name: str) -> bytes:
    reply = server.get(f"/export_weights?name={name}")
    assert reply.status == 200, reply.text
    return reply.body


class Trainer:
    """Sends updates to an engine of `ranks` ranks, each rank the same."""

    def __init__(self, server: Server, ranks: int = 1) -> None:
        self.server = server
        self.ranks = ranks

    def post(self, payloads: Iterable[str], **fields: Any) -> Reply:
        body = {"serialized_named_tensors": list(payloads), **fields}
        return self.server.post("/update_weights_from_tensor", body)

    def send(self, tensors: Named, **fields: Any) -> Reply:
        return self.post([encode(list(tensors)) for _ in range(self.ranks)], **fields)

    def begin(self, **fields: Any) -> Reply:
        return self.server.post("/begin_weight_update", fields)

    def end(self, **fields: Any) -> Reply:
        return self.server.post("/end_weight_update", fields)

    def session(self, tensors: Named, version: str | None = None, size: int = 4) -> dict[str, Any]:
        """A whole session in chunks of `size` tensors. The end's reply."""
        self.begin().ok()
        for chunk in chunks(tensors, size):
            self.send(chunk, weight_version=version, flush_cache=False).ok()
        return dict(self.end().ok())

    def check(self, action: str, **fields: Any) -> Reply:
        return self.server.post("/weights_checker", {"action": action, **fields})

    def info(self) -> dict[str, Any]:
        return dict(self.server.get("/model_info").ok())

    def open(self) -> dict[str, Any]:
        return dict(self.info()["weight_update_session"])

    def version(self) -> str:
        return str(self.info()["weight_version"])


def greedy(server: Server, count: int = 16, prompt: Sequence[int] = PROMPT) -> list[int]:
    sampling = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
    reply = server.generate(input_ids=list(prompt), sampling_params=sampling)
    return list(reply["output_ids"])


def failure(reply: Reply, *texts: str) -> str:
    """The message of a request that must have failed in an orderly way, and name all of `texts`."""
    assert reply.status == 400, f"status {reply.status}: {reply.text}"
    message = str(reply.json["message"])
    for text in texts:
        assert text in message, message
    return message


def ranks_of(server: Server) -> list[int]:
    """Processes of ranks 1 and up."""
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    pids = [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    return [pid for pid in pids if "engine" in Path(f"/proc/{pid}/comm").read_text()]


def resident(server: Server) -> int:
    """Bytes of memory that its process uses."""
    text = Path(f"/proc/{server.process.pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")


Borrow = Callable[..., Server]
