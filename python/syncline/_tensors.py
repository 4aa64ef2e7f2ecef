"""Tensors of other libraries as packed bytes, without a copy where they are packed already.

Neither numpy nor torch is imported before a tensor of theirs comes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from . import _core
from .errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Names of element types in numpy, ml_dtypes and torch → in the safetensors format. A type that numpy
# keeps one element a byte and the format packs tighter (ml_dtypes' float4 and float6) is not here.
DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "int16": "I16",
    "uint16": "U16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "uint32": "U32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
    "uint64": "U64",
}

# (type code, bits) of the DLPack protocol → safetensors.
_DLPACK_DTYPES = {
    (0, 8): "I8",
    (0, 16): "I16",
    (0, 32): "I32",
    (0, 64): "I64",
    (1, 8): "U8",
    (1, 16): "U16",
    (1, 32): "U32",
    (1, 64): "U64",
    (2, 16): "F16",
    (2, 32): "F32",
    (2, 64): "F64",
    (4, 16): "BF16",
    (5, 64): "C64",
    (6, 8): "BOOL",
    (10, 8): "F8_E4M3",
    (11, 8): "F8_E4M3FNUZ",
    (12, 8): "F8_E5M2",
    (13, 8): "F8_E5M2FNUZ",
    (14, 8): "F8_E8M0",
}
_DLPACK_HOST_DEVICES = (1, 3, 11)


class SupportsDLPack(Protocol):
    """An array that another library can share: torch.Tensor, numpy.ndarray, jax.Array …"""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


NamedTensors = (
    Mapping[str, SupportsDLPack | _core.TensorView]
    | Iterable[tuple[str, SupportsDLPack | _core.TensorView]]
)


class Packed(NamedTuple):
    """A named tensor, row-major without gaps.

    `data` is a buffer of its bytes that keeps them alive; `dtype` is the safetensors name.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


def pack(named_tensors: NamedTensors) -> list[Packed]:
    """Packs each tensor, in the order given.

    Raises:
        InvalidArgumentError: names the tensor that cannot be stored.
    """
    pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
    return [_pack_one(*_check_pair(pair)) for pair in pairs]


def safetensors_file(tensors: Sequence[Packed]) -> list[memoryview]:
    """The pieces of a safetensors file that holds the tensors, in the order given.

    Raises:
        InvalidArgumentError: a name that stands twice, or that the format keeps for itself.
    """
    header: dict[str, Any] = {}
    pieces: list[memoryview] = []
    end = 0
    for tensor in tensors:
        if tensor.name in header or tensor.name == "__metadata__":
            problem = "stands twice" if tensor.name in header else "is not for a tensor"
            raise InvalidArgumentError(f"name of a tensor: {tensor.name!r} {problem}")
        data = memoryview(tensor.data)
        begin, end = end, end + data.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        if data.nbytes > 0:
            pieces.append(data.cast("B"))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [memoryview(len(text).to_bytes(8, "little") + text), *pieces]


def _check_pair(pair: Any) -> tuple[str, Any]:
    try:
        name, tensor = pair
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"expected pairs of name and tensor, found {type(pair).__name__}"
        ) from None
    if not isinstance(name, str):
        raise InvalidArgumentError(f"name of a tensor: expected str, found {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"name of a tensor: {name!a} is not valid Unicode") from None
    return name, tensor


def _pack_one(name: str, tensor: Any) -> Packed:
    if isinstance(tensor, _core.TensorView):
        return Packed(name, tensor.dtype, tensor.shape, tensor)
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    convert: Callable[[str, Any], Packed]
    if torch is not None and isinstance(tensor, torch.Tensor):
        convert = _from_torch
    elif numpy is not None and isinstance(tensor, (numpy.ndarray, numpy.generic)):
        convert = _from_numpy
    elif hasattr(tensor, "__dlpack__"):
        convert = _from_dlpack
    else:
        raise InvalidArgumentError(
            f"tensor {name}: expected a numpy array, a torch tensor or another object with "
            f"__dlpack__, found {type(tensor).__name__}"
        )
    return convert(name, tensor)


def _unsupported(name: str, dtype: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"tensor {name}: dtype {dtype} cannot be stored")


def _from_numpy(name: str, array: NDArray[Any] | np.generic) -> Packed:
    import numpy as np

    plain = np.asarray(array)
    dtype = DTYPES.get(plain.dtype.name)
    if dtype is None:
        raise _unsupported(name, plain.dtype)
    if not plain.dtype.isnative:
        plain = plain.astype(plain.dtype.newbyteorder("="))
    return Packed(name, dtype, plain.shape, _bytes_of(plain))


def _bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The packed bytes of an array, flat; a view of it where it is packed."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _from_torch(name: str, tensor: Any) -> Packed:
    import torch

    dtype_name = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if dtype_name == "float4_e2m1fn_x2" and shape:
        dtype: str | None = "F4"
        shape = (*shape[:-1], 2 * shape[-1])  # torch counts pairs of elements
    else:
        dtype = DTYPES.get(dtype_name)
    if dtype is None:
        raise _unsupported(name, tensor.dtype)
    if tensor.layout != torch.strided or tensor.is_meta or hasattr(tensor, "full_tensor"):
        raise InvalidArgumentError(
            f"tensor {name}: expected a dense tensor with its data in this process, found "
            f"{type(tensor).__name__} with layout {tensor.layout} on {tensor.device}"
        )
    try:
        tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
        if not tensor.is_contiguous():
            if tensor.element_size() == 1:
                tensor = tensor.view(torch.uint8)  # torch cannot copy each of the small types
            tensor = tensor.contiguous()
        return Packed(name, dtype, shape, tensor.reshape(-1).view(torch.uint8).numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InvalidArgumentError(
            f"tensor {name}: torch cannot give its bytes: {error}"
        ) from error


def _from_dlpack(name: str, array: Any) -> Packed:
    code, bits, device, view = _core.read_dlpack(array)
    if device not in _DLPACK_HOST_DEVICES:
        raise InvalidArgumentError(
            f"tensor {name}: lives on device type {device} of DLPack; copy it to the host first"
        )
    dtype = _DLPACK_DTYPES.get((code, bits))
    if dtype is None or view is None:
        raise _unsupported(name, f"of DLPack code {code} with {bits} bits")
    return Packed(name, dtype, view.shape, _bytes_of(view))
