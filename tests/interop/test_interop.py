"""Stores and replicas shared with a second implementation of the directory format, both ways.

"Reference" is the publisher and the receiver of tests/reference/directory_format.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import directory_format as reference
import numpy as np
import pytest
import xxhash
import zstandard
from directory_format import (
    CHECKSUMS,
    ENCODINGS,
    Tensor,
    read_checkpoint,
    write_checkpoint,
)
from harness import (
    FEW_DTYPES,
    Cli,
    changed,
    random_tensor,
    random_tensors,
    training_steps,
    tree,
)

Tensors = dict[str, Tensor]


def assert_replica(cli: Cli, directory: Path, version: int, expected: Tensors) -> None:
    """The replica holds just these tensors, says so, and our own check agrees."""
    assert read_checkpoint(directory) == expected
    assert reference.read_marker(directory) == version
    marker = json.loads((directory / ".weight_sync" / "state.json").read_text())
    assert marker["version"] == f"{version:06d}"
    checked = cli.ok("verify", directory)
    assert (checked["kind"], checked["ok"]) == ("replica", True)


class TestOurStore:
    """What `syncline publish` writes, others read."""

    @pytest.fixture
    def publish(self, cli: Cli, store: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
        """Publishes tensors by way of a checkpoint directory."""

        def run(tensors: Tensors, *options: object, shards: int = 1) -> dict[str, Any]:
            number = len(list(tmp_path.glob("trainer-*")))
            checkpoint = tmp_path / f"trainer-{number}"
            write_checkpoint(checkpoint, tensors, shards=shards)
            return cli.ok("publish", checkpoint, "--to", store, *options)

        return run

    @pytest.mark.parametrize("encoding", ENCODINGS)
    @pytest.mark.parametrize("shards", [1, 3])
    def test_chain_of_five(self, publish, store, replica, rng, encoding, shards) -> None:
        steps = training_steps(rng, 5)
        for number, tensors in enumerate(steps):
            report = publish(tensors, "--encoding", encoding, shards=shards)
            assert report["version"] == number
            assert report["kind"] == ("full" if number == 0 else "delta")
            assert report["base_version"] == (None if number == 0 else number - 1)
            applied = reference.pull(store, replica)
            assert applied == ([] if number == 0 else [number])
            assert read_checkpoint(replica) == tensors

    def test_mixed_chain_from_afar(self, publish, store, replica, rng) -> None:
        """xor, overwrite and a full version in one chain, pulled at once and again step by step."""
        steps = training_steps(rng, 5)
        options = [[], ["--encoding", "overwrite"], [], ["--full"], ["--encoding", "xor"]]
        options.append(["--encoding", "overwrite"])
        for tensors, extra in zip(steps, options, strict=True):
            publish(tensors, *extra)
        assert reference.pull(store, replica) == [4, 5]
        assert read_checkpoint(replica) == steps[5]
        for number in range(6):
            reference.pull(store, replica.with_name("by-step"), number)
            assert read_checkpoint(replica.with_name("by-step")) == steps[number]

    def test_base_is_version_zero(self, cli, store, replica, rng, tmp_path) -> None:
        """With --base nothing is written for version 0: receivers have it already."""
        steps = training_steps(rng, 1)
        for number, tensors in enumerate(steps):
            write_checkpoint(tmp_path / str(number), tensors)
        report = cli.ok("publish", tmp_path / "1", "--to", store, "--base", tmp_path / "0")
        assert (report["version"], report["kind"], report["base_version"]) == (1, "delta", 0)
        assert reference.versions(store) == [1]
        reference.pull(store, replica, base_dir=tmp_path / "0")
        assert read_checkpoint(replica) == steps[1]

    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_delta_on_disk(self, publish, store, rng, encoding) -> None:
        """Every statement of the format about a delta's files."""
        old, new = training_steps(rng, 1)
        publish(old)
        report = publish(new, "--encoding", encoding)
        directory = reference.version_dir(store, 1)
        index = json.loads((directory / reference.INDEX_NAME).read_text())
        different = {name for name in new if old[name] != new[name]}
        assert different
        assert index["weight_map"].keys() == different
        expected = {
            "version": "000001",
            "base_version": "000000",
            "delta_encoding": encoding,
            "compression_format": "zstd",
            "checksum_format": "xxh3-128",
        }
        assert {key: index["metadata"].get(key) for key in expected} == expected

        delta = reference.read_version(store, 1)
        assert isinstance(delta, reference.Delta)
        for name, frame in delta.frames.items():
            assert delta.sums[name] == xxhash.xxh3_128(new[name].data).hexdigest()
            plain = np.frombuffer(
                zstandard.ZstdDecompressor().decompress(frame.tobytes()), np.uint8
            )
            if encoding == "xor":
                assert np.array_equal(plain, old[name].data ^ new[name].data)
            else:
                at = np.flatnonzero(old[name].data != new[name].data)
                positions = plain[4 : 4 + 4 * at.size].view("<u4")
                assert int(plain[:4].view("<u4")[0]) == at.size
                assert np.array_equal(positions, at)
                assert np.array_equal(plain[4 + 4 * at.size :], new[name].data[at])
        assert (report["tensors"], report["tensors_changed"]) == (len(new), len(different))

    def test_empty_delta_on_disk(self, publish, store, rng) -> None:
        tensors = random_tensors(rng, FEW_DTYPES)
        publish(tensors)
        report = publish(tensors)
        assert (report["kind"], report["tensors_changed"], report["density"]) == ("delta", 0, 0)
        directory = reference.version_dir(store, 1)
        assert json.loads((directory / reference.INDEX_NAME).read_text())["weight_map"] == {}
        assert not list(directory.glob("*.safetensors"))

    def test_other_files_travel_with_full_versions(
        self, cli, store, replica, rng, tmp_path
    ) -> None:
        checkpoint = tmp_path / "trainer"
        write_checkpoint(checkpoint, random_tensors(rng, FEW_DTYPES))
        (checkpoint / "config.json").write_text('{"model_type": "llama"}')
        (checkpoint / "tokenizer.json").write_text("{}")
        cli.ok("publish", checkpoint, "--to", store)
        reference.pull(store, replica)
        assert (replica / "config.json").read_text() == '{"model_type": "llama"}'
        assert (replica / "tokenizer.json").read_text() == "{}"

    def test_read_back_by_the_reader_of_stores(self, cli, publish, store, rng) -> None:
        steps = training_steps(rng, 3)
        for tensors in steps:
            publish(tensors)
        assert cli.ok("verify", store)["versions"] == [0, 1, 2, 3]
        rows = cli.ok("log", store)["versions"]
        assert [row["version"] for row in rows] == [0, 1, 2, 3]
        # So small a model costs less whole than its deltas: they carry full copies.
        assert [row["kind"].partition("+")[0] for row in rows] == ["full", *["delta"] * 3]


