"""The memory that publish and pull take beyond mapped files does not grow with the model."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from harness import BINARY
from safetensors_files import Tensor, write_checkpoint

TENSOR_BYTES = 24 << 20
TENSORS = 14
BOUND = 256 << 20  # and one frame


def peak_anonymous(*arguments: object) -> int:
    """Runs the command with two threads; the most anonymous memory that was seen, in bytes."""
    process = subprocess.Popen([BINARY, *map(str, arguments), "--threads", "2"])
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text())
        peak = max(peak, int(found[1]) * 1024 if found else 0)
        time.sleep(0.002)
    assert process.returncode == 0
    return peak


def data_of(checkpoint: Path) -> bytes:
    """What follows the header, which may be padded."""
    content = (checkpoint / "model.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


@pytest.mark.parametrize(("encoding", "share"), [("xor", 1.0), ("overwrite", 0.5)])
def test_bound(tmp_path: Path, encoding: str, share: float) -> None:
    """A model of 336 MiB in which that share of the bytes changes, so that frames are as large as it is."""
    frame = int(TENSOR_BYTES * (1 if encoding == "xor" else 5 * share))
    rng = np.random.default_rng(3)
    model = {f"layer.{i}": np.frombuffer(rng.bytes(TENSOR_BYTES), np.uint8) for i in range(TENSORS)}
    shape = (TENSOR_BYTES // 2,)
    write_checkpoint(tmp_path / "a", {n: Tensor("BF16", shape, d) for n, d in model.items()})
    keep = int(TENSOR_BYTES * (1 - share))
    step = np.frombuffer(rng.bytes(TENSOR_BYTES), np.uint8) | 1
    step = np.where(rng.permuted(np.arange(TENSOR_BYTES) < keep), 0, step).astype(np.uint8)
    write_checkpoint(tmp_path / "b", {n: Tensor("BF16", shape, d ^ step) for n, d in model.items()})
    store, replica = tmp_path / "store", tmp_path / "replica"
    publish = peak_anonymous(
        "publish", tmp_path / "b", "--to", store, "--base", tmp_path / "a", "--encoding", encoding
    )
    pull = peak_anonymous("pull", "--from", store, "--into", replica, "--seed", tmp_path / "a")
    assert data_of(replica) == data_of(tmp_path / "b")
    print(f"publish {publish >> 20} MiB, pull {pull >> 20} MiB")
    assert 1 << 20 < publish < BOUND + frame, f"{publish >> 20} MiB"
    assert 1 << 20 < pull < BOUND + frame, f"{pull >> 20} MiB"
