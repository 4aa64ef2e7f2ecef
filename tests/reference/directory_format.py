"""The directory format of weight versions, written a second time: in Python, from its description.

Two uses. The tests let this publisher and this receiver talk to ours, in both directions. The
benchmarks take it as the peer: the public algorithm (one zstd frame a tensor, memory-mapped writes
in place, a hash of every patched tensor) on a pool of threads, in pieces that stay in the cache.

    store/weight_v000007/model.safetensors.index.json       metadata and weight_map
    store/weight_v000007/model-00000-of-00002.safetensors   a U8 tensor, one zstd frame, for each
                                                            changed tensor
    replica/.weight_sync/state.json, lock                   the marker {"version": "000007"}; flock

Everything that breaks a rule raises `FormatError`: before a byte of the replica moves where it can
be known by then, else with the marker gone. The replica is lost in that case, as with the public
receivers: the next pull seeds it afresh.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import blake3
import numpy as np
import numpy.typing as npt
import xxhash
import zstandard
from safetensors_files import (
    DTYPE_BITS,
    INDEX_NAME,
    SINGLE_NAME,
    Bytes,
    FormatError,
    PathLike,
    Tensor,
    Tensors,
    map_checkpoint,
    map_file,
    read_checkpoint,
    read_header,
    read_index,
    split_names,
    tensor_spans,
    write_atomically,
    write_checkpoint,
    write_json,
    write_safetensors,
)

__all__ = [  # the rest of what users of this module need
    "DTYPE_BITS",
    "Tensor",
    "Tensors",
    "map_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

ENCODINGS = ("xor", "overwrite")
CHECKSUMS = ("xxh3-128", "blake3", "adler32")

_PIECE = 1 << 20  # bytes handled at a time: small enough for the second-level cache
_scratch = threading.local()


class Hasher(Protocol):
    """What hashlib's objects offer."""

    def update(self, data: Any, /) -> Any: ...
    def hexdigest(self) -> str: ...


class Adler32:
    """zlib's adler32 behind the interface of hashlib; printed as eight hexadecimal digits."""

    def __init__(self) -> None:
        self._value = 1

    def update(self, data: Bytes) -> None:
        self._value = zlib.adler32(data.data, self._value)

    def hexdigest(self) -> str:
        return f"{self._value:08x}"


_HASHERS: dict[str, Callable[[], Hasher]] = {
    "xxh3-128": xxhash.xxh3_128,
    "blake3": blake3.blake3,
    "adler32": Adler32,
}


def checksum(kind: str, data: Bytes) -> str:
    """Hex checksum of `data`. KeyError for an unknown kind."""
    hasher = _HASHERS[kind]()
    hasher.update(data)
    return hasher.hexdigest()


def version_dir(store: PathLike, version: int) -> Path:
    return Path(store) / f"weight_v{version:06d}"


def write_full(
    store: PathLike, version: int, tensors: Tensors, *, shards: int = 1, indexed: bool | None = None
) -> Path:
    """Publishes a full version: an ordinary checkpoint."""
    directory = version_dir(store, version)
    write_checkpoint(directory, tensors, shards=shards, indexed=indexed)
    return directory