class TestOurReplica:
    """What others publish, `syncline pull` applies."""

    @pytest.mark.parametrize("encoding", ENCODINGS)
    @pytest.mark.parametrize("checksum", CHECKSUMS)
    @pytest.mark.parametrize("shards", [1, 3])
    def test_chain_of_five(self, cli, store, replica, rng, encoding, checksum, shards) -> None:
        steps = training_steps(rng, 5)
        reference.write_full(store, 0, steps[0], shards=shards)
        cli.ok("pull", "--from", store, "--into", replica)
        assert_replica(cli, replica, 0, steps[0])
        for number in range(1, 6):
            old, new = steps[number - 1 : number + 1]
            reference.write_delta(store, number, old, new, encoding, checksum, shards)
            report = cli.ok("pull", "--from", store, "--into", replica, "--version", number)
            assert (report["version"], report["from_version"]) == (number, number - 1)
            assert (report["seeded_from"], report["applied"]) == (None, [number])
            different = sum(old[name] != new[name] for name in new)
            assert report["tensors_changed"] == different
            assert_replica(cli, replica, number, new)

    @pytest.fixture
    def mixed(self, store: Path, rng: np.random.Generator) -> list[Tensors]:
        """On version 0: xor, overwrite (empty), full, xor, overwrite; the checksums vary too."""
        steps = training_steps(rng, 5)
        reference.write_full(store, 0, steps[0])
        reference.write_delta(store, 1, *steps[0:2], "xor", "blake3")
        reference.write_delta(store, 2, *steps[1:3], "overwrite", "adler32")
        reference.write_full(store, 3, steps[3], shards=2)
        reference.write_delta(store, 4, *steps[3:5], "xor", "adler32", shards=2)
        reference.write_delta(store, 5, *steps[4:6], "overwrite", "xxh3-128")
        return steps

    @pytest.mark.parametrize("target", [*range(6), "latest", None])
    def test_mixed_chain_afresh(self, cli, store, replica, mixed, target) -> None:
        option = [] if target is None else ["--version", target]
        report = cli.ok("pull", "--from", store, "--into", replica, *option)
        version = target if isinstance(target, int) else 5
        newest_full = 0 if version < 3 else 3
        assert report["version"] == version
        assert (report["from_version"], report["seeded_from"]) == (None, f"full:{newest_full}")
        assert report["applied"] == list(range(newest_full + 1, version + 1))
        assert_replica(cli, replica, version, mixed[version])

    @pytest.mark.parametrize("start", range(6))
    def test_catch_up_over_several_versions(self, cli, store, replica, mixed, start) -> None:
        cli.ok("pull", "--from", store, "--into", replica, "--version", start)
        report = cli.ok("pull", "--from", store, "--into", replica, "--version", "latest")
        assert report["version"] == 5
        assert_replica(cli, replica, 5, mixed[5])

    def test_already_there_changes_nothing(self, cli, store, replica, mixed) -> None:
        cli.ok("pull", "--from", store, "--into", replica)
        before = tree(replica)
        report = cli.ok("pull", "--from", store, "--into", replica)
        assert (report["version"], report["from_version"], report["applied"]) == (5, 5, [])
        assert tree(replica) == before

    def test_version_zero_is_a_reset(self, cli, store, replica, mixed) -> None:
        cli.ok("pull", "--from", store, "--into", replica)
        assert cli.ok("pull", "--from", store, "--into", replica, "--version", 0)["version"] == 0
        assert_replica(cli, replica, 0, mixed[0])

    @pytest.mark.parametrize("target", [1, 3, 4])
    def test_going_back_never_mixes(self, cli, store, replica, mixed, target) -> None:
        """The public receivers ignore a wish to go back; whatever we do, marker and bytes agree."""
        cli.ok("pull", "--from", store, "--into", replica)
        result = cli("pull", "--from", store, "--into", replica, "--version", target, "--json")
        held = reference.read_marker(replica)
        assert held in (5, target)
        assert_replica(cli, replica, held, mixed[held])
        if result.rc == 0:
            assert result.json["version"] == held

    @pytest.mark.parametrize("shards", [1, 2])
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_seed_is_version_zero(
        self, cli, store, replica, rng, tmp_path, encoding, shards
    ) -> None:
        """A pure chain of deltas on the model's own directory, which stays as it is."""
        steps = training_steps(rng, 3)
        model = tmp_path / "model"
        write_checkpoint(model, steps[0], shards=shards)
        (model / "config.json").write_text("{}")
        for number in range(1, 4):
            reference.write_delta(store, number, *steps[number - 1 : number + 1], encoding)
        before = tree(model)
        report = cli.ok("pull", "--from", store, "--into", replica, "--seed", model)
        assert (report["seeded_from"], report["applied"]) == ("seed", [1, 2, 3])
        assert report["from_version"] is None
        assert_replica(cli, replica, 3, steps[3])
        assert (replica / "config.json").read_text() == "{}"
        assert tree(model) == before

    def test_seed_and_version_zero_only(self, cli, store, replica, rng, tmp_path) -> None:
        steps = training_steps(rng, 1)
        write_checkpoint(tmp_path / "model", steps[0])
        reference.write_delta(store, 1, *steps)
        options = ["--into", replica, "--seed", tmp_path / "model", "--version", 0]
        assert cli.ok("pull", "--from", store, *options)["applied"] == []
        assert_replica(cli, replica, 0, steps[0])

    def test_newer_full_version_beats_the_seed(self, cli, store, replica, mixed, tmp_path) -> None:
        write_checkpoint(tmp_path / "model", mixed[0])
        report = cli.ok("pull", "--from", store, "--into", replica, "--seed", tmp_path / "model")
        assert report["seeded_from"] == "full:3"
        assert_replica(cli, replica, 5, mixed[5])

    def test_a_full_version_replaces_the_files(self, cli, store, replica, rng) -> None:
        """The next full version has other shards and other tensors: nothing old stays behind."""
        first, second = random_tensors(rng, ("BF16",)), random_tensors(rng, ("F32", "BOOL"))
        reference.write_full(store, 0, first, shards=3)
        reference.write_full(store, 1, second)
        cli.ok("pull", "--from", store, "--into", replica, "--version", 0)
        cli.ok("pull", "--from", store, "--into", replica)
        assert_replica(cli, replica, 1, second)
        assert [path.name for path in replica.glob("*.safetensors*")] == ["model.safetensors"]

    @pytest.mark.parametrize("indexed", [False, True])
    def test_full_version_with_and_without_index(self, cli, store, replica, rng, indexed) -> None:
        tensors = random_tensors(rng, FEW_DTYPES)
        reference.write_full(store, 0, tensors, indexed=indexed)
        cli.ok("pull", "--from", store, "--into", replica)
        assert_replica(cli, replica, 0, tensors)

    def test_frame_without_content_size(self, cli, store, replica, rng, monkeypatch) -> None:
        """A streaming compressor does not know the size: legal, if the length is right."""
        old = {"w": random_tensor(rng, "BF16", (999,))}
        new = changed(rng, old)
        reference.write_full(store, 0, old)

        def stream(before: np.ndarray, after: np.ndarray, hasher: reference.Hasher) -> np.ndarray:
            hasher.update(after)
            compressor = zstandard.ZstdCompressor(level=3).compressobj()
            frame = compressor.compress((before ^ after).tobytes()) + compressor.flush()
            assert zstandard.get_frame_parameters(frame).content_size != before.size
            return np.frombuffer(frame, np.uint8)

        monkeypatch.setattr(reference, "encode_xor", stream)
        reference.write_delta(store, 1, old, new)
        cli.ok("pull", "--from", store, "--into", replica)
        assert_replica(cli, replica, 1, new)

    def test_python_package(
        self, cli, package: ModuleType, store, replica, mixed, tmp_path
    ) -> None:
        report = package.pull(store, replica, version=2)
        assert (report.version, report.seeded_from, report.applied) == (2, "full:0", [1, 2])
        assert_replica(cli, replica, 2, mixed[2])
        package.pull(store, replica)
        assert_replica(cli, replica, 5, mixed[5])
        checkpoint = package.open_checkpoint(replica)
        assert set(checkpoint.names()) == mixed[5].keys()
        for name, tensor in mixed[5].items():
            view = checkpoint[name]
            assert (view.dtype, tuple(view.shape), view.nbytes) == (
                tensor.dtype,
                tensor.shape,
                tensor.nbytes,
            )
            assert view.tobytes() == tensor.data.tobytes()


