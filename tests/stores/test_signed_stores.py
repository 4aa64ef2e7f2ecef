"""Readers that trust one key: what it did not sign, or what was changed afterwards, is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from harness import FEW_DTYPES, Cli, Exit, changed, random_tensors, tree
from safetensors_files import Tensors, read_checkpoint, write_checkpoint
from store_server import StoreServer

MANIFEST, SIGNATURE = "syncline.manifest.json", "syncline.manifest.sig"
SHARD, INDEX = "model-00000-of-00001.safetensors", "model.safetensors.index.json"


class Signed:
    """A store of a full version and two deltas, signed with `key`; a replica at version 1."""

    def __init__(self, cli: Cli, directory: Path, rng: np.random.Generator) -> None:
        self.cli = cli
        self.store, self.replica = directory / "store", directory / "replica"
        self.key, self.other = directory / "trainer.key", directory / "other.key"
        for key in (self.key, self.other):
            cli.ok("keygen", key)
        self.steps: list[Tensors] = [random_tensors(rng, FEW_DTYPES)]
        self._trainer = directory / "trainer"
        for _ in range(2):
            self.steps.append(changed(rng, self.steps[-1]))
        for tensors in self.steps:
            self.publish(tensors, "--sign", self.key)
        cli.ok(*self.pull(1, self.key))

    def publish(self, tensors: Tensors, *options: object) -> None:
        write_checkpoint(self._trainer, tensors)
        (self._trainer / "config.json").write_text("{}")
        options = ("--full-copy-ratio", 0, *options)
        self.cli.ok("publish", self._trainer, "--to", self.store, *options)

    def pull(self, version: int, *keys: Path, into: Path | None = None) -> list[object]:
        trust = [part for key in keys for part in ("--trust", f"{key}.pub")]
        into = into or self.replica
        return ["pull", "--from", self.store, "--into", into, "--version", version, *trust]

    def directory(self, version: int) -> Path:
        return self.store / f"weight_v{version:06}"

    def refuses(self, version: int, *keys: Path, naming: list[str], codes: list[Exit]) -> None:
        before = tree(self.replica)
        self.cli.fails(*self.pull(version, *keys), naming=naming, codes=codes)
        assert tree(self.replica) == before
        fresh = self.replica.with_name("fresh")
        shutil.rmtree(fresh, ignore_errors=True)
        self.cli.fails(*self.pull(version, *keys, into=fresh), codes=codes)
        assert not list(fresh.glob("*.safetensors"))


@pytest.fixture
def signed(cli: Cli, tmp_path: Path, rng: np.random.Generator) -> Signed:
    return Signed(cli, tmp_path, rng)


def test_the_right_key(cli: Cli, signed: Signed) -> None:
    cli.ok(*signed.pull(2, signed.key))
    assert read_checkpoint(signed.replica) == signed.steps[2]
    cli.ok(*signed.pull(2, signed.other, signed.key, into=signed.replica.with_name("two")))
    trust = ["--trust", f"{signed.key}.pub"]
    assert cli.ok("verify", signed.store, *trust)["versions"] == [0, 1, 2]
    assert cli.ok("show", signed.store, 2, *trust)["version"] == 2


def test_another_key(cli: Cli, signed: Signed) -> None:
    refused = [Exit.PERMISSION_DENIED]
    signed.refuses(2, signed.other, naming=["version 2", str(signed.store)], codes=refused)
    trust = ["--trust", f"{signed.other}.pub"]
    cli.fails("verify", signed.store, *trust, naming=["version 0"], codes=refused)
    cli.fails("show", signed.store, 2, *trust, naming=["version 2"], codes=refused)


def test_a_version_of_another_key(signed: Signed, rng: np.random.Generator) -> None:
    """Somebody else publishes into the store."""
    signed.publish(changed(rng, signed.steps[2]), "--sign", signed.other)
    signed.refuses(3, signed.key, naming=["version 3"], codes=[Exit.PERMISSION_DENIED])
    signed.cli.ok(*signed.pull(3, signed.key, signed.other))


def test_a_version_that_is_not_signed(signed: Signed, rng: np.random.Generator) -> None:
    signed.publish(changed(rng, signed.steps[2]))
    signed.refuses(3, signed.key, naming=["version 3"], codes=[Exit.PERMISSION_DENIED])


def test_a_chain_with_one_link_that_is_not_signed(signed: Signed) -> None:
    """The target is signed, what it builds on is not any more."""
    (signed.directory(1) / SIGNATURE).unlink()
    fresh = signed.replica.with_name("fresh")
    signed.cli.fails(
        *signed.pull(2, signed.key, into=fresh),
        naming=["version 1"],
        codes=[Exit.PERMISSION_DENIED],
    )
    signed.cli.ok(*signed.pull(2, signed.key))  # holds version 1 already


def test_no_manifest(signed: Signed) -> None:
    (signed.directory(2) / MANIFEST).unlink()
    signed.refuses(2, signed.key, naming=["version 2"], codes=[Exit.PERMISSION_DENIED])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def later(path: Path) -> None:
    """Another member, as an attacker would add one; the file stays valid JSON."""
    value = json.loads(path.read_text())
    value["later"] = 1
    path.write_text(json.dumps(value))


TAMPERED: dict[str, tuple[int, str, Callable[[Path], None], list[Exit]]] = {
    "shard of a delta": (2, SHARD, lambda path: flip(path, -1), [Exit.CHECKSUM_MISMATCH]),
    "header of a shard": (2, SHARD, lambda path: flip(path, 40), [Exit.CHECKSUM_MISMATCH]),
    "index": (2, INDEX, later, [Exit.CHECKSUM_MISMATCH, Exit.CORRUPT]),
    "manifest": (2, MANIFEST, later, [Exit.PERMISSION_DENIED]),
    "signature": (2, SIGNATURE, lambda path: flip(path, -10), [Exit.PERMISSION_DENIED]),
    "no signature": (2, SIGNATURE, Path.unlink, [Exit.PERMISSION_DENIED]),
}


@pytest.mark.parametrize(("version", "file", "edit", "codes"), TAMPERED.values(), ids=TAMPERED)
def test_tampered(signed: Signed, version: int, file: str, edit, codes) -> None:
    path = signed.directory(version) / file
    edit(path)
    named = f"version {version}" if file in (MANIFEST, SIGNATURE) else str(path)
    signed.refuses(version, signed.key, naming=[named], codes=codes)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_tampered_full_version(signed: Signed, file: str) -> None:
    path = signed.directory(0) / file
    flip(path, -1)
    fresh = signed.replica.with_name("fresh")
    signed.cli.fails(
        *signed.pull(0, signed.key, into=fresh),
        naming=[str(path)],
        codes=[Exit.CHECKSUM_MISMATCH],
    )
    assert not (fresh / file).exists()


def test_a_manifest_of_another_version(signed: Signed) -> None:
    """Both signed by the right key: an old version in the place of a new one is no new one."""
    shutil.rmtree(signed.directory(2))
    shutil.copytree(signed.directory(1), signed.directory(2))
    signed.refuses(2, signed.key, naming=["version 2"], codes=[Exit.CORRUPT, Exit.OUT_OF_ORDER])


def test_over_http(
    package: ModuleType, signed: Signed, server: StoreServer, tmp_path: Path
) -> None:
    """The same where nothing can be listed; and repairs trust no more than pulls."""
    trust = [f"{signed.key}.pub"]
    assert package.pull(server.url, signed.replica, trust=trust).version == 2
    with pytest.raises(package.PermissionDeniedError, match="version 2"):
        package.pull(server.url, tmp_path / "other", trust=[f"{signed.other}.pub"])
    weights = signed.replica / "model.safetensors"
    flip(weights, -1)
    with pytest.raises(package.Error):
        package.verify(signed.replica, repair=True, store=server.url, trust=[f"{signed.other}.pub"])
    assert package.verify(signed.replica, repair=True, store=server.url, trust=trust)
    assert read_checkpoint(signed.replica) == signed.steps[2]
