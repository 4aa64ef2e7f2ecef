"""`syncline fold` on a directory: what it says, what the store then holds, what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import directory_format as reference
import numpy as np
import pytest
from harness import BINARY, Cli, Exit, changed, random_tensors, tree
from safetensors_files import Tensor, Tensors, read_checkpoint, write_checkpoint

FOLD = "fold_v000001_v000004"


@pytest.fixture
def steps(cli: Cli, store: Path, tmp_path: Path, rng: np.random.Generator) -> list[Tensors]:
    """A store with a full version and four deltas; step N is also the checkpoint stepN."""
    tensors = {"w": Tensor("BF16", (300, 100), rng.integers(0, 256, 60_000, np.uint8))}
    steps = [tensors | random_tensors(rng, ("F32",))]
    for _ in range(4):
        steps.append(changed(rng, steps[-1], density=0.01))
    for number, step in enumerate(steps):
        path = tmp_path / f"step{number}"
        write_checkpoint(path, step)
        (path / "config.json").write_text("{}")
        cli.ok("publish", path, "--to", store, "--full-copy-ratio", 0)
    return steps


@pytest.mark.parametrize("encoding", ["xor", "compact", "compact-gap", "auto"])
def test_what_it_says_and_makes(
    cli: Cli, store: Path, replica: Path, steps: list[Tensors], tmp_path: Path, encoding: str
) -> None:
    cli.ok("pull", "--from", store, "--into", replica, "--version", 1)
    made = cli.ok("fold", store, "1..4", "--encoding", encoding)
    assert (made["from_version"], made["to_version"]) == (1, 4)
    assert made["url"] == str(store / FOLD)
    assert made["bytes"] == sum(path.stat().st_size for path in (store / FOLD).iterdir())
    assert made["bytes"] < made["bytes_without"]
    assert not (store / ".syncline" / "folding").exists()
    assert not (store / ".syncline" / "fold-work").exists()

    log = cli.ok("log", store)
    assert [version["version"] for version in log["versions"]] == [0, 1, 2, 3, 4]
    (fold,) = log["folds"]
    assert (fold["from_version"], fold["to_version"], fold["fault"]) == (1, 4, None)
    assert fold["bytes"] == made["bytes"]
    assert " fold " in cli("log", store).stdout
    assert cli.ok("verify", store)["folds"] == 1

    report = cli.ok("pull", "--from", store, "--into", replica)
    assert report["applied"] == [4]
    assert read_checkpoint(replica) == steps[4]
    assert cli.ok("undo", replica)["version"] == 1
    assert read_checkpoint(replica) == steps[1]

    # A foreign reader sees versions only; a publisher goes on.
    foreign = tmp_path / "foreign"
    reference.pull(store, foreign, 4)
    assert read_checkpoint(foreign) == steps[4]
    cli.ok("publish", tmp_path / "step0", "--to", store, "--full-copy-ratio", 0)
    assert cli.ok("pull", "--from", store, "--into", replica)["applied"] == [4, 5]

    # Without what lies between.
    for version in (2, 3):
        for path in (store / f"weight_v{version:06d}").iterdir():
            path.unlink()
        (store / f"weight_v{version:06d}").rmdir()
    cli.ok("pull", "--from", store, "--into", tmp_path / "fresh", "--version", 4)
    assert read_checkpoint(tmp_path / "fresh") == steps[4]


def test_a_damaged_one_costs_a_warning(cli: Cli, store: Path, replica: Path, steps) -> None:
    cli.ok("pull", "--from", store, "--into", replica, "--version", 1)
    cli.ok("fold", store, "1..4", "--encoding", "overwrite")
    path = store / FOLD / "model-00000-of-00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    cli.fails("verify", store, naming=[FOLD], codes=[Exit.CHECKSUM_MISMATCH])
    result = cli("pull", "--from", store, "--into", replica, "--json")
    assert result.json["applied"] == [2, 3, 4]
    assert FOLD in result.stderr
    assert read_checkpoint(replica) == steps[4]


def test_what_it_refuses(cli: Cli, store: Path, steps, tmp_path: Path) -> None:
    cli.fails("fold", store, "4..1", codes=[Exit.INVALID_ARGUMENT])
    cli.fails("fold", store, "1-4", naming=["1-4", "3..12"], codes=[Exit.INVALID_ARGUMENT])
    cli.fails("fold", store, "1..4", "--encoding", "gzip", codes=[Exit.INVALID_ARGUMENT])
    cli.fails("fold", store, "1..7", naming=["version 7"], codes=[Exit.NOT_FOUND])
    cli.fails("fold", tmp_path / "none", "1..4", codes=[Exit.NOT_FOUND])
    assert not (tmp_path / "none").exists()
    base = ["--base", tmp_path / "step2"]
    cli.fails("fold", store, "1..4", *base, naming=["version 1"], codes=[Exit.CHECKSUM_MISMATCH])
    cli.ok("fold", store, "1..4", "--base", tmp_path / "step1", "--work", tmp_path / "work")
    assert not list((tmp_path / "work").iterdir())
    before = tree(store)
    cli.fails("fold", store, "1..4", naming=[FOLD], codes=[Exit.ALREADY_EXISTS])
    assert tree(store) == before


def test_the_base_that_the_store_lacks(cli: Cli, store: Path, rng, tmp_path: Path) -> None:
    step = random_tensors(rng, ("BF16", "F32"))
    write_checkpoint(tmp_path / "seed", step)
    for _ in range(3):
        step = changed(rng, step, density=0.01)
        write_checkpoint(tmp_path / "step", step)
        cli.ok("publish", tmp_path / "step", "--to", store, "--base", tmp_path / "seed")
    cli.fails("fold", store, "0..3", naming=["version 0", "--base"], codes=[Exit.NOT_FOUND])
    cli.ok("fold", store, "0..3", "--base", tmp_path / "seed")
    report = cli.ok(
        "pull", "--from", store, "--into", tmp_path / "replica", "--seed", tmp_path / "seed"
    )
    assert report["applied"] == [3]
    assert read_checkpoint(tmp_path / "replica") == step


def test_ctrl_c_leaves_nothing(cli: Cli, store: Path, steps) -> None:
    """Wherever it comes: there is the fold, or nothing of it."""
    for delay in range(8):
        process = subprocess.Popen(
            [BINARY, "fold", store, "1..4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        own = store / ".syncline"
        if delay:
            # As far as the scratch folder, at least, or the end.
            while process.poll() is None and not (own / "fold-work").exists():
                os.sched_yield()
        process.send_signal(signal.SIGINT)
        process.communicate()
        stands = (store / FOLD).exists()
        if process.returncode >= 0:  # else before it could take signals
            assert process.returncode == (0 if stands else 130)
            assert not (own / "folding").exists()
            assert not (own / "fold-work").exists()
        cli.ok("verify", store)
        if stands:
            break
    if not (store / FOLD).exists():
        cli.ok("fold", store, "1..4")
