"""Many short lives of an engine, with requests in any order (orders.cc says which)."""

from __future__ import annotations

import re
import subprocess

from harness import BINARY

CASES = 1500


def test_every_order_ends_well() -> None:
    program = BINARY.parent / "orders"
    command = [program, "--cases", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "  again"))]
    told = "\n".join(failed[:20]) or f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert done.stdout.endswith(f"{CASES} passed, 0 failed\n"), told
    assert done.returncode == 0
    # Each kind of case was played with each model.
    played = re.findall(r"^(\w+ of \w+) +\d+ cases,", done.stdout, re.MULTILINE)
    assert len(played) == 2 * 6
