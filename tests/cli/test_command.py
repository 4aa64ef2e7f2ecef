"""What all subcommands have in common, and their reports."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from directory_format import write_delta
from harness import BINARY, Cli, changed, random_tensors
from safetensors_files import Tensor, write_checkpoint

COMMANDS = ("publish", "pull", "verify", "log", "keygen", "show", "diff", "gc")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(cli: Cli, command: str) -> None:
    result = cli(command, "--help")
    assert result.rc == 0
    assert f"Example:\n  syncline {command} " in result.stdout
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("frobnicate",),
        ("pull",),
        ("pull", "--from"),
        ("publish", "x", "--to", "y", "--level", 9),
    ],
)
def test_wrong_usage(cli: Cli, arguments: tuple[object, ...]) -> None:
    result = cli(*arguments)
    assert result.rc == 2
    assert result.stderr.startswith("syncline: ")
    assert "--help" in result.stderr


def test_version(cli: Cli) -> None:
    assert cli("--version").stdout.strip() == "0.1.0"


def test_reports(cli: Cli, store: Path, replica: Path, rng, tmp_path: Path) -> None:
    """The fields of each report, and that they agree with each other and with the files."""
    first = random_tensors(rng, ("BF16", "F32"))
    second = changed(rng, first, density=0.02)
    write_checkpoint(tmp_path / "a", first)
    write_checkpoint(tmp_path / "b", second)
    full = cli.ok("publish", tmp_path / "a", "--to", store)
    assert (full["version"], full["kind"], full["base_version"]) == (0, "full", None)
    assert full["density"] == 1
    delta = cli.ok("publish", tmp_path / "b", "--to", store)
    assert (delta["version"], delta["kind"], delta["base_version"]) == (1, "delta", 0)
    elements = sum(int(np.prod(t.shape)) for t in first.values())
    assert delta["elements"] == full["elements"] == elements
    assert delta["full_bytes"] == sum(t.data.size for t in first.values())
    bytes_on_disk = sum(
        f.stat().st_size for f in (store / "weight_v000001").rglob("*") if f.is_file()
    )
    assert delta["bytes"] == bytes_on_disk

    def different(a: Tensor, b: Tensor) -> int:
        width = max(1, a.data.size // max(1, int(np.prod(a.shape))))
        return int((a.data != b.data).reshape(-1, width).any(axis=1).sum())

    expected = sum(different(first[n], second[n]) for n in first)
    assert delta["elements_changed"] == expected
    assert delta["density"] == pytest.approx(expected / elements)

    log = cli.ok("log", store)["versions"]
    assert [(v["version"], v["kind"], v["bytes"]) for v in log] == [
        (0, "full", full["bytes"]),
        (1, "delta", delta["bytes"]),
    ]
    assert log[1]["density"] == delta["density"]
    assert abs(log[1]["created"] - time.time()) < 3600

    pulled = cli.ok("pull", "--from", store, "--into", replica)
    assert pulled["seeded_from"] == "full:0"
    assert pulled["applied"] == [1]
    assert pulled["elements_changed"] == expected
    assert pulled["tensors_changed"] == delta["tensors_changed"]
    frames = cli.ok("show", store, 1)["tensors"]
    assert {t["name"] for t in frames} == {n for n in first if different(first[n], second[n])}


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "compact", "auto"])
def test_ways_to_verify(
    cli: Cli, store: Path, replica: Path, rng, tmp_path: Path, encoding: str
) -> None:
    """xor and overwrite carry no digests, so only the hash will do; a full version needs none."""
    first = random_tensors(rng, ("BF16", "F32"))
    write_checkpoint(tmp_path / "a", first)
    write_checkpoint(tmp_path / "b", changed(rng, first, density=0.02))
    cli.ok("publish", tmp_path / "a", "--to", store)
    cli.ok("publish", tmp_path / "b", "--to", store, "--encoding", encoding)
    pull = ("pull", "--from", store, "--into", replica)
    cli.fails(*pull, "--verify", "fast", naming=["fast", "hash, chained or full"], codes=[2])
    cli.ok(*pull, "--verify", "chained", "--version", 0)
    for verify in ("chained", "full"):
        if encoding in ("compact", "auto"):
            assert cli.ok(*pull, "--verify", verify)["applied"] == [1]
            assert cli.ok("verify", replica)["versions"] == [1]
            cli.ok("undo", replica)
            continue
        cli.fails(*pull, "--verify", verify, naming=["version 1", encoding, "no digest"], codes=[7])
        assert cli.ok("verify", replica)["versions"] == [0]
    assert cli.ok(*pull, "--verify", "hash")["applied"] == [1]


def test_log_lists_a_broken_version(cli: Cli, store: Path, rng, tmp_path: Path) -> None:
    tensors = random_tensors(rng, ("BF16",))
    write_delta(store, 1, tensors, changed(rng, tensors))
    (store / "weight_v000002").mkdir()
    log = cli.ok("log", store)["versions"]
    assert [v["kind"] for v in log] == ["delta", "broken"]
    assert "index missing" in log[1]["fault"]
    assert "index missing" in cli("log", store).stdout


def test_progress_is_for_terminals_only(cli: Cli, store: Path, rng, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", random_tensors(rng, ("BF16",)))
    assert cli("publish", tmp_path / "a", "--to", store).stderr == ""
    leader, follower = pty.openpty()
    command = [BINARY, "publish", tmp_path / "a", "--to", store, "--full"]
    done = subprocess.run(command, stderr=follower, stdout=subprocess.PIPE, check=True)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert "write" in shown and "%" in shown
    assert shown.endswith("\r\x1b[K"), "the line is cleared at the end"
    assert b"version 1" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_whole_version(
    cli: Cli, store: Path, replica: Path, rng, tmp_path: Path, number: int
) -> None:
    """Stopped at some moment of a pull, the replica is at the old or the new version."""
    old = {f"t{i}": Tensor("BF16", (1 << 20,), rng.bytes(1 << 21)) for i in range(8)}
    old = {n: Tensor(t.dtype, t.shape, np.frombuffer(t.data, np.uint8)) for n, t in old.items()}
    new = changed(rng, old, density=0.05)
    write_checkpoint(tmp_path / "seed", old)
    write_delta(store, 1, old, new)
    codes = set()
    for delay in (0, 0.002, 0.005, 0.01, 0.02, 0.05):
        cli.ok(
            "pull", "--from", store, "--into", replica, "--seed", tmp_path / "seed", "--version", 0
        )
        process = subprocess.Popen([BINARY, "pull", "--from", store, "--into", replica])
        time.sleep(delay)
        process.send_signal(number)
        codes.add(process.wait(60))
        version = cli.ok("verify", replica)["versions"]
        assert version in ([0], [1])
    assert codes <= {0, 130, -number}
