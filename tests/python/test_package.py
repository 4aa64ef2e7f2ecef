"""The package from end to end: publish, pull, verify, log; and what a trainer's life brings."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import syncline
import torch
from directory_format import version_dir
from harness import tree
from safetensors_files import Tensor, read_checkpoint, write_checkpoint

SHAPES = {"matrix": (33, 17), "odd": (1021,), "one": (), "none": (2, 0)}
TYPES = {
    "BF16": (ml_dtypes.bfloat16, torch.bfloat16),
    "F8_E4M3": (ml_dtypes.float8_e4m3fn, torch.float8_e4m3fn),
    "BOOL": (np.bool_, torch.bool),
    "F32": (np.float32, torch.float32),
}
Model = dict[str, Tensor]
Convert = Callable[[Model], dict[str, object]]


def make_model(rng: np.random.Generator) -> Model:
    model = {}
    for dtype, (native, _) in TYPES.items():
        for name, shape in SHAPES.items():
            count = int(np.prod(shape, dtype=np.int64)) * np.dtype(native).itemsize
            high = 2 if dtype == "BOOL" else 256
            model[f"{dtype}.{name}"] = Tensor(dtype, shape, rng.integers(0, high, count, np.uint8))
    return model


def step(rng: np.random.Generator, model: Model) -> Model:
    """The model after a training step: about a tenth of the bytes of every other tensor differ."""
    result = dict(model)
    for name in list(model)[::2]:
        tensor = model[name]
        flips = (rng.random(tensor.data.shape) < 0.1).astype(np.uint8)
        result[name] = Tensor(tensor.dtype, tensor.shape, tensor.data ^ flips)
    return result


def as_numpy(model: Model) -> dict[str, object]:
    return {n: t.data.view(TYPES[t.dtype][0]).reshape(t.shape) for n, t in model.items()}


def as_torch(model: Model) -> dict[str, object]:
    return {
        name: torch.from_numpy(tensor.data).view(TYPES[tensor.dtype][1]).reshape(tensor.shape)
        if tensor.nbytes
        else torch.empty(tensor.shape, dtype=TYPES[tensor.dtype][1])
        for name, tensor in model.items()
    }


def changed_elements(old: Model, new: Model) -> int:
    count = 0
    for name, tensor in new.items():
        width = np.dtype(TYPES[tensor.dtype][0]).itemsize
        count += int((tensor.data != old[name].data).reshape(-1, width).any(axis=1).sum())
    return count


def run_python(code: str, *arguments: object) -> str:
    """Runs the code in a process of its own and returns what it prints."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("encoding", ["xor", "overwrite", "compact", "compact-gap", "auto"])
@pytest.mark.parametrize("convert", [as_numpy, as_torch])
def test_round_trip(
    store: Path, replica: Path, rng: np.random.Generator, convert: Convert, encoding: str
) -> None:
    models = [make_model(rng)]
    for _ in range(3):
        models.append(step(rng, models[-1]))
    before = datetime.now(timezone.utc)
    with syncline.Publisher(store, encoding=encoding, threads=2) as publisher:
        assert publisher.version is None
        for number, model in enumerate(models):
            report = publisher.publish(number, convert(model))
            assert report.version == publisher.version == number
            assert report.tensors == len(model)
            assert report.full_bytes == sum(tensor.nbytes for tensor in model.values())
            on_disk = sum(file.stat().st_size for file in version_dir(store, number).iterdir())
            assert report.bytes == on_disk
            assert report.seconds > 0
            if number == 0:
                assert (report.kind, report.base_version, report.density) == ("full", None, 1)
                assert report.tensors_changed == report.tensors
            else:
                old = models[number - 1]
                assert (report.kind, report.base_version) == ("delta", number - 1)
                assert report.tensors_changed == sum(model[n] != old[n] for n in model)
                assert report.elements_changed == changed_elements(old, model)
                assert report.density == report.elements_changed / report.elements
            pulled = syncline.pull(store, replica)
            assert (pulled.version, pulled.applied) == (number, [number] if number else [])
            assert pulled.from_version == (number - 1 if number else None)
            assert pulled.seeded_from == ("full:0" if number == 0 else None)
            assert read_checkpoint(replica) == model

    again = syncline.pull(store, replica, version=3)
    assert (again.version, again.from_version, again.applied) == (3, 3, [])
    fresh = syncline.pull(str(store), f"{replica}-2", version=2, threads=1)
    # Applied as one: a tensor that both change counts once.
    changed = sum(any(new[n] != old[n] for old, new in pairwise(models[:3])) for n in models[0])
    assert (fresh.applied, fresh.tensors_changed) == ([1, 2], changed)
    assert read_checkpoint(f"{replica}-2") == models[2]

    checked = syncline.verify(store)
    assert (checked.kind, checked.versions) == ("store", [0, 1, 2, 3])
    checked = syncline.verify(replica, version=3)
    assert (checked.kind, checked.versions, checked.tensors_hashed) == ("replica", [3], 16)
    assert syncline.verify(version_dir(store, 0)).kind == "checkpoint"

    rows = syncline.log(store)
    assert [row.version for row in rows] == [0, 1, 2, 3]
    assert [row.kind for row in rows] == ["full", "delta", "delta", "delta"]
    assert [row.base_version for row in rows] == [None, 0, 1, 2]
    assert [row.fault for row in rows] == [None] * 4
    assert rows[1].density == changed_elements(models[0], models[1]) / rows[1].elements
    for row in rows:
        assert row.created is not None
        assert before <= row.created <= datetime.now(timezone.utc)


