"""Lines of the weight checker: how fast it hashes on one thread.

build/bin/device_hash_bench checks that the hashes of both sides are the same.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lines import Line, Report

DEVICE_HASH_BENCH = Path(__file__).resolve().parent.parent / "build/bin/device_hash_bench"
NAME = "device_hash"


def run(report: Report) -> None:
    if not report.wants(NAME):
        return
    done = subprocess.run([str(DEVICE_HASH_BENCH)], check=True, capture_output=True)
    found = json.loads(done.stdout)
    report.add(
        Line(
            NAME,
            "256 MiB, one thread",
            "GB/s",
            found["ours"],
            found["scalar"],
            "the definition, a word at a time",
            found["read"],
            "adding up the same bytes",
        )
    )
