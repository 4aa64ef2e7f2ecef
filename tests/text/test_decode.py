"""Decoding in C++ equals the `tokenizers` library, for random ids.

The cases go to the C++ test Decode.* by the environment variable SYNCLINE_DECODE_CASES.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from small_tokenizers import small_tokenizers
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("SYNCLINE_TEXT_TEST") or ROOT / "build" / "bin" / "text_test")

TEXTS = [
    "The quick brown fox.",
    "  leading and  double spaces \n\n\tand tabs",
    "Grüße, naïve façade — “quotes” …",
    "日本語のテキスト、한국어, русский, العربية, ไทย",
    "😀👩‍👩‍👧‍👦🏳️‍🌈 emoji",
    "<|im_start|>user\nhello<|im_end|>\n",
    "def f(x):\n    return x ** 2  # ½",
]


def random_ids(rng: random.Random, known: list[int], count: int) -> Iterable[list[int]]:
    """Sequences of known ids, short and long, with some ids that no tokenizer knows."""
    for _ in range(count):
        ids = rng.choices(known, k=rng.choice([0, 1, 2, 3, 5, 8, 13, 40]))
        if rng.random() < 0.2:
            ids.insert(rng.randrange(len(ids) + 1), rng.choice([1_000_000, 2**31 - 1]))
        yield ids


def cases(tokenizer: Tokenizer, sequences: Iterable[list[int]]) -> list[dict[str, Any]]:
    return [
        {"ids": ids, "skip": skip, "text": tokenizer.decode(ids, skip_special_tokens=skip)}
        for ids in sequences
        for skip in (True, False)
    ]


def run_cases(tmp_path: Path, directory: Path, all_cases: list[dict[str, Any]]) -> None:
    file = tmp_path / "cases.json"
    content = [{"directory": str(directory), "cases": all_cases}]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
    done = subprocess.run(
        [PROGRAM, "--gtest_filter=Decode.*"],
        env={**os.environ, "SYNCLINE_DECODE_CASES": str(file)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert f"{len(all_cases)} cases" in done.stdout


@pytest.mark.parametrize("name", small_tokenizers())
def test_small_tokenizer(tmp_path: Path, name: str) -> None:
    text = json.dumps(small_tokenizers()[name])
    (tmp_path / "tokenizer.json").write_text(text)
    tokenizer = Tokenizer.from_str(text)
    rng = random.Random(name)
    known = list(tokenizer.get_vocab().values())
    some = rng.sample(known, min(len(known), 6))  # the same few over and over
    sequences = [[number] for number in range(200)]
    sequences += random_ids(rng, known, 400)
    sequences += random_ids(rng, some, 100)
    run_cases(tmp_path, tmp_path, cases(tokenizer, sequences))


def test_smollm2(tmp_path: Path, smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    rng = random.Random(1)
    known = list(tokenizer.get_vocab().values())
    # Tokens that are not whole characters meet each other.
    parts = [number for number in known if "\ufffd" in tokenizer.decode([number])]
    assert len(parts) > 100
    texts = [tokenizer.encode(text).ids for text in TEXTS]
    sequences = [[number] for number in known[:: len(known) // 500]]
    sequences += [ids[:end] for ids in texts for end in range(len(ids) + 1)]
    sequences += random_ids(rng, known, 300)
    sequences += random_ids(rng, parts + list(range(17)), 500)
    run_cases(tmp_path, smollm2, cases(tokenizer, sequences))
