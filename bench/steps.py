"""Publishing and applying real training steps, against the same algorithm in Python.

The peer (tests/reference/directory_format.py) is what public systems do, in numpy, zstandard and xxhash on two threads, in pieces that stay in the
cache: xor, one zstd-1 frame a tensor, xxh3-128 of every new tensor; receiving side: memory-mapped writes in place. Both sides hold the last
version in memory and bring it up to date as part of publishing; neither syncs. Rounds alternate between ours and the peer's, and after each one
what was made is compared with what was meant.
"""

from __future__ import annotations

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import syncline
import xxhash
from lines import Line, Report, median, seconds

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "reference"))
import directory_format as reference

THREADS = 2
PEER = "the same algorithm in Python: numpy, zstandard level 1, xxhash, two threads"

Arrays = dict[str, np.ndarray]


class Pair:
    """Two consecutive versions of a model, in memory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.versions = [self._load(directory / "old"), self._load(directory / "new")]
        self.dtypes = {name: t.dtype for name, t in self.versions[0].items()}
        self.bytes = sum(t.data.size for t in self.versions[0].values())
        changed = lines = 0
        steps = np.zeros(1 << 16, np.int64)
        for name, old in self.versions[0].items():
            new = self.versions[1][name]
            a, b = old.data.view("<u2"), new.data.view("<u2")
            steps += np.bincount(b - a, minlength=1 << 16)
            changed += int(np.count_nonzero(a != b))
            differs = np.zeros(-(-old.data.size // 64) * 64, bool)
            differs[: old.data.size] = old.data != new.data
            lines += int(differs.reshape(-1, 64).any(axis=1).sum())
        self.elements = self.bytes // 2
        self.changed = changed
        self.touched = lines * 64 / self.bytes
        share = steps[steps > 0] / self.elements
        self.entropy = float(-(share * np.log2(share)).sum()) * self.elements / changed

    @staticmethod
    def _load(directory: Path) -> reference.Tensors:
        tensors = reference.map_checkpoint(directory)
        return {n: reference.Tensor(t.dtype, t.shape, t.data.copy()) for n, t in tensors.items()}

    def arrays(self, version: int) -> Arrays:
        """What a trainer hands over; bf16 as uint16 would be another dtype, so ml_dtypes it is."""
        import ml_dtypes

        return {
            name: t.data.view(ml_dtypes.bfloat16).reshape(t.shape)
            for name, t in self.versions[version].items()
        }


def in_parallel(tensors: list[str], work) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, tensors))


def memcpy_gbps(pair: Pair) -> float:
    """Bytes copied a second by two threads, the model's tensors one by one."""
    target = {n: np.empty_like(t.data) for n, t in pair.versions[0].items()}

    def copy(name: str) -> None:
        np.copyto(target[name], pair.versions[0][name].data)

    names = list(target)
    in_parallel(names, copy)
    return pair.bytes / 1e9 / min(seconds(lambda: in_parallel(names, copy)) for _ in range(5))


def hash_gbps(pair: Pair) -> float:
    """Bytes hashed a second by xxh3-128 on two threads."""

    def digest(name: str) -> None:
        xxhash.xxh3_128(pair.versions[0][name].data).digest()

    names = sorted(pair.dtypes, key=lambda n: -pair.versions[0][n].data.size)
    return pair.bytes / 1e9 / min(seconds(lambda: in_parallel(names, digest)) for _ in range(5))


class PeerPublisher:
    """The reference publisher with its copy of the last version."""

    def __init__(self, store: Path, pair: Pair) -> None:
        self.store = store
        self.held = {
            n: reference.Tensor(t.dtype, t.shape, t.data.copy())
            for n, t in pair.versions[0].items()
        }

    def publish(self, version: int, tensors: reference.Tensors) -> None:
        reference.write_delta(self.store, version, self.held, tensors, threads=THREADS, sync=False)

        def keep(name: str) -> None:
            np.copyto(self.held[name].data, tensors[name].data)

        in_parallel(list(tensors), keep)


def frames_bytes(store: Path, version: int) -> int:
    """Bytes of the frames alone, without headers, index and manifest."""
    return sum(len(frame) for frame in reference.read_version(store, version).frames.values())


def same(replica: Path, tensors: reference.Tensors) -> None:
    held = reference.map_checkpoint(replica)
    wrong = [n for n, t in tensors.items() if not np.array_equal(held[n].data, t.data)]
    if wrong or held.keys() != tensors.keys():
        raise SystemExit(f"{replica}: not the version that was published: {wrong[:5]}")


