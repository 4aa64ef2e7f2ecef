"""Folds in a bucket, and behind a web server, which cannot be asked what it holds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from bucket import Bucket
from harness import FEW_DTYPES, Cli, Exit, changed, random_tensors
from safetensors_files import Tensors, read_checkpoint, write_checkpoint
from store_server import Fault, Request, StoreServer

FOLDS = "syncline.folds.json"
FOLD = "fold_v000001_v000004"
SHARD = "model-00000-of-00001.safetensors"


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Tensors]:
    steps = [random_tensors(rng, FEW_DTYPES)]
    for _ in range(4):
        steps.append(changed(rng, steps[-1], density=0.02))
    return steps


def publish(cli: Cli, url: object, steps: list[Tensors], tmp_path: Path, *options: object) -> None:
    for tensors in steps:
        write_checkpoint(tmp_path / "trainer", tensors)
        (tmp_path / "trainer" / "config.json").write_text("{}")
        ratio = ["--full-copy-ratio", 0]
        cli.ok("publish", tmp_path / "trainer", "--to", url, *ratio, *options)


def test_bucket(
    cli: Cli, bucket: Bucket, replica: Path, steps, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    publish(cli, bucket.url, steps, tmp_path)
    cli.ok("pull", "--from", bucket.url, "--into", replica, "--version", 1)
    made = cli.ok("fold", bucket.url, "1..4")
    assert not list((tmp_path / "tmp").iterdir())
    assert made["url"] == f"{bucket.url}/{FOLD}"
    (entry,) = json.loads(bucket.read(FOLDS))["folds"]
    assert (entry["from"], entry["to"], entry["identity"]) == (1, 4, made["identity"])
    files = json.loads(bucket.read(f"{FOLD}/syncline.manifest.json"))["files"]
    assert entry["bytes"] == sum(file["bytes"] for file in files.values())
    cli.fails("fold", bucket.url, "1..4", naming=[FOLD], codes=[Exit.ALREADY_EXISTS])
    assert cli.ok("verify", bucket.url, "--wait", 0)["folds"] == 1
    assert len(cli.ok("log", bucket.url)["folds"]) == 1

    assert cli.ok("pull", "--from", bucket.url, "--into", replica)["applied"] == [4]
    assert read_checkpoint(replica) == steps[4]
    # What the list names may be gone.
    cli.ok("undo", replica)
    for key in bucket.list(FOLD):
        bucket.remove(key)
    pull = ["pull", "--from", bucket.url, "--into", replica, "--wait", 0]
    assert cli.ok(*pull)["applied"] == [2, 3, 4]
    # gc puts the list right, and removes a fold with its version.
    cli.ok("fold", bucket.url, "2..4")
    assert json.loads(bucket.read(FOLDS))["folds"][0]["from"] == 2
    publish(cli, bucket.url, [steps[0]], tmp_path, "--full")
    report = cli.ok("gc", bucket.url, "--keep", 1, "--grace", 0)
    assert report["folds_removed"] == ["fold_v000002_v000004"]
    assert not [key for key in bucket.list() if key.startswith("fold")]
    assert FOLDS not in bucket.list()


@pytest.fixture
def folded(cli: Cli, store: Path, replica: Path, steps, tmp_path: Path) -> None:
    """A store with a fold, and a replica that the fold is good for."""
    publish(cli, store, steps, tmp_path)
    cli.ok("pull", "--from", store, "--into", replica, "--version", 1)
    cli.ok("fold", store, "1..4")


def test_web_server(cli: Cli, server: StoreServer, replica: Path, steps, folded) -> None:
    pull = ["pull", "--from", server.url, "--into", replica, "--wait", 0]
    assert cli.ok(*pull)["applied"] == [4]
    assert read_checkpoint(replica) == steps[4]
    assert server.total(f"{FOLD}/{SHARD}") > 0
    assert server.total(f"weight_v000004/{SHARD}") == 0
    assert len(cli.ok("log", server.url)["folds"]) == 1
    assert cli.ok("verify", server.url, "--wait", 0)["folds"] == 1


def test_nobody_asks_without_need(cli: Cli, server: StoreServer, replica: Path, folded) -> None:
    """One request for the list, where there is more than one delta to go; else none."""
    cli.ok("pull", "--from", server.url, "--into", replica, "--version", 2)
    assert not [request for request in server.requests if "fold" in request.path]
    cli.ok("pull", "--from", server.url, "--into", replica, "--version", 2)
    assert not [request for request in server.requests if "fold" in request.path]
    server.forget()
    (server.root / FOLDS).unlink()
    cli.ok("pull", "--from", server.url, "--into", replica)
    assert {request.path for request in server.requests if "fold" in request.path} == {FOLDS}


def wrong_bit(request: Request) -> Fault | None:
    return Fault(flip_bit=5) if request.path.endswith(f"{FOLD}/{SHARD}") else None


def refused(request: Request) -> Fault | None:
    return Fault(status=403) if request.path.startswith((FOLD, FOLDS)) else None


def gone(request: Request) -> Fault | None:
    return Fault(status=404) if request.path.endswith(SHARD) and FOLD in request.path else None


def damaged(request: Request) -> Fault | None:
    return Fault(flip_bit=0) if request.path == FOLDS else None


@pytest.mark.parametrize("faults", [wrong_bit, refused, gone, damaged])
def test_readers_go_on_without(
    cli: Cli, server: StoreServer, replica: Path, steps, folded, faults
) -> None:
    server.faults = faults
    pull = ["pull", "--from", server.url, "--into", replica, "--wait", 0]
    assert cli.ok(*pull)["applied"] == [2, 3, 4]
    assert read_checkpoint(replica) == steps[4]
    assert not (replica / ".weight_sync" / "fetch").exists()
