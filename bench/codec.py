"""The compact encoding: size against the entropy of the steps, speed in memory against the peer.

Sizes: `wire_bits_per_changed_compact` counts the frames alone, `version_bits_per_changed_compact`
all files of a version as syncline.Publisher writes it, index and manifest included. The limit is
the entropy of the steps with the old exponent as context (bench/entropy.py), and the targets are
ratios to it; the peer is xor with one zstd-1 frame a tensor.

Speeds: build/bin/codec_bench encodes and decodes in memory, in place, on two threads; the peer does
the same work in Python (encode_xor and patch_xor of tests/reference/directory_format.py) on two
threads, largest tensor first, its buffers warm. Rounds of ours and the peer's alternate. Both sides
compare what they decoded with what was meant after each round.

`memory_compact_mib` publishes and pulls one tensor of more than 4 GiB (bench/large_tensor.py). It
takes minutes and about 14 GB of disk, so it runs only where ONLY is given and matches its name.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import large_tensor
import ml_dtypes
import numpy as np
import quantised
import syncline
import xxhash
from entropy import step_entropy
from lines import Line, Report, median, seconds
from steps import PEER, THREADS, Pair, frames_bytes, in_parallel, memcpy_gbps

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "reference"))
import directory_format as reference

CODEC_BENCH = Path(__file__).resolve().parent.parent / "build/bin/codec_bench"
NAMES = (
    "wire_bits_per_changed_compact",
    "version_bits_per_changed_compact",
    "encode_compact_gbps",
    "decode_compact_gbps",
    "decode_compact_nohash_gbps",
)
RATES = ("1e-6", "5e-6", "3e-5")
Form = Literal["compact", "compact-gap"]
FORMS: tuple[Form, ...] = ("compact", "compact-gap")
ROUNDS = 7
SCRATCH = Path("/dev/shm/syncline-bench")
PEER_SIZE = "xor and one zstd-1 frame a tensor"
ENTROPY = "entropy of the steps with the old exponent as context"
DTYPES = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F32": np.float32}
PIECE = 256 << 10  # bytes that stay in the cache


def codec_bench(pair: Path, form: Form) -> dict[str, Any]:
    """One round of ours, after one that is not counted."""
    command = [str(CODEC_BENCH), str(pair / "old"), str(pair / "new"), "--form", form]
    done = subprocess.run(
        [*command, "--rounds", "1", "--threads", str(THREADS)], check=True, capture_output=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


class NoHash:
    """Takes the place of a hasher."""

    def update(self, data: Any, /) -> None:
        pass

    def hexdigest(self) -> str:
        return ""


class Peer:
    """The reference's algorithm in memory, on threads whose buffers stay warm."""

    def __init__(self, old: reference.Tensors, new: reference.Tensors) -> None:
        self.old, self.new = old, new
        self.names = sorted(old, key=lambda name: -old[name].data.size)
        self.image = {name: old[name].data.copy() for name in self.names}
        self.frames: dict[str, np.ndarray] = {}
        self.sums: dict[str, str] = {}
        self.pool = ThreadPoolExecutor(THREADS)

    def _each(self, work: Callable[[str], None], names: list[str]) -> float:
        return seconds(lambda: list(self.pool.map(work, names)))

    def encode(self) -> float:
        """Seconds; keeps the frames and the hashes."""
        self.frames.clear()

        def work(name: str) -> None:
            hasher = xxhash.xxh3_128()
            frame = reference.encode_xor(self.old[name].data, self.new[name].data, hasher)
            if frame is not None:
                self.frames[name], self.sums[name] = frame, hasher.hexdigest()

        return self._each(work, self.names)

    def decode(self, hashed: bool) -> float:
        """Seconds to patch the image in place; checks it and puts it back."""

        def work(name: str) -> None:
            hasher = xxhash.xxh3_128() if hashed else NoHash()
            reference.patch_xor(name, self.frames[name], self.image[name], hasher)
            if hashed and hasher.hexdigest() != self.sums[name]:
                raise SystemExit(f"tensor {name}: the hash is not the one that was meant")

        took = self._each(work, [name for name in self.names if name in self.frames])
        for name, held in self.image.items():
            if not np.array_equal(held, self.new[name].data):
                raise SystemExit(f"tensor {name}: the peer has not decoded what was meant")
            np.copyto(held, self.old[name].data)
        return took


def arrays(tensors: reference.Tensors) -> dict[str, np.ndarray]:
    return {n: t.data.view(DTYPES[t.dtype]).reshape(t.shape) for n, t in tensors.items()}


def directory_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def published_bytes(base: Path, new: reference.Tensors, form: Form) -> int:
    """All files of a version as our publisher writes it."""
    store = SCRATCH / form
    with syncline.Publisher(
        store, base=base, threads=THREADS, durable=False, encoding=form
    ) as publisher:
        publisher.publish(1, arrays(new))
    return directory_bytes(reference.version_dir(store, 1))


