"""miles' trainer, in processes of its own: five updates under 32 streams, in each of its forms.

In "tensor" all client code is that of miles 0.0.2; in "tensor-session" its buckets, its gathering and
its HTTP calls, in the session that newer versions open (the contract); in "disk" its HTTP calls, with
the publisher of our package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import run
from server import Server


@pytest.mark.parametrize("form", ["tensor", "tensor-session", "disk"])
def test_miles(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int, form: str
) -> None:
    found = run("miles_trainer.py", serve(ranks), bf16_llama, tmp_path, ranks, form=form)
    assert max(map(len, found.values())) >= 3, "no request spans several updates"


def test_miles_pauses_in_place(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int
) -> None:
    options: dict[str, Any] = {"form": "tensor-session", "mode": "in_place"}
    found = run("miles_trainer.py", serve(ranks), bf16_llama, tmp_path, ranks, **options)
    assert max(map(len, found.values())) >= 3, "no request spans several updates"
