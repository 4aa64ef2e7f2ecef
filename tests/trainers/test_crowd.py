"""A short run of crowd.py; `make crowd` is the long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CROWD = Path(__file__).with_name("crowd.py")


@pytest.mark.parametrize(("ranks", "seconds"), [(1, 20), (2, 8)], ids=["tp1", "tp2"])
def test_a_crowd(ranks: int, seconds: int) -> None:
    """In so short a time a heap still finds its size: only a leak that is large is one here."""
    command = [sys.executable, CROWD, "--tp", ranks, "--seconds", seconds, "--slack", 0.25]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
