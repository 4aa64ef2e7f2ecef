"""The cases BR-46 and BR-48 of the acceptance list, as far as stores, replicas and checkpoints go."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import directory_format as reference
import pytest
from corpus import file_of
from directory_format import INDEX_NAME, read_checkpoint, write_checkpoint
from harness import Cli, Exit, random_tensors, tree
from safetensors_files import SINGLE_NAME
from scene import CORRUPT, SHARD, Scene

MANIFEST = "syncline.manifest.json"


def _outside(scene: Scene, kind: str) -> str:
    """Moves a shard, in good order, out of the version; returns a name that leads to it."""
    outside = scene.store / "outside.safetensors"
    shutil.move(scene.shard, outside)
    (scene.broken / "folder").mkdir()
    return {
        "up": "../outside.safetensors",
        "absolute": str(outside.resolve()),
        "down-and-up": "folder/../../outside.safetensors",
        "up-and-back": "../weight_v000001/../outside.safetensors",
        "not-normal": "./folder/./../../outside.safetensors",
    }[kind]


class TestPaths:
    """BR-48: shard names stay inside their directory. Each of these leads to a good file."""

    KINDS = ("up", "absolute", "down-and-up", "up-and-back", "not-normal")

    def _point_to(self, scene: Scene, target: str) -> None:
        def edit(index: dict[str, Any]) -> None:
            for name, file in index["weight_map"].items():
                if file == SHARD:
                    index["weight_map"][name] = target

        scene.edit_index(edit)

    @pytest.mark.parametrize("kind", KINDS)
    def test_br_48_delta(self, xor_scene, kind) -> None:
        target = _outside(xor_scene, kind)
        self._point_to(xor_scene, target)
        xor_scene.refuses(naming=[target])

    @pytest.mark.parametrize(
        "target", ["/etc/passwd", "..", ".", "folder", "a\0b", SHARD + "\0.txt"]
    )
    def test_br_48_delta_odd_names(self, xor_scene, target) -> None:
        self._point_to(xor_scene, target)
        xor_scene.refuses(naming=["weight_v000002"])

    @pytest.mark.parametrize("kind", KINDS)
    def test_br_48_full_version(self, cli, store, replica, rng, kind) -> None:
        directory = reference.write_full(store, 0, random_tensors(rng, ("BF16",)), shards=2)
        target = self._move_out(directory, kind)
        cli.fails("pull", "--from", store, "--into", replica, naming=[target])
        assert not list(replica.glob("**/*.safetensors"))
        assert reference.read_marker(replica) is None

    @pytest.mark.parametrize("kind", KINDS)
    def test_br_48_checkpoint(self, cli, store, rng, tmp_path, kind) -> None:
        checkpoint = tmp_path / "models" / "one"
        write_checkpoint(checkpoint, random_tensors(rng, ("BF16",)), shards=2)
        target = self._move_out(checkpoint, kind)
        cli.fails("show", checkpoint, naming=[target])
        cli.fails("publish", checkpoint, "--to", store, naming=[target])
        assert not store.exists() or not list(store.glob("weight_v*"))

    @staticmethod
    def _move_out(directory: Path, kind: str) -> str:
        """Moves the first shard of a checkpoint one level up; its index names it there."""
        shard = directory / "model-00001-of-00002.safetensors"
        outside = directory.parent / "outside.safetensors"
        shutil.move(shard, outside)
        (directory / "folder").mkdir()
        target = {
            "up": "../outside.safetensors",
            "absolute": str(outside.resolve()),
            "down-and-up": "folder/../../outside.safetensors",
            "up-and-back": f"../{directory.name}/../outside.safetensors",
            "not-normal": "./folder/./../../outside.safetensors",
        }[kind]
        index = json.loads((directory / INDEX_NAME).read_text())
        for name, file in index["weight_map"].items():
            if file == shard.name:
                index["weight_map"][name] = target
        (directory / INDEX_NAME).write_text(json.dumps(index))
        return target

    def test_br_48_folders_inside_are_legal(self, cli, xor_scene) -> None:
        (xor_scene.broken / "transformer").mkdir()
        shutil.move(xor_scene.shard, xor_scene.broken / "transformer" / SHARD)
        self._point_to(xor_scene, f"transformer/{SHARD}")
        cli.ok(*xor_scene.pull())
        assert read_checkpoint(xor_scene.replica) == xor_scene.steps[2]


# ---- BR-48: refused before anything is opened.


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A pipe that nobody writes to: whoever opens it to read waits for ever."""
    path = tmp_path / "trap.safetensors"
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("how", ["up", "absolute"])
def test_br_48_nothing_outside_is_opened(cli: Cli, xor_scene: Scene, trap: Path, how) -> None:
    """The command returns, so it has not opened the pipe."""
    target = str(trap) if how == "absolute" else f"../../{trap.name}"

    def edit(index: dict[str, Any]) -> None:
        index["weight_map"] = dict.fromkeys(index["weight_map"], target)

    xor_scene.edit_index(edit)
    cli.fails("verify", xor_scene.store, naming=[target], codes=CORRUPT)
    cli.fails("show", xor_scene.store, 2, naming=[target], codes=CORRUPT)
    cli.fails(*xor_scene.pull(), naming=[target], codes=CORRUPT)


