"""Servers for the tests of the routes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from safetensors.numpy import load_file, save_file
from server import ENGINE, Server, eventually


@pytest.fixture(scope="session")
def shared_server(smollm2: Path) -> Iterator[Server]:
    if not ENGINE.exists():
        pytest.fail(f"{ENGINE} does not exist: build it, or set SYNCLINE_ENGINE")
    server = Server(smollm2, "--served-model-name", "smollm2", "--max-total-tokens", 16384)
    yield server
    server.close()


@pytest.fixture
def chat_server(shared_server: Server) -> Server:
    """SmolLM2 with its tokenizer, idle. Tests leave it as they found it."""
    eventually(lambda: shared_server.load() == 0, "the engine is idle")
    return shared_server


@pytest.fixture
def start(small_llama: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of a small model without a tokenizer (or of another `model`)."""
    started: list[Server] = []

    def begin(*arguments: object, model: Path | None = None, **options: object) -> Server:
        started.append(Server(model or small_llama, *arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for server in started:
        server.close()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    """A small model without a tokenizer, for one test."""
    return start("--max-total-tokens", 4096)


@pytest.fixture
def other_checkpoint(small_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a checkpoint of the small model with other weights; `seed` says which."""

    def write(seed: int) -> Path:
        directory = tmp_path / f"weights-{seed}"
        directory.mkdir()
        rng = np.random.default_rng(seed)
        tensors = {
            name: value + rng.normal(0, 0.02, value.shape).astype(value.dtype)
            for name, value in load_file(small_llama / "model.safetensors").items()
        }
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        for name in ("config.json", "generation_config.json"):
            (directory / name).write_bytes((small_llama / name).read_bytes())
        return directory

    return write
