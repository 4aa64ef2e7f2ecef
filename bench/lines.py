"""Lines of the benchmark: ours, a peer and a physical limit, measured in one run."""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal


@dataclass
class Line:
    """One figure.

    `target` is a ratio of ours to the peer, or to the limit where `target_of` says so: at least, or
    at most where less is better.
    """

    name: str
    case: str
    unit: str
    ours: float
    peer: float | None = None
    peer_name: str = ""
    limit: float | None = None
    limit_name: str = ""
    target: float | None = None
    less_is_better: bool = False
    target_of: Literal["peer", "limit"] = "peer"

    @property
    def ratio(self) -> float | None:
        """Ours to the peer."""
        return self.ours / self.peer if self.peer else None

    @property
    def reached(self) -> float | None:
        """The ratio that the target is about."""
        other = self.limit if self.target_of == "limit" else self.peer
        return self.ours / other if other else None

    @property
    def ok(self) -> bool:
        if self.target is None or self.reached is None:
            return True
        return self.reached <= self.target if self.less_is_better else self.reached >= self.target


@dataclass
class Report:
    """Prints lines as they come and keeps them for report.json."""

    only: re.Pattern[str] = field(default_factory=lambda: re.compile(""))
    lines: list[Line] = field(default_factory=list)

    def wants(self, *names: str) -> bool:
        return any(self.only.search(name) for name in names)

    def add(self, line: Line) -> None:
        if not self.wants(line.name):
            return
        if not self.lines:
            print(f"{'line':<32} {'case':<44} {'ours':>9} {'peer':>9} {'ratio':>7} {'limit':>9}")
        self.lines.append(line)

        def number(value: float | None) -> str:
            return "-" if value is None else f"{value:.2f}"

        verdict = "" if line.target is None else f"  target {line.target}"
        if verdict:
            if line.target_of == "limit":
                verdict += f" of the limit, {number(line.reached)}"
            verdict += ": met" if line.ok else ": MISSED"
        print(
            f"{line.name:<32} {line.case:<44} {number(line.ours):>9} {number(line.peer):>9} "
            f"{number(line.ratio):>7} {number(line.limit):>9}  {line.unit}{verdict}",
            flush=True,
        )

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [asdict(line) | {"ok": line.ok} for line in self.lines]
        path.write_text(json.dumps(rows, indent=1) + "\n")
        for kind in ("peer", "limit"):
            seen = {
                (line.name, getattr(line, f"{kind}_name"))
                for line in self.lines
                if getattr(line, kind) is not None
            }
            for name, text in sorted(seen):
                print(f"{kind} of {name}: {text}")
        print(f"wrote {path}")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def median(values: list[float]) -> float:
    return statistics.median(values)
