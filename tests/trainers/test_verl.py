"""verl's trainer: all client code is verl's 0.9.1 and SGLang's, but the pause, which verl makes in SGLang.

Every request flushes the cache, verl's default; there is no session and no label.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from relay import Relay
from running import run
from server import Server


def test_verl(serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int) -> None:
    server = serve(ranks)
    run("verl_trainer.py", server, bf16_llama, tmp_path, ranks, aborts=True, labels=False)


def test_verl_asks_again_when_a_reply_is_lost(
    serve: Callable[..., Server], bf16_llama: Path, tmp_path: Path, ranks: int
) -> None:
    """Every second update is made, and its reply lost: verl sends the very same payload again."""
    server = serve(ranks)
    with closing(Relay(server.port, b"POST /update_weights_from_tensor", every=2)) as relay:
        run(
            "verl_trainer.py",
            server,
            bf16_llama,
            tmp_path,
            ranks,
            aborts=True,
            labels=False,
            port=relay.port,
        )
        assert relay.lost >= 5
