"""One replica directory, maintained by ours and by a receiver of the shared format in turns."""

from __future__ import annotations

import json
import random
from pathlib import Path

import directory_format as reference
import numpy as np
import pytest
from harness import FEW_DTYPES, Cli, changed, random_tensor, random_tensors
from safetensors_files import Tensors, read_checkpoint, write_checkpoint

LAST = 8


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Tensors]:
    # Large enough that the journal of a step is smaller than the replica, so that it is kept.
    steps = [random_tensors(rng, FEW_DTYPES)]
    steps[0]["embed"] = random_tensor(rng, "BF16", (1000, 100))
    for _ in range(LAST):
        steps.append(changed(rng, steps[-1], density=0.002))
    return steps


@pytest.fixture(params=["ours", "theirs", "both"])
def published(
    request: pytest.FixtureRequest, cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path
) -> str:
    """Full 0, xor 1, overwrite 2, xor 3, full 4, overwrite 5, xor 6, …: by our publisher, with a
    manifest, by theirs, without, or by each every other version."""
    for number, tensors in enumerate(steps):
        encoding = "overwrite" if number % 3 == 2 else "xor"
        full = number % 4 == 0 and number < LAST
        ours = request.param == "ours" or (request.param == "both" and number % 2 == 0)
        if ours:
            write_checkpoint(tmp_path / "trainer", tensors)
            options = ["--full"] if full else ["--encoding", encoding]
            cli.ok("publish", tmp_path / "trainer", "--to", store, *options)
        elif full:
            reference.write_full(store, number, tensors, shards=2)
        else:
            reference.write_delta(store, number, *steps[number - 1 : number + 1], encoding)
    return request.param


class Turns:
    """Pulls by either side, with all that must hold after each."""

    def __init__(self, cli: Cli, store: Path, replica: Path, steps: list[Tensors]) -> None:
        self.cli, self.store, self.replica, self.steps = cli, store, replica, steps

    def ours(self, version: int) -> dict[str, object]:
        report = self.cli.ok(
            "pull", "--from", self.store, "--into", self.replica, "--version", version
        )
        self._check(version)
        return report

    def theirs(self, version: int) -> list[int]:
        applied = reference.pull(self.store, self.replica, version)
        self._check(version)
        return applied

    def _check(self, version: int) -> None:
        assert reference.read_marker(self.replica) == version
        assert read_checkpoint(self.replica) == self.steps[version]


@pytest.fixture
def turns(cli: Cli, store: Path, replica: Path, steps: list[Tensors], published: str) -> Turns:
    return Turns(cli, store, replica, steps)


@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_every_other_version(turns: Turns, first: str) -> None:
    """Neither seeds again what the other has brought; each applies just the next delta."""
    for version in range(LAST + 1):
        full = version in (0, 4)
        if (version % 2 == 0) == (first == "ours"):
            report = turns.ours(version)
            assert report["applied"] == ([] if full and version == 0 else report["applied"])
            assert report["from_version"] == (version - 1 if version else None)
            if not full:
                assert (report["seeded_from"], report["applied"]) == (None, [version])
        else:
            assert turns.theirs(version) == ([] if full else [version])
    assert turns.cli.ok("verify", turns.replica)["versions"] == [LAST]


@pytest.mark.parametrize("seed", range(4))
def test_any_turns(turns: Turns, seed: int) -> None:
    """By lot, also several versions at once, and back to 0."""
    dice = random.Random(seed)
    held = 0
    turns.theirs(0)
    for _ in range(8):
        target = dice.choice([held, 0, min(held + 1, LAST), dice.randint(held, LAST)])
        if dice.random() < 0.5:
            turns.ours(target)
        else:
            turns.theirs(target)
        held = target
        assert turns.cli.ok("verify", turns.replica)["versions"] == [held]


def test_their_marker_has_no_token(turns: Turns) -> None:
    """Ours has one more member; theirs is read by what is there, by hashing."""
    turns.ours(3)
    marker = turns.replica / ".weight_sync" / "state.json"
    assert set(json.loads(marker.read_text())) == {"version", "syncline"}
    turns.theirs(5)
    assert json.loads(marker.read_text()) == {"version": "000005"}
    report = turns.ours(6)
    assert (report["from_version"], report["seeded_from"]) == (5, None)
    assert report["applied"] == [6]


def test_a_replica_of_theirs_that_was_damaged(turns: Turns) -> None:
    """Ours cannot know what a foreign program meant, but the next delta's hashes can."""
    turns.theirs(4)
    path = next(turns.replica.glob("*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    result = turns.cli("pull", "--from", turns.store, "--into", turns.replica, "--version", LAST)
    if result.rc == 0:
        assert read_checkpoint(turns.replica) == turns.steps[LAST]
    else:
        assert "Traceback" not in result.stderr


def test_back_by_undo(turns: Turns) -> None:
    """What a foreign receiver did in between is not undone by mistake."""
    turns.ours(4)
    turns.ours(5)
    turns.theirs(6)
    result = turns.cli("undo", turns.replica)
    assert result.rc == 3, result
    assert reference.read_marker(turns.replica) == 6
    assert read_checkpoint(turns.replica) == turns.steps[6]
    turns.ours(7)
    assert turns.cli.ok("undo", turns.replica)["version"] == 6
    assert read_checkpoint(turns.replica) == turns.steps[6]
    assert turns.theirs(8) == [7, 8]
