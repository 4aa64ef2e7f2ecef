"""Which tensors a publisher takes: by whom they are made, of which type, and how they lie in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import syncline
import torch
from harness import random_tensors
from safetensors_files import Tensor, read_checkpoint, write_checkpoint
from syncline._tensors import pack

NUMPY_TYPES = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "I16": np.int16,
    "U16": np.uint16,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I32": np.int32,
    "U32": np.uint32,
    "F32": np.float32,
    "C64": np.complex64,
    "F64": np.float64,
    "I64": np.int64,
    "U64": np.uint64,
}
TORCH_TYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}


class Foreign:
    """An array of a library that nobody knows: it has the two DLPack methods and nothing else."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


def as_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.data.view(NUMPY_TYPES[tensor.dtype]).reshape(tensor.shape)


def as_torch(tensor: Tensor) -> torch.Tensor:
    dtype = TORCH_TYPES[tensor.dtype]
    if tensor.nbytes == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.from_numpy(tensor.data).view(dtype).reshape(tensor.shape)


def published(store: Path, replica: Path, tensors: object) -> dict[str, Tensor]:
    """What arrives at a receiver."""
    with syncline.Publisher(store) as publisher:
        publisher.publish(None, tensors)
    syncline.pull(store, replica)
    return read_checkpoint(replica)


@pytest.mark.parametrize("convert", [as_numpy, as_torch])
@pytest.mark.parametrize("form", [dict, lambda pairs: list(pairs), lambda pairs: iter(pairs)])
def test_all_types_and_shapes(
    store: Path,
    replica: Path,
    rng: np.random.Generator,
    convert: Callable[[Tensor], object],
    form: Callable[[Any], object],
) -> None:
    tensors = random_tensors(rng, NUMPY_TYPES)
    pairs = [(name, convert(tensor)) for name, tensor in tensors.items()]
    assert published(store, replica, form(pairs)) == tensors


def test_checkpoints_of_all_types(
    store: Path, replica: Path, rng: np.random.Generator, tmp_path: Path
) -> None:
    """What `open_checkpoint` gives can be published, F4 and F6 too, for which numpy has no type."""
    tensors = random_tensors(rng)
    write_checkpoint(tmp_path / "checkpoint", tensors)
    opened = syncline.open_checkpoint(tmp_path / "checkpoint")
    assert published(store, replica, opened) == tensors


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F8_E5M2", "F32", "I8", "BOOL", "C64", "U16"])
def test_dlpack(store: Path, replica: Path, rng: np.random.Generator, dtype: str) -> None:
    tensors = random_tensors(rng, [dtype])
    values = {name: Foreign(as_torch(tensor)) for name, tensor in tensors.items()}
    assert published(store, replica, values) == tensors


def test_packed_input_is_not_copied(rng: np.random.Generator) -> None:
    tensors = random_tensors(rng, ["BF16", "F32", "F8_E4M3", "BOOL"])
    for name, tensor in tensors.items():
        if tensor.nbytes == 0:
            continue
        for value in (as_numpy(tensor), as_torch(tensor), Foreign(as_torch(tensor))):
            (packed,) = pack({name: value})
            assert np.shares_memory(packed.data, tensor.data)
            assert packed.data.nbytes == tensor.nbytes


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: x.T,
    "permuted": lambda x: x.reshape(3, 4, 20).swapaxes(0, 2),
    "strided": lambda x: x[::2, 1::3],
    "column": lambda x: x[:, 7],
    "offset": lambda x: x[3:, 5:],
    "rows": lambda x: x[2:9],  # packed, though not at the begin of its memory
    "empty": lambda x: x[:, 4:4],
}


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F8_E4M3", "BOOL", "C64"])
@pytest.mark.parametrize(
    ("view", "kind"),
    [
        *itertools.product([*VIEWS, "expanded"], ["numpy", "torch", "dlpack"]),
        ("reversed", "numpy"),  # the others have no negative strides
    ],
)
def test_br_40_views_are_packed(
    store: Path, replica: Path, rng: np.random.Generator, view: str, kind: str, dtype: str
) -> None:
    """BR-40: what arrives equals the packed copy, in the full version and in the delta."""
    width = np.dtype(NUMPY_TYPES[dtype]).itemsize

    def make(data: np.ndarray) -> tuple[Any, np.ndarray]:
        whole = Tensor(dtype, (12, 20), data)
        array = as_numpy(whole)
        if view == "expanded":
            wanted = np.broadcast_to(array[:1], array.shape)
            value = wanted if kind == "numpy" else as_torch(whole)[:1].expand(12, 20)
        elif view == "reversed":
            value = wanted = array[::-1, ::-2]
        else:
            wanted = VIEWS[view](array)
            value = wanted if kind == "numpy" else VIEWS[view](as_torch(whole))
        return Foreign(value) if kind == "dlpack" else value, wanted

    high = 2 if dtype == "BOOL" else 256
    first = rng.integers(0, high, 240 * width, np.uint8)
    second = first ^ (rng.random(first.shape) < 0.3).astype(np.uint8)
    with syncline.Publisher(store) as publisher:
        for data in (first, second):
            value, wanted = make(data)
            publisher.publish(None, {"w": value})
            syncline.pull(store, replica)
            packed = np.frombuffer(wanted.tobytes(), np.uint8)
            assert read_checkpoint(replica) == {"w": Tensor(dtype, wanted.shape, packed)}


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_peculiar_numpy_arrays(store: Path, replica: Path, tmp_path: Path) -> None:
    plain = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = plain.copy()
    frozen.setflags(write=False)
    mapped = np.memmap(tmp_path / "file", np.float32, "w+", shape=(4, 6))
    mapped[:] = plain
    unaligned = np.frombuffer(b"\0" + plain.tobytes(), np.float32, offset=1).reshape(4, 6)
    values = {
        "big-endian": plain.astype(">f4"),
        "column-major": np.asfortranarray(plain),
        "frozen": frozen,
        "mapped": mapped,
        "matrix": np.matrix(plain),
        "unaligned": unaligned,
    }
    arrived = published(store, replica, {**values, "scalar": np.float32(2.5)})
    expected = Tensor("F32", (4, 6), plain.view(np.uint8).reshape(-1))
    for name in values:
        assert arrived[name] == expected, name
    assert arrived["scalar"] == Tensor("F32", (), np.array([2.5], np.float32).view(np.uint8))


