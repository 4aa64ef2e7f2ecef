"""Stores that earlier versions wrote (tests/fixtures/store-*) are read, version by version."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import compact
import directory_format as reference
import pytest
import xxhash
from directory_format import read_checkpoint, version_dir, write_checkpoint
from harness import TESTS, Cli, tree
from safetensors_files import INDEX_NAME, Tensors

STORES = sorted((TESTS / "fixtures").glob("store-*"))


class OldStore:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "store"
        self.key = directory / "trainer.pub"
        expected: dict[str, Any] = json.loads((directory / "expected.json").read_text())
        self.tensors = {name: (d, tuple(shape)) for name, (d, shape) in expected["tensors"].items()}
        self.hashes: dict[int, dict[str, str]] = {
            int(version): hashes for version, hashes in expected["xxh3-128"].items()
        }

    def check(self, version: int, tensors: Tensors) -> None:
        """These are the tensors that were published as that version."""
        assert {n: (t.dtype, t.shape) for n, t in tensors.items()} == self.tensors
        found = {n: xxhash.xxh3_128_hexdigest(t.data.tobytes()) for n, t in tensors.items()}
        assert found == self.hashes[version]


@pytest.fixture(params=STORES, ids=lambda path: path.name)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> OldStore:
    """A copy: readers leave their leases in a store."""
    return OldStore(shutil.copytree(request.param, tmp_path / "old"))


def test_there_are_some() -> None:
    assert STORES


def test_versions_are_there(old: OldStore) -> None:
    assert reference.versions(old.path) == sorted(old.hashes)


def test_every_version_is_pulled(cli: Cli, old: OldStore, tmp_path: Path) -> None:
    """Straight to it, from nothing."""
    before = tree(old.path)
    for version in old.hashes:
        replica = tmp_path / f"replica-{version}"
        options = ["--version", version, "--trust", old.key]
        cli.ok("pull", "--from", old.path, "--into", replica, *options)
        old.check(version, read_checkpoint(replica))
        cli.ok("verify", replica, "--version", version)
    assert tree(old.path) == before


@pytest.mark.parametrize("how", ["hash", "full", "chained"])
def test_version_after_version(cli: Cli, old: OldStore, replica: Path, how: str) -> None:
    for version in old.hashes:
        digests = compact.read_index(version_dir(old.path, version)) is not None
        options = ["--version", version, "--trust", old.key, "--verify", how if digests else "hash"]
        cli.ok("pull", "--from", old.path, "--into", replica, *options)
        old.check(version, read_checkpoint(replica))
    cli.ok("undo", replica)
    old.check(max(old.hashes) - 1, read_checkpoint(replica))


def test_the_store_is_whole(cli: Cli, old: OldStore) -> None:
    cli.ok("verify", old.path, "--trust", old.key)


def test_a_publisher_goes_on(cli: Cli, old: OldStore, store: Path, replica: Path) -> None:
    shutil.copytree(old.path, store)
    version = max(old.hashes)
    cli.ok("pull", "--from", store, "--into", replica)
    tensors = read_checkpoint(replica)
    name = max(tensors, key=lambda n: tensors[n].nbytes)
    tensors[name].data[::7] ^= 1
    checkpoint = replica.with_name("checkpoint")
    write_checkpoint(checkpoint, tensors)
    cli.ok("publish", checkpoint, "--to", store, "--encoding", "compact")
    assert reference.versions(store)[-1] == version + 1
    cli.ok("pull", "--from", store, "--into", replica)
    assert read_checkpoint(replica) == tensors


def test_the_reference_reads_it(old: OldStore) -> None:
    for version, tensors in compact.replay(old.path):
        old.check(version, tensors)


def test_store_1_holds_what_it_says() -> None:
    store = TESTS / "fixtures" / "store-1" / "store"
    encodings = []
    forms = []
    for version in reference.versions(store)[1:]:
        directory = version_dir(store, version)
        index = json.loads((directory / INDEX_NAME).read_text())
        encodings.append(index["metadata"]["delta_encoding"])
        for file in (compact.read_index(directory) or {}).values():
            read = compact.read_file((directory / file).read_bytes())
            frames = [frame for cell in read.cells for frame in cell.frames if frame.data]
            classes = {
                read.models[frame.model].classes for frame in frames if frame.model is not None
            }
            forms.append((version, max(classes), any(frame.data[0] for frame in frames)))
    assert encodings == ["xor", "overwrite", *["compact"] * 5]
    assert forms == [(3, 16, False), (4, 1, False), (6, 16, True), (7, 1, False)]
    assert (version_dir(store, 7) / "full").is_dir()
