"""What all Python tests share: the command under test, random tensors, pictures of a directory.

The binary is build/bin/syncline of this repository, or what SYNCLINE_BIN names.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
from safetensors_files import DTYPE_BITS, Tensor

TESTS = Path(__file__).resolve().parent
BINARY = Path(os.environ.get("SYNCLINE_BIN") or TESTS.parent / "build" / "bin" / "syncline")


class Exit(IntEnum):
    """Exit codes of the command: the table of src/base/error.h."""

    INTERNAL = 1
    INVALID_ARGUMENT = 2
    NOT_FOUND = 3
    ALREADY_EXISTS = 4
    CORRUPT = 5
    CHECKSUM_MISMATCH = 6
    INCOMPATIBLE = 7
    OUT_OF_ORDER = 8
    LOCKED = 9
    IO = 10
    NO_SPACE = 11
    PERMISSION_DENIED = 12
    TIMEOUT = 13
    UNAVAILABLE = 14
    LIMIT_EXCEEDED = 15


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

    def fails(self, *args: object, naming: Iterable[str] = (), codes: Iterable[Exit] = ()) -> str:
        """Expects a clean failure, its message to name all of `naming`. Returns standard error.

        The exit code must be one of `codes`; by default any that does not mean a fault of ours.
        """
        result = self(*args, "--json")
        told = f"{result.args}: exit code {result.rc}, standard error: {result.stderr!r}"
        allowed = tuple(codes) or tuple(set(Exit) - {Exit.INTERNAL})
        assert result.rc in allowed, f"expected one of {allowed}: {told}"
        assert any(line.startswith("syncline: ") for line in result.stderr.splitlines()), told
        for name in naming:
            assert name in result.stderr, f"the message does not name {name!r}: {told}"
        return result.stderr


# Shapes that break assumptions, for each width of an element in bits.
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
    """The next training step: some bytes of each tensor differ, except where keep(name)."""
    result = {}
    for name, tensor in tensors.items():
        data = tensor.data.copy()
        if data.size and not keep(name):
            count = max(1, int(density * data.size))
            at = rng.choice(data.size, count, replace=False)
            data[at] ^= 1 if tensor.dtype == "BOOL" else rng.integers(1, 256, count, dtype=np.uint8)
        result[name] = Tensor(tensor.dtype, tensor.shape, data)
    return result


# One of each width; some tests take all that the file format has instead.
FEW_DTYPES = ("BF16", "F8_E4M3", "BOOL", "F32")


def training_steps(
    rng: np.random.Generator, count: int, dtypes: Sequence[str] = FEW_DTYPES
) -> list[dict[str, Tensor]]:
    """Version 0 and what `count` training steps make of it; the second step changes nothing."""
    steps = [random_tensors(rng, dtypes)]
    for number in range(1, count + 1):
        if number == 2:
            steps.append(dict(steps[-1]))
            continue
        keep = f".{number % 4}."  # of several shapes: the same tensor does not change in every step
        steps.append(changed(rng, steps[-1], keep=lambda name, keep=keep: keep in name))
    return steps


def tree(directory: Path, *, without: Iterable[str] = (".weight_sync/lock",)) -> dict[str, str]:
    """Relative path → hash of a file, or target of a link, which is not followed.

    The lock file of a replica is left out: it may come and go.
    """
    picture = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if relative in without:
            continue
        if path.is_symlink():
            picture[relative] = f"-> {os.readlink(path)}"
        elif path.is_file():
            picture[relative] = hashlib.sha256(path.read_bytes()).hexdigest()
    return picture


def tensor_table(shown: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name → (dtype, shape) out of the JSON of `syncline show`; no name may come twice."""
    entries = shown["tensors"]
    table = {entry["name"]: (entry["dtype"], tuple(entry["shape"])) for entry in entries}
    assert len(table) == len(entries), f"a tensor is listed twice: {entries}"
    return table
