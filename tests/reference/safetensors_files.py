"""Safetensors files and checkpoint directories, as the tests' own publisher and receiver need them.

A tensor is bytes here: dtype name, shape, and a flat uint8 array. What breaks a rule raises
`FormatError`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
PathLike = str | os.PathLike[str]

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

# Bits of one element of every dtype of the file format (safetensors 0.8).
DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}


class FormatError(Exception):
    """A store or replica breaks a rule of the format; the text names file, tensor or version."""


@dataclass(frozen=True)
class Tensor:
    """One tensor as it lies on disk; `data` is flat, of the size that dtype and shape ask for."""

    dtype: str
    shape: tuple[int, ...]
    data: Bytes

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Tensor):
            return NotImplemented
        same_kind = self.dtype == other.dtype and self.shape == other.shape
        return same_kind and np.array_equal(self.data, other.data)

    __hash__ = None  # type: ignore[assignment]


Tensors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Span:
    """Where a tensor lies: absolute byte offset in `path`."""

    path: Path
    offset: int
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def read_header(path: Path) -> tuple[dict[str, str], dict[str, Span]]:
    """Metadata and tensor positions of one file, the sizes checked against the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if 8 + length > size:
            raise FormatError(f"{path}: {size} bytes, the header alone needs {8 + length}")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise FormatError(f"{path}: header is not JSON: {error}") from None
    metadata = header.pop("__metadata__", {})
    spans = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if not 0 <= begin <= end <= size - 8 - length:
            raise FormatError(f"{path}: tensor {name} at [{begin}, {end}) is outside of the file")
        at = 8 + length + begin
        spans[name] = Span(path, at, end - begin, entry["dtype"], tuple(entry["shape"]))
    covered = 8 + length + sum(span.nbytes for span in spans.values())
    if covered != size:
        raise FormatError(f"{path}: {size} bytes, the header accounts for {covered}")
    return metadata, spans


def write_atomically(path: Path, parts: Iterable[Any], *, sync: bool) -> int:
    """Writes the buffers one by one into a sibling and renames it. Returns the size in bytes."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        for part in parts:
            file.write(part)
        size = file.tell()
        if sync:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    return size


def write_safetensors(
    path: Path, tensors: Tensors, metadata: Mapping[str, str] | None = None, *, sync: bool = True
) -> int:
    """Writes one file, widest dtype first, then by name, the header padded to 8 bytes.

    Returns its size in bytes.
    """
    order = sorted(tensors, key=lambda name: (-DTYPE_BITS[tensors[name].dtype], name))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in order:
        tensor = tensors[name]
        end = offset + tensor.nbytes
        shape = list(tensor.shape)
        header[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def parts() -> Iterator[Any]:
        yield struct.pack("<Q", len(text))
        yield text
        for name in order:
            yield tensors[name].data.data

    return write_atomically(path, parts(), sync=sync)


def checkpoint_files(directory: Path) -> list[Path]:
    """The files that make up a checkpoint: those of the index, else the single file."""
    index = directory / INDEX_NAME
    if index.exists():
        names = set(read_index(directory)["weight_map"].values())
        return [directory / name for name in sorted(names)]
    if not (directory / SINGLE_NAME).exists():
        raise FormatError(f"{directory}: neither {INDEX_NAME} nor {SINGLE_NAME}")
    return [directory / SINGLE_NAME]


def tensor_spans(directory: PathLike) -> dict[str, Span]:
    """Positions of all tensors of a checkpoint."""
    spans: dict[str, Span] = {}
    for path in checkpoint_files(Path(directory)):
        spans |= read_header(path)[1]
    return spans


def read_checkpoint(directory: PathLike) -> dict[str, Tensor]:
    """All tensors of a checkpoint, copied into memory."""
    mapped = map_checkpoint(directory)
    return {name: Tensor(t.dtype, t.shape, t.data.copy()) for name, t in mapped.items()}


def map_checkpoint(directory: PathLike) -> dict[str, Tensor]:
    """All tensors of a checkpoint as read-only views of its files."""
    spans = tensor_spans(directory)
    files = {path: map_file(path) for path in {span.path for span in spans.values()}}
    tensors = {}
    for name, span in spans.items():
        data = files[span.path][span.offset : span.offset + span.nbytes]
        tensors[name] = Tensor(span.dtype, span.shape, data)
    return tensors


def map_file(path: Path, *, writable: bool = False) -> Bytes:
    """A file's bytes, memory-mapped; writes go to the file if `writable`."""
    with path.open("r+b" if writable else "rb") as file:
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=access), np.uint8)


def write_checkpoint(
    directory: PathLike,
    tensors: Tensors,
    *,
    shards: int = 1,
    indexed: bool | None = None,
    sync: bool = True,
) -> int:
    """Writes a checkpoint of `shards` files; `indexed` adds an index (default: if several).

    Returns the bytes written.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    groups = split_names(tensors, shards)
    if len(groups) == 1 and not indexed:
        return write_safetensors(directory / SINGLE_NAME, tensors, {"format": "pt"}, sync=sync)
    size = 0
    weight_map: dict[str, str] = {}
    for number, names in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        part = {name: tensors[name] for name in names}
        size += write_safetensors(directory / file, part, {"format": "pt"}, sync=sync)
        weight_map |= dict.fromkeys(names, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return size + write_json(directory / INDEX_NAME, index, sync=sync)


def split_names(tensors: Tensors, shards: int) -> list[list[str]]:
    """Names in at most `shards` groups, none empty (one group where there is no tensor)."""
    names = list(tensors)
    count = max(1, min(shards, len(names)))
    return [names[number::count] for number in range(count)]


def write_json(path: Path, value: object, *, sync: bool) -> int:
    return write_atomically(path, [json.dumps(value, indent=2).encode()], sync=sync)


def read_index(directory: Path) -> dict[str, Any]:
    """The index of a checkpoint or version, its file names checked."""
    path = directory / INDEX_NAME
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
        files = set(index["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not an index: {error!r}") from None
    for file in files:
        if not isinstance(file, str) or file.startswith("/") or ".." in file.split("/"):
            raise FormatError(f"{path}: {file!r} leads out of the directory")
    return index
