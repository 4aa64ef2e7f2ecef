"""Runs a trainer of several processes against an engine that serves streams meanwhile."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from server import Server, eventually
from streams import PATIENCE, Answer, Streams, check_all
from trainer import load, serves

FOLDER = Path(__file__).resolve().parent
HELP = [
    str(FOLDER.parent / folder) for folder in (".", "engine", "reference", "serve")
]  # that trainers import
CLIENTS = 32
TOKENS = (300, 700)  # of a request: some updates long
FEW_TOKENS = (20, 60)  # where updates wait for the end of requests
UPDATES = 5
BETWEEN = 8  # events that every client receives between two updates


class Trainers:
    """The processes of one trainer. What they print is shown when something fails."""

    def __init__(
        self, script: str, server: Server, model: Path, out: Path, ranks: int, **options: Any
    ) -> None:
        job = {
            "url": f"http://{server.host}:{server.port}",
            "model": str(model),
            "out": str(out),
            "world": ranks,
            "updates": UPDATES,
            "options": options,
        }
        out.mkdir(exist_ok=True)
        self._lines: queue.Queue[str] = queue.Queue()
        self._said: list[list[str]] = [[] for _ in range(ranks)]
        self._processes = [
            self._start([sys.executable, str(FOLDER / script), json.dumps(job | {"rank": rank})])
            for rank in range(ranks)
        ]
        self._readers = [
            threading.Thread(target=self._read, args=(rank,), daemon=True) for rank in range(ranks)
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _start(command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(HELP), "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def _read(self, rank: int) -> None:
        pipe = self._processes[rank].stdout
        assert pipe is not None
        for line in pipe:
            self._said[rank].append(line)
            if rank == 0 and line.startswith(("connected", "updated ")):
                self._lines.put(line.strip())
        self._lines.put(f"rank {rank} ended")

    def start_update(self) -> None:
        pipe = self._processes[0].stdin
        assert pipe is not None
        pipe.write("update\n")
        pipe.flush()

    def connected(self) -> None:
        self._expect("connected")

    def finish_update(self, version: int) -> None:
        self._expect(f"updated {version}")

    def end(self) -> None:
        """All ranks have ended well."""
        for process in self._processes:
            assert process.wait(PATIENCE) == 0, self._told("a trainer failed")

    def _expect(self, wanted: str) -> None:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            line = "nothing"
            for process in self._processes:
                process.send_signal(signal.SIGABRT)  # they show where they are
        assert line == wanted, self._told(f"expected {wanted!r}, got {line!r}")

    def _told(self, what: str) -> str:
        for reader in self._readers:
            reader.join(2)
        parts = [f"--- rank {rank}:\n{''.join(said)}" for rank, said in enumerate(self._said)]
        return "\n".join([what, *parts])

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def run(
    script: str,
    server: Server,
    model: Path,
    out: Path,
    ranks: int,
    *,
    aborts: bool = False,
    labels: bool = True,
    rounds: bool = False,
    **options: Any,
) -> dict[str, list[str]]:
    """Five updates under 32 streams; then the engine holds the trainer's weights, bit for bit.

    `aborts`: the trainer ends what runs. `labels`: it says which version it sends. `rounds`:
    requests end before an update begins. Returns, by request, the versions of its tokens.
    """
    with closing(Trainers(script, server, model, out, ranks, **options)) as trainers:
        trainers.connected()
        with closing(Streams(server.port, CLIENTS, FEW_TOKENS if rounds else TOKENS)) as streams:
            for version in range(1, UPDATES + 1):
                streams.advance(BETWEEN)
                if rounds:
                    streams.hold()
                trainers.start_update()
                trainers.finish_update(version)
                streams.release()
            streams.advance(BETWEEN)
            answers = streams.finish()
        trainers.end()
    return judge(server, out, answers, labels, aborts)


def judge(
    server: Server, out: Path, answers: Sequence[Answer], labels: bool, aborts: bool
) -> dict[str, list[str]]:
    versions = ["default"]
    if labels:
        versions += [str(version) for version in range(1, UPDATES + 1)]
    found = check_all(answers, versions, aborts)
    assert len(answers) >= CLIENTS
    assert {version for spans in found.values() for version in spans} == set(versions)
    assert server.get("/model_info").ok()["weight_version"] == versions[-1]
    weights = load(out / "weights")
    # A packed matrix's shape is checked by the engine, not kept.
    assert serves(server, {n: t for n, t in weights.items() if not n.endswith(".weight_shape")})
    eventually(lambda: server.load() == 0, "the engine is idle")
    return found