class TestSharedReplica:
    """One replica, two receivers in turn: each finds the other's marker."""

    def test_in_turns(self, cli, store, replica, rng) -> None:
        steps = training_steps(rng, 6)
        reference.write_full(store, 0, steps[0])
        for number in range(1, 7):
            old, new = steps[number - 1 : number + 1]
            reference.write_delta(store, number, old, new, ENCODINGS[number % 2])
            if number % 2:
                cli.ok("pull", "--from", store, "--into", replica)
            else:
                assert reference.pull(store, replica) == [number]
            assert_replica(cli, replica, number, new)

    def test_reseeded_behind_our_back(self, cli, store, replica, rng) -> None:
        steps = training_steps(rng, 3)
        reference.write_full(store, 0, steps[0])
        for number in range(1, 4):
            reference.write_delta(store, number, *steps[number - 1 : number + 1])
        cli.ok("pull", "--from", store, "--into", replica)
        reference.pull(store, replica, 0)
        assert cli.ok("pull", "--from", store, "--into", replica)["applied"] == [1, 2, 3]
        assert_replica(cli, replica, 3, steps[3])

    def test_no_marker_seeds_afresh(self, cli, store, replica, rng) -> None:
        """Without a marker the bytes mean nothing: another receiver may have stopped half-way."""
        steps = training_steps(rng, 1)
        reference.write_full(store, 0, steps[0])
        reference.write_delta(store, 1, *steps)
        reference.pull(store, replica)
        (replica / ".weight_sync" / "state.json").unlink()
        write_checkpoint(replica, changed(rng, steps[1]))
        assert cli.ok("pull", "--from", store, "--into", replica)["seeded_from"] == "full:0"
        assert_replica(cli, replica, 1, steps[1])
