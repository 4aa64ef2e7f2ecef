"""The digests of whole versions, told by a store, against ones made of the weights in Python."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import directory_format as reference
import numpy as np
import pytest
from additive_digest import digest_of
from bucket import Bucket
from directory_format import read_checkpoint, version_dir, write_checkpoint
from harness import TESTS, Cli, Exit, changed, random_tensors
from safetensors_files import DTYPE_BITS, Tensor, Tensors
from store_server import StoreServer

MANIFEST = "syncline.manifest.json"
# How each version is published.
WAYS: list[list[object]] = [
    ["--full"],
    ["--encoding", "xor"],
    ["--encoding", "overwrite"],
    ["--encoding", "compact"],
    ["--encoding", "xor"],
    ["--encoding", "compact-gap"],
    ["--encoding", "overwrite", "--full-copy-ratio", 1e-9],
    ["--encoding", "compact"],
    ["--encoding", "compact", "--full-copy-ratio", 1e-9],
    ["--full"],
    ["--encoding", "xor"],
]


def digest(tensor: Tensor) -> str:
    bits = DTYPE_BITS[tensor.dtype]
    return digest_of(tensor.data.tobytes(), 4 if bits >= 32 else 2 if bits == 16 else 1)


Table = dict[str, tuple[str, tuple[int, ...], str | None]]


def table(tensors: Tensors, unknown: Callable[[str], bool] = lambda name: False) -> Table:
    return {
        name: (t.dtype, tuple(t.shape), None if unknown(name) else digest(t))
        for name, t in tensors.items()
    }


def shown(answer: Mapping[str, Any]) -> Table:
    return {t["name"]: (t["dtype"], tuple(t["shape"]), t["digest"]) for t in answer["tensors"]}


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Tensors]:
    """Most tensors do not change in most steps, and some never do."""
    steps: list[Tensors] = [random_tensors(rng)]
    for number in range(1, len(WAYS)):
        untouched = {name for name in steps[0] if f".{number % 3}." not in name}
        steps.append(changed(rng, steps[-1], keep=untouched.__contains__))
    return steps


def publish(cli: Cli, url: object, trainer: Path, tensors: Tensors, *options: object) -> None:
    write_checkpoint(trainer, tensors)
    ratio = [] if "--full-copy-ratio" in options else ["--full-copy-ratio", 0]
    cli.ok("publish", trainer, "--to", url, *ratio, *options)


def publish_all(cli: Cli, url: object, steps: list[Tensors], trainer: Path, *more: object) -> None:
    for tensors, way in zip(steps, WAYS, strict=True):
        publish(cli, url, trainer, tensors, *way, *more)


def check_all(cli: Cli, url: object, steps: list[Tensors], *options: object) -> None:
    for version, tensors in enumerate(steps):
        answer = cli.ok("show", url, version, "--digests", *options)
        assert answer["complete"]
        assert shown(answer) == table(tensors)


def test_directory(cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path) -> None:
    publish_all(cli, store, steps, tmp_path / "trainer")
    check_all(cli, store, steps)
    newest = cli.ok("show", store, len(steps) - 1, "--digests")
    assert (
        newest["identity"] == json.loads((store / "syncline.latest.json").read_text())["identity"]
    )
    # A full copy needs nothing that is older.
    assert (version_dir(store, 6) / "full").is_dir()
    for version in range(6):
        shutil.rmtree(version_dir(store, version))
    for version in range(6, len(steps)):
        assert shown(cli.ok("show", store, version, "--digests")) == table(steps[version])
    shutil.rmtree(version_dir(store, 9))
    cli.fails("show", store, 10, "--digests", naming=["version 9"], codes=[Exit.NOT_FOUND])


def test_web_server(
    cli: Cli, server: StoreServer, store: Path, steps: list[Tensors], tmp_path: Path
) -> None:
    publish_all(cli, store, steps, tmp_path / "trainer")
    check_all(cli, server.url, steps)


def test_bucket(cli: Cli, bucket: Bucket, steps: list[Tensors], tmp_path: Path) -> None:
    for tensors, way in zip(steps[:8], WAYS[:8], strict=True):
        publish(cli, bucket.url, tmp_path / "trainer", tensors, *way)
    check_all(cli, bucket.url, steps[:8])


def test_signed(cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path) -> None:
    key = tmp_path / "key"
    cli.ok("keygen", key)
    publish_all(cli, store, steps, tmp_path / "trainer", "--sign", key)
    check_all(cli, store, steps, "--trust", f"{key}.pub")
    (file,) = version_dir(store, 3).glob("*.syncline")
    data = bytearray(file.read_bytes())
    data[10] ^= 1  # in a frame, which nobody reads for this
    file.write_bytes(data)
    assert shown(cli.ok("show", store, 3, "--digests")) == table(steps[3])
    refused = [Exit.CHECKSUM_MISMATCH]
    trust = ["--trust", f"{key}.pub"]
    cli.fails("show", store, 3, "--digests", *trust, naming=[file.name], codes=refused)


def test_a_version_shows_its_own(
    cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path
) -> None:
    publish_all(cli, store, steps, tmp_path / "trainer")
    for version, tensors in enumerate(steps):
        answer = cli.ok("show", store, version)
        before = steps[version - 1] if answer["kind"] == "delta" else {}
        expected = {name: digest(t) for name, t in tensors.items() if t != before.get(name)}
        assert {t["name"]: t["digest"] for t in answer["tensors"]} == expected


def test_a_checkpoint(cli: Cli, steps: list[Tensors], tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", steps[0], shards=3)
    answer = cli.ok("show", tmp_path / "model", "--digests")
    assert shown(answer) == table(steps[0])
    answer = cli.ok("show", tmp_path / "model")
    assert {t["digest"] for t in answer["tensors"]} == {None}


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "compact"])
def test_folds(cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path, encoding: str) -> None:
    publish_all(cli, store, steps, tmp_path / "trainer")
    cli.ok("fold", store, "1..5", "--encoding", encoding)
    fold = store / "fold_v000001_v000005"
    expected = {name: digest(t) for name, t in steps[5].items() if t != steps[1][name]}
    if encoding == "compact":
        # A folder of that name is what a version of that number would be.
        copy = tmp_path / "copy"
        shutil.copytree(fold, version_dir(copy, 5))
        (version_dir(copy, 5) / MANIFEST).unlink()
        told = {t["name"]: t["digest"] for t in cli.ok("show", copy, 5)["tensors"]}
    else:
        tensors = json.loads((fold / MANIFEST).read_text())["tensors"]
        told = {name: tensor["digest"] for name, tensor in tensors.items()}
    assert told == expected
    check_all(cli, store, steps)


@pytest.mark.parametrize("encoding", ["xor", "compact"])
def test_on_a_checkpoint_elsewhere(
    cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path, encoding: str
) -> None:
    base = tmp_path / "base"
    write_checkpoint(base, steps[0])
    for tensors in steps[1:3]:
        options = ["--encoding", encoding, *(["--base", base] if tensors is steps[1] else [])]
        publish(cli, store, tmp_path / "trainer", tensors, *options)
    answer = cli.ok("show", store, 2, "--digests")
    assert not answer["complete"]
    touched = {name: t for name, t in steps[2].items() if t != steps[0][name]}
    assert touched.keys() < steps[2].keys()
    assert shown(answer) == table(touched)


def test_another_publisher(cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path) -> None:
    """It tells no digests; who goes on with its store does, of what it changes."""
    reference.write_full(store, 0, steps[0])
    reference.write_delta(store, 1, steps[0], steps[1], "xor")
    answer = cli.ok("show", store, 1, "--digests")
    assert answer["complete"]
    assert shown(answer) == table(steps[1], unknown=lambda name: True)
    publish(cli, store, tmp_path / "trainer", steps[2])
    same = {name for name, t in steps[2].items() if t == steps[1][name]}
    answer = cli.ok("show", store, 2, "--digests")
    assert shown(answer) == table(steps[2], unknown=lambda name: name in same)


def test_another_publisher_on_a_checkpoint_elsewhere(
    cli: Cli, store: Path, steps: list[Tensors]
) -> None:
    reference.write_delta(store, 1, steps[0], steps[1], "xor")
    naming = ["version 1", "no manifest"]
    cli.fails("show", store, 1, "--digests", naming=naming, codes=[Exit.INCOMPATIBLE])


@pytest.mark.parametrize("old", sorted((TESTS / "fixtures").glob("store-*")), ids=lambda p: p.name)
def test_old_stores(cli: Cli, old: Path, tmp_path: Path) -> None:
    """What is told is right; full versions, xor and overwrite told nothing at first."""
    store = shutil.copytree(old / "store", tmp_path / "old")
    known: list[int] = []
    for version in reference.versions(store):
        cli.ok("pull", "--from", store, "--into", tmp_path / "replica", "--version", version)
        tensors = read_checkpoint(tmp_path / "replica")
        trust = ["--trust", old / "trainer.pub"]
        answer = cli.ok("show", store, version, "--digests", *trust)
        assert answer["complete"]
        told = shown(answer)
        unknown = {name for name, (_, _, found) in told.items() if found is None}
        assert told == table(tensors, unknown=unknown.__contains__)
        if told.keys() > unknown:
            known.append(version)
    assert {3, 4} <= set(known)
