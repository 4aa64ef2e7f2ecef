"""Seeds of the targets compact and compact_roundtrip: small files of the encoding `compact`.

The writer here is as plain as can be, made from docs/format.md like the reader of the tests
(tests/reference/compact.py), of which it takes the codes. It needs no good models: symbols get
equal shares.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import xxhash
import zstandard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "reference"))

import compact as reader
from compact import State, coding_table, extra_bits_of, token_of

KINDS = ["U8", "I16", "I32", "F8_E5M2", "F8_E4M3", "BF16", "F16", "F32"]  # as the targets count

Change = tuple[int, int, int]  # class, gap, step


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def varints(values: Sequence[int]) -> bytes:
    return b"".join(varint(value) for value in values)


def even_counts(symbols: set[int], log: int) -> list[int]:
    """Counts that add up to 2^log, for these symbols alone; none for no symbols."""
    if not symbols:
        return []
    share, rest = divmod(1 << log, len(symbols))
    counts = [share * (symbol in symbols) for symbol in range(max(symbols) + 1)]
    counts[max(symbols)] += rest
    return counts


@dataclass
class Model:
    """What the classes of some change streams need."""

    classes: int = 1
    base: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    steps: list[list[int]] = field(default_factory=list)

    @classmethod
    def of(cls, changes: Sequence[Change], classes: int = 1, base: int = 0) -> Model:
        gaps: list[set[int]] = [{0} for _ in range(classes)]
        steps: list[set[int]] = [set() for _ in range(classes)]
        for number, gap, step in changes:
            gaps[number].add(1 + token_of(gap))
            steps[number].add(token_of(abs(step) - 1))
        return cls(
            classes,
            base,
            [even_counts(symbols, reader.GAP_LOG) for symbols in gaps],
            [even_counts(symbols, reader.STEP_LOG) for symbols in steps],
        )

    def text(self) -> bytes:
        out = varints([self.classes, self.base])
        for gaps, steps in zip(self.gaps, self.steps, strict=True):
            out += varints([len(gaps), *gaps, len(steps), *steps])
        return out


@dataclass(frozen=True)
class Symbol:
    """One thing that a reader takes off the stream."""

    table: list[State]
    symbol: int
    extra: int
    extra_bits: int
    of_gaps: bool


def change_stream(changes: Sequence[Change], model: Model) -> bytes:
    """Changes in the order in which they are read; gaps are those before each change."""
    symbols = []
    gap_tables = [coding_table(c, reader.GAP_LOG) if c else [] for c in model.gaps]

    def put_gap(number: int, after: int) -> None:
        """The gap of a class to its next change behind change `after`, or the end."""
        if not model.gaps[number]:
            return
        gap = next((c[1] for c in changes[after + 1 :] if c[0] == number), None)
        token = -1 if gap is None else token_of(gap)
        bits = extra_bits_of(token) if gap is not None else 0
        extra = (gap or 0) & (1 << bits) - 1
        symbols.append(Symbol(gap_tables[number], 1 + token, extra, bits, True))

    for number in range(model.classes):
        put_gap(number, -1)
    for at, (number, _, step) in enumerate(changes):
        amount = abs(step) - 1
        token = token_of(amount)
        bits = extra_bits_of(token)
        extra = (step < 0) << bits | amount & (1 << bits) - 1
        table = coding_table(model.steps[number], reader.STEP_LOG)
        symbols.append(Symbol(table, token, extra, bits + 1, False))
        put_gap(number, at)

    states = {True: 0, False: 0}
    fields: list[tuple[int, int]] = []  # value and bits, the last one read first
    for symbol in reversed(symbols):
        target = states[symbol.of_gaps]
        for number, state in enumerate(symbol.table):
            low = target - state.base
            if state.symbol == symbol.symbol and 0 <= low < 1 << state.bits:
                states[symbol.of_gaps] = number
                fields += [(low, state.bits), (symbol.extra, symbol.extra_bits)]
                break
    fields += [(states[False], reader.STEP_LOG), (states[True], reader.GAP_LOG)]
    stream = 1
    for value, bits in reversed(fields):
        stream = stream << bits | value
    return stream.to_bytes((stream.bit_length() + 7) // 8, "little")


def planes(units: Sequence[int], width: int) -> bytes:
    out = b""
    for byte in range(width):
        frame = zstandard.ZstdCompressor(level=1).compress(
            bytes(u >> 8 * byte & 255 for u in units)
        )
        out += varint(len(frame)) + frame
    return out


@dataclass
class Row:
    """A tensor of the table."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass
