"""The digests that docs/format.md quotes; src/tensor/digest_test.cc holds them too."""

from __future__ import annotations

import re
from pathlib import Path

from additive_digest import digest_of

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (\d+) \| ([124]) \| (\d+) \| `([0-9a-f]{32})` \|$", re.MULTILINE)


def test_vectors_of_the_format() -> None:
    rows = ROW.findall((ROOT / "docs" / "format.md").read_text())
    assert len(rows) == 4
    test_source = (ROOT / "src" / "tensor" / "digest_test.cc").read_text()
    for size, unit_bytes, first_unit, expected in rows:
        data = bytes(k % 251 for k in range(int(size)))
        assert digest_of(data, int(unit_bytes), int(first_unit)) == expected
        assert expected in test_source


def test_pieces_add_up() -> None:
    data = bytes(k * k % 256 for k in range(12_000))
    whole = digest_of(data, 2)
    parts = [digest_of(data[:9_002], 2), digest_of(data[9_002:], 2, 4_501)]
    lanes = [sum(int(part[at : at + 16], 16) for part in parts) % 2**64 for at in (0, 16)]
    assert f"{lanes[0]:016x}{lanes[1]:016x}" == whole
