"""The example and the test vectors of docs/format.md; src/store/compact_format_test.cc reads them too."""

from __future__ import annotations

import re
from pathlib import Path

import compact
import numpy as np
import zstandard
from safetensors_files import Tensor

DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "format.md").read_text()


def rows(head: str) -> list[list[str]]:
    """Cells of the table with that head line."""
    _, _, rest = DOCUMENT.partition(f"\n{head}\n")
    table = re.match(r"(\|.*\n)+", rest)
    assert table is not None, head
    lines = table[0].splitlines()[1:]
    assert lines, head
    return [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]


def dump(title: str) -> bytes:
    block = re.search(rf"^```hex {title}\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE)
    assert block is not None, title
    data = b""
    for line in block[1].splitlines():
        part = re.match(r" *(\d+)  ([0-9a-f]{2}(?: [0-9a-f]{2})*)(?:  |$)", line)
        assert part is not None and int(part[1]) == len(data), line
        data += bytes.fromhex(part[2])
    return data


def units(text: str) -> np.ndarray:
    return np.array([int(unit, 16) for unit in text.split()], "<u2").view(np.uint8)


def example(column: int) -> dict[str, Tensor]:
    table = rows("| tensor | dtype | shape | units before | units after |")
    return {
        row[0]: Tensor(row[1], tuple(map(int, row[2].split())), units(row[column])) for row in table
    }


def test_the_example() -> None:
    data = dump("the file")
    offset = int.from_bytes(data[-32:-24], "little")
    content = zstandard.ZstdDecompressor().decompress(data[offset:-32])
    assert content == dump("the content of its table")
    assert compact.apply_file(compact.read_file(data), example(3)) == example(4)


def test_tokens() -> None:
    for row in rows("| value | token | extra bits | their value |"):
        value, token, bits, extra = map(int, row)
        assert (compact.token_of(value), compact.extra_bits_of(token)) == (token, bits)
        assert compact.value_of(token, extra) == value


def test_keys() -> None:
    for dtype, unit, key in rows("| dtype | unit | key |"):
        assert len(unit) == 2 * compact.width_of(dtype)
        assert compact.key_of(int(unit, 16), dtype) == int(key, 16)
        assert compact.key_of(int(key, 16), dtype) == int(unit, 16)


def test_classes() -> None:
    for dtype, base, unit, number in rows("| dtype | base | unit | class |"):
        model = compact.Model(int(base), [None] * compact.CLASSES, [None] * compact.CLASSES)
        assert compact.class_of(int(unit, 16), dtype, model) == int(number)
