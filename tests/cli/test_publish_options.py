"""Signing, full copies, and what is run after a publish."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import BINARY, Cli, Exit, changed, random_tensors
from safetensors_files import Tensor, read_checkpoint, write_checkpoint


@pytest.fixture
def steps(rng: np.random.Generator, tmp_path: Path) -> Iterator[Path]:
    """Checkpoint directories, each a step after the one before."""

    def make() -> Iterator[Path]:
        tensors = {"w": Tensor("BF16", (300, 100), rng.integers(0, 256, 60_000, np.uint8))}
        tensors |= random_tensors(rng, ("F32",))
        for number in range(100):
            path = tmp_path / f"step{number}"
            write_checkpoint(path, tensors)
            (path / "config.json").write_text("{}")
            yield path
            tensors = changed(rng, tensors, density=0.01)

    return make()


def test_signed_versions(cli: Cli, store: Path, steps: Iterator[Path], tmp_path: Path) -> None:
    key = tmp_path / "trainer.key"
    made = cli.ok("keygen", key)
    assert made == {
        "private_key": str(key),
        "public_key": f"{key}.pub",
        "fingerprint": made["fingerprint"],
    }
    assert re.fullmatch("[0-9a-f]{16}", made["fingerprint"])
    assert key.stat().st_mode & 0o777 == 0o600
    cli.fails("keygen", key, naming=[str(key)], codes=[Exit.ALREADY_EXISTS])
    secret = "".join(key.read_text().splitlines()[1:-1])

    cli.ok("publish", next(steps), "--to", store)
    signed = cli("publish", next(steps), "--to", store, "--sign", key)
    assert signed.rc == 0
    assert secret not in signed.stdout + signed.stderr
    log = cli.ok("log", store)["versions"]
    assert [version["signed_by"] for version in log] == [None, made["fingerprint"]]
    assert made["fingerprint"] in cli("log", store).stdout
    signature = json.loads((store / "weight_v000001" / "syncline.manifest.sig").read_text())
    assert signature["key"] == made["fingerprint"]
    message = cli.fails("publish", next(steps), "--to", store, "--sign", f"{key}.pub")
    assert f"{key}.pub" in message
    assert len(cli.ok("log", store)["versions"]) == 2


def test_full_copies(cli: Cli, store: Path, steps: Iterator[Path], replica: Path) -> None:
    kinds = []
    for step in (next(steps) for _ in range(4)):
        report = cli.ok("publish", step, "--to", store, "--full-copy-ratio", 0.05)
        kinds.append(report["full_copy"])
        last = step
    assert any(kinds) and not all(kinds[1:])
    log = cli.ok("log", store)["versions"]
    assert [version["kind"] == "delta+full" for version in log] == kinds
    copy = store / f"weight_v{kinds.index(True):06}" / "full"
    assert (copy / "config.json").exists()
    cli.ok("verify", store)
    cli.ok("pull", "--from", store, "--into", replica)
    assert read_checkpoint(replica) == read_checkpoint(last)
    # What is damaged is found.
    shard = copy / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    cli.fails("verify", store, naming=[str(shard)], codes=[Exit.CHECKSUM_MISMATCH])
    cli.fails("publish", last, "--to", store, "--full-copy-ratio", -1)


def test_after_publish(cli: Cli, store: Path, steps: Iterator[Path], tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = f'echo "$SYNCLINE_VERSION of $SYNCLINE_STORE" | tee -a {told}'
    report = cli.ok("publish", next(steps), "--to", store, "--after-publish", command)
    assert report["version"] == 0
    assert told.read_text() == f"0 of {store}\n"
    message = cli.fails(
        "publish", next(steps), "--to", store, "--after-publish", "exit 3", codes=[10]
    )
    assert "version 1 stands" in message
    assert "exit code 3" in message
    assert [version["version"] for version in cli.ok("log", store)["versions"]] == [0, 1]
    assert cli.ok("publish", next(steps), "--to", store)["base_version"] == 1
    cli.ok("verify", store)


def test_the_pointer_names_the_newest_version(cli: Cli, store: Path, steps: Iterator[Path]) -> None:
    for version in range(2):
        report = cli.ok("publish", next(steps), "--to", store)
        latest = json.loads((store / "syncline.latest.json").read_text())
        assert latest["version"] == version
        assert latest["identity"] == report["identity"]
        manifest = store / f"weight_v{version:06}" / "syncline.manifest.json"
        assert latest["run"] == json.loads(manifest.read_text())["run"]


# The second read of the file at an offset beyond its header finds it cut to a half.
CUT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static ssize_t read_at(int fd, void *into, size_t size, off64_t offset) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  static int reads;
  char link[64], path[4096];
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0 && offset > 4096) {
    path[length] = 0;
    struct stat info;
    if (!strcmp(path, getenv("CUT_FILE")) && ++reads == 2 && !stat(path, &info)) {
      if (truncate(path, info.st_size / 2)) abort();
    }
  }
  return real(fd, into, size, offset);
}
ssize_t pread(int fd, void *into, size_t size, off_t offset) {
  return read_at(fd, into, size, offset);
}
ssize_t pread64(int fd, void *into, size_t size, off64_t offset) {
  return read_at(fd, into, size, offset);
}
"""


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("full", [False, True])
def test_an_input_that_is_cut_is_an_error(
    cli: Cli, store: Path, replica: Path, rng, tmp_path: Path, encoding: str, full: bool
) -> None:
    """Another process cuts a file after its header was read, which is a moment of its own choosing."""
    size = 40 << 20
    old = {f"t{i}": Tensor("U8", (size,), np.zeros(size, np.uint8)) for i in range(2)}
    new = {name: Tensor("U8", (size,), rng.integers(0, 256, size, np.uint8)) for name in old}
    write_checkpoint(tmp_path / "old", old)
    write_checkpoint(tmp_path / "new", new)
    cli.ok("publish", tmp_path / "old", "--to", store, "--encoding", encoding)
    shard = tmp_path / "new" / "model.safetensors"
    whole = shard.stat().st_size
    library = tmp_path / "cut.so"
    source = tmp_path / "cut.c"
    source.write_text(CUT)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    options = ["--full"] if full else ["--encoding", encoding]
    done = subprocess.run(
        [BINARY, "publish", tmp_path / "new", "--to", store, "--threads", "1", *options],
        env={**os.environ, "LD_PRELOAD": str(library), "CUT_FILE": str(shard)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == Exit.CORRUPT, done.stderr
    assert f"{shard} is truncated: expected {whole} bytes, found {whole // 2}" in done.stderr
    assert len(cli.ok("log", store)["versions"]) == 1
    write_checkpoint(tmp_path / "new", new)
    cli.ok("publish", tmp_path / "new", "--to", store, *options)
    cli.ok("pull", "--from", store, "--into", replica)
    assert read_checkpoint(replica) == new
