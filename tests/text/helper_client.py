"""The other side of python/syncline/tokenizer_helper.py."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, final

ROOT = Path(__file__).resolve().parents[2]
HELPER = ROOT / "python" / "syncline" / "tokenizer_helper.py"


@final
class HelperClient:
    """Starts the helper on a model directory. `ready` is its first message."""

    def __init__(self, directory: Path, program: Path = HELPER) -> None:
        self.process = subprocess.Popen(
            [sys.executable, program, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._number = 0
        self.ready = self.receive()

    def __enter__(self) -> HelperClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> tuple[int, str]:
        """Ends its input. Returns its exit status and what it wrote to standard error."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors.decode()

    def send(self, message: Any) -> None:
        data = json.dumps(message, ensure_ascii=False).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(struct.pack("<I", len(data)) + data)
        self.process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        (length,) = struct.unpack("<I", self.process.stdout.read(4))
        message = json.loads(self.process.stdout.read(length))
        assert isinstance(message, dict)
        return message

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The reply to a request, without its id."""
        self._number += 1
        self.send({"id": self._number, "op": op, **fields})
        reply = self.receive()
        assert reply.pop("id") == self._number
        return reply

    def encode(self, *texts: str, add_special_tokens: bool = False) -> list[list[int]]:
        reply = self.ask("encode", texts=list(texts), add_special_tokens=add_special_tokens)
        return list(reply["tokens"])

    def chat(self, messages: Any, **options: Any) -> dict[str, Any]:
        return self.ask("chat", messages=messages, options=options)

    def refusal(self, messages: Any, **options: Any) -> str:
        """The error of a request that must fail."""
        reply = self.chat(messages, **options)
        assert set(reply) == {"error"}, reply
        return str(reply["error"])
