"""Runs every test there is and ends with one line that counts them all.

C++: each `*_test` program in BUILD/bin. Python: pytest over tests/, or with --only-cpp a short run of the program `orders`, which pytest
runs otherwise. The last line is `N passed, N failed, N skipped`; the exit status is 0 only if nothing failed and something ran.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ORDERS = 300  # cases of `orders` beside the C++ tests
# What sanitizers need to know of libraries that are not built with them (docs/sanitizers.md). Other
# programs do not read these.
SANITIZERS = {
    "ASAN_OPTIONS": "detect_odr_violation=0:alloc_dealloc_mismatch=0:quarantine_size_mb=32",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tools/lsan.supp:print_suppressions=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"suppressions={ROOT}/tools/tsan.supp:ignore_noninstrumented_modules=1",
}


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def add(self, other: "Count") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def run_gtest(program: Path, scratch: Path) -> Count:
    """Runs one GoogleTest program; a crash counts as one failure beside what had passed before."""
    report = scratch / f"{program.name}.json"
    done = subprocess.run(
        [program, "--gtest_brief=1", f"--gtest_output=json:{report}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if not report.exists():
        print(done.stdout)
        print(f"{program.name}: ended with status {done.returncode} before its report")
        return Count(failed=1)
    count = Count()
    for suite in json.loads(report.read_text())["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("failures"):
                count.failed += 1
            elif test.get("result") in ("SKIPPED", "SUPPRESSED"):
                count.skipped += 1
            else:
                count.passed += 1
    if done.returncode != 0:
        print(done.stdout)
        count.failed = max(count.failed, 1)
    return count


def run_orders(program: Path) -> Count:
    """Every case counts."""
    done = subprocess.run(
        [program, "--cases", str(ORDERS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode == 0:
        return Count(passed=ORDERS)
    print(done.stdout)
    return Count(failed=1)


def run_pytest(scratch: Path, arguments: list[str]) -> Count:
    report = scratch / "pytest.xml"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "tests", "-q", "--no-header", "-rs", "--tb=short"]
        + [f"--junitxml={report}", *arguments],
        cwd=ROOT,
        check=False,
    )
    if not report.exists():
        return Count(failed=1)
    count = Count()
    for suite in ET.parse(report).getroot().iter("testsuite"):
        bad = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        count.add(Count(int(suite.get("tests", 0)) - bad - skipped, bad, skipped))
    if done.returncode not in (0, 1):
        count.failed = max(count.failed, 1)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="build folder")
    parser.add_argument("--only-cpp", action="store_true", help="leave out pytest")
    arguments, pytest_arguments = parser.parse_known_args()

    os.environ.update({name: text for name, text in SANITIZERS.items() if name not in os.environ})
    total = Count()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for program in sorted((arguments.build.resolve() / "bin").glob("*_test")):
            begin = time.monotonic()
            count = run_gtest(program, scratch)
            print(f"{program.name}: {count} ({time.monotonic() - begin:.1f} s)", flush=True)
            total.add(count)
        orders = arguments.build.resolve() / "bin" / "orders"
        if not arguments.only_cpp:
            total.add(run_pytest(scratch, pytest_arguments))
        elif orders.exists():
            begin = time.monotonic()
            count = run_orders(orders)
            print(f"orders: {count} ({time.monotonic() - begin:.1f} s)", flush=True)
            total.add(count)
    print(total)
    return 0 if total.failed == 0 and total.passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
