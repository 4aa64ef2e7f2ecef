"""Lines of updates over process groups: a trainer's broadcasts that become live, beside bare ones.

build/bin/distributed_bench drives both in one run, over groups of the same kind, and checks after each
update that the live weights are what was sent. "undo": what comes is made ready in a second arena;
"in place": `undo_memory` is 0.

`update_distributed`: sessions of buckets of 128 MiB or 1,000 tensors; the peer is the bare broadcast of
the same buckets. `update_distributed_us`: what a session of 18,000 tensors takes beyond the bare
broadcasts, for each tensor.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from lines import Line, Report, median

DISTRIBUTED_BENCH = Path(__file__).resolve().parent.parent / "build/bin/distributed_bench"
PER_TENSOR = 50.0  # microseconds


def measure() -> list[dict[str, Any]]:
    done = subprocess.run([str(DISTRIBUTED_BENCH)], check=True, stdout=subprocess.PIPE)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def case_of(found: dict[str, Any]) -> str:
    form = "flattened" if found["flattened"] else "plain"
    return f"{found['of']}, {form}, {'undo' if found['undo'] else 'in place'}"


def run(report: Report) -> None:
    names = ("update_distributed", "update_distributed_us")
    if not any(report.wants(name) for name in names):
        return
    for found in measure():
        size = found["bytes"] / 1e9
        ours, bare = median(found["ours"]), median(found["bare"])
        if report.wants(names[0]):
            report.add(
                Line(
                    name=names[0],
                    case=f"{case_of(found)}, {size:.2f} GB",
                    unit="GB/s",
                    ours=size / ours,
                    peer=size / bare,
                    peer_name="the same broadcasts alone",
                    target=None if found["undo"] else 0.6,
                )
            )
        if report.wants(names[1]) and found["tensors"] > 1000:
            rounds = zip(found["ours"], found["bare"], strict=True)
            each = [1e6 * (update - alone) / found["tensors"] for update, alone in rounds]
            report.add(
                Line(
                    name=names[1],
                    case=case_of(found),
                    unit="us",
                    ours=median(each),
                    limit=PER_TENSOR,
                    limit_name="what is asked for",
                    target=1.0,
                    less_is_better=True,
                    target_of="limit",
                )
            )