def write_delta(
    store: PathLike,
    version: int,
    old: Tensors,
    new: Tensors,
    encoding: str = "xor",
    checksum: str = "xxh3-128",
    shards: int = 1,
    *,
    threads: int = 2,
    sync: bool = True,
) -> int:
    """Publishes what changed from `old` (version - 1) to `new`; the index comes last.

    Returns the bytes written. ValueError where names, dtypes or shapes differ.
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"unknown encoding {encoding!r}")
    if old.keys() != new.keys():
        raise ValueError(f"tensors differ: {sorted(old.keys() ^ new.keys())}")

    def encode(name: str) -> tuple[str, Bytes, str] | None:
        before, after = old[name], new[name]
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            raise ValueError(f"tensor {name} changed its dtype or shape")
        hasher = _HASHERS[checksum]()
        encoder = encode_xor if encoding == "xor" else encode_overwrite
        frame = encoder(before.data, after.data, hasher)
        return None if frame is None else (name, frame, hasher.hexdigest())

    with ThreadPoolExecutor(threads) as pool:
        changed = [item for item in pool.map(encode, new) if item is not None]
    frames = {name: Tensor("U8", frame.shape, frame) for name, frame, _ in changed}
    sums = {name: digest for name, _, digest in changed}

    directory = version_dir(store, version)
    directory.mkdir(parents=True, exist_ok=True)
    size = 0
    weight_map: dict[str, str] = {}
    groups = split_names(frames, shards) if frames else []
    for number, names in enumerate(groups):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        part = {name: frames[name] for name in names}
        size += write_safetensors(directory / file, part, {n: sums[n] for n in names}, sync=sync)
        weight_map |= dict.fromkeys(names, file)
    metadata = {
        "version": f"{version:06d}",
        "base_version": f"{version - 1:06d}",
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksum,
    }
    index = {"metadata": metadata, "weight_map": weight_map}
    return size + write_json(directory / INDEX_NAME, index, sync=sync)


def _piece_buffer() -> Bytes:
    """A buffer of `_PIECE` bytes of this thread's own."""
    buffer: Bytes | None = getattr(_scratch, "buffer", None)
    if buffer is None:
        buffer = _scratch.buffer = np.empty(_PIECE, np.uint8)
    return buffer


def encode_xor(old: Bytes, new: Bytes, hasher: Hasher) -> Bytes | None:
    """A frame of old xor new, and `new` fed to the hasher; None and nothing fed if they are equal.

    The difference is made and compressed piece by piece, so that it never leaves the cache.
    """
    scratch = _piece_buffer()
    size = new.size
    first = 0
    while first < size:  # up to the first piece with a change there is nothing to compress
        part = slice(first, first + _PIECE)
        if np.bitwise_xor(old[part], new[part], out=scratch[: new[part].size]).any():
            break
        first += _PIECE
    else:
        return None
    compressor = zstandard.ZstdCompressor(level=1).compressobj(size=size)
    output = []
    for begin in range(0, size, _PIECE):
        before, after = old[begin : begin + _PIECE], new[begin : begin + _PIECE]
        difference = scratch[: after.size]
        np.bitwise_xor(before, after, out=difference)
        output.append(compressor.compress(difference.data))
        hasher.update(after)
    output.append(compressor.flush())
    return np.frombuffer(b"".join(output), np.uint8)


def encode_overwrite(old: Bytes, new: Bytes, hasher: Hasher) -> Bytes | None:
    """A frame of count, byte positions and new bytes, otherwise like `encode_xor`."""
    positions = np.flatnonzero(old != new)
    if positions.size == 0:
        return None
    hasher.update(new)
    return compress(pack_overwrite(positions, new[positions]))


def pack_overwrite(positions: npt.ArrayLike, values: npt.ArrayLike) -> Bytes:
    """The plain bytes of an `overwrite` delta: u32 count, u32 byte positions, the new bytes."""
    positions, values = np.asarray(positions, "<u4"), np.asarray(values, np.uint8)
    body = np.empty(4 + 4 * positions.size + values.size, np.uint8)
    body[:4].view("<u4")[0] = positions.size
    body[4 : 4 + positions.nbytes].view("<u4")[:] = positions
    body[4 + positions.nbytes :] = values
    return body


def compress(body: Bytes) -> Bytes:
    """One zstd frame with the content size in its header."""
    return np.frombuffer(zstandard.ZstdCompressor(level=1).compress(body.data), np.uint8)


@dataclass(frozen=True)
class Version:
    """A version directory that has been read and whose parts fit together."""

    number: int
    directory: Path
    kind: str  # "full" | "delta"


@dataclass(frozen=True)
class Delta(Version):
    """The metadata of a delta; for each changed tensor its frame and its new bytes' checksum."""

    base: int
    encoding: str
    checksum: str
    frames: dict[str, Bytes] = field(repr=False)
    sums: dict[str, str] = field(repr=False)


def versions(store: PathLike) -> list[int]:
    """Numbers of the versions in a store, ascending."""
    names = (path.name for path in Path(store).iterdir() if path.is_dir())
    return sorted(int(name[8:]) for name in names if re.fullmatch(r"weight_v\d{6,}", name))


