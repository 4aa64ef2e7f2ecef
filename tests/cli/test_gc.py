"""`syncline gc`, on a directory and on a bucket; what is left can be pulled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from directory_format import read_checkpoint, write_delta, write_full
from harness import BINARY, Cli, Exit, random_tensors, training_steps, tree
from moto.server import ThreadedMotoServer


@pytest.fixture
def steps(store: Path, rng) -> list[Any]:
    """Versions 0 and 4 full, 1 to 3 and 5 to 7 deltas."""
    steps = training_steps(rng, 7)
    for version, tensors in enumerate(steps):
        if version % 4 == 0:
            write_full(store, version, tensors)
        else:
            write_delta(store, version, steps[version - 1], tensors)
    return steps


def versions(store: Path) -> set[int]:
    return {int(path.name[8:]) for path in store.glob("weight_v*")}


def test_directory(cli: Cli, store: Path, replica: Path, steps) -> None:
    before = tree(store)
    options = ["--keep", 2, "--json"]
    planned = cli.ok("gc", store, "--keep", 2, "--grace", 0, "--dry-run")
    assert tree(store) == before
    assert planned["removed"] == [0, 1, 2, 3]
    assert planned["dry_run"] is True
    first = cli("gc", store, *options).json
    assert (first["removed"], first["waiting"]) == ([], [0, 1, 2, 3])
    size = sum(
        path.stat().st_size for v in range(4) for path in (store / f"weight_v{v:06d}").iterdir()
    )
    second = cli.ok("gc", store, "--keep", 2, "--grace", 0)
    assert second["removed"] == planned["removed"]
    assert second["kept"] == [4, 5, 6, 7]
    assert second["bytes_removed"] == planned["bytes_removed"] == size
    assert versions(store) == {4, 5, 6, 7}
    assert not list((store / ".syncline" / "trash").iterdir())
    cli.ok("pull", "--from", store, "--into", replica)
    assert read_checkpoint(replica) == steps[7]
    text = cli("gc", store, "--keep", 2).stdout
    assert text == "removed no version, 0 B; kept 4 versions (4, 5, 6, 7)\n"


def test_full_ones_by_number(cli: Cli, store: Path, replica: Path, steps) -> None:
    report = cli.ok("gc", store, "--keep", 1, "--keep-full-every", 4, "--grace", 0)
    assert report["kept"] == [0, 4, 5, 6, 7]
    cli.ok("pull", "--from", store, "--into", replica, "--version", 0)
    assert read_checkpoint(replica) == steps[0]


def test_a_version_made_of_links(cli: Cli, store: Path, tmp_path: Path, rng) -> None:
    """Only the link goes."""
    write_full(tmp_path / "elsewhere", 0, random_tensors(rng, ("BF16",)))
    write_full(store, 1, random_tensors(rng, ("BF16",)))
    (store / "weight_v000000").symlink_to(tmp_path / "elsewhere" / "weight_v000000")
    before = tree(tmp_path / "elsewhere")
    assert cli.ok("gc", store, "--keep", 1, "--grace", 0)["removed"] == [0]
    assert tree(tmp_path / "elsewhere") == before
    assert versions(store) == {1}


def test_beside_a_publisher(cli: Cli, store: Path, steps, package) -> None:
    """A trainer holds the store open for hours; gc need not wait for it."""
    with package.Publisher(store):
        assert cli.ok("gc", store, "--keep", 1, "--grace", 0)["removed"] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "options",
    [(), ("--keep", 0), ("--keep", -1), ("--keep", "x"), ("--keep", 1, "--grace", -1)],
)
def test_wrong_options(cli: Cli, store: Path, steps, options) -> None:
    assert cli("gc", store, *options).rc == Exit.INVALID_ARGUMENT
    assert versions(store) == set(range(8))


def test_no_store(cli: Cli, tmp_path: Path) -> None:
    cli.fails("gc", tmp_path / "nowhere", "--keep", 1, naming=["nowhere"], codes=(Exit.NOT_FOUND,))
    assert not (tmp_path / "nowhere").exists()


@pytest.fixture
def bucket(store: Path, steps, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The store as objects under run/ of a bucket."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}")
    client.create_bucket(Bucket="weights")
    for path in store.rglob("*"):
        if path.is_file():
            key = f"run/{path.relative_to(store).as_posix()}"
            client.put_object(Bucket="weights", Key=key, Body=path.read_bytes())
    yield client
    server.stop()


def keys(client: Any) -> set[str]:
    listed = client.list_objects_v2(Bucket="weights")
    return {entry["Key"] for entry in listed["Contents"]}


def test_bucket(cli: Cli, bucket: Any) -> None:
    before = keys(bucket)
    waiting = cli.ok("gc", "s3://weights/run", "--keep", 1)
    assert (waiting["removed"], waiting["waiting"]) == ([], [0, 1, 2, 3])
    assert keys(bucket) == before | {"run/.syncline/gc.json"}
    done = cli.ok("gc", "s3://weights/run", "--keep", 1, "--grace", 0)
    assert done["removed"] == [0, 1, 2, 3]
    kept = {key for key in before if int(key.split("/")[1][8:]) >= 4}
    assert keys(bucket) == kept | {"run/.syncline/gc.json"}


def test_signal_leaves_it_whole(cli: Cli, store: Path, replica: Path, steps) -> None:
    """Killed at once or a little later, the next run ends what was begun."""
    process = subprocess.Popen(
        [BINARY, "gc", store, "--keep", "1", "--grace", "0"],
        env=os.environ,
        stdout=subprocess.DEVNULL,
    )
    process.kill()
    process.wait()
    assert versions(store) >= {4, 5, 6, 7}
    cli.ok("gc", store, "--keep", 1, "--grace", 0)
    assert versions(store) == {4, 5, 6, 7}
    cli.ok("pull", "--from", store, "--into", replica)
    assert read_checkpoint(replica) == steps[7]
