"""Fuzzes with clang's libFuzzer, address and undefined-behaviour sanitizers: `make fuzz`.

Each target starts from fuzz/corpus/TARGET and from what earlier runs have left in
build/fuzz/found/TARGET. An input that makes a target fail is kept in build/fuzz/failures. With
--keep, inputs of at most 2 KiB that reach code which the kept corpus does not are added to it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
CORPUS = ROOT / "fuzz" / "corpus"
MAX_BYTES = 2048
MAX_FILES = 60


def build(targets: list[str]) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cmake", "--preset", "fuzz"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    names = [f"fuzz_{target}" for target in targets]
    subprocess.run(["cmake", "--build", BUILD, "--target", *names], check=True)


def fuzz(target: str, seconds: int) -> bool:
    """Runs one target; did everything hold?"""
    found = BUILD / "found" / target
    failures = BUILD / "failures"
    for folder in (found, failures):
        folder.mkdir(parents=True, exist_ok=True)
    command = [str(path) for path in (BUILD / "bin" / f"fuzz_{target}", found, CORPUS / target)]
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={2 * MAX_BYTES}",
        "-timeout=10",
        "-rss_limit_mb=2048",
        "-print_final_stats=1",
        f"-artifact_prefix={failures}/{target}-",
    ]
    done = subprocess.run([*command, *options], check=False, capture_output=True, text=True)
    wanted = (
        "stat::number_of_executed_units",
        "stat::new_units_added",
        "terminat",
        "ERROR",
        "what()",
    )
    for line in done.stderr.splitlines():
        if any(word in line for word in wanted):
            print(f"{target}: {line.strip()}")
    if done.returncode != 0:
        print(f"{target}: failed; the input is in {failures}")
    return done.returncode == 0


def keep(target: str) -> None:
    """Adds what was found to the kept corpus: a random choice of what covers it all."""
    kept = CORPUS / target
    with tempfile.TemporaryDirectory() as scratch:
        merged = Path(scratch) / "merged"
        shutil.copytree(kept, merged)
        before = {path.name for path in merged.iterdir()}
        command = [
            str(BUILD / "bin" / f"fuzz_{target}"),
            "-set_cover_merge=1",
            f"-max_len={MAX_BYTES}",
        ]
        folders = [str(merged), str(BUILD / "found" / target)]
        subprocess.run([*command, *folders], check=True, capture_output=True)
        new = [path for path in merged.iterdir() if path.name not in before]
        new.sort()  # their names are hashes
        room = MAX_FILES - 5 - len(before)  # some for failures to come
        for path in new[: max(0, room)]:
            shutil.copy(path, kept / f"found-{path.name[:12]}")
        print(f"{target}: {min(len(new), max(0, room))} of {len(new)} new inputs kept")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each target; 0: none")
    parser.add_argument("--target", help="only this one")
    parser.add_argument("--keep", action="store_true", help="add what was found to the corpus")
    arguments = parser.parse_args()
    known = sorted(path.name for path in CORPUS.iterdir())
    if arguments.target and arguments.target not in known:
        parser.error(f"no target {arguments.target}; there are {', '.join(known)}")
    targets = [arguments.target] if arguments.target else known
    build(targets)
    good = [fuzz(target, arguments.seconds) for target in targets if arguments.seconds > 0]
    if arguments.keep:
        for target in targets:
            keep(target)
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
