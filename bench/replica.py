"""What a replica's safety costs: pulls with a journal, recovery, memory, verification.

`pull_journalled_s` compares a pull with the same work without a journal (bench/unjournalled.cc, made of the same parts), at equal durability:
a power cut right after it must find the new version. Ours syncs its journal; the peer has to sync the checkpoint. `recovery_s` is the first pull
after one that was killed in the middle of its writes, against a whole pull. `pull_memory_mib` is the most anonymous memory of a pull of
synthetic models. `verify_gbps` is compared with xxh3-128 over the same warm files.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import syncline
import xxhash
from lines import Line, Report, median, seconds

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "reference"))
import directory_format as reference
from steps import THREADS, Pair, file_system, same

UNJOURNALLED = ROOT / "build/bin/unjournalled"
BINARY = ROOT / "build/bin/syncline"
NAMES = ("pull_journalled_s", "recovery_s", "verify_gbps", "pull_memory_mib")


def unjournalled(mode: str, store: Path, version: int, replica: Path) -> float:
    done = subprocess.run(
        [UNJOURNALLED, mode, store, str(version), replica],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(done.stdout)


def run_pair(report: Report, pair: Pair, case: str, scratch: Path, place: str, rounds: int) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    store, base = scratch / "store", scratch / "base"
    shutil.copytree(pair.directory / "old", base)
    publisher = syncline.Publisher(store, base=base, threads=THREADS, durable=False)
    ours, peer, broken = (scratch / name for name in ("ours", "peer", "broken"))
    for replica in (ours, broken):
        syncline.pull(store, replica, seed=base, version=0, threads=THREADS)
    shutil.copytree(base, peer)
    times: dict[str, list[float]] = {k: [] for k in ("ours", "peer", "recovery", "verify", "hash")}
    for version in range(1, rounds + 1):
        publisher.publish(version, pair.arrays(version % 2))
        goal = pair.versions[version % 2]
        os.sync()  # pages are clean, as after a step of training
        times["ours"].append(
            seconds(lambda v=version: syncline.pull(store, ours, version=v, threads=THREADS))
        )
        os.sync()
        times["peer"].append(unjournalled("apply", store, version, peer))
        os.sync()
        unjournalled("interrupt", store, version, broken)
        times["recovery"].append(
            seconds(lambda v=version: syncline.pull(store, broken, version=v, threads=THREADS))
        )
        for replica in (ours, peer, broken):
            same(replica, goal)
        times["verify"].append(seconds(lambda: syncline.verify(ours, threads=THREADS)))
        times["hash"].append(seconds(lambda: hash_files(ours)))
    publisher.close()
    where = f"{case}, {place}"
    report.add(
        Line(
            "pull_journalled_s", where, "s", median(times["ours"]), median(times["peer"]),
            "the same without a journal, files synced", None, "", 1.3, True,
        )
    )  # fmt: skip
    report.add(
        Line(
            "recovery_s", where, "s", median(times["recovery"]), median(times["ours"]),
            "a whole pull", None, "", 1.0, True,
        )
    )  # fmt: skip
    report.add(
        Line(
            "verify_gbps", where, "GB/s", pair.bytes / 1e9 / median(times["verify"]),
            pair.bytes / 1e9 / median(times["hash"]),
            "xxh3-128 of the mapped tensors, two threads", None, "", 0.7,
        )
    )  # fmt: skip
    shutil.rmtree(scratch)


def hash_files(replica: Path) -> None:
    """xxh3-128 of every tensor, largest first, two threads."""
    tensors = reference.map_checkpoint(replica)
    names = sorted(tensors, key=lambda n: -tensors[n].data.size)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda n: xxhash.xxh3_128(tensors[n].data).digest(), names))


def peak_anonymous(*arguments: object) -> float:
    """Runs the command; the most anonymous memory that was seen, in MiB."""
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdout=subprocess.DEVNULL)
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        try:
            found = re.search(r"RssAnon:\s+(\d+) kB", status.read_text())
        except OSError:
            break
        peak = max(peak, int(found[1]) if found else 0)
        time.sleep(0.002)
    if process.wait() != 0:
        raise SystemExit(f"{arguments}: exit code {process.returncode}")
    return peak / 1024


def run_memory(report: Report, scratch: Path, gigabytes: int) -> None:
    """A model of so many GB in tensors of 256 MB; a delta changes two percent of the elements of all."""
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    size = 256_000_000
    names = [f"layer.{i}" for i in range(gigabytes * 1_000_000_000 // size)]
    rng = np.random.default_rng(5)
    old = {n: np.zeros(size, np.uint8) for n in names[:1]}
    step = np.zeros(size // 2, np.uint16)
    step[rng.integers(0, step.size, step.size // 50)] = 1
    tensor = lambda data: reference.Tensor("BF16", (size // 2,), data)
    held = dict.fromkeys(names, tensor(old[names[0]]))
    new = dict.fromkeys(names, tensor(step.view(np.uint8)))
    base, store, replica = scratch / "base", scratch / "store", scratch / "replica"
    write_sparse(base, names, size)
    store.mkdir()
    reference.write_delta(store, 1, held, new, threads=THREADS, sync=False)
    command = ("pull", "--from", store, "--into", replica, "--seed", base, "--threads", THREADS)
    seed = peak_anonymous(*command, "--version", 0)
    peak = peak_anonymous(*command)
    if syncline.verify(replica, version=1).tensors != len(names):
        raise SystemExit("the replica is not what was published")
    case = f"synthetic model of {gigabytes} GB, {file_system(scratch)}"
    for what, found in (("seed", seed), ("apply", peak)):
        report.add(
            Line(
                "pull_memory_mib", f"{what}, {case}", "MiB", found, 256, "the bound", None, "",
                1.0, True,
            )
        )  # fmt: skip
    shutil.rmtree(scratch)


def write_sparse(directory: Path, names: list[str], size: int) -> None:
    """A checkpoint of zeros that takes no room."""
    import json

    directory.mkdir()
    header = {
        name: {"dtype": "BF16", "shape": [size // 2], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size * len(names))


def run(report: Report, pairs: Path, scratch: Path) -> None:
    """The lines of NAMES."""
    if not report.wants(*NAMES):
        return
    if report.wants(*NAMES[:3]):
        for rate in ("1e-6", "3e-5"):
            pair = Pair(pairs / rate)
            case = f"lr {rate}, {100 * pair.changed / pair.elements:.2f} % changed"
            run_pair(report, pair, case, Path("/dev/shm/syncline-bench"), "tmpfs", rounds=7)
            run_pair(report, pair, case, scratch, f"{file_system(scratch)}, clean pages", rounds=5)
    if report.wants("pull_memory_mib"):
        for gigabytes in (1, 8):
            run_memory(report, scratch, gigabytes)
