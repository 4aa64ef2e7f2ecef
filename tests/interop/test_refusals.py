"""What `syncline pull` must refuse because versions or their indexes do not fit together.

A refusal is an exit code of the table, a message that names file, tensor or version, and a replica
of the same bytes and the same marker as before. With the store mended the next pull succeeds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import directory_format as reference
import numpy as np
import pytest
from directory_format import INDEX_NAME, Tensor, read_checkpoint
from harness import Exit, changed, random_tensors, tree
from safetensors_files import map_file
from scene import (
    CORRUPT,
    CORRUPT_OR_MISSING,
    OTHER_SHARD,
    SHARD,
    Scene,
    edit_sum,
    resize,
)


class TestChain:
    @pytest.mark.parametrize("base", ["000000", "000002", "000007"])
    def test_wrong_base(self, scene, base) -> None:
        scene.edit_index(lambda index: index["metadata"].update(base_version=base))
        message = scene.refuses(codes=(Exit.OUT_OF_ORDER, Exit.CORRUPT))
        assert {2, int(base)} <= _numbers(message), message

    @pytest.mark.parametrize("base", ["", "one", "-00001", "000001x", None, [1]])
    def test_base_is_no_version(self, xor_scene, base) -> None:
        xor_scene.edit_index(lambda index: index["metadata"].update(base_version=base))
        xor_scene.refuses(naming=["weight_v000002"], codes=CORRUPT)

    def test_index_of_another_version(self, xor_scene) -> None:
        xor_scene.edit_index(lambda index: index["metadata"].update(version="000003"))
        xor_scene.refuses(naming=["weight_v000002"], codes=(Exit.OUT_OF_ORDER, Exit.CORRUPT))

    def test_br_06_local_content_is_not_the_base(self, scene) -> None:
        """The marker says 1, but one tensor that the delta patches has another byte."""
        name = scene.victim
        span = reference.tensor_spans(scene.replica)[name]
        untouched = {
            "xor": 0,  # any byte: all of them count
            "overwrite": self._unchanged_byte(scene, name),  # one that the delta does not write
        }[scene.index()["metadata"]["delta_encoding"]]
        content = map_file(span.path, writable=True)
        content[span.offset + untouched] ^= 1
        before = tree(scene.replica)
        scene.cli.fails(*scene.pull(), naming=[name], codes=(Exit.CHECKSUM_MISMATCH,))
        assert tree(scene.replica) == before
        content[span.offset + untouched] ^= 1
        scene.cli.ok(*scene.pull())
        assert read_checkpoint(scene.replica) == scene.steps[2]

    @staticmethod
    def _unchanged_byte(scene: Scene, name: str) -> int:
        same = scene.steps[1][name].data == scene.steps[2][name].data
        return int(np.flatnonzero(same)[0])

    @pytest.mark.parametrize("held", [None, 0])
    def test_br_06_pruned_deltas(self, cli, store, replica, rng, held) -> None:
        """Version 0 and 10 to 14 are there: 1 to 9 are named as missing."""
        self._publish(store, rng, [0], range(10, 15))
        if held is not None:
            reference.pull(store, replica, 0)
        before = tree(replica)
        codes = (Exit.NOT_FOUND, Exit.OUT_OF_ORDER)
        message = cli.fails(
            "pull", "--from", store, "--into", replica, "--version", 14, codes=codes
        )
        assert {1, 9} <= _numbers(message), f"versions 1 to 9 are missing: {message}"
        assert tree(replica) == before

    def test_br_06_a_full_version_mends_the_chain(self, cli, store, replica, rng) -> None:
        steps = self._publish(store, rng, [9], range(10, 15))
        report = cli.ok("pull", "--from", store, "--into", replica, "--version", 14)
        assert (report["seeded_from"], report["applied"]) == ("full:9", [10, 11, 12, 13, 14])
        assert read_checkpoint(replica) == steps[14]

    def test_br_06_full_version_beyond_a_gap(self, cli, store, replica, rng) -> None:
        """The replica is at 3, 4 to 8 are gone: it is seeded afresh from 9."""
        steps = self._publish(store, rng, [0, 9], [1, 2, 3, *range(10, 15)])
        reference.pull(store, replica, 3)
        report = cli.ok("pull", "--from", store, "--into", replica)
        assert (report["version"], report["seeded_from"]) == (14, "full:9")
        assert read_checkpoint(replica) == steps[14]

    def test_br_06_gap_above_the_replica(self, cli, store, replica, rng) -> None:
        self._publish(store, rng, [0], [1, 2, 3, 5, 6])
        reference.pull(store, replica, 3)
        before = tree(replica)
        codes = (Exit.NOT_FOUND, Exit.OUT_OF_ORDER)
        message = cli.fails("pull", "--from", store, "--into", replica, codes=codes)
        assert 4 in _numbers(message)
        assert tree(replica) == before

    @staticmethod
    def _publish(
        store: Path, rng: np.random.Generator, full: Iterable[int], deltas: Iterable[int]
    ) -> list[dict[str, Tensor]]:
        """15 training steps, of which only the versions named are published."""
        steps = [random_tensors(rng, ("BF16",))]
        for _ in range(14):
            steps.append(changed(rng, steps[-1]))
        for version in full:
            reference.write_full(store, version, steps[version])
        for version in deltas:
            reference.write_delta(store, version, steps[version - 1], steps[version])
        return steps

    def test_break_later_in_the_chain(self, cli, xor_scene) -> None:
        """From 0 over a good version 1 to a broken 2: the replica holds one whole version."""
        replica = xor_scene.replica
        reference.pull(xor_scene.store, replica, 0)
        xor_scene.shard.unlink()
        cli.fails(*xor_scene.pull(), naming=[SHARD], codes=CORRUPT_OR_MISSING)
        held = reference.read_marker(replica)
        assert held in (0, 1)
        assert read_checkpoint(replica) == xor_scene.steps[held]

    @pytest.mark.parametrize("version", [3, 99, 1000000])
    def test_unknown_version(self, xor_scene, version) -> None:
        options = ("--version", version)
        xor_scene.refuses(*options, naming=[str(version)], codes=(Exit.NOT_FOUND,))

    @pytest.mark.parametrize("version", ["-1", "two", "", "1.0", "99999999999999999999"])
    def test_version_is_no_number(self, xor_scene, version) -> None:
        xor_scene.refuses(f"--version={version}", codes=(Exit.INVALID_ARGUMENT,))


def _numbers(text: str) -> set[int]:
    """All numbers in a message; those of version names too."""
    digits = "".join(character if character.isdigit() else " " for character in text)
    return {int(number) for number in digits.split()}


class TestIndex:
    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("delta_encoding", "zip"),
            ("delta_encoding", "XOR"),
            ("delta_encoding", ""),
            ("compression_format", "lz4"),
            ("compression_format", "none"),
            ("checksum_format", "md5"),
            ("checksum_format", "xxh3-64"),
        ],
    )
    def test_unknown_codec(self, scene, key, value) -> None:
        scene.edit_index(lambda index: index["metadata"].update({key: value}))
        scene.refuses(naming=["weight_v000002", value], codes=(Exit.INCOMPATIBLE,))

    @pytest.mark.parametrize(
        "key", ["version", "base_version", "compression_format", "checksum_format"]
    )
    @pytest.mark.parametrize("how", ["absent", "null", "a list"])
    def test_metadata_not_whole(self, xor_scene, key, how) -> None:
        def edit(index: dict[str, Any]) -> None:
            if how == "absent":
                del index["metadata"][key]
            else:
                index["metadata"][key] = None if how == "null" else ["x"]

        xor_scene.edit_index(edit)
        xor_scene.refuses(naming=["weight_v000002", key])

    def test_encoding_is_no_text(self, xor_scene) -> None:
        """A delta all the same, and no full version."""
        xor_scene.edit_index(lambda index: index["metadata"].update(delta_encoding=None))
        xor_scene.refuses(naming=["weight_v000002", "delta_encoding"])

    @pytest.mark.parametrize(
        "text", ["", "null", "[]", "7", '"index"', "{", "{}", "{'a': 1}", "\0", "{}{}", "nonsense"]
    )
    def test_no_index(self, xor_scene, text) -> None:
        (xor_scene.broken / INDEX_NAME).write_text(text)
        xor_scene.refuses(naming=["weight_v000002", INDEX_NAME], codes=CORRUPT)

    @pytest.mark.parametrize("weight_map", [None, [], "model.safetensors", 7])
    def test_no_weight_map(self, xor_scene, weight_map) -> None:
        xor_scene.edit_index(lambda index: index.update(weight_map=weight_map))
        xor_scene.refuses(naming=[INDEX_NAME, "weight_map"], codes=CORRUPT)

    @pytest.mark.parametrize("value", [None, 7, ["model.safetensors"], {}, ""])
    def test_shard_name_is_no_name(self, xor_scene, value) -> None:
        name = xor_scene.victim
        xor_scene.edit_index(lambda index: index["weight_map"].update({name: value}))
        xor_scene.refuses(naming=["weight_v000002"])

    def test_name_twice_in_the_weight_map(self, xor_scene) -> None:
        path = xor_scene.broken / INDEX_NAME
        name = xor_scene.victim
        text = path.read_text()
        at = text.index("{", text.index('"weight_map"')) + 1
        path.write_text(f"{text[:at]}{json.dumps(name)}: {json.dumps(OTHER_SHARD)},{text[at:]}")
        xor_scene.refuses(naming=[INDEX_NAME, name], codes=CORRUPT)

    def test_index_names_more_than_the_shard_holds(self, scene) -> None:
        scene.edit_index(lambda index: index["weight_map"].update({"model.norm.weight": SHARD}))
        scene.refuses(naming=[SHARD, "model.norm.weight"])

    def test_shard_holds_more_than_the_index_names(self, scene) -> None:
        name = scene.victim
        scene.edit_index(lambda index: index["weight_map"].pop(name))
        scene.refuses(naming=[SHARD, name])

    def test_tensor_in_the_other_shard(self, scene) -> None:
        name = scene.victim
        scene.edit_index(lambda index: index["weight_map"].update({name: OTHER_SHARD}))
        scene.refuses(naming=[name])

    def test_tensor_that_the_replica_does_not_have(self, scene) -> None:
        name = scene.victim

        def rename(frames: dict[str, bytes], sums: dict[str, str]) -> None:
            frames["model.stranger"], sums["model.stranger"] = frames.pop(name), sums.pop(name)

        scene.edit_shard(rename)
        scene.edit_index(
            lambda index: index["weight_map"].update(
                {"model.stranger": index["weight_map"].pop(name)}
            )
        )
        scene.refuses(naming=["model.stranger"])


class TestPackage:
    """The same refusals as Python exceptions, with the codes of the table."""

    def _raises(self, package: ModuleType, scene: Scene, kind: str, code: Exit, name: str) -> None:
        before = tree(scene.replica)
        with pytest.raises(getattr(package, kind), match=name) as caught:
            package.pull(scene.store, scene.replica)
        assert isinstance(caught.value, package.Error)
        assert caught.value.exit_code == code
        assert tree(scene.replica) == before

    def test_corrupt(self, package: ModuleType, xor_scene) -> None:
        resize(xor_scene.shard, 100)
        self._raises(package, xor_scene, "CorruptError", Exit.CORRUPT, SHARD)

    def test_checksum(self, package: ModuleType, xor_scene) -> None:
        name = xor_scene.victim
        edit_sum(xor_scene.shard, name, lambda digest: digest[::-1])
        self._raises(package, xor_scene, "ChecksumMismatchError", Exit.CHECKSUM_MISMATCH, name)

    def test_incompatible(self, package: ModuleType, xor_scene) -> None:
        xor_scene.edit_index(lambda index: index["metadata"].update(compression_format="lz4"))
        self._raises(package, xor_scene, "IncompatibleError", Exit.INCOMPATIBLE, "lz4")

    def test_not_found(self, package: ModuleType, replica, tmp_path) -> None:
        with pytest.raises(package.NotFoundError, match="nowhere") as caught:
            package.pull(tmp_path / "nowhere", replica)
        assert caught.value.exit_code == Exit.NOT_FOUND