class Cell:
    rows: list[Row]
    frames: list[bytes]
    model: int = 0


def table(cells: Sequence[Cell], models: Sequence[Model], *, log: int = 12) -> bytes:
    rows = [row for cell in cells for row in cell.rows]
    frames = [(cell.model, frame) for cell in cells for frame in cell.frames]
    names = [row.name.encode() for row in rows]
    dtypes = sorted({row.dtype for row in rows})
    out = varints([1, log, len(models)]) + b"".join(model.text() for model in models)
    out += varints([len(cells), *(len(cell.rows) for cell in cells)])
    out += varints([len(name) for name in names]) + b"".join(names)
    out += varint(len(dtypes))
    for dtype in dtypes:
        out += varint(len(dtype)) + dtype.encode()
    out += bytes(dtypes.index(row.dtype) for row in rows)
    out += varints([len(row.shape) for row in rows])
    out += varints([size for row in rows for size in row.shape])
    out += varints([1] * len(rows)) + bytes(range(32)) * len(rows)
    out += varints([len(frame) for _, frame in frames])
    out += varints([model for model, frame in frames if frame])
    return out + b"".join(xxhash.xxh3_64_digest(frame)[::-1] for _, frame in frames if frame)


def file(content: bytes, frames: bytes) -> bytes:
    packed = zstandard.ZstdCompressor(level=19).compress(content)
    head = struct.pack("<QII", 8 + len(frames), len(packed), len(content))
    check = struct.pack("<Q", xxhash.xxh3_64_intdigest(packed + head))
    return b"SYNCDLT1" + frames + packed + head + check + b"SYNCEND1"


SOME: list[Change] = [(0, 3, 1), (0, 0, -1), (0, 17, 2), (0, 200, -90)]


def class_changes(width: int) -> list[Change]:
    """All in the first block."""
    far = {1: 100, 2: 30_000, 4: 2_000_000_000}[width]
    return [(0, 0, 1), (0, 4, 3), (7, 1, -far), (15, 2, -1), (15, 0, far)]


def frame_input(dtype: str, units: Sequence[int], model: Model, frame: bytes) -> bytes:
    """Mode 2 of the target compact."""
    sizes = b"".join(struct.pack("<H", count - 1) for count in units)
    head = bytes([2, 6, KINDS.index(dtype), len(units)])
    return head + sizes + model.text() + frame


def content_input(content: bytes, frames: bytes) -> bytes:
    """Mode 1."""
    return b"\1\6" + struct.pack("<H", len(content)) + content + frames


def frame_seeds() -> Iterator[tuple[str, bytes]]:
    for dtype in KINDS:
        width = reader.width_of(dtype)
        model = Model.of(SOME)
        frame = b"\0" + change_stream(SOME, model)
        yield f"gaps-{dtype.lower()}", frame_input(dtype, [300, 9], model, frame)
        if dtype in ("U8", "BF16", "F32"):
            dense = b"\1\1" + planes(range(9), width) + change_stream(SOME, model)
            yield f"dense-{dtype.lower()}", frame_input(dtype, [300, 9], model, dense)
        if dtype not in reader.MANTISSA_BITS:
            continue
        changes = class_changes(width)
        model = Model.of(changes, reader.CLASSES, 0 if dtype == "F8_E4M3" else 1)
        frame = b"\0" + change_stream(changes, model)
        yield f"classes-{dtype.lower()}", frame_input(dtype, [9000, 5], model, frame)
    model = Model.of([])
    nothing = b"\0" + change_stream([], model)
    yield "no-change", frame_input("BF16", [5000], model, nothing)
    lean = Model.of([(5, 0, 1), (5, 0, -1)], reader.CLASSES, 8)
    for number in {*range(reader.CLASSES)} - {5}:
        lean.gaps[number] = []
    frame = b"\0" + change_stream([(5, 0, 1), (5, 0, -1)], lean)
    yield "classes-without-table", frame_input("F16", [4000], lean, frame)
    yield "no-table", frame_input("BF16", [50], Model(1, 0, [[]], [[]]), b"\0\0\0\x08")
    yield "all-dense", frame_input("I16", [3], model, b"\1\0" + planes([7, 8, 65535], 2))
    yield "two-zstd-frames", frame_input("U8", [4], model, b"\1\0\x16" + 2 * planes([7, 8], 1)[1:])
    behind: list[Change] = [(0, 300, 1)]
    late = Model.of(behind)
    yield "behind-the-end", frame_input("BF16", [300], late, b"\0" + change_stream(behind, late))