def test_peculiar_torch_tensors(store: Path, replica: Path) -> None:
    images = torch.arange(120, dtype=torch.float32).reshape(2, 3, 4, 5)
    numbers = torch.complex(torch.arange(6.0), torch.ones(6)).reshape(2, 3)
    pairs = torch.arange(8, dtype=torch.uint8).reshape(2, 4)
    values = {
        "parameter": torch.nn.Parameter(images),
        "graph": torch.nn.Parameter(images) * 1,
        "channels-last": images.to(memory_format=torch.channels_last),
        "conjugate": numbers.conj(),
        "negative": numbers.conj().imag,
        "four-bits": pairs.view(torch.float4_e2m1fn_x2),
        "four-bits-transposed": pairs.t().view(torch.float4_e2m1fn_x2),
    }
    arrived = published(store, replica, values)
    flat = {
        "parameter": ("F32", (2, 3, 4, 5), images.numpy()),
        "graph": ("F32", (2, 3, 4, 5), images.numpy()),
        "channels-last": ("F32", (2, 3, 4, 5), images.numpy()),
        "conjugate": ("C64", (2, 3), numbers.numpy().conj()),
        "negative": ("F32", (2, 3), np.full((2, 3), -1, np.float32)),
        "four-bits": ("F4", (2, 8), pairs.numpy()),
        "four-bits-transposed": ("F4", (4, 4), pairs.numpy().T),
    }
    assert arrived == {
        name: Tensor(dtype, shape, np.frombuffer(array.tobytes(), np.uint8))
        for name, (dtype, shape, array) in flat.items()
    }


def test_model_parameters(store: Path, replica: Path) -> None:
    """The call that trainers make, with tied weights and buffers."""
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.BatchNorm1d(5)).to(torch.bfloat16)
    model.register_parameter("tied", model[0].weight)
    state = model.state_dict()
    arrived = published(store, replica, state)
    assert set(arrived) == set(state)
    for name, value in state.items():
        assert arrived[name].shape == tuple(value.shape)
        assert arrived[name].data.tobytes() == bytes(value.reshape(-1).view(torch.uint8).numpy())
    assert arrived["tied"] == arrived["0.weight"]


REFUSED = {
    "complex128": np.zeros(2, np.complex128),
    "float128": np.zeros(2, np.longdouble),
    "object": np.array([None]),
    "<U4": np.array(["text"]),
    "datetime64": np.zeros(2, "M8[s]"),
    "'<f4'": np.zeros(2, [("a", "f4")]),
    "float4": np.zeros(2, ml_dtypes.float4_e2m1fn),  # one element a byte: not what F4 is on disk
    "float6": np.zeros(2, ml_dtypes.float6_e2m3fn),
    "int4": np.zeros(2, ml_dtypes.int4),
    "torch.complex128": torch.zeros(2, dtype=torch.complex128),
    "torch.bits8": torch.empty(2, dtype=torch.bits8),
    "sparse": torch.zeros(2, 2).to_sparse(),
    "meta": torch.zeros(2, device="meta"),
    "128 bits": Foreign(torch.zeros(2, dtype=torch.complex128)),
    "list": [1.0, 2.0],
    "float": 1.0,
    "NoneType": None,
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(store: Path, what: str) -> None:
    with (
        syncline.Publisher(store) as publisher,
        pytest.raises(syncline.InvalidArgumentError, match=rf"tensor model\.w: .*{what}"),
    ):
        publisher.publish(None, {"model.v": np.zeros(1), "model.w": REFUSED[what]})
    assert syncline.log(store) == []


def test_memory_of_a_device_is_refused(monkeypatch: pytest.MonkeyPatch, store: Path) -> None:
    monkeypatch.setattr("syncline._core.read_dlpack", lambda array: (2, 32, 2, None))
    with (
        syncline.Publisher(store) as publisher,
        pytest.raises(syncline.InvalidArgumentError, match=r"tensor w: .*device type 2"),
    ):
        publisher.publish(None, {"w": Foreign(np.zeros(2))})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ([("w", np.zeros(1)), ("w", np.ones(1))], "tensor w was given twice"),
        ([("w", np.zeros(1), 3)], "pairs of name and tensor, found tuple"),
        ([7], "pairs of name and tensor, found int"),
        ({3: np.zeros(1)}, "expected str, found int"),
        ({"\ud800": np.zeros(1)}, "not valid Unicode"),
    ],
)
def test_names_that_are_refused(store: Path, tensors: Any, message: str) -> None:
    with (
        syncline.Publisher(store) as publisher,
        pytest.raises(syncline.InvalidArgumentError, match=message),
    ):
        publisher.publish(None, tensors)
    assert syncline.log(store) == []
