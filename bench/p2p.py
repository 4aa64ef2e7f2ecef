"""Line of updates that a trainer writes straight into an engine's memory: whole sessions.

The engine is SmolLM2 with nothing else to do; the trainer is this process, with Mooncake's transfer
engine over TCP, and writes every parameter in one batch. The peer is that engine's copy of the same
bytes into memory of another process, by the same call. "undo": begin copies the live weights aside and
the end copies what differs back; "in place": `--undo-memory 0`. Each session's last digest must differ
from the one before it.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from lines import Line, Report, median, seconds

ROOT = Path(__file__).resolve().parent.parent
NAME = "update_p2p"
ROUNDS = 5
TARGET = 0.8


class Engine:
    def __init__(self, model: Path, *arguments: str) -> None:
        program = ROOT / "build/bin/syncline-engine"
        command = [str(program), "--model", str(model), "--port", "0", "--skip-tokenizer-init"]
        self._process = subprocess.Popen(
            [*command, "--log-level", "warning", "--p2p", *arguments],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self._url = json.loads(self._process.stdout.readline())["url"]

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data)
        with urllib.request.urlopen(request) as reply:
            return json.loads(reply.read())

    def checksum(self) -> str:
        return str(self.call("/weights_checker", {})["per_engine_checksum"])

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


class Copy:
    """Memory of another process, behind the same helper that the engine has."""

    def __init__(self, size: int) -> None:
        self._memory = os.memfd_create("bench")
        os.ftruncate(self._memory, size)
        self._process = subprocess.Popen(
            [sys.executable, str(ROOT / "python/syncline/_transfer_engine.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        path = f"/proc/{os.getpid()}/fd/{self._memory}"
        serve = {"do": "serve", "memory": path, "bytes": size, "host": "127.0.0.1"}
        answer = self._ask(serve)
        self._ask({"do": "open"})
        self.session, self.address = str(answer["session"]), int(answer["address"])

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        os.close(self._memory)


def measure(engine: Engine, transfer: Any) -> tuple[int, float, float]:
    """Bytes; seconds of a session, and of the copy alone."""
    info = engine.call("/remote_instance_transfer_engine_info?rank=0")
    session, places = info["remote_instance_transfer_engine_info"]
    lengths = [elements * size for _, elements, size in places.values()]
    total = sum(lengths)
    memory = mmap.mmap(-1, total)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert transfer.register_memory(base, total) == 0
    offsets = [sum(lengths[:i]) for i in range(len(lengths))]
    sources = [base + offset for offset in offsets]
    copy = Copy(total)
    ours: list[float] = []
    peer: list[float] = []

    def write(to: str, targets: list[int]) -> None:
        assert transfer.batch_transfer_sync_write(to, sources, targets, lengths) == 0

    def update() -> None:
        engine.call("/begin_weight_update", {})
        write(session, [address for address, _, _ in places.values()])
        engine.call("/end_weight_update", {})

    try:
        checksum = engine.checksum()
        for turn in range(ROUNDS + 1):
            memory[:] = bytes([turn, 60]) * (total // 2)
            spent = seconds(update)
            alone = seconds(lambda: write(copy.session, [copy.address + o for o in offsets]))
            before, checksum = checksum, engine.checksum()
            assert before != checksum
            if turn > 0:  # memory is warm
                ours.append(spent)
                peer.append(alone)
    finally:
        copy.close()
        transfer.unregister_memory(base)
    return total, median(ours), median(peer)


def run(report: Report, model: Path) -> None:
    if not report.wants(NAME):
        return
    os.environ.setdefault("GLOG_minloglevel", "2")
    from mooncake.engine import TransferEngine

    transfer = TransferEngine()
    assert transfer.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    for mode, arguments in (("undo", ()), ("in place", ("--undo-memory", "0"))):
        engine = Engine(model, *arguments)
        try:
            total, ours, peer = measure(engine, transfer)
        finally:
            engine.close()
        report.add(
            Line(
                name=NAME,
                case=f"SmolLM2, {total / 1e9:.2f} GB, {mode}",
                unit="GB/s",
                ours=total / 1e9 / ours,
                peer=total / 1e9 / peer,
                peer_name="the transfer engine's copy of the same bytes",
                target=TARGET,
            )
        )
