"""Which files of a directory make up a checkpoint, and what becomes of those that do not."""

from __future__ import annotations

import json
import os
from pathlib import Path

import directory_format as reference
import pytest
from corpus import entry, file_of
from directory_format import INDEX_NAME, Tensor, read_checkpoint, write_checkpoint
from harness import Cli, Exit, changed, random_tensors, tensor_table, tree
from safetensors_files import write_safetensors

Tensors = dict[str, Tensor]

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def tensors(rng) -> Tensors:
    return random_tensors(rng, ("BF16", "F32"))


@pytest.fixture
def directory(tmp_path: Path, tensors: Tensors) -> Path:
    """A checkpoint of two shards and an index."""
    write_checkpoint(tmp_path / "model", tensors, shards=2)
    return tmp_path / "model"


def table(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def edit_index(directory: Path, **values: object) -> None:
    path = directory / INDEX_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


class TestBr11:
    """BR-11: the index says which files count; nothing is guessed."""

    @pytest.mark.parametrize("missing", [SHARDS[:1], SHARDS[1:], SHARDS])
    def test_br_11_missing_shards_are_listed(self, cli: Cli, directory, missing) -> None:
        for name in missing:
            (directory / name).unlink()
        codes = (Exit.NOT_FOUND, Exit.CORRUPT)
        cli.fails("show", directory, naming=missing, codes=codes)
        cli.fails("verify", directory, naming=missing[:1], codes=codes)

    def test_br_11_files_beside_the_index_are_ignored(self, cli, directory, tensors, rng) -> None:
        """A second split, other formats, broken and temporary files, all beside a good index."""
        before = cli.ok("show", directory)
        write_safetensors(directory / "consolidated.safetensors", changed(rng, tensors))
        for number in range(1, 4):
            path = directory / f"model-{number:05d}-of-00003.safetensors"
            write_safetensors(path, changed(rng, tensors))
        (directory / "broken.safetensors").write_bytes(b"\xff" * 40)
        (directory / "model.safetensors").write_bytes(b"")
        (directory / ".model-00001-of-00002.safetensors.swp").write_bytes(b"b0VIM 9.0")
        (directory / "._model.safetensors").write_bytes(b"\0\5\x16\7")
        (directory / "pytorch_model.bin").write_bytes(b"PK")
        (directory / "tokenizer.json").write_text("{}")
        assert tensor_table(cli.ok("show", directory)) == tensor_table(before) == table(tensors)
        assert cli.ok("verify", directory)["kind"] == "checkpoint"

    def test_br_11_ignored_files_are_not_seeded_into_tensors(
        self, cli, directory, store, replica, tensors, rng
    ) -> None:
        write_safetensors(directory / "consolidated.safetensors", changed(rng, tensors))
        new = changed(rng, tensors)
        reference.write_delta(store, 1, tensors, new)
        cli.ok("pull", "--from", store, "--into", replica, "--seed", directory)
        assert read_checkpoint(replica) == new

    def test_br_11_one_file_without_index(self, cli, tmp_path, tensors) -> None:
        write_checkpoint(tmp_path / "model", tensors)
        assert tensor_table(cli.ok("show", tmp_path / "model")) == table(tensors)
        (tmp_path / "model" / "config.json").write_text("{}")
        assert tensor_table(cli.ok("show", tmp_path / "model")) == table(tensors)

    def test_br_11_shards_without_index(self, cli, directory, tensors) -> None:
        """All files together, where no name is held twice."""
        (directory / INDEX_NAME).unlink()
        assert tensor_table(cli.ok("show", directory)) == table(tensors)

    def test_br_11_name_twice_without_index(self, cli, directory, tensors) -> None:
        (directory / INDEX_NAME).unlink()
        name = next(iter(tensors))
        write_safetensors(directory / "model-extra.safetensors", {name: tensors[name]})
        cli.fails("show", directory, naming=[name, "model-extra.safetensors"])

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "null", "{}", '{"metadata": {}}', '{"weight_map": []}', "\xff"]
    )
    @pytest.mark.parametrize("single", [True, False])
    def test_br_11_bad_index_is_no_reason_to_guess(
        self, cli, tmp_path, tensors, text, single
    ) -> None:
        directory = tmp_path / "model"
        write_checkpoint(directory, tensors, shards=1 if single else 2)
        (directory / INDEX_NAME).write_text(text, "latin-1")
        cli.fails("show", directory, naming=[INDEX_NAME], codes=(Exit.CORRUPT,))

    def test_br_11_tensor_not_in_its_shard(self, cli, directory) -> None:
        weight_map = json.loads((directory / INDEX_NAME).read_text())["weight_map"]
        name = next(name for name, file in weight_map.items() if file == SHARDS[0])
        edit_index(directory, weight_map=weight_map | {name: SHARDS[1]})
        cli.fails("show", directory, naming=[name, SHARDS[1]])

    def test_br_11_tensor_in_no_shard(self, cli, directory) -> None:
        weight_map = json.loads((directory / INDEX_NAME).read_text())["weight_map"]
        edit_index(directory, weight_map=weight_map | {"model.norm.weight": SHARDS[0]})
        cli.fails("show", directory, naming=["model.norm.weight", SHARDS[0]])

    def test_br_11_index_without_metadata(self, cli, directory, tensors) -> None:
        path = directory / INDEX_NAME
        weight_map = json.loads(path.read_text())["weight_map"]
        path.write_text(json.dumps({"weight_map": weight_map}))
        assert tensor_table(cli.ok("show", directory)) == table(tensors)

    def test_nothing_there(self, cli, tmp_path) -> None:
        (tmp_path / "empty").mkdir()
        for path in (tmp_path / "empty", tmp_path / "nowhere", tmp_path / "no.safetensors"):
            cli.fails("show", path, naming=[str(path)], codes=(Exit.NOT_FOUND,))

    def test_br_10_shard_is_named(self, cli, directory) -> None:
        """One of several files is cut."""
        path = directory / SHARDS[1]
        os.truncate(path, path.stat().st_size - 1)
        cli.fails("show", directory, naming=[SHARDS[1]], codes=(Exit.CORRUPT,))
        cli.fails("verify", directory, naming=[SHARDS[1]], codes=(Exit.CORRUPT,))

    def test_br_15_shard_is_named(self, cli, directory) -> None:
        (directory / SHARDS[0]).write_bytes(file_of({"w": entry(begin=1, end=3)}, b"abc"))
        cli.fails("show", directory, naming=[SHARDS[0]], codes=(Exit.CORRUPT,))


