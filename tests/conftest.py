"""Fixtures of all Python tests, made of what harness.py and interop/scene.py offer."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / folder) for folder in (".", "reference", "interop", "checkpoint")]

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
