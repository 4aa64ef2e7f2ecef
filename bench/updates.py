"""Lines of updates: how fast new weights become live in an engine that has nothing else to do.

build/bin/updates_bench drives the updates in process and checks after each that the live weights are
what was sent. "undo": what comes is made ready in a second arena, so every byte is copied twice;
"in place": `undo_memory` is 0.

`update_tensor`: sessions of messages; the limit is memcpy of the same messages into one block.
`update_disk`: checkpoints, their files warm; the limit is reading the files into one warm block. Data
that is not at a multiple of 64 in the file ("as others write") is slower to copy to where weights
lie; the limit's block is aligned as the file is.
`session_overhead_ms`: sessions of 18,000 small tensors, less memcpy of as many bytes: once for the
commit where there is a second arena, and, where messages count too, once more.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lines import Line, Report, median

UPDATES_BENCH = Path(__file__).resolve().parent.parent / "build/bin/updates_bench"
MEMORY = Path("/dev/shm/syncline-bench-updates")
# The line's name, the program's name of its cases.
NAMES = {"update_tensor": "tensors", "update_disk": "disk", "session_overhead_ms": "session"}
OVERHEAD = 100.0  # ms


def measure(scratch: Path, only: str) -> list[dict[str, Any]]:
    """The cases of one kind; the checkpoints are removed."""
    folders = (scratch / "updates", MEMORY)
    try:
        command = [str(UPDATES_BENCH), *map(str, folders), "--only", only]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def mode(found: dict[str, Any]) -> str:
    return "undo" if found["undo"] else "in place"


def add_rates(report: Report, name: str, found: dict[str, Any]) -> None:
    size = found["bytes"] / 1e9
    targets = {"update_tensor": (0.35, 0.7), "update_disk": (0.4, 0.8)}[name]
    report.add(
        Line(
            name=name,
            case=f"{found['of']}, {size:.2f} GB, {mode(found)}",
            unit="GB/s",
            ours=size / median(found["ours"]),
            limit=size / median(found["limit"]),
            limit_name="memcpy, as many threads"
            if name == "update_tensor"
            else "reading the files, as many threads",
            target=targets[0] if found["undo"] else targets[1],
            target_of="limit",
        )
    )


def add_overheads(report: Report, found: dict[str, Any]) -> None:
    commits = 1 if found["undo"] else 0
    parameters = "96 parameters" if found["of"] == "fused" else "18,000 parameters"
    rounds = list(zip(found["begin"], found["messages"], found["end"], found["limit"], strict=True))
    cases = {
        "begin and end": [begin + end - commits * copy for begin, _, end, copy in rounds],
        "all": [sum(times) - (1 + commits) * copy for *times, copy in rounds],
    }
    for case, seconds in cases.items():
        report.add(
            Line(
                name="session_overhead_ms",
                case=f"{case}, {parameters}, {mode(found)}",
                unit="ms",
                ours=1000 * median(seconds),
                limit=OVERHEAD,
                limit_name="what is asked for",
                target=1.0,
                less_is_better=True,
                target_of="limit",
            )
        )


def run(report: Report, scratch: Path) -> None:
    for name, cases in NAMES.items():
        if not report.wants(name):
            continue
        for found in measure(scratch, cases):
            if cases == "session":
                add_overheads(report, found)
            else:
                add_rates(report, name, found)