def run_pair(report: Report, pair: Pair, case: str, scratch: Path, place: str, rounds: int) -> None:
    """All lines of one pair of versions on one file system."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    memcpy, hashing = memcpy_gbps(pair), hash_gbps(pair)
    stores = {"ours": scratch / "ours", "peer": scratch / "peer"}
    base = scratch / "base"
    shutil.copytree(pair.directory / "old", base)
    publisher = syncline.Publisher(
        stores["ours"], base=base, threads=THREADS, durable=False, encoding="xor"
    )
    peer = PeerPublisher(stores["peer"], pair)
    replicas = {who: scratch / f"replica-{who}" for who in ("ours", "peer", "foreign")}
    for who in ("ours", "foreign"):
        syncline.pull(stores["ours"], replicas[who], seed=base, version=0, threads=THREADS)
    stores["peer"].mkdir(exist_ok=True)
    reference.pull(stores["peer"], replicas["peer"], 0, base_dir=base, threads=THREADS)

    times: dict[str, list[float]] = {
        k: [] for k in ("publish", "peer publish", "apply", "peer apply", "foreign")
    }
    arrays = [pair.arrays(0), pair.arrays(1)]
    for version in range(1, rounds + 1):
        goal = pair.versions[version % 2]
        named = arrays[version % 2]
        times["publish"].append(seconds(lambda v=version, n=named: publisher.publish(v, n)))
        times["peer publish"].append(seconds(lambda v=version, g=goal: peer.publish(v, g)))
        os.sync()  # so that the replicas' pages are clean, as after a step of training
        for key, store, who in (
            ("apply", "ours", "ours"),
            ("peer apply", "peer", "peer"),
            ("foreign", "peer", "foreign"),
        ):
            if who == "peer":
                work = lambda v=version: reference.apply_delta(
                    replicas["peer"], stores["peer"], v, threads=THREADS
                )
            else:
                work = lambda v=version, s=store, w=who: syncline.pull(
                    stores[s], replicas[w], version=v, threads=THREADS
                )
            times[key].append(seconds(work))
            same(replicas[who], goal)
    publisher.close()

    def gbps(key: str) -> float:
        return pair.bytes / 1e9 / median(times[key])

    where = f"{case}, {place}"
    report.add(
        Line(
            "publish_gbps", where, "GB/s", gbps("publish"), gbps("peer publish"), PEER,
            memcpy, "memcpy of the model, two threads", 2.5,
        )
    )  # fmt: skip
    touched = 1 / (pair.touched / memcpy + 1 / hashing)
    limit_name = "memcpy of the touched 64-byte lines and one xxh3-128 pass, two threads"
    report.add(
        Line(
            "apply_gbps", where, "GB/s", gbps("apply"), gbps("peer apply"), PEER,
            touched, limit_name, 1.6,
        )
    )  # fmt: skip
    report.add(
        Line(
            "apply_foreign_gbps", where + ", peer's files", "GB/s", gbps("foreign"),
            gbps("peer apply"), PEER, touched, limit_name,
        )
    )  # fmt: skip
    if place == "tmpfs":
        report.add(
            Line(
                "wire_bits_per_changed", case, "bits",
                frames_bytes(stores["ours"], 1) * 8 / pair.changed,
                frames_bytes(stores["peer"], 1) * 8 / pair.changed,
                "xor and one zstd-1 frame a tensor", pair.entropy,
                "order-0 entropy of the steps, no context", None, True,
            )
        )  # fmt: skip
    shutil.rmtree(scratch)


def run(report: Report, pairs: Path, scratch: Path) -> None:
    """Lines publish_gbps, apply_gbps, apply_foreign_gbps and wire_bits_per_changed."""
    if not report.wants(
        "publish_gbps", "apply_gbps", "apply_foreign_gbps", "wire_bits_per_changed"
    ):
        return
    for rate in ("1e-6", "5e-6", "3e-5"):
        pair = Pair(pairs / rate)
        case = f"lr {rate}, {100 * pair.changed / pair.elements:.2f} % changed"
        run_pair(report, pair, case, Path("/dev/shm/syncline-bench"), "tmpfs", rounds=7)
        run_pair(
            report, pair, case, scratch, f"{file_system(scratch)}, warm, clean pages", rounds=5
        )


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`."""
    path.mkdir(parents=True, exist_ok=True)
    best, kind = "", "?"
    for entry in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs, *_ = entry.split()
        inside = path.resolve().is_relative_to(mount)
        if inside and len(mount) >= len(best):
            best, kind = mount, fs
    return kind
