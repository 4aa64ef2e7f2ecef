"""Runs the benchmarks: `make bench`, or `make bench ONLY=regex` for some lines.

Prints ours, the peer and the physical limit side by side, all from this run, and writes build/bench/report.json.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

# Read when OpenMP is loaded: idle threads of one side must not take the processor from the other.
os.environ["OMP_WAIT_POLICY"] = "passive"

import allreduce
import checker
import codec
import distributed
import generation
import plans
import repack
import replica
import steps
import updates
from lines import Report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples" / "smollm2"))

from model import make_checkpoint


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
    generation.run(report, make_checkpoint(ROOT / "build/cache/smollm2"))
    steps.run(report, arguments.cache, ROOT / "build/bench/scratch")
    replica.run(report, arguments.cache, ROOT / "build/bench/scratch")
    codec.run(report, arguments.cache, ROOT / "build/bench/scratch")
    plans.run(report)
    repack.run(report)
    allreduce.run(report)
    checker.run(report)
    updates.run(report, ROOT / "build/bench/scratch")
    distributed.run(report)
    report.write(arguments.out)


if __name__ == "__main__":
    main()
