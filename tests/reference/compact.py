"""Files of the encoding `compact`, read a second time: from their description in docs/format.md.

An oracle for tests: plain, slow, and written without a look at the other reader. It checks all that
the description promises (checks, bounds, hashes, digests, and that nothing is left over), and
raises `FormatError` for what breaks it.

    file = read_file(path.read_bytes())       preamble, trailer, table
    new = apply_file(file, old_tensors)       the tensors that changed, as they become
    replay(store)                             all tensors of every version of a store
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard
from additive_digest import digest_of
from directory_format import (
    Delta,
    patch_overwrite,
    patch_xor,
    read_version,
    version_dir,
    versions,
)
from safetensors_files import (
    DTYPE_BITS,
    INDEX_NAME,
    FormatError,
    PathLike,
    Tensor,
    Tensors,
    read_checkpoint,
)

PREAMBLE = b"SYNCDLT1"
TRAILER_END = b"SYNCEND1"
TRAILER_BYTES = 32
MAX_TABLE_BYTES, MAX_MODELS, MAX_FRAMES = 2**28, 4096, 2**24
BLOCK_UNITS = 4096
CLASSES = 16
GAP_LOG, STEP_LOG = 10, 9
GAP_LIMIT = 2**24
END = None  # instead of a gap: no further change of the class

# Bytes of a unit, and for floats the bits of the mantissa; all others have units of one byte.
MANTISSA_BITS = {
    "F32": 23,
    "C64": 23,
    "BF16": 7,
    "F16": 10,
    "F8_E4M3": 3,
    "F8_E4M3FNUZ": 3,
    "F8_E5M2": 2,
    "F8_E5M2FNUZ": 2,
}
WIDTHS = {
    **dict.fromkeys(["F32", "C64", "F64", "I32", "U32", "I64", "U64"], 4),
    **dict.fromkeys(["F16", "BF16", "I16", "U16"], 2),
}

Units = npt.NDArray[np.int64]  # unsigned numbers of at most 32 bits


def require(condition: bool, message: str) -> None:
    if not condition:
        raise FormatError(message)


class Reader:
    """Takes numbers and bytes from the front of a buffer."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.what = what
        self.at = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        require(end <= len(self.data), f"{self.what}: {end} bytes asked, {len(self.data)} there")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self) -> int:
        """An unsigned LEB128."""
        value = 0
        for position in range(10):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                require(value < 2**64, f"{self.what}: the number {value} needs more than 64 bits")
                return value
        raise FormatError(f"{self.what}: a number of more than ten bytes")

    def numbers(self, count: int) -> list[int]:
        return [self.number() for _ in range(count)]

    def texts(self, lengths: Sequence[int]) -> list[str]:
        try:
            return [self.take(length).decode() for length in lengths]
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.what}: a name is not UTF-8: {error}") from None

    def rest(self) -> bytes:
        return self.take(len(self.data) - self.at)


# Codes


def token_of(value: int) -> int:
    """The token of a gap, or of the amount of a step less one."""
    if value < 8:
        return value
    highest = value.bit_length() - 1
    return 8 + 4 * (highest - 3) + (value >> (highest - 2) & 3)


def extra_bits_of(token: int) -> int:
    """How many bits follow a token."""
    return 0 if token < 8 else 1 + (token - 8) // 4


def value_of(token: int, extra: int) -> int:
    if token < 8:
        return token
    return (4 + (token - 8) % 4 << extra_bits_of(token)) + extra


@dataclass(frozen=True)
class State:
    """One state of a coding table: the next one is `base` plus the next `bits` bits."""

    symbol: int
    bits: int
    base: int


def coding_table(counts: Sequence[int], log: int) -> list[State]:
    """The decoding table of RFC 8878, section 4.1.1, for counts that add up to 2^log."""
    size = 1 << log
    require(sum(counts) == size, f"counts add up to {sum(counts)}, not {size}")
    symbols = [0] * size
    place = 0
    for symbol, count in enumerate(counts):
        for _ in range(count):
            symbols[place] = symbol
            place = place + (size >> 1) + (size >> 3) + 3 & size - 1
    seen = list(counts)
    states = []
    for symbol in symbols:
        number = seen[symbol]
        seen[symbol] += 1
        bits = log - (number.bit_length() - 1)
        states.append(State(symbol, bits, (number << bits) - size))
    return states