def size_lines(
    report: Report, pair: Path, sides: tuple[reference.Tensors, reference.Tensors], case: str
) -> None:
    """Both size lines of a pair, for each form."""
    if not report.wants(*NAMES[:2]):
        return
    old, new = sides
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    changed, limit = step_entropy(old, new)
    reference.write_delta(SCRATCH / "peer", 1, old, new, threads=THREADS, sync=False)
    peer_frames = frames_bytes(SCRATCH / "peer", 1)
    peer_files = directory_bytes(reference.version_dir(SCRATCH / "peer", 1))
    for form in FORMS:
        found = codec_bench(pair, form)
        if found["elements_changed"] != changed:
            raise SystemExit(f"{pair}: {found['elements_changed']} changes, expected {changed}")
        targeted = form == "compact"
        for name, ours, peer, target in (
            (NAMES[0], found["frame_bytes"], peer_frames, 1.05),
            (NAMES[1], published_bytes(pair / "old", new, form), peer_files, 1.12),
        ):
            report.add(
                Line(
                    name, f"{case}, {form}", "bits", 8 * ours / changed, 8 * peer / changed,
                    PEER_SIZE, limit, ENTROPY, target if targeted else None, True, "limit",
                )
            )  # fmt: skip
    shutil.rmtree(SCRATCH)


@dataclass
class Rates:
    """GB/s of two threads."""

    copy: float
    read: float  # of memory
    hash: float  # xxh3-128 of what is in the cache

    @staticmethod
    def measure(pair: Pair) -> Rates:
        names = list(pair.versions[0])

        def read(name: str) -> None:
            pair.versions[0][name].data.max()

        in_parallel(names, read)
        reading = min(seconds(lambda: in_parallel(names, read)) for _ in range(5))
        pieces = pair.bytes // PIECE // THREADS

        def digest(_work: str) -> None:
            piece = np.ones(PIECE, np.uint8)
            for _ in range(pieces):
                xxhash.xxh3_128(piece.data).digest()

        workers = ["of one thread"] * THREADS
        hashing = min(seconds(lambda: in_parallel(workers, digest)) for _ in range(5))
        return Rates(
            memcpy_gbps(pair), pair.bytes / 1e9 / reading, pieces * THREADS * PIECE / 1e9 / hashing
        )


def speed_lines(report: Report, pair: Pair, case: str, rate: str) -> None:
    """The speed lines of a pair, for each form."""
    if not report.wants(*NAMES[2:]):
        return
    rates = Rates.measure(pair)
    peer = Peer(pair.versions[0], pair.versions[1])
    keys = ("encode", "decode", "decode_nohash")
    ours: dict[str, list[float]] = {f"{form} {key}": [] for form in FORMS for key in keys}
    theirs: dict[str, list[float]] = {key: [] for key in keys}
    for number in range(ROUNDS + 1):
        found = {form: codec_bench(pair.directory, form) for form in FORMS}
        took = {"encode": peer.encode(), "decode": peer.decode(True)}
        took["decode_nohash"] = peer.decode(False)
        if number == 0:  # makes the buffers warm
            continue
        for key in keys:
            theirs[key].append(took[key])
            for form in FORMS:
                ours[f"{form} {key}"].append(found[form][key]["median"])

    def gbps(times: list[float]) -> float:
        return pair.bytes / 1e9 / median(times)

    decoding = 1 / rates.read + pair.touched / rates.copy
    reading = "the old values read once, memcpy of the touched 64-byte lines"
    for form in FORMS:
        for name, key, target, limit, limit_name in (
            (NAMES[2], "encode", 2.5, 2 / rates.read + 1 / rates.hash,
             "both images read once, xxh3-128 in the cache"),
            (NAMES[3], "decode", 2.0 if rate == "3e-5" else 2.3, decoding + 1 / rates.hash,
             f"{reading}, xxh3-128 in the cache"),
            (NAMES[4], "decode_nohash", None, decoding, reading),
        ):  # fmt: skip
            report.add(
                Line(
                    name, f"{case}, {form}, memory", "GB/s", gbps(ours[f"{form} {key}"]),
                    gbps(theirs[key]), PEER, 1 / limit, f"{limit_name}, two threads",
                    target if form == "compact" else None,
                )
            )  # fmt: skip


def quantised_lines(report: Report, pair: Path, scratch: Path, rate: str) -> None:
    """The size lines of the fp8 pair that is made of `pair`."""
    if not report.wants(*NAMES[:2]):
        return
    shutil.rmtree(scratch, ignore_errors=True)
    old, new = quantised.make_pair(pair, scratch)
    elements = sum(int(np.prod(tensor.shape)) for tensor in old.values())
    changed, _ = step_entropy(old, new)
    case = f"fp8 e4m3, lr {rate}, {100 * changed / elements:.2f} % changed"
    size_lines(report, scratch, (old, new), case)
    shutil.rmtree(scratch)


def run(report: Report, pairs: Path, scratch: Path) -> None:
    """The lines of NAMES and, if it was asked for, memory_compact_mib."""
    if report.wants(*NAMES):
        for rate in RATES:
            pair = Pair(pairs / rate)
            case = f"lr {rate}, {100 * pair.changed / pair.elements:.2f} % changed"
            size_lines(report, pair.directory, (pair.versions[0], pair.versions[1]), case)
            speed_lines(report, pair, case, rate)
            quantised_lines(report, pairs / rate, scratch / "quantised", rate)
    if report.only.pattern:
        large_tensor.run(report, scratch / "large")
