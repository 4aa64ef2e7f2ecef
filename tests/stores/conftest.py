"""Places for stores: a bucket of a real S3 server, a web server with a certificate."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from bucket import Bucket
from store_server import StoreServer
from testing_authority import Authority


@pytest.fixture(scope="session")
def moto_url() -> Iterator[str]:
    """A real S3 server in a process of its own, with three keys on a page of a list."""
    program = Path(sys.executable).parent / "moto_server"
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [program, "-H", "127.0.0.1", "-p", "0"],
            env=os.environ | {"MOTO_S3_DEFAULT_MAX_KEYS": "3"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                output.seek(0)
                text = output.read().decode()
                if found := re.search(r"http://127\.0\.0\.1:\d+(?=\s)", text):
                    break
                assert process.poll() is None, text
                time.sleep(0.02)
            yield found[0]
        finally:
            process.kill()
            process.wait()


_numbers = itertools.count()


@pytest.fixture
def bucket(moto_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bucket:
    """A new bucket, with all that a client needs in the environment."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATESTTESTTESTTEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test/secret+key")
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    client = boto3.client("s3", endpoint_url=moto_url, region_name="us-east-1")
    name = f"weights-{os.getpid()}-{next(_numbers)}"
    client.create_bucket(Bucket=name)
    return Bucket(name, client)


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def server(store: Path) -> Iterator[StoreServer]:
    """Serves the test's store, whatever will be in it."""
    store.mkdir(exist_ok=True)
    with StoreServer(store) as server:
        yield server


@pytest.fixture
def secure_server(store: Path, authority: Authority) -> Iterator[StoreServer]:
    """The same by https."""
    store.mkdir(exist_ok=True)
    with StoreServer(store, certificate=authority.server) as server:
        yield server
