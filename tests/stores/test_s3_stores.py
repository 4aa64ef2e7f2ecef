"""A store in a bucket, from publishing to gc, over a real S3 server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from bucket import Bucket
from harness import FEW_DTYPES, Cli, Exit, changed, random_tensors, tree
from safetensors_files import Tensors, read_checkpoint, write_checkpoint

MANIFEST = "syncline.manifest.json"
SHARD = "model-00000-of-00001.safetensors"


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Tensors]:
    steps = [random_tensors(rng, FEW_DTYPES)]
    for _ in range(3):
        steps.append(changed(rng, steps[-1]))
    return steps


@pytest.fixture
def key(cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "trainer.key"
    cli.ok("keygen", path)
    return path


@pytest.fixture
def publish(cli: Cli, bucket: Bucket, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Publishes a step of the training into the bucket with the command."""

    def run(tensors: Tensors, *options: object) -> dict[str, Any]:
        checkpoint = tmp_path / "trainer"
        write_checkpoint(checkpoint, tensors)
        (checkpoint / "config.json").write_text("{}")
        work = ["--full-copy-ratio", 0]
        return cli.ok("publish", checkpoint, "--to", bucket.url, *work, *options)

    return run


@pytest.fixture
def published(publish, steps: list[Tensors], key: Path) -> list[Tensors]:
    """A full version, an xor delta, an overwrite delta, a full version; all signed."""
    signed = ["--sign", key]
    assert publish(steps[0], *signed)["kind"] == "full"
    assert publish(steps[1], "--encoding", "xor", *signed)["kind"] == "delta"
    assert publish(steps[2], "--encoding", "overwrite", *signed)["kind"] == "delta"
    assert publish(steps[3], "--full", *signed)["kind"] == "full"
    return steps


def test_command(cli: Cli, bucket: Bucket, published, replica: Path, key: Path) -> None:
    trust = ["--trust", f"{key}.pub"]
    pull = ["pull", "--from", bucket.url, "--into", replica, *trust]
    for version, tensors in enumerate(published):
        report = cli.ok(*pull, "--version", version)
        assert report["version"] == version
        assert report["applied"] == ([version] if version in (1, 2) else [])
        assert read_checkpoint(replica) == tensors
        assert (replica / "config.json").read_text() == "{}"
    assert cli.ok(*pull)["bytes_read"] == 0
    fresh = cli.ok("pull", "--from", bucket.url, "--into", f"{replica}2", "--version", 2, *trust)
    assert (fresh["seeded_from"], fresh["applied"]) == ("full:0", [1, 2])
    assert read_checkpoint(f"{replica}2") == published[2]

    log = cli.ok("log", bucket.url)["versions"]
    assert [(row["version"], row["kind"]) for row in log] == [
        (0, "full"),
        (1, "delta"),
        (2, "delta"),
        (3, "full"),
    ]
    assert [row["fault"] for row in log] == [None] * 4
    assert len({row["signed_by"] for row in log}) == 1
    assert None not in {row["signed_by"] for row in log}
    sizes = {v: sum(len(bucket.read(k)) for k in bucket.list(f"weight_v{v:06}/")) for v in (0, 1)}
    assert [row["bytes"] for row in log[:2]] == [sizes[0], sizes[1]]
    assert cli.ok("verify", bucket.url, *trust)["versions"] == [0, 1, 2, 3]
    names = {tensor["name"] for tensor in cli.ok("show", bucket.url, 3)["tensors"]}
    assert names == published[3].keys()
    shown = cli.ok("show", bucket.url, 1)
    assert (shown["kind"], shown["encoding"]) == ("delta", "xor")
    assert cli.ok("show", bucket.url, 2)["encoding"] == "overwrite"


