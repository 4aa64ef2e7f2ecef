"""Several processes at one replica or one store, and processes that are ended in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from harness import BINARY, FEW_DTYPES, Cli, Exit, changed, random_tensors
from safetensors_files import Tensor, Tensors, read_checkpoint, write_checkpoint
from store_server import Fault, Request, StoreServer

PIECE = 8 << 20  # what is fetched at a time


@pytest.fixture
def steps(cli: Cli, store: Path, rng: np.random.Generator, tmp_path: Path) -> list[Tensors]:
    """Published: a full version and two deltas."""
    steps = [random_tensors(rng, FEW_DTYPES)]
    for _ in range(2):
        steps.append(changed(rng, steps[-1]))
    for tensors in steps:
        write_checkpoint(tmp_path / "trainer", tensors)
        cli.ok("publish", tmp_path / "trainer", "--to", store, "--full-copy-ratio", 0)
    return steps


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [BINARY, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_others_say_already_there(
    cli: Cli, steps: list[Tensors], server: StoreServer, replica: Path
) -> None:
    """One pull is stopped in the middle of its fetch until the others wait for the lock."""
    release = threading.Event()

    def hold(request: Request) -> Fault | None:
        if request.is_body and request.path.endswith(".safetensors"):
            release.wait(60)
        return None

    server.faults = hold
    command = ["pull", "--from", server.url, "--into", replica]
    pulls = [start(*command) for _ in range(4)]
    # Each asks for the pointer before it takes the lock.
    while sum(r.path == "syncline.latest.json" for r in list(server.requests)) < 4:
        assert all(pull.poll() is None for pull in pulls)
    release.set()
    outputs = [pull.communicate(timeout=100)[0] for pull in pulls]
    assert [pull.returncode for pull in pulls] == [0] * 4
    assert sorted("already there" in output for output in outputs) == [False, True, True, True]
    sizes = sum(path.stat().st_size for path in server.root.glob("weight_v*/*.safetensors"))
    assert server.total(".safetensors") == sizes
    assert read_checkpoint(replica) == steps[2]


def test_two_publishers(
    cli: Cli, package: ModuleType, steps: list[Tensors], store: Path, tmp_path: Path
) -> None:
    with package.Publisher(store) as publisher:
        message = cli.fails("publish", tmp_path / "trainer", "--to", store, codes=[Exit.LOCKED])
        assert "another publisher" in message
        assert publisher.publish(None, package.open_checkpoint(tmp_path / "trainer")).version == 3
    assert cli.ok("publish", tmp_path / "trainer", "--to", store)["version"] == 4


@pytest.fixture
def large(cli: Cli, store: Path, rng: np.random.Generator, tmp_path: Path) -> Tensors:
    """One version of four and a half pieces."""
    data = rng.integers(0, 256, 9 * PIECE // 2, np.uint8)
    tensors = {"w": Tensor("U8", (data.size,), data)}
    write_checkpoint(tmp_path / "trainer", tensors)
    cli.ok("publish", tmp_path / "trainer", "--to", store)
    return tensors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_fetch_that_is_ended(
    cli: Cli, large: Tensors, server: StoreServer, replica: Path, number: signal.Signals
) -> None:
    """The next pull goes on where it stopped."""
    server.faults = lambda request: Fault(stall_after=9) if request.first == 2 * PIECE else None
    command = ["pull", "--from", server.url, "--into", replica, "--threads", 1]
    pull = start(*command)
    assert server.stalled.wait(60)
    os.kill(pull.pid, number)
    _, stderr = pull.communicate(timeout=60)
    if number == signal.SIGINT:
        assert pull.returncode == 130
        assert "cancelled" in stderr
    assert not list(replica.glob("*.safetensors"))
    server.faults = lambda request: None
    server.forget()
    assert cli.ok(*command)["version"] == 0
    size = (server.root / "weight_v000000" / "model.safetensors").stat().st_size
    assert server.total("model.safetensors") == size - 2 * PIECE
    assert read_checkpoint(replica) == large


def test_ctrl_c_between_the_deltas_of_a_chain(
    cli: Cli, store: Path, replica: Path, rng: np.random.Generator, tmp_path: Path
) -> None:
    """At whatever moment it comes, the replica is some version, and the next pull goes on."""
    data = rng.integers(0, 256, 4 << 20, np.uint8)
    steps = []
    for number in range(5):
        data = data.copy()
        data[rng.integers(0, data.size, 20_000)] ^= 1
        steps.append(
            {f"w{n}": Tensor("U8", (1 << 20,), data[n << 20 : (n + 1) << 20]) for n in range(4)}
        )
        write_checkpoint(tmp_path / "trainer", steps[number])
        cli.ok("publish", tmp_path / "trainer", "--to", store, "--full-copy-ratio", 0)
    marker = replica / ".weight_sync" / "state.json"
    seen = set()
    for until in ("000000", "000001", "000003"):
        cli.ok("pull", "--from", store, "--into", replica, "--version", 0)
        pull = start("pull", "--from", store, "--into", replica)
        while pull.poll() is None:
            try:
                if until in marker.read_text():
                    break
            except FileNotFoundError:  # withdrawn while a delta is applied
                pass
        pull.send_signal(signal.SIGINT)
        pull.communicate(timeout=60)
        assert pull.returncode in (0, 130, -signal.SIGINT)  # the last: it had not begun yet
        (version,) = cli.ok("verify", replica)["versions"]
        seen.add(version)
        assert read_checkpoint(replica) == steps[version]
        report = cli.ok("pull", "--from", store, "--into", replica)
        assert report["from_version"] == version
        assert report["applied"] == list(range(version + 1, 5))
        assert read_checkpoint(replica) == steps[4]
