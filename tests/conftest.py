"""What all Python tests share: the command under test, tensors of every dtype, pictures of a directory tree.

The binary is build/bin/syncline of this repository, or what SYNCLINE_BIN names.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

TESTS = Path(__file__).resolve().parent
sys.path[:0] = [str(TESTS / "reference"), str(TESTS / "checkpoint")]

from safetensors_files import DTYPE_BITS, Tensor  # noqa: E402

BINARY = Path(os.environ.get("SYNCLINE_BIN") or TESTS.parent / "build" / "bin" / "syncline")
USAGE_ERROR = 2


@dataclass(frozen=True)
class Result:
    """How a run of the command ended."""

    args: list[str]
    rc: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, Any]:
        """Standard output, which must be one JSON object and nothing else."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict), f"{self.args}: not a JSON object: {self.stdout}"
        return value


class Cli:
    """Runs the command. Arguments may be paths or numbers."""

    def __call__(self, *args: object) -> Result:
        command = [str(BINARY), *map(str, args)]
        done = subprocess.run(command, capture_output=True, timeout=120, check=False)
        stdout, stderr = (
            text.decode("utf-8", "backslashreplace") for text in (done.stdout, done.stderr)
        )
        return Result(command, done.returncode, stdout, stderr)

    def ok(self, *args: object) -> dict[str, Any]:
        """Runs with --json, expects success, and returns the object."""
        result = self(*args, "--json")
        assert result.rc == 0, f"{result.args} failed with {result.rc}: {result.stderr}"
        return result.json

    def fails(self, *args: object, naming: Iterable[str] = ()) -> str:
        """Expects a clean failure whose message names all of `naming`. Returns standard error."""
        result = self(*args, "--json")
        told = f"{result.args}: exit code {result.rc}, standard error: {result.stderr!r}"
        assert 0 < result.rc < 126, f"not a clean failure: {told}"
        assert any(line.startswith("syncline: ") for line in result.stderr.splitlines()), told
        for name in naming:
            assert name in result.stderr, f"the message does not name {name!r}: {told}"
        return result.stderr


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


# Shapes that break assumptions, for each width of an element: none is a whole number of cache lines.
_SHAPES: dict[int, list[tuple[int, ...]]] = {
    4: [(2, 8), (3, 2), (0,)],
    6: [(4,), (3, 4, 5)],
    8: [(), (0,), (2, 0), (1,), (13,), (3, 5, 7)],
    16: [(), (2, 0), (1,), (33, 3), (1021,)],
    32: [(), (0, 4), (17,), (5, 41)],
    64: [(), (2, 0), (9,), (3, 11)],
}


def random_tensor(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Any bytes; for BOOL only 0 and 1."""
    bits = DTYPE_BITS[dtype] * int(np.prod(shape, dtype=np.int64))
    assert bits % 8 == 0, f"{dtype} {shape} is not a whole number of bytes"
    high = 2 if dtype == "BOOL" else 256
    return Tensor(dtype, shape, rng.integers(0, high, bits // 8, dtype=np.uint8))


def random_tensors(
    rng: np.random.Generator, dtypes: Iterable[str] = tuple(DTYPE_BITS)
) -> dict[str, Tensor]:
    """Tensors of each dtype in all shapes that suit it, under names like a model's."""
    return {
        f"model.layers.{number}.{dtype.lower()}.weight": random_tensor(rng, dtype, shape)
        for dtype in dtypes
        for number, shape in enumerate(_SHAPES[DTYPE_BITS[dtype]])
    }


def changed(
    rng: np.random.Generator,
    tensors: Mapping[str, Tensor],
    *,
    density: float = 0.05,
    keep: Callable[[str], bool] = lambda name: False,
) -> dict[str, Tensor]:
    """The next step of a training: some bytes of each tensor differ, except those with keep(name)."""
    result = {}
    for name, tensor in tensors.items():
        data = tensor.data.copy()
        if data.size and not keep(name):
            count = max(1, int(density * data.size))
            at = rng.choice(data.size, count, replace=False)
            data[at] ^= 1 if tensor.dtype == "BOOL" else rng.integers(1, 256, count, dtype=np.uint8)
        result[name] = Tensor(tensor.dtype, tensor.shape, data)
    return result


def tree(directory: Path, *, without: Iterable[str] = (".weight_sync/lock",)) -> dict[str, str]:
    """Relative path → hash of a file, target of a link, or "directory"; links are not followed.

    The lock file of a replica is left out: it may come and go.
    """
    picture = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if relative in without:
            continue
        if path.is_symlink():
            picture[relative] = f"-> {os.readlink(path)}"
        elif path.is_dir():
            picture[relative] = "directory"
        else:
            picture[relative] = hashlib.sha256(path.read_bytes()).hexdigest()
    return picture


def tensor_table(shown: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name → (dtype, shape) out of the JSON of `syncline show`; no name may come twice."""
    entries = shown["tensors"]
    table = {entry["name"]: (entry["dtype"], tuple(entry["shape"])) for entry in entries}
    assert len(table) == len(entries), f"a tensor is listed twice: {entries}"
    return table
