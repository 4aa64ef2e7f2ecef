"""What `syncline.Publisher` writes out of tensors in memory, the reference's receiver reads."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import directory_format as reference
import ml_dtypes
import numpy as np
import pytest
import torch
from directory_format import ENCODINGS, Tensor, read_checkpoint, write_checkpoint
from harness import training_steps

# Types of numpy (with ml_dtypes) and torch for what both can hold.
NATIVE_DTYPES = {
    "BF16": (ml_dtypes.bfloat16, torch.bfloat16),
    "F8_E4M3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "F8_E5M2": (ml_dtypes.float8_e5m2, torch.float8_e5m2),
    "F16": (np.float16, torch.float16),
    "F32": (np.float32, torch.float32),
    "F64": (np.float64, torch.float64),
    "BOOL": (np.bool_, torch.bool),
    "I8": (np.int8, torch.int8),
    "U8": (np.uint8, torch.uint8),
    "I64": (np.int64, torch.int64),
    "C64": (np.complex64, torch.complex64),
}


def to_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.data.view(NATIVE_DTYPES[tensor.dtype][0]).reshape(tensor.shape)


def to_torch(tensor: Tensor) -> torch.Tensor:
    dtype = NATIVE_DTYPES[tensor.dtype][1]
    if tensor.nbytes == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.from_numpy(tensor.data).view(dtype).reshape(tensor.shape)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_chain(package: ModuleType, store, replica, rng, kind, encoding) -> None:
    convert = to_numpy if kind == "numpy" else to_torch
    steps = training_steps(rng, 3, tuple(NATIVE_DTYPES))
    publisher = package.Publisher(store, encoding=encoding)
    for number, tensors in enumerate(steps):
        values = {name: convert(tensor) for name, tensor in tensors.items()}
        report = publisher.publish(None, values.items() if number % 2 else values)
        assert (report.version, publisher.version) == (number, number)
        reference.pull(store, replica)
        assert read_checkpoint(replica) == tensors


def test_dlpack(package: ModuleType, store, replica, rng) -> None:
    class Foreign:
        """Offers nothing but the two DLPack methods."""

        def __init__(self, array: np.ndarray) -> None:
            self._array = array

        def __dlpack__(self, **options: Any) -> object:
            return self._array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self._array.__dlpack_device__()

    steps = training_steps(rng, 1, ("F32", "I8", "F16"))
    publisher = package.Publisher(store)
    for number, tensors in enumerate(steps):
        values = {name: Foreign(to_numpy(tensor)) for name, tensor in tensors.items()}
        publisher.publish(number, values)
    reference.pull(store, replica)
    assert read_checkpoint(replica) == steps[1]


@pytest.mark.parametrize(
    ("kind", "view"),
    [
        *itertools.product(["numpy", "torch"], ["transposed", "strided", "expanded", "offset"]),
        ("numpy", "reversed"),  # torch has no negative strides
    ],
)
def test_br_40_views_are_packed(package: ModuleType, store, replica, rng, view, kind) -> None:
    """BR-40: what arrives equals the packed copy, in the full version and in the delta."""

    def make(array: np.ndarray) -> Any:
        source = array if kind == "numpy" else torch.from_numpy(array)
        if view == "transposed":
            return source.T
        if view == "strided":
            return source[::2, 1::3]
        if view == "expanded":
            row = source[:1]
            return np.broadcast_to(row, array.shape) if kind == "numpy" else row.expand(array.shape)
        return source[::-1] if view == "reversed" else source[3:, 5:]

    first = rng.standard_normal((12, 20)).astype(np.float32)
    second = first + (rng.random(first.shape) < 0.4)
    second = second.astype(np.float32)
    publisher = package.Publisher(store)
    for number, array in enumerate((first, second)):
        publisher.publish(number, {"w": make(array)})
        packed = np.ascontiguousarray(np.asarray(make(array)))
        reference.pull(store, replica)
        expected = Tensor("F32", packed.shape, packed.reshape(-1).view(np.uint8))
        assert read_checkpoint(replica) == {"w": expected}


def test_base_and_restart(package: ModuleType, store, replica, rng, tmp_path) -> None:
    """A publisher on a base begins with 1; a new one goes on where the old one stopped."""
    steps = training_steps(rng, 3, ("BF16", "F32"))
    base = tmp_path / "base"
    write_checkpoint(base, steps[0])
    for number, tensors in enumerate(steps[1:], start=1):
        values = {name: to_numpy(tensor) for name, tensor in tensors.items()}
        with package.Publisher(store, base=base) as publisher:
            assert publisher.publish(None, values).version == number
    assert reference.pull(store, replica, base_dir=base) == [1, 2, 3]
    assert read_checkpoint(replica) == steps[3]


def test_full_on_demand_with_files(package: ModuleType, store, replica, rng, tmp_path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "config.json").write_text("{}")
    steps = training_steps(rng, 1, ("BF16",))
    publisher = package.Publisher(store, files=tmp_path / "files")
    for number, tensors in enumerate(steps):
        values = {name: to_numpy(tensor) for name, tensor in tensors.items()}
        assert publisher.publish(number, values, full=True).kind == "full"
    assert reference.pull(store, replica) == []
    assert read_checkpoint(replica) == steps[1]
    assert (replica / "config.json").read_text() == "{}"
