"""Lines of quantised layouts: 4-bit weights into the order of Marlin's kernels, and back, in place.

build/bin/repack_bench does both with weights and scales of a unit that is larger than the caches, and
checks the bytes after each. The limit is memcpy of as many bytes, by as many threads.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lines import Line, Report

REPACK_BENCH = Path(__file__).resolve().parent.parent / "build/bin/repack_bench"
NAMES = ("int4_repack", "int4_restore")
THREADS = 2
TARGET = 0.3  # of memcpy


def run(report: Report) -> None:
    if not report.wants(*NAMES):
        return
    command = [str(REPACK_BENCH), "--threads", str(THREADS)]
    done = subprocess.run(command, check=True, capture_output=True)
    for found in json.loads(done.stdout):
        for name in NAMES:
            kind = name.removeprefix("int4_")
            report.add(
                Line(
                    name,
                    found["case"],
                    "GB/s",
                    found[kind],
                    found[f"plain_{kind}"],
                    "the plain algorithm, value by value",
                    found["memcpy"],
                    f"memcpy of the same bytes by {THREADS} threads",
                    TARGET,
                    target_of="limit",
                )
            )
