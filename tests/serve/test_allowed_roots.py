"""What requests may name where the engine has --allowed-root: BR-48, and what stays legal (BR-20)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Cli
from server import Server

Write = Callable[..., Path]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture(params=[1, 2])
def rooted(request: pytest.FixtureRequest, start: Callable[..., Server], root: Path) -> Server:
    return start("--allowed-root", root, "--tp", request.param)


def update(server: Server, path: Path | str, **fields: object) -> tuple[int, str]:
    reply = server.post("/update_weights_from_disk", {"model_path": str(path), **fields})
    return reply.status, str(reply.json["message"])


def inside(root: Path, checkpoint: Path) -> Path:
    shutil.copytree(checkpoint, root / checkpoint.name)
    return root / checkpoint.name


def test_br_48_a_checkpoint_outside(rooted: Server, root: Path, other_checkpoint: Write) -> None:
    outside = other_checkpoint(1)
    (root / "link").symlink_to(outside)
    for path in (outside, root / "link", f"{root}/../{outside.name}", "/etc"):
        status, message = update(rooted, path, weight_version="1")
        assert status == 400
        assert "model_path" in message and str(path) in message and str(root) in message
    assert rooted.get("/get_weight_version").ok()["weight_version"] == "default"
    assert update(rooted, inside(root, outside), weight_version="2")[0] == 200


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_br_48_a_link_inside_that_leads_out(
    rooted: Server, root: Path, other_checkpoint: Write, tmp_path: Path, file: str
) -> None:
    """It leads to a pipe that nobody writes to: whoever opened it would wait for ever."""
    checkpoint = inside(root, other_checkpoint(1))
    os.mkfifo(tmp_path / "trap")
    (checkpoint / file).unlink()
    (checkpoint / file).symlink_to(tmp_path / "trap")
    status, message = update(rooted, checkpoint, weight_version="1")
    assert status == 400
    assert file in message and "trap" in message and str(root) in message
    assert rooted.get("/get_weight_version").ok()["weight_version"] == "default"


def test_br_20_links_to_the_blobs_of_a_cache(
    rooted: Server, root: Path, other_checkpoint: Write
) -> None:
    checkpoint = other_checkpoint(1)
    snapshot = root / "models--a--b" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (root / "models--a--b" / "blobs").mkdir()
    for file in checkpoint.iterdir():
        shutil.copy(file, root / "models--a--b" / "blobs" / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert update(rooted, snapshot, weight_version="1")[0] == 200


def test_br_48_pulls(
    rooted: Server, root: Path, other_checkpoint: Write, cli: Cli, tmp_path: Path
) -> None:
    for version in (0, 1):
        checkpoint = other_checkpoint(version)
        cli.ok("publish", checkpoint, "--to", root / "store", "--version", version)

    def pull(source: object, replica: object, version: int = 1) -> tuple[int, str]:
        body = {
            "source_dir": str(source),
            "local_checkpoint_dir": str(replica),
            "target_version": version,
        }
        reply = rooted.post("/pull_weights", body)
        return reply.status, str(reply.json["message"])

    shutil.copytree(root / "store", tmp_path / "store")
    (root / "away").symlink_to(tmp_path)
    for source in (tmp_path / "store", f"file://{tmp_path}/store", root / "away" / "store"):
        status, message = pull(source, root / "replica")
        assert status == 400 and "source_dir" in message and str(root) in message
    for source in ("s3://bucket/store", "http://127.0.0.1:1/store"):
        status, message = pull(source, root / "replica")
        assert status == 400 and "--allowed-source" in message and source in message
    for replica in (tmp_path / "replica", root / "away" / "replica", root / ".." / "replica"):
        status, message = pull(root / "store", replica)
        assert status == 400 and "local_checkpoint_dir" in message and str(replica) in message
    assert not (root / "replica").exists() and not (tmp_path / "replica").exists()
    for source in (root / "store", f"file://{root}/store"):
        assert pull(source, root / "replica") == (200, "Success.")
    assert update(rooted, root / "replica", weight_version="1")[0] == 200
    digest = rooted.get(f"/weights_digest?version=1&source={tmp_path}/store")
    assert digest.status == 403 and "source" in digest.text
    assert rooted.get(f"/weights_digest?version=1&source={root}/store").ok()["equal"] is True
    # Version 0 is the checkpoint of the start, which the operator has chosen, wherever it lies.
    assert pull(root / "store", root / "other", 0) == (200, "Success.")


def test_br_48_a_version_whose_file_is_a_link(
    rooted: Server, root: Path, other_checkpoint: Write, cli: Cli, tmp_path: Path
) -> None:
    cli.ok("publish", other_checkpoint(1), "--to", root / "store", "--version", 1)
    file = next((root / "store").glob("weight_v000001/*.safetensors"))
    shutil.move(file, tmp_path / "outside.safetensors")
    file.symlink_to(tmp_path / "outside.safetensors")
    body = {
        "source_dir": str(root / "store"),
        "local_checkpoint_dir": str(root / "replica"),
        "target_version": 1,
    }
    reply = rooted.post("/pull_weights", body)
    assert reply.status == 400
    assert file.name in reply.json["message"] and "outside.safetensors" in reply.json["message"]
