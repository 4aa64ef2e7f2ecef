"""Fixtures of all Python tests, made of what harness.py and interop/scene.py offer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path[:0] = [
    str(TESTS / folder)
    for folder in (".", "reference", "interop", "checkpoint", "engine", "stores")
]
sys.path.insert(0, str(ROOT / "examples" / "smollm2"))

# Read when torch is loaded: threads that wait leave the processor to the engine under test.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from harness import BINARY, Cli
from scene import Scene


@pytest.fixture(scope="session")
def cli() -> Cli:
    """The command under test."""
    if not BINARY.exists():
        pytest.fail(f"{BINARY} does not exist: build it, or set SYNCLINE_BIN")
    return Cli()


@pytest.fixture(scope="session")
def package() -> ModuleType:
    """The Python package under test."""
    import syncline

    return syncline


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The checkpoint of SmolLM2-135M, made once and kept in the build folder."""
    from model import make_checkpoint, quiet

    quiet()
    return make_checkpoint(ROOT / "build" / "cache" / "smollm2")


@pytest.fixture(scope="session")
def small_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random fp32 weights and no tokenizer: fast, and odd in its sizes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(7)
    path = tmp_path_factory.mktemp("small_llama") / "model"
    config = LlamaConfig(
        vocab_size=301,
        hidden_size=48,
        intermediate_size=88,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def start_engine(package: ModuleType) -> Iterator[Callable[..., Any]]:
    """Starts an engine on a checkpoint; all of them end with the module."""
    started: list[Any] = []

    def start(model: Path, **options: Any) -> Any:
        if not (model / "tokenizer.json").exists():
            options["options"] = {"skip_tokenizer_init": True} | options.get("options", {})
        started.append(package.Engine(model, **options))
        return started[-1]

    yield start
    for engine in started:
        engine.close()


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., Any], smollm2: Path) -> Any:
    """SmolLM2, served."""
    return start_engine(smollm2)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Path of a store that does not exist yet."""
    return tmp_path / "store"


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    """Path of a replica that does not exist yet."""
    return tmp_path / "replica"


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20261130)


@pytest.fixture(params=["xor", "overwrite"])
def scene(
    request: pytest.FixtureRequest, cli: Cli, tmp_path: Path, rng: np.random.Generator
) -> Scene:
    """Once with an `xor` and once with an `overwrite` delta as version 2."""
    return Scene(cli, tmp_path, rng, request.param)


@pytest.fixture
def xor_scene(cli: Cli, tmp_path: Path, rng: np.random.Generator) -> Scene:
    return Scene(cli, tmp_path, rng, "xor")


@pytest.fixture
def overwrite_scene(cli: Cli, tmp_path: Path, rng: np.random.Generator) -> Scene:
    return Scene(cli, tmp_path, rng, "overwrite")
