"""Many small stories in which everything goes wrong that can (torture.cc says which)."""

from __future__ import annotations

import re
import subprocess

from harness import BINARY

CASES = 2000


def test_every_story_ends_well() -> None:
    program = BINARY.parent / "torture"
    command = [program, "--cases", str(CASES), "--syncline", BINARY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "  again"))]
    told = "\n".join(failed[:20]) or f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert done.stdout.endswith(f"{CASES} passed, 0 failed\n"), told
    assert done.returncode == 0
    # Each kind of story was told.
    played = {name for name, _ in re.findall(r"^(\S+) +(\d+) cases,", done.stdout, re.MULTILINE)}
    listed = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    assert set(listed.stdout.split()) == played