class TestBr20:
    """BR-20: a checkpoint of links, as a hub's cache lays it out."""

    @pytest.fixture
    def cache(self, tmp_path: Path, tensors: Tensors) -> Path:
        """models--x with blobs/, refs/ and snapshots/; the tensors in two shards."""
        cache = tmp_path / "models--x"
        snapshot = cache / "snapshots" / "0123abcd"
        write_checkpoint(snapshot, tensors, shards=2)
        (snapshot / "config.json").write_text('{"model_type": "llama"}')
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("0123abcd")
        (cache / "blobs").mkdir()
        for number, path in enumerate(sorted(snapshot.iterdir())):
            blob = cache / "blobs" / f"{number:040x}"
            path.rename(blob)
            path.symlink_to(Path("..", "..", "blobs", blob.name))
        return cache

    @pytest.fixture
    def snapshot(self, cache: Path) -> Path:
        return cache / "snapshots" / "0123abcd"

    def test_br_20_snapshot_loads_like_plain_files(self, cli, snapshot, directory) -> None:
        plain = tensor_table(cli.ok("show", directory))
        assert tensor_table(cli.ok("show", snapshot)) == plain
        assert cli.ok("verify", snapshot)["kind"] == "checkpoint"

    def test_br_20_one_file(self, cli, snapshot, tensors) -> None:
        shown = tensor_table(cli.ok("show", snapshot / SHARDS[0]))
        assert shown.items() < table(tensors).items()

    def test_br_20_link_to_the_snapshot(self, cli, snapshot, tmp_path, tensors) -> None:
        (tmp_path / "model-link").symlink_to(snapshot)
        assert tensor_table(cli.ok("show", tmp_path / "model-link")) == table(tensors)

    def test_br_20_dangling_link(self, cli, cache, snapshot) -> None:
        os.unlink(cache / "blobs" / os.readlink(snapshot / SHARDS[1]).rsplit("/")[-1])
        codes = (Exit.NOT_FOUND, Exit.CORRUPT)
        cli.fails("show", snapshot, naming=[SHARDS[1]], codes=codes)

    def test_br_20_dangling_link_without_index(self, cli, cache, snapshot) -> None:
        (snapshot / INDEX_NAME).unlink()
        os.unlink(cache / "blobs" / os.readlink(snapshot / SHARDS[1]).rsplit("/")[-1])
        codes = (Exit.NOT_FOUND, Exit.CORRUPT)
        cli.fails("show", snapshot, naming=[SHARDS[1]], codes=codes)

    @pytest.mark.parametrize("encoding", reference.ENCODINGS)
    def test_br_20_seed_leaves_the_blobs_alone(
        self, cli, cache, snapshot, store, replica, tensors, rng, encoding
    ) -> None:
        new = changed(rng, tensors)
        reference.write_delta(store, 1, tensors, new, encoding)
        before = tree(cache)
        cli.ok("pull", "--from", store, "--into", replica, "--seed", snapshot)
        assert read_checkpoint(replica) == new
        assert tree(cache) == before
        for path in replica.rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or path.stat().st_nlink == 1
        assert (replica / "config.json").read_text() == '{"model_type": "llama"}'

    def test_br_20_publish_from_links(self, cli, cache, snapshot, store, replica, tensors) -> None:
        """A full version made of links holds files of its own."""
        before = tree(cache)
        cli.ok("publish", snapshot, "--to", store)
        for path in store.rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or path.stat().st_nlink == 1
        assert tree(cache) == before
        reference.pull(store, replica)
        assert read_checkpoint(replica) == tensors

    def test_br_20_full_version_of_links(
        self, cli, cache, snapshot, store, replica, tensors
    ) -> None:
        """Another publisher has linked its full version to a cache; the replica must not be."""
        store.mkdir()
        version = reference.version_dir(store, 0)
        version.symlink_to(snapshot)
        before = tree(cache)
        cli.ok("pull", "--from", store, "--into", replica)
        assert read_checkpoint(replica) == tensors
        assert not any(path.is_symlink() for path in replica.rglob("*"))
        assert tree(cache) == before