def test_a_restarted_process_goes_on(store: Path, replica: Path) -> None:
    """The new process has nothing but the store, and its first version is a delta."""
    code = """
        import sys, numpy as np, syncline
        store, begin, end = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        publisher = syncline.Publisher(store)
        for number in range(begin, end):
            weights = np.arange(5000, dtype=np.float32)
            weights[: 100 * number] += 1
            report = publisher.publish(None, {"w": weights})
            print(report.version, report.kind, report.elements_changed)
    """
    assert run_python(code, store, 0, 2).splitlines() == ["0 full 5000", "1 delta 100"]
    assert run_python(code, store, 2, 4).splitlines() == ["2 delta 100", "3 delta 100"]
    assert not (store / ".syncline" / "resume").exists()
    syncline.pull(store, replica)
    expected = np.arange(5000, dtype=np.float32)
    expected[:300] += 1
    assert np.array_equal(syncline.open_checkpoint(replica)["w"].numpy(), expected)


def test_resume_from_a_full_version(store: Path, replica: Path, rng: np.random.Generator) -> None:
    models = [make_model(rng)]
    models += [step(rng, models[0])]
    with syncline.Publisher(store) as publisher:
        publisher.publish(4, as_numpy(models[0]), full=True)
    with syncline.Publisher(store) as publisher:
        report = publisher.publish(None, as_numpy(models[1]))
    assert (report.version, report.kind) == (5, "delta")
    assert report.elements_changed == changed_elements(*models)
    syncline.pull(store, replica)
    assert read_checkpoint(replica) == models[1]


def test_base(store: Path, replica: Path, rng: np.random.Generator, tmp_path: Path) -> None:
    models = [make_model(rng)]
    for _ in range(3):
        models.append(step(rng, models[-1]))
    base = tmp_path / "base"
    write_checkpoint(base, models[0])
    before = tree(base)
    for number in (1, 2, 3):
        with syncline.Publisher(store, base=base) as publisher:
            assert publisher.version == number - 1
            report = publisher.publish(number, as_torch(models[number]))
            assert (report.version, report.base_version) == (number, number - 1)
            assert report.elements_changed == changed_elements(*models[number - 1 : number + 1])
    assert not version_dir(store, 0).exists()
    report = syncline.pull(store, replica, seed=base)
    assert (report.seeded_from, report.applied) == ("seed", [1, 2, 3])
    assert read_checkpoint(replica) == models[3]
    assert tree(base) == before


def test_without_the_base_nothing_can_go_on(
    store: Path, rng: np.random.Generator, tmp_path: Path
) -> None:
    model = make_model(rng)
    write_checkpoint(tmp_path / "base", model)
    with syncline.Publisher(store, base=tmp_path / "base") as publisher:
        publisher.publish(None, as_numpy(step(rng, model)))
    before = tree(store)
    with pytest.raises(syncline.NotFoundError, match="version 1 of .* without the base.*version 0"):
        syncline.Publisher(store)
    assert tree(store) == before
    with pytest.raises(syncline.NotFoundError, match="version 0"):
        syncline.pull(store, tmp_path / "replica")
    # The lock is free again.
    syncline.Publisher(store, base=tmp_path / "base").close()


def test_another_base_is_refused(store: Path, rng: np.random.Generator, tmp_path: Path) -> None:
    model = make_model(rng)
    write_checkpoint(tmp_path / "base", model)
    other = {name: Tensor(t.dtype, t.shape, 1 - t.data % 2) for name, t in model.items()}
    write_checkpoint(tmp_path / "other", other)
    with syncline.Publisher(store, base=tmp_path / "base") as publisher:
        publisher.publish(None, as_numpy(step(rng, model)))
    before = tree(store)
    with pytest.raises(syncline.ChecksumMismatchError):
        syncline.Publisher(store, base=tmp_path / "other")
    assert tree(store) == before