class BackwardBits:
    """Reads a bit stream from its end, where the highest set bit is a mark."""

    def __init__(self, data: bytes) -> None:
        require(len(data) > 0 and data[-1] != 0, "the change stream has no mark at its end")
        self.bits = int.from_bytes(data, "little")
        self.left = self.bits.bit_length() - 1

    def read(self, count: int) -> int:
        require(count <= self.left, "the change stream ends too early")
        self.left -= count
        return self.bits >> self.left & (1 << count) - 1


@dataclass(frozen=True)
class Model:
    """Coding tables for each class; None where a class has no gaps or no steps."""

    base: int
    gaps: list[list[State] | None]
    steps: list[list[State] | None]

    @property
    def classes(self) -> int:
        return len(self.gaps)


def read_model(reader: Reader) -> Model:
    classes, base = reader.numbers(2)
    require(classes in (1, CLASSES), f"a model of {classes} classes")
    gaps: list[list[State] | None] = []
    steps: list[list[State] | None] = []
    for _ in range(classes):
        for tables, log in ((gaps, GAP_LOG), (steps, STEP_LOG)):
            counts = reader.numbers(reader.number())
            tables.append(coding_table(counts, log) if counts else None)
    return Model(base, gaps, steps)


# Units


def width_of(dtype: str) -> int:
    return WIDTHS.get(dtype, 1)


def key_of(unit: int, dtype: str) -> int:
    """The number that stands for a unit; being its own inverse, also the unit of a key."""
    sign = 1 << (8 * width_of(dtype) - 1)
    return unit ^ sign - 1 if dtype in MANTISSA_BITS and unit & sign else unit


def class_of(unit: int, dtype: str, model: Model) -> int:
    if model.classes == 1:
        return 0
    magnitude = unit & (1 << (8 * width_of(dtype) - 1)) - 1
    exponent = max(magnitude, 1) - 1 >> MANTISSA_BITS[dtype]
    return min(CLASSES - 1, max(0, exponent - model.base))


# The table


@dataclass(frozen=True)
class TensorEntry:
    name: str
    dtype: str
    shape: tuple[int, ...]
    changed: int
    hash: str
    digest: str

    @property
    def nbytes(self) -> int:
        bits = prod(self.shape) * DTYPE_BITS[self.dtype]
        require(bits % 8 == 0, f"tensor {self.name}: {bits} bits are no whole bytes")
        return bits // 8

    @property
    def units(self) -> int:
        return self.nbytes // width_of(self.dtype)


@dataclass(frozen=True)
class Frame:
    """`data` is empty where nothing changed; then there is no model."""

    first_unit: int
    data: bytes = field(repr=False)
    model: int | None = None


@dataclass(frozen=True)
class Cell:
    tensors: list[TensorEntry]
    frames: list[Frame]


@dataclass(frozen=True)
class CompactFile:
    frame_units: int
    models: list[Model] = field(repr=False)
    cells: list[Cell]


def read_file(data: bytes) -> CompactFile:
    """Everything but what the frames hold."""
    require(len(data) >= len(PREAMBLE) + TRAILER_BYTES, f"a file of {len(data)} bytes")
    require(data[:8] == PREAMBLE, f"the file begins with {data[:8]!r}, not {PREAMBLE!r}")
    trailer = Reader(data[-TRAILER_BYTES:], "trailer")
    offset, size, content_size, check = (
        int.from_bytes(trailer.take(count), "little") for count in (8, 4, 4, 8)
    )
    end = trailer.rest()
    require(end == TRAILER_END, f"the file ends with {end!r}, not {TRAILER_END!r}")
    table = data[offset:-TRAILER_BYTES]
    require(offset >= 8 and len(table) == size, f"a table of {size} bytes at {offset}")
    found = xxhash.xxh3_64_intdigest(table + data[-TRAILER_BYTES:-16])
    require(found == check, f"check of the table: {found:016x}, not {check:016x}")
    require(content_size <= MAX_TABLE_BYTES, f"a table of {content_size} bytes")
    content = decompress(table, content_size, "table")
    return read_table(content, data[8:offset])


