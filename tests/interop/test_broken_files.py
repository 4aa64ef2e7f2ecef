"""Files that are missing, cut, or elsewhere: what `syncline pull`, `publish` and `verify` refuse.

As in test_refusals.py: a message that names the file, an exit code of the table, nothing changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import directory_format as reference
import numpy as np
import pytest
from directory_format import INDEX_NAME, Tensor
from harness import Cli, Exit, changed, random_tensors, tree
from safetensors_files import write_checkpoint
from scene import (
    CORRUPT,
    CORRUPT_OR_MISSING,
    OTHER_SHARD,
    SHARD,
    resize,
)


class TestFiles:
    @pytest.mark.parametrize("shard", [SHARD, OTHER_SHARD])
    def test_missing_shard(self, scene, shard) -> None:
        (scene.broken / shard).unlink()
        scene.refuses(naming=[shard], codes=CORRUPT_OR_MISSING)

    def test_full_version_without_one_of_its_shards(self, cli, store, replica, rng) -> None:
        tensors = random_tensors(rng, ("BF16",))
        shard = (
            reference.write_full(store, 0, tensors, shards=2) / "model-00001-of-00002.safetensors"
        )
        shard.unlink()
        cli.fails("pull", "--from", store, "--into", replica, naming=[shard.name])
        assert reference.read_marker(replica) is None
        assert not list(replica.glob("*.safetensors*"))

    @pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
    def test_cut_index(self, xor_scene, share) -> None:
        path = xor_scene.broken / INDEX_NAME
        resize(path, int(share * path.stat().st_size))
        xor_scene.refuses(naming=["weight_v000002", INDEX_NAME], codes=CORRUPT)

    def test_index_not_there_yet(self, scene) -> None:
        """The index is written last: shards without one are no version, and no full one either."""
        (scene.broken / INDEX_NAME).unlink()
        scene.refuses("--version", 2, naming=["weight_v000002"], codes=CORRUPT_OR_MISSING)

    def test_empty_version_directory(self, xor_scene) -> None:
        shutil.rmtree(xor_scene.broken)
        xor_scene.broken.mkdir()
        xor_scene.refuses("--version", 2, naming=["weight_v000002"], codes=CORRUPT_OR_MISSING)

    def test_no_such_store(self, cli, replica, tmp_path) -> None:
        missing = tmp_path / "nowhere"
        options = ["--from", missing, "--into", replica]
        cli.fails("pull", *options, naming=[str(missing)], codes=(Exit.NOT_FOUND,))
        assert reference.read_marker(replica) is None

    def test_store_without_versions(self, cli, store, replica) -> None:
        store.mkdir()
        options = ["--from", store, "--into", replica]
        cli.fails("pull", *options, naming=[str(store)], codes=(Exit.NOT_FOUND,))

    def test_no_such_seed(self, cli, xor_scene, tmp_path) -> None:
        missing, fresh = tmp_path / "nowhere", tmp_path / "fresh"
        shutil.rmtree(reference.version_dir(xor_scene.store, 0))
        options = ["--from", xor_scene.store, "--into", fresh, "--seed", missing]
        cli.fails("pull", *options, naming=[str(missing)], codes=(Exit.NOT_FOUND,))
        assert reference.read_marker(fresh) is None

    def test_nothing_to_seed_from(self, cli, xor_scene, tmp_path) -> None:
        """A pure chain of deltas and no --seed."""
        shutil.rmtree(reference.version_dir(xor_scene.store, 0))
        fresh = tmp_path / "fresh"
        cli.fails("pull", "--from", xor_scene.store, "--into", fresh)
        assert reference.read_marker(fresh) is None
        assert not list(fresh.glob("*.safetensors*"))

    @pytest.mark.parametrize("difference", ["missing", "longer"])
    def test_seed_of_another_model(self, cli, store, replica, rng, tmp_path, difference) -> None:
        old = random_tensors(rng, ("BF16", "F32"))
        name = "model.layers.3.bf16.weight"
        reference.write_delta(store, 1, old, changed(rng, old))
        model = dict(old)
        tensor = model.pop(name)
        if difference == "longer":
            model[name] = Tensor("BF16", (2, *tensor.shape), np.tile(tensor.data, 2))
        write_checkpoint(tmp_path / "model", model)
        before = tree(tmp_path / "model")
        options = ["--from", store, "--into", replica, "--seed", tmp_path / "model"]
        cli.fails("pull", *options, naming=[name])
        assert reference.read_marker(replica) in (None, 0)
        assert tree(tmp_path / "model") == before


class TestVerify:
    """`syncline verify STORE` finds what a pull would stumble over."""

    def test_whole(self, cli, scene) -> None:
        checked = cli.ok("verify", scene.store)
        assert (checked["kind"], checked["ok"], checked["versions"]) == ("store", True, [0, 1, 2])

    def test_missing_shard(self, cli, xor_scene) -> None:
        xor_scene.shard.unlink()
        cli.fails("verify", xor_scene.store, naming=[SHARD], codes=CORRUPT_OR_MISSING)

    def test_unknown_version(self, cli, xor_scene) -> None:
        options = ["--version", 9]
        cli.fails("verify", xor_scene.store, *options, naming=["9"], codes=(Exit.NOT_FOUND,))


class TestPublish:
    """A publish that is refused leaves the store as it was."""

    @pytest.fixture
    def trainer(self, cli: Cli, store: Path, rng, tmp_path: Path) -> dict[str, Tensor]:
        """The tensors of version 0, published from tmp_path/"first"."""
        tensors = random_tensors(rng, ("BF16", "F32"))
        write_checkpoint(tmp_path / "first", tensors)
        cli.ok("publish", tmp_path / "first", "--to", store)
        return tensors

    def _refused(self, cli: Cli, store: Path, *args: object, **expected: Any) -> None:
        before = self._published(store)
        cli.fails("publish", *args, "--to", store, **expected)
        assert self._published(store) == before

    @staticmethod
    def _published(store: Path) -> dict[str, str]:
        """What receivers see; the publisher's own copy of the last version may be made meanwhile."""
        return {k: v for k, v in tree(store).items() if not k.startswith(".syncline/")}

    @pytest.mark.parametrize("what", ["shape", "dtype", "missing", "new"])
    def test_other_tensors(self, cli, store, trainer, tmp_path, what) -> None:
        """A delta cannot say that; a full version could."""
        name = "model.layers.3.bf16.weight"
        tensors = dict(trainer)
        old = tensors.pop(name)
        if what == "shape":
            tensors[name] = Tensor("BF16", (*old.shape, 2), np.tile(old.data, 2))
        elif what == "dtype":
            tensors[name] = Tensor("F16", old.shape, old.data)
        elif what == "new":
            name = "model.new"
            tensors |= {"model.layers.3.bf16.weight": old, name: old}
        write_checkpoint(tmp_path / "second", tensors)
        self._refused(cli, store, tmp_path / "second", naming=[name])
        assert cli.ok("publish", tmp_path / "second", "--to", store, "--full")["kind"] == "full"

    def test_version_is_taken(self, cli, store, trainer, tmp_path) -> None:
        codes = (Exit.ALREADY_EXISTS, Exit.OUT_OF_ORDER)
        self._refused(cli, store, tmp_path / "first", "--version", 0, naming=["0"], codes=codes)

    def test_version_leaves_a_gap(self, cli, store, trainer, tmp_path) -> None:
        codes = (Exit.OUT_OF_ORDER,)
        self._refused(cli, store, tmp_path / "first", "--version", 5, naming=["5"], codes=codes)

    def test_no_such_checkpoint(self, cli, store, trainer, tmp_path) -> None:
        missing = tmp_path / "nowhere"
        self._refused(cli, store, missing, naming=[str(missing)], codes=(Exit.NOT_FOUND,))

    def test_unknown_encoding(self, cli, store, trainer, tmp_path) -> None:
        options = ["--encoding", "zip"]
        codes = (Exit.INVALID_ARGUMENT,)
        self._refused(cli, store, tmp_path / "first", *options, naming=["zip"], codes=codes)
