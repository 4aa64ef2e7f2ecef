"""Runs the benchmarks: `make bench`, or `make bench ONLY=regex` for some lines.

Prints ours, the peer and the physical limit side by side, all from this run, and writes build/bench/report.json.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

import steps
from lines import Report

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="lines whose name matches this pattern")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/cache/pairs")
    parser.add_argument("--out", type=Path, default=ROOT / "build/bench/report.json")
    arguments = parser.parse_args()
    report = Report(re.compile(arguments.only))
    subprocess.run(
        [sys.executable, ROOT / "bench/pairs.py", "--cache", arguments.cache], check=True
    )
    steps.run(report, arguments.cache, ROOT / "build/bench/scratch")
    report.write(arguments.out)


if __name__ == "__main__":
    main()
