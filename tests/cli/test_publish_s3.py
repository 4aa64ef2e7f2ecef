"""A store in a bucket, served by moto: full versions, deltas, and publishers that come back."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import Cli, Exit, changed, random_tensors
from safetensors_files import read_checkpoint, write_checkpoint

SERVER = Path(sys.executable).with_name("moto_server")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """s3://… of a new bucket, with the environment that leads there."""
    process = subprocess.Popen(
        [SERVER, "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    address = None
    for line in process.stderr:
        if found := re.search(r"http://127\.0\.0\.1:\d+", line):
            address = found[0]
            break
    assert address is not None
    (tmp_path / "tmp").mkdir()
    for name, value in {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "TMPDIR": str(tmp_path / "tmp"),
    }.items():
        monkeypatch.setenv(name, value)
    import boto3

    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="weights")
    yield "s3://weights/run"
    process.kill()
    process.communicate()


def test_publish_and_pull(
    cli: Cli, bucket: str, replica: Path, rng: np.random.Generator, tmp_path: Path
) -> None:
    tensors = random_tensors(rng, ("BF16", "F32"))
    for version in range(3):
        write_checkpoint(tmp_path / "step", tensors)
        report = cli.ok("publish", tmp_path / "step", "--to", bucket, "--full-copy-ratio", 0)
        assert report["version"] == version
        assert report["kind"] == ("delta" if version else "full")
        cli.ok("pull", "--from", bucket, "--into", replica)
        assert read_checkpoint(replica) == tensors
        tensors = changed(rng, tensors, density=0.01)
    assert not list((tmp_path / "tmp").iterdir()), "nothing is left of what was uploaded"
    cli.fails(
        "publish", tmp_path / "step", "--to", bucket, "--version", 1, codes=[Exit.ALREADY_EXISTS]
    )