def decompress(frame: bytes, size: int, what: str) -> bytes:
    """The content of one zstd frame, which must be of this size."""
    decompressor = zstandard.ZstdDecompressor().decompressobj()
    try:
        content = decompressor.decompress(frame)
    except zstandard.ZstdError as error:
        raise FormatError(f"{what}: {error}") from None
    require(decompressor.eof, f"{what}: the zstd frame does not end")
    require(not decompressor.unused_data, f"{what}: bytes after the zstd frame")
    require(len(content) == size, f"{what}: {len(content)} bytes of content, not {size}")
    return content


def read_table(content: bytes, frames: bytes) -> CompactFile:
    reader = Reader(content, "table")
    version, log_units = reader.numbers(2)
    require(version == 1, f"format {version}, not 1")
    require(12 <= log_units <= 24, f"frames of 2^{log_units} units")
    count = reader.number()
    require(count <= MAX_MODELS, f"{count} models, the limit is {MAX_MODELS}")
    models = [read_model(reader) for _ in range(count)]
    sizes = reader.numbers(reader.number())
    require(0 not in sizes, "a cell without a tensor")
    tensors = iter(read_entries(reader, sum(sizes)))
    entries = [[next(tensors) for _ in range(size)] for size in sizes]
    firsts = [first_units(cell, 1 << log_units) for cell in entries]

    count = sum(len(first) for first in firsts)
    require(count <= MAX_FRAMES, f"{count} frames, the limit is {MAX_FRAMES}")
    lengths = [reader.numbers(len(first)) for first in firsts]
    filled = sum(length > 0 for cell in lengths for length in cell)
    model_of = iter(reader.numbers(filled))
    check_of = iter([int.from_bytes(reader.take(8), "little") for _ in range(filled)])
    require(not reader.rest(), "bytes after the table's content")

    body = Reader(frames, "frames")
    cells = []
    for tensors_of_cell, first, length in zip(entries, firsts, lengths, strict=True):
        cell = Cell(tensors_of_cell, [])
        for unit, count in zip(first, length, strict=True):
            data = body.take(count)
            if count:
                number, check = next(model_of), next(check_of)
                require(number < len(models), f"model {number} of {len(models)}")
                found = xxhash.xxh3_64_intdigest(data)
                require(found == check, f"check of a frame: {found:016x}, not {check:016x}")
                cell.frames.append(Frame(unit, data, number))
            else:
                cell.frames.append(Frame(unit, data))
        cells.append(cell)
    require(not body.rest(), "bytes between the frames and the table")
    return CompactFile(1 << log_units, models, cells)


def read_entries(reader: Reader, count: int) -> list[TensorEntry]:
    names = reader.texts(reader.numbers(count))
    dtypes = [reader.texts([reader.number()])[0] for _ in range(reader.number())]
    numbers = reader.take(count)
    ranks = reader.numbers(count)
    shapes = [tuple(reader.numbers(rank)) for rank in ranks]
    changed = reader.numbers(count)
    hashes = [reader.take(16) for _ in range(count)]
    digests = [reader.take(16) for _ in range(count)]
    require(len(set(names)) == count, "a name stands twice")
    require(0 not in changed, "a tensor without a changed element")
    require(all(number < len(dtypes) for number in numbers), f"a dtype beyond {len(dtypes)}")
    require(set(dtypes) <= DTYPE_BITS.keys(), f"unknown dtype among {dtypes}")
    return [
        TensorEntry(
            names[at],
            dtypes[numbers[at]],
            shapes[at],
            changed[at],
            hashes[at].hex(),
            digests[at][::-1].hex(),  # high lane first, as digests are written
        )
        for at in range(count)
    ]


def first_units(tensors: Sequence[TensorEntry], frame_units: int) -> Sequence[int]:
    """Number of the first unit of each frame of a cell."""
    names = [entry.name.encode() for entry in tensors]
    require(names == sorted(names), f"names do not ascend: {names}")
    kinds = {(width_of(t.dtype), MANTISSA_BITS.get(t.dtype)) for t in tensors}
    require(len(kinds) == 1, f"the units of a cell differ: {kinds}")
    if len(tensors) == 1:
        return range(0, tensors[0].units, frame_units)
    units = sum(t.units for t in tensors)
    require(units <= frame_units, f"{len(tensors)} tensors of {units} units in a frame")
    return [0]