def _read_delta_index(directory: Path) -> dict[str, Any] | None:
    """The index of a version directory, or None if it is a full version."""
    if not directory.is_dir():
        raise FormatError(f"{directory}: the version is missing")
    if not (directory / INDEX_NAME).exists():
        if [path.name for path in directory.glob("*.safetensors")] != [SINGLE_NAME]:
            raise FormatError(f"{directory}: the index is missing")
        return None
    index = read_index(directory)
    return index if "delta_encoding" in index.get("metadata", {}) else None


def read_version(store: PathLike, version: int) -> Version:
    """Reads a version: a `Version` of kind "full", or a `Delta` with all of its frames."""
    directory = version_dir(store, version)
    index = _read_delta_index(directory)
    if index is None:
        return Version(version, directory, "full")
    metadata = index["metadata"]
    allowed = {
        "version": (f"{version:06d}",),
        "base_version": (f"{version - 1:06d}",),
        "delta_encoding": ENCODINGS,
        "compression_format": ("zstd",),
        "checksum_format": CHECKSUMS,
    }
    for key, values in allowed.items():
        if metadata.get(key) not in values:
            raise FormatError(f"{directory}: {key} is {metadata.get(key)!r}, not one of {values}")
    frames: dict[str, Bytes] = {}
    sums: dict[str, str] = {}
    for file in sorted(set(index["weight_map"].values())):
        expected = {name for name, other in index["weight_map"].items() if other == file}
        _read_shard(directory / file, expected, frames, sums)
    return Delta(
        number=version,
        directory=directory,
        kind="delta",
        base=int(metadata["base_version"]),
        encoding=metadata["delta_encoding"],
        checksum=metadata["checksum_format"],
        frames=frames,
        sums=sums,
    )


def _read_shard(
    path: Path, expected: set[str], frames: dict[str, Bytes], sums: dict[str, str]
) -> None:
    """Adds the frames and checksums of one shard, which must hold just the expected tensors."""
    if not path.exists():
        raise FormatError(f"{path}: missing")
    metadata, spans = read_header(path)
    if spans.keys() != expected:
        difference = sorted(spans.keys() ^ expected)
        raise FormatError(f"{path}: the index and the file differ in {difference}")
    if missing := expected - metadata.keys():
        raise FormatError(f"{path}: no checksum for {sorted(missing)}")
    content = map_file(path)
    for name, span in spans.items():
        frames[name] = content[span.offset : span.offset + span.nbytes]
        sums[name] = metadata[name]


def read_marker(local_dir: PathLike) -> int | None:
    """The version that a replica holds, or None."""
    path = Path(local_dir) / ".weight_sync" / "state.json"
    return int(json.loads(path.read_bytes())["version"]) if path.exists() else None


def write_marker(local_dir: PathLike, version: int) -> None:
    path = Path(local_dir) / ".weight_sync" / "state.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, [json.dumps({"version": f"{version:06d}"}).encode()], sync=True)


def _withdraw_marker(local_dir: Path) -> None:
    (local_dir / ".weight_sync" / "state.json").unlink(missing_ok=True)


@contextmanager
def _locked(local_dir: Path) -> Iterator[None]:
    directory = local_dir / ".weight_sync"
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pull(
    store: PathLike,
    local_dir: PathLike,
    target: int | None = None,
    *,
    base_dir: PathLike | None = None,
    threads: int = 2,
) -> list[int]:
    """Brings a replica to `target` (None: the newest version). Returns the deltas applied.

    Version 0 is `base_dir` where that is given, else the store's own. Asking for an older version
    than the replica has does nothing, except for 0, which resets it.
    """
    local = Path(local_dir)
    if target is None:
        if not (published := versions(store)):
            raise FormatError(f"{store}: no version")
        target = published[-1]
    with _locked(local):
        held = read_marker(local)
        if target == 0 and held:
            held = None
        start = target
        while start > (held or 0) and _read_delta_index(version_dir(store, start)):
            start -= 1
        if held is None or start > held:
            own_base = base_dir if start == 0 else None
            seed(Path(own_base or version_dir(store, start)), local, start)
        else:
            start = held
        applied = list(range(start + 1, target + 1))
        for version in applied:
            apply_delta(local, store, version, threads=threads)
    return applied