def test_a_base_that_is_not_there_makes_no_store(store: Path, tmp_path: Path) -> None:
    for option in ("base", "files"):
        with pytest.raises(syncline.NotFoundError, match="missing"):
            syncline.Publisher(store, **{option: tmp_path / "missing"})
    assert not store.exists()


def test_what_a_killed_process_left_is_removed(store: Path, rng: np.random.Generator) -> None:
    models = [make_model(rng)]
    models += [step(rng, models[0])]
    with syncline.Publisher(store) as publisher:
        for model in models:
            publisher.publish(None, as_numpy(model))
    for name in ("resume/.weight_sync", "staging/weight_v000002"):
        (store / ".syncline" / name).mkdir(parents=True)
    (store / ".syncline" / "resume" / "model.safetensors").write_bytes(b"half")
    with syncline.Publisher(store) as publisher:
        assert publisher.version == 1
        assert not (store / ".syncline" / "resume").exists()
        assert publisher.publish(None, as_numpy(models[1])).elements_changed == 0


def test_files_go_into_full_versions(
    store: Path, replica: Path, rng: np.random.Generator, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    write_checkpoint(files, make_model(rng))  # its weights are not taken
    (files / "config.json").write_text('{"a": 1}')
    model = make_model(rng)
    with syncline.Publisher(store, files=files, durable=False) as publisher:
        publisher.publish(None, as_numpy(model))
        delta = publisher.publish(None, as_numpy(step(rng, model)))
        assert not (version_dir(store, delta.version) / "config.json").exists()
        publisher.publish(None, as_numpy(model), full=True)
    syncline.pull(store, replica)
    assert (replica / "config.json").read_text() == '{"a": 1}'
    assert read_checkpoint(replica) == model


def test_one_publisher_for_a_store(store: Path) -> None:
    publisher = syncline.Publisher(store)
    with pytest.raises(syncline.LockedError, match="another publisher"):
        syncline.Publisher(store)
    assert publisher.publish(None, {"w": np.zeros(3)}).version == 0
    publisher.close()
    publisher.close()
    with pytest.raises(syncline.InvalidArgumentError, match="closed"):
        publisher.publish(None, {"w": np.zeros(3)})
    other = syncline.Publisher(store)
    del other
    gc.collect()
    with syncline.Publisher(store) as third:
        assert third.version == 0


@pytest.mark.parametrize(
    "fault", ["missing", "unknown", "dtype", "shape", "type", "skips", "old", "in-the-way"]
)
def test_a_failed_publish_changes_nothing(
    store: Path, replica: Path, rng: np.random.Generator, fault: str
) -> None:
    """The next version carries what the failed one would have."""
    models = [make_model(rng)]
    for _ in range(2):
        models.append(step(rng, models[-1]))
    publisher = syncline.Publisher(store)
    for number in (0, 1):
        publisher.publish(number, as_numpy(models[number]))
    before = tree(store)

    tensors = as_numpy(models[2])
    version = {"skips": 3, "old": 1}.get(fault)
    expected: type[syncline.Error] = syncline.InvalidArgumentError
    name = "F32.matrix"
    if fault == "missing":
        del tensors[name]
    elif fault == "unknown":
        tensors["more"] = tensors[name]
        name = "more"
    elif fault == "dtype":
        tensors[name] = np.zeros(SHAPES["matrix"], np.int32)
    elif fault == "shape":
        tensors[name] = np.zeros((3, 3), np.float32)
    elif fault == "type":
        tensors[name] = np.zeros(SHAPES["matrix"], np.complex128)
    elif fault == "skips":
        expected, name = syncline.OutOfOrderError, "3"
    elif fault == "old":
        expected, name = syncline.AlreadyExistsError, "1"
    else:
        expected, name = syncline.AlreadyExistsError, "weight_v000002"
        version_dir(store, 2).mkdir()
        (version_dir(store, 2) / "file").touch()
    with pytest.raises(expected, match=name):
        publisher.publish(version, tensors)
    if fault == "in-the-way":
        shutil.rmtree(version_dir(store, 2))
    assert publisher.version == 1
    assert {path: file for path, file in tree(store).items() if "staging" not in path} == before

    report = publisher.publish(2, as_numpy(models[2]))
    assert report.elements_changed == changed_elements(models[1], models[2])
    syncline.pull(store, replica)
    assert read_checkpoint(replica) == models[2]


def test_threads_may_share_a_publisher(store: Path, replica: Path) -> None:
    publisher = syncline.Publisher(store)
    publisher.publish(None, {"w": np.zeros(1000)})
    versions: list[int] = []

    def work(value: int) -> None:
        for _ in range(5):
            versions.append(publisher.publish(None, {"w": np.full(1000, float(value))}).version)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(versions) == list(range(1, 21))
    syncline.pull(store, replica)
    assert len(set(syncline.open_checkpoint(replica)["w"].numpy().tolist())) == 1


def test_a_forked_process_cannot_publish(store: Path) -> None:
    code = """
        import os, sys, numpy as np, syncline
        publisher = syncline.Publisher(sys.argv[1])
        publisher.publish(None, {"w": np.zeros(100000)})
        child = os.fork()
        if child == 0:
            try:
                publisher.publish(None, {"w": np.ones(100000)})
            except syncline.InvalidArgumentError as error:
                publisher.close()  # must not wait for threads that are not here
                os._exit(7 if "fork" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(publisher.publish(None, {"w": np.ones(100000)}).version)
    """
    assert run_python(code, store) == "1"


def test_publish_releases_the_gil(store: Path) -> None:
    """Another thread sees the version while it is being written."""
    written = [store / ".syncline" / "staging" / f"weight_v00000{n}" for n in range(3)]
    seen, stop = threading.Event(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            if any(path.exists() for path in written):
                seen.set()

    with syncline.Publisher(store) as publisher:
        thread = threading.Thread(target=watch)
        thread.start()
        try:
            for _ in range(3):
                publisher.publish(None, {"w": np.zeros(1 << 26, np.uint8)}, full=True)
        finally:
            stop.set()
            thread.join()
    assert seen.is_set()


def test_pull_releases_the_gil(store: Path, replica: Path) -> None:
    """A pull waits for the replica's lock, which this thread can let go only while it waits."""
    import fcntl

    with syncline.Publisher(store) as publisher:
        publisher.publish(None, {"w": np.zeros(10)})
    syncline.pull(store, replica)
    with (replica / ".weight_sync" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        reports: list[syncline.PullReport] = []
        thread = threading.Thread(target=lambda: reports.append(syncline.pull(store, replica)))
        thread.start()
        assert not reports
        fcntl.flock(lock, fcntl.LOCK_UN)
        thread.join()
    assert [report.version for report in reports] == [0]


def test_paths_need_not_be_utf8(tmp_path: Path) -> None:
    store = Path(os.fsdecode(os.fsencode(tmp_path) + b"/st\xffre"))
    replica = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xfeplica"))
    with syncline.Publisher(store) as publisher:
        publisher.publish(None, {"w": np.arange(5)})
    syncline.pull(store, replica)
    assert list(syncline.open_checkpoint(replica)["w"].numpy()) == [0, 1, 2, 3, 4]
    with pytest.raises(syncline.NotFoundError, match=r"st\\xffre"):
        syncline.pull(store / "missing", replica)


def test_tensors_that_are_made_one_after_the_other(
    store: Path, replica: Path, rng: np.random.Generator
) -> None:
    models = [make_model(rng)]
    for _ in range(3):
        models.append(step(rng, models[-1]))
    with syncline.Publisher(store, encoding="compact", threads=2) as publisher:
        for number, model in enumerate(models):
            arrays = list(as_numpy(model).items())
            rng.shuffle(arrays)  # type: ignore[arg-type]
            report = publisher.publish(number, (pair for pair in arrays))
            assert report.kind == ("full" if number == 0 else "delta")
            syncline.pull(store, replica)
            assert read_checkpoint(replica) == model
        # What the iterator raises comes out as it is, and nothing was published.
        names = list(as_numpy(models[0]).items())

        def broken() -> Iterator[tuple[str, np.ndarray]]:
            yield names[0]
            raise RuntimeError("the gather failed")

        with pytest.raises(RuntimeError, match="the gather failed"):
            publisher.publish(None, broken())
        with pytest.raises(syncline.InvalidArgumentError, match="did not come"):
            publisher.publish(None, iter(names[:-1]))
        with pytest.raises(syncline.InvalidArgumentError, match="is not in the last version"):
            publisher.publish(None, iter([("another", np.zeros(3, np.float32))]))
        assert publisher.version == 3
        publisher.publish(None, iter(names))
    syncline.pull(store, replica)
    assert read_checkpoint(replica) == models[0]
