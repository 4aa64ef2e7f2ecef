"""verl's trainer: five updates under 32 streams.

All client code is that of verl 0.9.1 and SGLang, but the pause, which verl makes inside SGLang.

Every request flushes the cache, verl's default; there is no session and no label.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from relay import Relay
from running import run
from server import Server


def test_verl(serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int) -> None:
    server = serve(ranks)
    run("verl_trainer.py", server, bf16_llama, tmp_path, ranks, aborts=True, labels=False)


def test_verl_asks_again_when_a_reply_is_lost(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path
) -> None:
    """Every second update is made, and its reply lost: verl sends the very same payload again."""
    server = serve(2)
    options: dict[str, Any] = {"aborts": True, "labels": False}
    with closing(Relay(server.port, b"POST /update_weights_from_tensor", every=2)) as relay:
        run("verl_trainer.py", server, bf16_llama, tmp_path, 2, port=relay.port, **options)
        assert relay.lost >= 5