@pytest.mark.parametrize("target", ["../trap.safetensors", "/etc/passwd", "a/../../b", "a\0b", ""])
def test_br_48_names_in_a_manifest(cli: Cli, store, replica, rng, tmp_path, target) -> None:
    write_checkpoint(tmp_path / "model", random_tensors(rng, ("BF16",)))
    cli.ok("publish", tmp_path / "model", "--to", store)
    path = reference.version_dir(store, 0) / MANIFEST
    manifest = json.loads(path.read_text())
    manifest["files"][target] = next(iter(manifest["files"].values()))
    path.write_text(json.dumps(manifest))
    cli.fails("verify", store, naming=[MANIFEST], codes=CORRUPT)


def test_br_48_names_of_versions(cli: Cli, store: Path, replica: Path, rng) -> None:
    """Only the one name of a number is a version; everything else in a store is passed over."""
    tensors = random_tensors(rng, ("BF16",))
    reference.write_full(store, 3, tensors)
    good = reference.version_dir(store, 3)
    for name in ("weight_v7", "weight_v0000000007", "weight_v00000x", "weight_v-00001", "weight_v"):
        shutil.copytree(good, store / name)
    shutil.copytree(good, store / "weight_v000009 ")
    shutil.copytree(good, store / "..weight_v000010")
    assert [row["version"] for row in cli.ok("log", store)["versions"]] == [3]
    cli.ok("pull", "--from", store, "--into", replica)
    assert reference.read_marker(replica) == 3
    before = tree(store)
    cli.fails("pull", "--from", store, "--into", replica, "--version", "../../etc")
    cli.fails("show", store, "../weight_v000003")
    assert tree(store) == before


# ---- BR-46: texts of strangers.


@pytest.mark.parametrize("depth", [33, 5_000_000])
@pytest.mark.parametrize("place", ["index", "manifest", "header", "marker"])
def test_br_46_deeply_nested_json(cli: Cli, store, replica, rng, tmp_path, place, depth) -> None:
    """Refused (or, of a marker, not believed) in bounded memory; nothing overflows."""
    write_checkpoint(tmp_path / "model", random_tensors(rng, ("BF16",)))
    cli.ok("publish", tmp_path / "model", "--to", store)
    cli.ok("pull", "--from", store, "--into", replica)
    nested = '{"x":' + "[" * depth + "]" * depth + "}"
    version = reference.version_dir(store, 0)
    if place == "marker":
        (replica / ".weight_sync" / "state.json").write_text(nested)
        result = cli("verify", replica)
        assert result.rc in set(Exit), result.stderr
        return
    file = {"index": INDEX_NAME, "manifest": MANIFEST, "header": SINGLE_NAME}[place]
    content = file_of(nested) if place == "header" else nested.encode()
    (version / file).write_bytes(content)
    cli.fails("verify", store, naming=[file], codes=CORRUPT)
