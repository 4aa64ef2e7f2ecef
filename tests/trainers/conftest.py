"""Engines and models for the tests of trainers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "trainers"), str(TESTS / "serve")]

from server import Server

OPTIONS = ("--max-total-tokens", 65536)


@pytest.fixture(scope="session")
def bf16_llama(small_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small Llama in bf16, as trainers send weights."""
    import torch
    from safetensors.torch import load_file, save_file

    path = tmp_path_factory.mktemp("bf16_llama") / "model"
    path.mkdir()
    weights = load_file(small_llama / "model.safetensors")
    save_file({n: t.to(torch.bfloat16) for n, t in weights.items()}, path / "model.safetensors")
    config = json.loads((small_llama / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    return path


@pytest.fixture
def serve(bf16_llama: Path) -> Iterator[Callable[..., Server]]:
    """Starts an engine of so many ranks, of the small model or another `model`."""
    started: list[Server] = []

    def start(ranks: int, *arguments: object, model: Path | None = None) -> Server:
        started.append(Server(model or bf16_llama, "--tp", ranks, *OPTIONS, *arguments))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)
