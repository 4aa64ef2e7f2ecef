"""The layer check holds for the tree, and notices what it is there to notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_layers

ALLOWED = check_layers.read_table((ROOT / "docs/design.md").read_text())


def test_tree() -> None:
    assert check_layers.faults(ROOT / "src", ALLOWED) == []
    assert {p.name for p in (ROOT / "src").iterdir()} == set(ALLOWED)


@pytest.mark.parametrize(
    ("room", "include", "bad"),
    [
        ("base", "tensor/dtype.h", True),
        ("store", "replica/replica.h", True),
        ("delta", "checkpoint/index.h", True),
        ("tensor", "base/error.h", False),
        ("cli", "replica/replica.h", False),
        ("cellar", "base/error.h", True),
    ],
)
def test_includes(tmp_path: Path, room: str, include: str, bad: bool) -> None:
    (tmp_path / room).mkdir()
    (tmp_path / room / "x.cc").write_text(f'#include "{include}"\n#include <vector>\n')
    assert bool(check_layers.faults(tmp_path, ALLOWED)) == bad


def test_command() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools/check_layers.py"], check=False)
    assert done.returncode == 0
