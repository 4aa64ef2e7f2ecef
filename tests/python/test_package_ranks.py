"""Several processes of one trainer publish together, each with its own tensors."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import syncline
from numpy.typing import NDArray

WORLD = 3
# Publishes `steps` versions of two tensors of its own and one that all ranks hold. A line for each.
RANK = """
import sys
import numpy as np
import syncline

store, rank, world, first, steps, timeout = sys.argv[1], *map(int, sys.argv[2:6]), float(sys.argv[6])
with syncline.Publisher(store, rank=rank, world=world, timeout=timeout, full_copy_ratio=0) as publisher:
    for step in range(first, first + steps):
        tensors = {f"r{rank}.{i}": np.full((40, 30), step * (i + 1) + rank, np.float32) for i in range(2)}
        tensors["shared"] = np.full(7, step, np.int32)
        try:
            report = publisher.publish(None, tensors)
            print(report.version, report.kind, report.tensors, report.identity, flush=True)
        except syncline.Error as error:
            print(type(error).__name__, error, flush=True)
"""


def start(store: Path, rank: int, *, first: int, steps: int, timeout: float = 60) -> Any:
    command = [sys.executable, "-c", textwrap.dedent(RANK), *map(str, (store, rank, WORLD, first))]
    return subprocess.Popen(
        [*command, str(steps), str(timeout)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(process: Any) -> list[str]:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out.splitlines()


def check(store: Path, replica: Path, step: int) -> None:
    syncline.pull(store, replica)
    checkpoint = syncline.open_checkpoint(replica)
    assert len(list(checkpoint)) == 2 * WORLD + 1
    for rank in range(WORLD):
        for i in range(2):
            held = np.asarray(checkpoint[f"r{rank}.{i}"]).view(np.float32)
            assert (held == step * (i + 1) + rank).all()
    assert (np.asarray(checkpoint["shared"]).view(np.int32) == step).all()


def test_processes_publish_together_and_come_back(store: Path, replica: Path) -> None:
    """Full versions and deltas; all ranks are started anew in between."""
    for first in (0, 3):
        ranks = [start(store, rank, first=first, steps=3) for rank in range(WORLD)]
        outputs = [lines(rank) for rank in ranks]
        assert outputs[0] == outputs[1] == outputs[2]
        versions = [line.split()[:3] for line in outputs[0]]
        kinds = ["full" if first == step == 0 else "delta" for step in range(first, first + 3)]
        assert versions == [[str(first + i), kinds[i], "7"] for i in range(3)]
        check(store, replica, first + 2)
    syncline.verify(store)


def test_a_rank_that_is_killed_is_named(store: Path, replica: Path) -> None:
    """The others fail with its number; the same processes go on once it is back."""
    ranks = [start(store, rank, first=0, steps=3, timeout=60) for rank in (0, 1)]
    last = start(store, 2, first=0, steps=1)
    assert lines(last)[0].startswith("0 full")
    # Steps 1 and 2 of the others meet the rank that came back, whose steps are the same.
    again = start(store, 2, first=1, steps=2)
    outputs = [lines(rank) for rank in (*ranks, again)]
    assert outputs[0] == outputs[1]
    assert outputs[0][1:] == outputs[2]
    check(store, replica, 2)
    alone = lines(start(store, 0, first=3, steps=1, timeout=0.2))
    assert "ranks 1, 2 of 3 have not contributed" in alone[0]
    assert alone[0].startswith("TimedOutError")


def test_wrong_ranks(store: Path) -> None:
    for rank, world in ((3, 3), (-1, 2), (0, 0)):
        with pytest.raises(syncline.InvalidArgumentError, match=f"rank={rank}, world={world}"):
            syncline.Publisher(store, rank=rank, world=world)
    with pytest.raises(syncline.InvalidArgumentError, match="in memory, or none"):
        syncline.Publisher(store, rank=0, world=2, baseline="disk")
    one = syncline.Publisher(store, rank=1, world=2)
    with pytest.raises(syncline.LockedError, match="another process is rank 1"):
        syncline.Publisher(store, rank=1, world=2)
    one.close()


def test_replicated_tensors_that_differ(store: Path) -> None:
    """Both ranks get the error, which names the tensor and both."""
    messages: dict[int, str] = {}

    def publish(rank: int) -> None:
        tensors: dict[str, NDArray[Any]] = {"norm": np.full(5, rank, np.float32)}
        with (
            syncline.Publisher(store, rank=rank, world=2, timeout=60) as publisher,
            pytest.raises(syncline.InvalidArgumentError) as caught,
        ):
            publisher.publish(None, tensors)
        messages[rank] = str(caught.value)

    threads = [threading.Thread(target=publish, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(messages) == {0, 1}
    assert all("tensor norm differs between rank 0" in text for text in messages.values())
    assert not list(store.glob("weight_v*"))
    leader = json.loads((store / ".syncline" / "writers" / "leader.json").read_text())
    assert leader["state"] == "failed"
