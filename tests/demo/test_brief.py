"""The parts of the demo that need no model: reward, questions, table, report and picture."""

from __future__ import annotations

import json
import sys
from itertools import chain, islice
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "smollm2"))

import brief
import report

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("answer", "ended", "expected"),
    [
        ("Rain is falling water.", True, 1.0),
        ("Rain is wonderful water!", True, 1.0),
        ("It is 3.5 degrees warm.", True, 1.0),
        ("Rain is falling water.", False, 0.0),  # cut by the limit
        ("Rain is falling water", True, 0.0),
        ("Rain is water.", True, 0.0),  # three words
        ("Rain is falling water. It is wet.", True, 0.0),
        ("Is rain water? Yes it is.", True, 0.0),
        ("Is rain falling water?", True, 0.0),
        ("Rain is\nfalling water.", True, 0.0),
        ("Rain is falling water. ", True, 0.0),
        ("Rain is falling water...", True, 1.0),  # one end, however it is drawn
        ("", True, 0.0),
        (".", True, 0.0),
    ],
)
def test_reward(answer: str, ended: bool, expected: float) -> None:
    assert brief.reward(answer, ended) == expected


def test_questions_are_distinct() -> None:
    asked, held_out = brief.questions(), brief.questions(brief.HELD_OUT)
    assert (len(set(asked)), len(set(held_out))) == (32, 8)
    assert not set(asked) & set(held_out)
    assert all(
        question == question.strip() and question[-1] == "?" for question in asked + held_out
    )


def test_schedule_repeats_with_its_seed_and_asks_everything_once_a_round() -> None:
    first = list(islice(brief.schedule(7), 8))
    assert first == list(islice(brief.schedule(7), 8))
    assert first != list(islice(brief.schedule(8), 8))
    for rounds in (first[:4], first[4:]):
        assert sorted(chain.from_iterable(rounds)) == sorted(brief.questions())


@pytest.fixture
def rows() -> list[report.Version]:
    full = 269_030_016
    first = report.Version(0, 1.0, full, full, 0.5, 0.6, 0.1, 0, 0.1)
    return [first] + [
        report.Version(n, 0.08, 22_000_000 + n, full, 0.2, 0.1, 0.1, 0, n / 9) for n in range(1, 9)
    ]


def test_rows_fit_under_the_header(rows: list[report.Version]) -> None:
    for row in [*rows, report.Version(8, 0.1, 10**8, 10**9, 99.99, 99.99, 99.99, 0, 1.0)]:
        line = report.table_row(row)
        assert len(line) <= report.COLUMNS
        assert line[: len(report.HEADER)].rstrip()[-4:] == f"{row.reward:.2f}"


def test_answers_fit_the_terminal() -> None:
    lines = report.answer_lines(report.Answer("Why?", "word " * 60, "Because it is so.")).split(
        "\n"
    )
    assert max(map(len, lines)) <= report.COLUMNS
    assert lines[0] == "Why?" and lines[-1] == "  after   Because it is so."


def test_report_has_the_promised_fields(tmp_path: Path, rows: list[report.Version]) -> None:
    path = tmp_path / "report.json"
    answers = [report.Answer("Why?", "Because … of it", "Because it is so.")]
    report.write_report(path, rows, report.Proof(tensors=272, equal=272), answers)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert set(written) == {"versions", "proof", "answers"}
    assert written["proof"] == {"tensors": 272, "equal": 272}
    assert written["answers"][0] == {
        "question": "Why?",
        "before": "Because … of it",
        "after": "Because it is so.",
    }
    assert [set(version) for version in written["versions"]] == [
        {
            "version",
            "density",
            "wire_bytes",
            "full_bytes",
            "publish_s",
            "pull_s",
            "pause_s",
            "aborted",
            "reward",
        }
    ] * 9


def test_picture_is_a_png(tmp_path: Path, rows: list[report.Version]) -> None:
    path = tmp_path / "demo.png"
    report.draw(path, rows)
    assert path.read_bytes().startswith(PNG_SIGNATURE)
