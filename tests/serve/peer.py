"""A process of a trainer that writes straight into an engine's memory, with Mooncake's own library.

    python peer.py FILE

It maps FILE, registers it, and then does what it is told on standard input, a line of JSON each:
{"write": [[SESSION, ADDRESS, OFFSET, LENGTH], …]}, or "read". It answers {"status": N} of each.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Transfer = tuple[str, int, int, int]  # session, address, offset, length


class Peer:
    """`size` bytes that are shared with a process of its own, which transfers them."""

    def __init__(self, path: Path, size: int) -> None:
        path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), size)
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def write(self, transfers: Sequence[Transfer]) -> list[int]:
        return self._tell("write", transfers)

    def read(self, transfers: Sequence[Transfer]) -> list[int]:
        return self._tell("read", transfers)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def _tell(self, what: str, transfers: Sequence[Transfer]) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({what: transfers}) + "\n")
        self.process.stdin.flush()
        return list(json.loads(self.process.stdout.readline())["status"])


def main(path: Path) -> None:
    os.environ["GLOG_minloglevel"] = "2"
    from mooncake.engine import TransferEngine

    engine: Any = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), path.stat().st_size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert engine.register_memory(base, len(memory)) == 0
    for line in sys.stdin:
        ((what, transfers),) = json.loads(line).items()
        call = engine.transfer_sync_write if what == "write" else engine.transfer_sync_read
        status = [call(s, base + offset, to, length) for s, to, offset, length in transfers]
        print(json.dumps({"status": status}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
