"""What the demo shows: the table in the terminal, `report.json` and the picture.

Needs neither torch nor the model.
"""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

COLUMNS = 100
HEADER = "version    density       bytes   of full   publish      pull     pause   aborted   reward"


@dataclass(frozen=True)
class Version:
    """One published version."""

    version: int
    density: float  # share of the elements that changed, 0 to 1
    wire_bytes: int  # size of the version in the store
    full_bytes: int  # size of the dense weights
    publish_s: float
    pull_s: float
    pause_s: float  # in which nothing was generated, while the engine took the version
    aborted: int  # requests of other clients that the update ended
    reward: float  # mean over the answers that were sampled from these weights


@dataclass(frozen=True)
class Answer:
    """The greedy answers to a question that was never trained on."""

    question: str
    before: str
    after: str


@dataclass(frozen=True)
class Proof:
    """How many tensors both sides have, and how many are the same on both, byte for byte."""

    tensors: int
    equal: int


def table_row(row: Version) -> str:
    """One line under `HEADER`."""
    return (
        f"{row.version:7}  {row.density:8.2%}  {row.wire_bytes / 1e6:7.2f} MB"
        f"  {row.wire_bytes / row.full_bytes:8.2%}"
        f"  {row.publish_s:6.2f} s  {row.pull_s:6.2f} s  {row.pause_s:6.2f} s  {row.aborted:8}"
        f"  {row.reward:7.2f}  {'█' * round(10 * row.reward)}"
    ).rstrip()


def answer_lines(answer: Answer) -> str:
    """The question and its two answers, wrapped to the terminal."""
    lines = [answer.question]
    for label, text in (("before", answer.before), ("after", answer.after)):
        indent = f"  {label:8}"
        wrapped = textwrap.fill(text, COLUMNS, initial_indent=indent, subsequent_indent=" " * 10)
        lines.append(wrapped)
    return "\n".join(lines)


def write_report(path: Path, rows: list[Version], proof: Proof, answers: list[Answer]) -> None:
    """Writes the JSON report: `versions`, `proof` and `answers`, with the fields of the classes."""
    report = {
        "versions": [asdict(row) for row in rows],
        "proof": asdict(proof),
        "answers": [asdict(answer) for answer in answers],
    }
    path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def draw(path: Path, rows: list[Version]) -> None:
    """Draws reward and size of every version as a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    ink, soft, blue, orange = "#24292f", "#8c959f", "#0969da", "#e16f24"
    style: Any = {
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.edgecolor": soft,
        "xtick.color": ink,
        "ytick.color": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
    }
    versions = [row.version for row in rows]
    full = rows[0].full_bytes / 1e6
    sizes = [row.wire_bytes / 1e6 for row in rows]
    with pyplot.rc_context(style):
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
        left.plot(versions, [row.reward for row in rows], color=blue, marker="o", linewidth=2)
        left.fill_between(versions, [row.reward for row in rows], color=blue, alpha=0.1)
        left.set(title="Answers in one short sentence", ylabel="mean reward", ylim=(0, 1.03))
        left.grid(axis="y", color=soft, alpha=0.25)

        colors = [orange if size < full / 2 else soft for size in sizes]
        bars = right.bar(versions, sizes, color=colors, width=0.7)
        right.bar_label(bars, [f"{size:.1f}" for size in sizes], padding=2, fontsize=8)
        right.axhline(full, color=ink, linestyle="--", linewidth=1)
        right.text(versions[-1] + 0.35, full * 1.15, f"all weights: {full:.0f} MB", ha="right")
        right.set(title="Size of each version", ylabel="MB (logarithmic)", yscale="log")
        right.set_ylim(min(sizes) / 4, full * 2.5)
        right.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        for axes in (left, right):
            axes.set_xticks(versions)
            axes.set_xlabel("version")
        figure.savefig(path, dpi=160)
        pyplot.close(figure)
