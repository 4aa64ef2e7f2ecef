"""miles' trainer, in processes of its own: five updates under 32 streams, in each of its forms.

In "tensor" and "broadcast" all client code is that of miles 0.0.2; with "-session" its buckets,
groups and HTTP calls, in the session that newer versions open (the contract); in "disk" its HTTP
calls, with the publisher of our package.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import run
from server import Server


@pytest.mark.parametrize(
    "form", ["tensor", "tensor-session", "broadcast", "broadcast-session", "disk"]
)
def test_miles(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int, form: str
) -> None:
    found = run("miles_trainer.py", serve(ranks), bf16_llama, tmp_path, ranks, form=form)
    # While deltas are published and pulled, generation goes on, for as long as that takes.
    spans = 2 if form == "disk" else 3
    assert max(map(len, found.values())) >= spans, "no request spans several updates"


@pytest.mark.parametrize("form", ["tensor-session", "broadcast"])
def test_miles_pauses_in_place(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int, form: str
) -> None:
    options: dict[str, Any] = {"form": form, "mode": "in_place"}
    found = run("miles_trainer.py", serve(ranks), bf16_llama, tmp_path, ranks, **options)
    assert max(map(len, found.values())) >= 3, "no request spans several updates"


def test_miles_writes_into_parameters(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int
) -> None:
    """Its P2P form: questions, plan and writes are its own code, their order is the contract's."""
    server = serve(ranks, "--p2p")
    found = run("miles_trainer.py", server, bf16_llama, tmp_path, ranks, form="writes")
    assert max(map(len, found.values())) >= 3, "no request spans several updates"