def test_package(package: ModuleType, bucket: Bucket, published, replica: Path, key: Path) -> None:
    for version, tensors in enumerate(published):
        package.pull(bucket.url, replica, version=version, trust=[f"{key}.pub"])
        assert read_checkpoint(replica) == tensors
    assert [row.version for row in package.log(bucket.url)] == [0, 1, 2, 3]
    assert package.verify(bucket.url).versions == [0, 1, 2, 3]
    with package.Publisher(bucket.url) as publisher:
        assert publisher.version == 3
        report = publisher.publish(None, package.open_checkpoint(replica))
        assert (report.kind, report.tensors_changed) == ("delta", 0)
    assert package.pull(bucket.url, replica).applied == [4]


def test_settings_in_the_call(
    package: ModuleType, cli: Cli, bucket: Bucket, published, replica: Path, moto_url, monkeypatch
) -> None:
    """Without them in the environment; the credentials stay there."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    connection = package.Connection(s3_endpoint=moto_url, s3_region="us-east-1", s3_path_style=True)
    with package.Publisher(bucket.url, connection=connection) as publisher:
        assert publisher.version == 3
    assert package.pull(bucket.url, replica, connection=connection).version == 3
    assert len(package.log(bucket.url, connection=connection)) == 4
    options = ["--s3-endpoint", moto_url, "--s3-region", "us-east-1", "--s3-path-style", "true"]
    assert cli.ok("verify", bucket.url, *options)["versions"] == [0, 1, 2, 3]


def test_a_damaged_replica_is_healed_from_the_bucket(
    cli: Cli, bucket: Bucket, published, replica: Path
) -> None:
    cli.ok("pull", "--from", bucket.url, "--into", replica, "--version", 2)
    path = replica / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cli.fails("verify", replica, codes=[Exit.CHECKSUM_MISMATCH])
    assert cli.ok("verify", replica, "--repair")["tensors_repaired"] == 1
    assert read_checkpoint(replica) == published[2]


def test_gc(cli: Cli, bucket: Bucket, published, replica: Path) -> None:
    assert cli.ok("gc", bucket.url, "--keep", 1, "--grace", 0)["removed"] == [0, 1, 2]
    assert not any(bucket.list(f"weight_v{version:06}/") for version in range(3))
    assert cli.ok("pull", "--from", bucket.url, "--into", replica)["version"] == 3
    assert read_checkpoint(replica) == published[3]
    assert [row["version"] for row in cli.ok("log", bucket.url)["versions"]] == [3]
    cli.ok("verify", bucket.url)


def test_a_second_publisher(
    package: ModuleType, bucket: Bucket, steps: list[Tensors], replica: Path, tmp_path: Path
) -> None:
    """One of two commits; the other is told, and goes on after it."""
    for number, tensors in enumerate(steps):
        write_checkpoint(tmp_path / f"step{number}", tensors)

    def open_step(number: int) -> Any:
        return package.open_checkpoint(tmp_path / f"step{number}")

    with package.Publisher(bucket.url) as first:
        first.publish(None, open_step(0))
        with pytest.raises(package.LockedError):  # of the same host
            package.Publisher(bucket.url)
        with package.Publisher(bucket.url, work_directory=tmp_path / "host2") as second:
            first.publish(None, open_step(1))
            before = bucket.content()
            with pytest.raises(
                package.AlreadyExistsError, match="another publisher made version 1"
            ):
                second.publish(None, open_step(3))
            assert bucket.content() == before
        package.pull(bucket.url, replica)
        assert read_checkpoint(replica) == steps[1]
        assert package.verify(bucket.url).versions == [0, 1]
        first.publish(None, open_step(2))
    package.pull(bucket.url, replica)
    assert read_checkpoint(replica) == steps[2]


def test_a_version_on_its_way_is_not_seen(
    cli: Cli, bucket: Bucket, publish, published, steps, replica: Path
) -> None:
    """The manifest is the commit: what lacks it is no version, in whatever order objects come."""
    publish(steps[1])
    manifest = bucket.read(f"weight_v000004/{MANIFEST}")
    latest = bucket.read("syncline.latest.json")
    bucket.remove(f"weight_v000004/{MANIFEST}")
    bucket.write("syncline.latest.json", latest.replace(b'"version":4', b'"version":3'))
    assert [row["version"] for row in cli.ok("log", bucket.url)["versions"]] == [0, 1, 2, 3]
    assert cli.ok("verify", bucket.url)["versions"] == [0, 1, 2, 3]
    pull = ["pull", "--from", bucket.url, "--into", replica]
    assert cli.ok(*pull)["version"] == 3
    before = tree(replica)
    cli.fails(*pull, "--version", 4, "--wait", 0.1, naming=["version 4"], codes=[Exit.NOT_FOUND])
    assert tree(replica) == before
    bucket.write(f"weight_v000004/{MANIFEST}", manifest)
    # The pointer lags behind, as between two steps of a publisher.
    assert cli.ok(*pull)["version"] == 4
    assert read_checkpoint(replica) == steps[1]


def test_an_object_that_is_missing(cli: Cli, bucket: Bucket, published, replica: Path) -> None:
    cli.ok("pull", "--from", bucket.url, "--into", replica, "--version", 0)
    before = tree(replica)
    fetched = ".weight_sync/fetch"  # what came of other files is kept for the next pull
    shard = f"weight_v000001/{SHARD}"
    data = bucket.read(shard)
    bucket.remove(shard)
    pull = ["pull", "--from", bucket.url, "--into", replica, "--version", 1]
    cli.fails(*pull, "--wait", 0.1, naming=[f"{bucket.url}/{shard}"], codes=[Exit.NOT_FOUND])
    after = {name: file for name, file in tree(replica).items() if not name.startswith(fetched)}
    assert after == before
    bucket.write(shard, data)
    cli.ok(*pull)
    assert read_checkpoint(replica) == published[1]


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_an_object_that_is_too_short(
    cli: Cli, bucket: Bucket, published, replica: Path, keep: int
) -> None:
    """Both sizes are told; also of one in a full version, and for a replica that holds nothing."""
    for version, file in ((1, SHARD), (3, "model.safetensors"), (3, "config.json")):
        key = f"weight_v{version:06}/{file}"
        data = bucket.read(key)
        short = data[:keep]
        shutil.rmtree(replica, ignore_errors=True)
        bucket.write(key, short)
        pull = ["pull", "--from", bucket.url, "--into", replica, "--version", version]
        expected = [f"{bucket.url}/{key}", f"{len(short)} bytes", f"expected {len(data)}"]
        if len(short) < len(data):
            cli.fails(*pull, "--wait", 0.1, naming=expected, codes=[Exit.CORRUPT])
            assert not (replica / ".weight_sync" / "state.json").exists()
        bucket.write(key, data)
        cli.ok(*pull)
        assert read_checkpoint(replica) == published[version]


def test_objects_that_appear_while_the_pull_waits(
    package: ModuleType, bucket: Bucket, published, replica: Path
) -> None:
    """A whole version late, an object late, an object that was short at first."""
    manifest, shard = f"weight_v000001/{MANIFEST}", f"weight_v000002/{SHARD}"
    kept = {key: bucket.read(key) for key in (manifest, shard, "weight_v000003/model.safetensors")}
    for key, data in kept.items():
        if key in (shard, manifest):
            bucket.remove(key)
        else:
            bucket.write(key, data[:50])
    for version, key in zip((1, 2, 3), kept, strict=True):
        calls: list[int | None] = []

        def appear(wanted: int | None, key=key, calls=calls) -> None:
            calls.append(wanted)
            if len(calls) == 3:
                bucket.write(key, kept[key])

        report = package.pull(bucket.url, replica, version=version, wait=60, before_read=appear)
        assert report.version == version
        assert len(calls) == 3
        assert read_checkpoint(replica) == published[version]


def test_no_bucket(cli: Cli, bucket: Bucket, replica: Path) -> None:
    for command in (["log", "s3://no-such-bucket/x"], ["verify", "s3://no-such-bucket/x"]):
        cli.fails(*command, naming=["s3://no-such-bucket/x"], codes=[Exit.NOT_FOUND])
    cli.fails("pull", "--from", bucket.url, "--into", replica, codes=[Exit.NOT_FOUND])
