"""AReaL's trainer, in processes of its own: five updates under 32 streams.

All client code is AReaL's 1.0.4, but the few lines that order the calls of an update. It pauses by
{}, which ends what runs, sends abort_all_requests, and no label.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from running import run
from server import Server


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {"form": "disk"}),
        (2, {"form": "disk"}),
        (1, {"form": "broadcast"}),
        (2, {"form": "broadcast"}),
        (2, {"form": "broadcast", "stages": 2}),
    ],
    ids=lambda value: (
        "-".join(map(str, value.values())) if isinstance(value, dict) else f"tp{value}"
    ),
)
def test_areal(
    serve: Callable[..., Server],
    bf16_llama: Path,
    tmp_path: Path,
    ranks: int,
    options: dict[str, Any],
) -> None:
    fields = options | {"aborts": True, "labels": False}
    run("areal_trainer.py", serve(ranks), bf16_llama, tmp_path, ranks, **fields)