# Frames


def units_of(tensor: Tensor) -> Units:
    view = tensor.data.view(f"<u{width_of(tensor.dtype)}")
    return view.astype(np.int64)


def apply_file(file: CompactFile, old: Tensors, *, digests: bool = True) -> dict[str, Tensor]:
    """The tensors that the file changes, checked by hash, digest (slow) and number of changes."""
    changed = {}
    for cell in file.cells:
        for entry in cell.tensors:
            require(entry.name in old, f"tensor {entry.name} is not there")
            found = (old[entry.name].dtype, old[entry.name].shape)
            expected = (entry.dtype, entry.shape)
            require(found == expected, f"tensor {entry.name}: {found}, not {expected}")
        units = [units_of(old[entry.name]) for entry in cell.tensors]
        for frame in cell.frames:
            if frame.data:
                parts = [unit[frame.first_unit :][: file.frame_units] for unit in units]
                assert frame.model is not None
                dtype = cell.tensors[0].dtype
                apply_frame(frame.data, file.models[frame.model], dtype, parts)
        for entry, unit in zip(cell.tensors, units, strict=True):
            data = unit.astype(f"<u{width_of(entry.dtype)}").view(np.uint8)
            changed[entry.name] = Tensor(entry.dtype, entry.shape, data)
            check_tensor(entry, old[entry.name], changed[entry.name], digests)
    return changed


def apply_frame(frame: bytes, model: Model, dtype: str, parts: list[Units]) -> None:
    """Changes the units of a frame, one array for each tensor, in place."""
    reader = Reader(frame, "frame")
    dense: list[int] = []
    for _ in range(reader.number()):
        index = reader.number()
        require(index < len(parts), f"dense tensor {index} of {len(parts)}")
        require(not dense or index > dense[-1], "dense tensors do not ascend")
        dense.append(index)
        parts[index][:] = 0
        for byte in range(width_of(dtype)):
            plane = decompress(reader.take(reader.number()), parts[index].size, "plane")
            parts[index][:] += np.frombuffer(plane, np.uint8).astype(np.int64) << (8 * byte)
    stream = reader.rest()
    sparse = [part for index, part in enumerate(parts) if index not in dense]
    if not any(part.size for part in sparse):
        require(not stream, "bytes behind the dense parts of a frame without other units")
        return
    apply_stream(stream, model, dtype, sparse)


class ChangeStream:
    """Takes gaps and steps off a change stream."""

    def __init__(self, data: bytes, model: Model, width: int) -> None:
        self.bits = BackwardBits(data)
        self.model = model
        self.width = width
        self.gap_state = self.bits.read(GAP_LOG)
        self.step_state = self.bits.read(STEP_LOG)

    def value(self, token: int) -> int:
        return value_of(token, self.bits.read(extra_bits_of(token)))

    def gap(self, number: int) -> int | None:
        table = self.model.gaps[number]
        if table is None:
            return END
        state = table[self.gap_state]
        gap = END if state.symbol == 0 else self.value(state.symbol - 1)
        require(gap is END or gap < GAP_LIMIT, f"a gap of {gap}")
        self.gap_state = state.base + self.bits.read(state.bits)
        return gap

    def step(self, number: int) -> int:
        table = self.model.steps[number]
        if table is None:
            raise FormatError(f"a change of class {number}, which has no steps")
        state = table[self.step_state]
        limit = 1 << (8 * self.width - 1)
        require(state.symbol <= token_of(limit - 1), f"token {state.symbol} of {self.width} bytes")
        negative = self.bits.read(1)
        amount = self.value(state.symbol) + 1
        self.step_state = state.base + self.bits.read(state.bits)
        return -amount if negative else amount

    def close(self) -> None:
        states = (self.gap_state, self.step_state)
        require(states == (0, 0), f"the change stream ends in states {states}")
        require(self.bits.left == 0, f"{self.bits.left} bits are left of the change stream")


def blocks_of(parts: Sequence[Units]) -> Iterator[Units]:
    for part in parts:
        for at in range(0, part.size, BLOCK_UNITS):
            yield part[at : at + BLOCK_UNITS]


