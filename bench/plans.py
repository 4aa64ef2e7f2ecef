"""Lines of the layout plan: time and memory that the plan of a large model takes on one rank of eight.

build/bin/plans_bench builds the plans from configurations alone, and checks the number of tensors.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lines import Line, Report

PLANS_BENCH = Path(__file__).resolve().parent.parent / "build/bin/plans_bench"
NAMES = ("plan_build_s", "plan_mib")


def run(report: Report) -> None:
    if not report.wants(*NAMES):
        return
    done = subprocess.run([str(PLANS_BENCH)], check=True, capture_output=True)
    for found in json.loads(done.stdout):
        case = f"{found['model']}, {found['tensors']} tensors"
        report.add(
            Line(
                NAMES[0], case, "s", found["seconds"], None, "", 1.0, "a second", 1.0, True, "limit"
            )
        )
        report.add(Line(NAMES[1], case, "MiB", found["bytes"] / 2**20))
