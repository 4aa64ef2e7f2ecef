"""Lines of sums over ranks: build/bin/allreduce_bench measures and checks them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from lines import Line, Report

ALLREDUCE_BENCH = Path(__file__).resolve().parent.parent / "build/bin/allreduce_bench"
NAME = "allreduce_us"


def run(report: Report) -> None:
    if not report.wants(NAME):
        return
    done = subprocess.run([str(ALLREDUCE_BENCH)], check=True, capture_output=True)
    for found in json.loads(done.stdout):
        report.add(
            Line(
                name=NAME,
                case=f"2 ranks over loopback, {found['floats']} fp32",
                unit="us",
                ours=found["ours"],
                peer=found["gloo"],
                peer_name="libtorch's Gloo",
                limit=found["trip"],
                limit_name="as many bytes one way over a bare connection",
                target=1.0,
                less_is_better=True,
            )
        )