def apply_stream(data: bytes, model: Model, dtype: str, parts: Sequence[Units]) -> None:
    require(model.classes == 1 or dtype in MANTISSA_BITS, f"classes for units of {dtype}")
    width = width_of(dtype)
    stream = ChangeStream(data, model, width)
    rest = [stream.gap(number) for number in range(model.classes)]
    for block in blocks_of(parts):
        members: list[list[int]] = [[] for _ in range(model.classes)]
        for place, unit in enumerate(block.tolist()):
            members[class_of(unit, dtype, model)].append(place)
        for number, places in enumerate(members):
            left = rest[number]
            while left is not END and left < len(places):
                place = places[left]
                key = key_of(int(block[place]), dtype) + stream.step(number)
                block[place] = key_of(key % (1 << 8 * width), dtype)
                gap = stream.gap(number)
                left = END if gap is END else left + 1 + gap
            rest[number] = END if left is END else left - len(places)
    require(all(left is END for left in rest), f"changes behind the last unit: {rest}")
    stream.close()


def check_tensor(entry: TensorEntry, old: Tensor, new: Tensor, digests: bool) -> None:
    found = xxhash.xxh3_128_hexdigest(new.data.tobytes())
    require(found == entry.hash, f"tensor {entry.name}: hash {found}, not {entry.hash}")
    if digests:
        digest = digest_of(new.data.tobytes(), width_of(entry.dtype))
        require(digest == entry.digest, f"tensor {entry.name}: digest {digest}, not {entry.digest}")
    changed = changed_elements(old, new)
    message = f"tensor {entry.name}: {changed} elements changed, not {entry.changed}"
    require(changed == entry.changed, message)


def changed_elements(old: Tensor, new: Tensor) -> int:
    """Elements whose bytes differ; bytes where an element is smaller."""
    element = max(1, DTYPE_BITS[new.dtype] // 8)
    differ = (old.data != new.data).reshape(-1, element)
    return int(differ.any(axis=1).sum())


# Stores


def read_index(directory: Path) -> dict[str, str] | None:
    """Files of a compact version (empty if nothing changed); None if it is another one."""
    path = directory / INDEX_NAME
    index = json.loads(path.read_bytes()) if path.exists() else {}
    metadata = index.get("metadata", {})
    if metadata.get("delta_encoding") != "compact":
        return None
    number = int(directory.name.removeprefix("weight_v"))
    require(metadata["version"] == f"{number:06d}", f"{directory}: {metadata}")
    require(metadata["compression_format"] == "zstd", f"{directory}: {metadata}")
    require(metadata["checksum_format"] == "xxh3-128", f"{directory}: {metadata}")
    files: dict[str, str] = index["weight_map"]
    for name, file in files.items():
        require(file == name.removeprefix("syncline.") + ".syncline", f"{directory}: {files}")
    return files


def apply_version(store: PathLike, version: int, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors after a version of any kind: a full one, or a delta of each encoding."""
    directory = version_dir(store, version)
    files = read_index(directory)
    if files is None:
        return apply_other(store, version, old)
    new = dict(old)
    for file in files.values():
        changed = apply_file(read_file((directory / file).read_bytes()), old)
        for name, tensor in changed.items():
            require(new[name] is old[name], f"tensor {name} stands in two files")
            new[name] = tensor
    return new


def apply_other(store: PathLike, version: int, old: Mapping[str, Tensor]) -> dict[str, Tensor]:
    read = read_version(store, version)
    if not isinstance(read, Delta):
        return read_checkpoint(read.directory)
    patch = patch_xor if read.encoding == "xor" else patch_overwrite
    new = dict(old)
    for name, frame in read.frames.items():
        new[name] = Tensor(old[name].dtype, old[name].shape, old[name].data.copy())
        hasher = xxhash.xxh3_128()
        patch(name, frame, new[name].data, hasher)
        require(hasher.hexdigest() == read.sums[name], f"tensor {name}: wrong hash")
    return new


def replay(store: PathLike) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Number and tensors of each version of a store that begins with a full one."""
    tensors: dict[str, Tensor] = {}
    for version in versions(store):
        tensors = apply_version(store, version, tensors)
        yield version, tensors
