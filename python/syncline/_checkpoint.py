"""Checkpoints on disk, read without copying."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import _core
from ._arguments import StrPath, path_bytes
from ._tensors import DTYPES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUMPY_NAMES = {theirs: ours for ours, theirs in DTYPES.items()}


def _numpy_dtype(dtype: str) -> np.dtype[Any] | None:
    """numpy's type for a safetensors name, with the help of ml_dtypes; None if it has none."""
    import numpy as np

    name = _NUMPY_NAMES.get(dtype)
    if name is None:
        return None
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else None


class TensorView(_core.TensorView):
    """A tensor of a checkpoint: its bytes where they are mapped, read-only.

    `memoryview(view)` is flat, of unsigned bytes, row-major without gaps. The mapping lives as long
    as the view, or anything that was made of it.

    Attributes:
        name: of the tensor.
        dtype: of its elements, by the name in the safetensors format: "BF16", "F8_E4M3" …
        shape: number of elements in each dimension; () for a single element.
        nbytes: size in bytes.
    """

    __slots__ = ()

    def numpy(self) -> NDArray[Any]:
        """A read-only array over the same memory, of shape `shape`.

        Its dtype is numpy's or ml_dtypes'. Where neither has the type (F4 and F6; without ml_dtypes
        also BF16 and F8) it is a flat uint8 array of the packed bytes.
        """
        import numpy as np

        dtype = _numpy_dtype(self.dtype)
        shape = self.shape
        if dtype is None:
            dtype, shape = np.dtype(np.uint8), (self.nbytes,)
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer=memoryview(self))
        return array

    def tobytes(self) -> bytes:
        """A copy of the packed bytes."""
        return memoryview(self).tobytes()

    def __repr__(self) -> str:
        return f"TensorView({self.name!r}, {self.dtype}, {list(self.shape)})"


class Checkpoint(Mapping[str, TensorView]):
    """The tensors of a checkpoint by name, in sorted order; made by `open_checkpoint`."""

    def __init__(self, path: StrPath) -> None:
        self._core = _core.open_checkpoint(path_bytes("path", path))
        self._path = path
        self._names = self._core.names()

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return list(self._names)

    @property
    def nbytes(self) -> int:
        """Size of all tensors in bytes."""
        return self._core.nbytes

    def __getitem__(self, name: str) -> TensorView:
        return TensorView(self._core, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self._path)!r}, {len(self)} tensors)"


def open_checkpoint(path: StrPath) -> Checkpoint:
    """Opens a checkpoint: a directory as Hugging Face writes it, or a single .safetensors file.

    Reads and checks the headers of all its files and maps them; tensors are read when they are
    touched. Not for files that another process may cut short meanwhile; a replica may change its
    content under the view while a pull is at work.

    Raises:
        NotFoundError: there is no checkpoint, or a file of it is missing.
        CorruptError: a file does not follow its format.
    """
    return Checkpoint(path)
