"""`memory_compact_mib`: one bf16 tensor of more than 4 GiB, published and pulled in compact form.

What is measured is the most anonymous memory of `syncline publish` and of `syncline pull` (which
seeds the replica first); mapped pages of files are not counted. The replica is compared with what
was published by its hash. Takes some minutes and about 14 GB of disk.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash
from lines import Line, Report
from replica import peak_anonymous
from steps import THREADS, file_system

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "reference"))
from safetensors_files import SINGLE_NAME, map_checkpoint

NAME = "memory_compact_mib"
BOUND = 512  # MiB
TENSOR = "model.embed_tokens.weight"
ELEMENTS = (1 << 31) + 4321
BLOCK = 1 << 24  # elements made at a time
CHANGED = 0.003
SEED = 7


def blocks(changed: bool) -> Iterator[np.ndarray]:
    """The bits of the tensor; where `changed`, some have moved by one unit in the last place."""
    for number, begin in enumerate(range(0, ELEMENTS, BLOCK)):
        size = min(BLOCK, ELEMENTS - begin)
        rng = np.random.default_rng([SEED, number])
        weights = rng.standard_normal(size, np.float32) * np.float32(0.02)
        bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
        if changed:
            moved = rng.integers(0, size, int(CHANGED * size))
            bits[moved] += rng.choice(np.array([1, 0xFFFF], np.uint16), moved.size)
        yield bits


def write(directory: Path, changed: bool) -> str:
    """A checkpoint of the one tensor; returns its xxh3-128."""
    directory.mkdir(parents=True)
    entry = {"dtype": "BF16", "shape": [ELEMENTS], "data_offsets": [0, 2 * ELEMENTS]}
    text = json.dumps({TENSOR: entry}).encode()
    text += b" " * (-len(text) % 8)
    hasher = xxhash.xxh3_128()
    with (directory / SINGLE_NAME).open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for block in blocks(changed):
            file.write(block.data)
            hasher.update(block.data)
    return hasher.hexdigest()


def run(report: Report, scratch: Path) -> None:
    if not report.wants(NAME):
        return
    shutil.rmtree(scratch, ignore_errors=True)
    old, new, store, replica = (scratch / name for name in ("old", "new", "store", "replica"))
    write(old, False)
    expected = write(new, True)
    threads = ("--threads", THREADS)
    publish = peak_anonymous(
        "publish", new, "--to", store, "--base", old, "--encoding", "compact",
        "--baseline", scratch / "baseline", *threads,
    )  # fmt: skip
    for unneeded in (new, scratch / "baseline"):
        shutil.rmtree(unneeded)
    pull = peak_anonymous("pull", "--from", store, "--into", replica, "--seed", old, *threads)
    if xxhash.xxh3_128(map_checkpoint(replica)[TENSOR].data.data).hexdigest() != expected:
        raise SystemExit("the replica is not what was published")
    case = f"a tensor of {2 * ELEMENTS / (1 << 30):.2f} GiB, {file_system(scratch)}"
    for what, found in (("publish", publish), ("pull", pull)):
        report.add(
            Line(
                NAME, f"{what}, {case}", "MiB", found, BOUND, "the bound",
                target=1.0, less_is_better=True,
            )
        )  # fmt: skip
    shutil.rmtree(scratch)