def seed(source: Path, local: Path, version: int) -> None:
    """Makes `local` a copy of the checkpoint in `source`; files that are not there are removed."""
    if not source.is_dir():
        raise FormatError(f"version {version} is missing: {source}")
    files = [path for path in source.iterdir() if path.is_file()]
    _withdraw_marker(local)
    for path in local.iterdir():
        if path.is_file() and path.name not in {file.name for file in files}:
            path.unlink()
    for path in files:
        shutil.copy2(path, local / path.name)
        if (local / path.name).stat().st_size != path.stat().st_size:
            raise FormatError(f"{path}: the copy has another size")
    write_marker(local, version)


def apply_delta(local_dir: PathLike, store: PathLike, version: int, *, threads: int = 2) -> None:
    """Patches a replica in place from version - 1 to `version`; checks first what it can."""
    local = Path(local_dir)
    delta = read_version(store, version)
    if not isinstance(delta, Delta):
        raise FormatError(f"{delta.directory}: a full version where a delta is needed")
    if (held := read_marker(local)) != delta.base:
        raise FormatError(f"out-of-order delta: local at {held}, delta builds on {delta.base}")
    spans = tensor_spans(local)
    if unknown := delta.frames.keys() - spans.keys():
        raise FormatError(f"{delta.directory}: tensors {sorted(unknown)} are not in {local}")
    if delta.encoding == "xor":
        for name, frame in delta.frames.items():
            _check_content_size(name, frame, spans[name].nbytes)
    if not delta.frames:
        write_marker(local, version)
        return

    files = {path: map_file(path, writable=True) for path in {spans[n].path for n in delta.frames}}
    patch = patch_xor if delta.encoding == "xor" else patch_overwrite

    def apply(name: str) -> str | None:
        span = spans[name]
        region = files[span.path][span.offset : span.offset + span.nbytes]
        hasher = _HASHERS[delta.checksum]()
        try:
            patch(name, delta.frames[name], region, hasher)
        except zstandard.ZstdError as error:
            raise FormatError(f"tensor {name}: {error}") from None
        return name if hasher.hexdigest() != delta.sums[name] else None

    _withdraw_marker(local)
    with ThreadPoolExecutor(threads) as pool:
        wrong = [name for name in pool.map(apply, delta.frames) if name is not None]
    if wrong:
        raise FormatError(f"checksum mismatch for {len(wrong)} tensors: {wrong}")
    write_marker(local, version)


def _check_content_size(name: str, frame: Bytes, expected: int) -> None:
    try:
        size = zstandard.get_frame_parameters(frame.data).content_size
    except zstandard.ZstdError as error:
        raise FormatError(f"tensor {name}: {error}") from None
    if size not in (expected, zstandard.CONTENTSIZE_UNKNOWN):
        raise FormatError(f"tensor {name}: the frame holds {size} bytes, the tensor {expected}")


def patch_xor(name: str, frame: Bytes, region: Bytes, hasher: Hasher) -> None:
    """region ^= frame, in pieces that stay in the cache; feeds the result to the hasher."""
    scratch = _piece_buffer()
    with zstandard.ZstdDecompressor().stream_reader(frame.data) as reader:
        done = 0
        while done < region.size:
            count = reader.readinto(scratch[: region.size - done].data)
            if count == 0:
                raise FormatError(
                    f"tensor {name}: the frame ends after {done} of {region.size} bytes"
                )
            part = region[done : done + count]
            np.bitwise_xor(part, scratch[:count], out=part)
            hasher.update(part)
            done += count
        if reader.read(1):
            raise FormatError(f"tensor {name}: the frame holds more than {region.size} bytes")


def patch_overwrite(name: str, frame: Bytes, region: Bytes, hasher: Hasher) -> None:
    """Writes the frame's bytes at its positions; feeds the result to the hasher."""
    body = np.frombuffer(zstandard.ZstdDecompressor().decompress(frame.data), np.uint8)
    count = int(body[:4].view("<u4")[0]) if body.size >= 4 else -1
    if body.size != 4 + 5 * count:
        raise FormatError(f"tensor {name}: {body.size} bytes for {count} changes")
    positions = body[4 : 4 + 4 * count].view("<u4")
    if count and int(positions.max()) >= region.size:
        raise FormatError(f"tensor {name}: position {positions.max()} of {region.size} bytes")
    region[positions] = body[4 + 4 * count :]
    hasher.update(region)