def file_seeds() -> Iterator[tuple[str, bytes]]:
    model = Model.of(SOME)
    stream = b"\0" + change_stream(SOME, model)
    two = Cell([Row("a", "BF16", (30, 10)), Row("b", "BF16", ())], [stream])
    long = Cell([Row("c", "U8", (9000,))], [stream, b"", stream])
    content = table([two, long], [model])
    frames = stream * 3
    yield "file", b"\0\6" + file(content, frames)
    yield "content", content_input(content, frames)
    for length in range(0, len(content), 48):
        yield f"cut-{length}", content_input(content[:length], frames)
    packed = file(content, frames)
    for at in (-32, -24, -16):
        damaged = bytearray(packed)
        damaged[at] ^= 1
        yield f"trailer{at}", b"\0\6" + damaged
    wide = Cell([Row("a", "F64", (3,)), Row("b", "I64", (2, 2)), Row("c", "U32", ())], [stream])
    yield "wide", content_input(table([wide], [model]), stream)
    changes = class_changes(2)
    classes = Model.of(changes, reader.CLASSES, 1)
    frame = b"\0" + change_stream(changes, classes)
    f16 = Cell([Row("h", "F16", (64, 64))], [frame])
    models = [model, classes]
    f16.model = 1
    yield "two-models", content_input(table([two, f16], models), stream + frame)
    plain = Cell([Row("h", "I16", (64, 64))], [frame])
    yield "classes-of-plain", content_input(table([plain], [classes]), frame)
    mixed = Cell([Row("a", "BF16", (3,)), Row("b", "F16", (3,))], [stream])
    yield "mixed", content_input(table([mixed], [model]), stream)
    for name, names in {"falling": ("b", "a"), "twice": ("a", "a")}.items():
        cell = Cell([Row(name, "U8", (300,)) for name in names], [stream])
        yield name, content_input(table([cell], [model]), stream)
    large = Cell([Row("a", "U8", (4096,)), Row("b", "U8", (1,))], [stream])
    yield "too-large-a-cell", content_input(table([large], [model]), stream)
    huge = Cell([Row("a", "F32", (2**40, 2**10))], [stream])
    yield "huge-tensor", content_input(table([huge], [model]), stream)
    yield "many-models", content_input(varints([1, 12, 2**40]) + b"\1\0\0\0" * 50, b"")
    yield "many-cells", content_input(varints([1, 12, 0, 2**40]) + b"\1" * 200, b"")
    yield "format-2", content_input(b"\2" + content[1:], frames)


def compact_seeds() -> Iterator[tuple[str, bytes]]:
    yield from frame_seeds()
    yield from file_seeds()


def compact_roundtrip_seeds() -> Iterator[tuple[str, bytes]]:
    for kind, dtype in enumerate(KINDS):
        sizes = struct.pack("<HH", 4999, 6)
        yield f"gaps-{dtype.lower()}", bytes([kind, 0, 0, 6, 7, 1]) + sizes + b"\x01\xff\x40"
        classes = bytes([kind, 7, 2, 12, 2, 2]) + sizes + b"\x63\x00" + b"\x01\x00\xff"
        yield f"classes-{dtype.lower()}", classes
        yield f"full-{dtype.lower()}", bytes([kind, 1, 1, 15, 0, 1]) + sizes + bytes(range(1, 256))
    yield "nothing", bytes([5, 1, 0, 3, 3, 0]) + struct.pack("<H", 4096) + bytes(30)
