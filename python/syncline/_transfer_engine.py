"""The helper process of syncline-engine that others write weights into.

It maps memory of the engine and, while that is open, has it registered with Mooncake's transfer
engine, which refuses what goes elsewhere. The engine asks it over standard input and output, a line
of JSON each (src/transport/transfer_engine.cc):

    {"do":"serve","memory":PATH,"bytes":N,"host":HOST}  {"session":"HOST:PORT","address":ADDRESS}
    {"do":"open"}                                       {"ok":true}
    {"do":"close"}                                      {"ok":true}

An answer {"error":TEXT} is the last one. The helper ends when its input does. Needs `mooncake`
(mooncake-transfer-engine, or mooncake-transfer-engine-non-cuda).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any, BinaryIO


class HelperError(Exception):
    """What keeps the helper from its work; the text is for who started the engine."""


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Input and output for messages alone: what libraries print goes to standard error."""
    source, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return source, output


class Window:
    """Memory of the engine that peers write into."""

    def __init__(self, path: str, size: int, host: str) -> None:
        try:
            from mooncake.engine import TransferEngine  # type: ignore
        except ImportError as error:
            raise HelperError(
                "writes of trainers need Mooncake's transfer engine "
                f"(pip install mooncake-transfer-engine-non-cuda): {error}"
            ) from error
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._memory = mmap.mmap(descriptor, size, mmap.MAP_SHARED)
        os.close(descriptor)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._engine = TransferEngine()
        if self._engine.initialize(host, "P2PHANDSHAKE", "tcp", "") != 0:
            raise HelperError(f"the transfer engine cannot listen at {host}")
        self.session = f"{host}:{self._engine.get_rpc_port()}"
        self._size, self._open = size, False
        self.open()
        self.close()

    def open(self) -> None:
        """What peers write arrives from now on."""
        if not self._open:
            status = self._engine.register_memory(self.address, self._size)
            if status != 0:
                raise HelperError(f"the transfer engine refuses {self._size} bytes: {status}")
        self._open = True

    def close(self) -> None:
        """It is refused from now on."""
        if self._open and (status := self._engine.unregister_memory(self.address)) != 0:
            raise HelperError(f"the transfer engine keeps its memory: {status}")
        self._open = False


class Helper:
    def __init__(self) -> None:
        self._window: Window | None = None

    def answer(self, question: Mapping[str, Any]) -> dict[str, Any]:
        do = question["do"]
        if do == "serve" and self._window is None:
            host = str(question["host"])
            self._window = Window(str(question["memory"]), int(question["bytes"]), host)
            return {"session": self._window.session, "address": self._window.address}
        if do not in ("open", "close") or self._window is None:
            raise HelperError(f"unexpected question {do!r}")
        if do == "open":
            self._window.open()
        else:
            self._window.close()
        return {"ok": True}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine decides when to end
    os.environ.setdefault("GLOG_minloglevel", "2")  # the library says a lot
    source, output = take_streams()
    helper = Helper()
    for line in source:
        try:
            answer, status = helper.answer(json.loads(line)), None
        except Exception as error:  # noqa: BLE001
            text = str(error) if isinstance(error, HelperError) else repr(error)
            answer, status = {"error": text}, 1
        output.write(json.dumps(answer).encode() + b"\n")
        output.flush()
        if status is not None:
            os._exit(status)
    os._exit(0)  # nothing is waited for: threads of the library may hang


if __name__ == "__main__":
    main()
