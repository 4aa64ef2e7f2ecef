"""Bug reports about publishing, as cases. Each test is named after its report."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import syncline
from numpy.typing import NDArray

Model = dict[str, NDArray[np.float32]]


def make(rng: np.random.Generator) -> Model:
    return {name: rng.random((50, 30), np.float32) for name in "abc"}


def step(model: Model, number: int) -> Model:
    result = {name: array.copy() for name, array in model.items()}
    result["abc"[number % 3]][number % 50, 7] += 1
    return result


def holds(replica: Path, model: Model) -> bool:
    checkpoint = syncline.open_checkpoint(replica)
    return all(
        np.asarray(checkpoint[name]).view(np.float32).tobytes() == array.tobytes()
        for name, array in model.items()
    )


class Receivers:
    """Three that pull when they are told; those in `down` refuse."""

    def __init__(self, store: Path, directory: Path) -> None:
        self.store = store
        self.replicas = [directory / f"replica{number}" for number in range(3)]
        self.down: set[int] = set()
        self.applied: list[list[int]] = [[], [], []]

    def tell(self, version: int, url: str) -> None:
        assert url.endswith(f"weight_v{version:06}")
        refused = []
        for number, replica in enumerate(self.replicas):
            if number in self.down:
                refused.append(f"receiver {number} is out of memory")
                continue
            report = syncline.pull(self.store, replica, version=version)
            self.applied[number] += report.applied
        if refused:
            raise RuntimeError("; ".join(refused))


def test_br_07_a_receiver_that_fails_is_named_and_catches_up(rng, store: Path, tmp_path) -> None:
    """The publish call raises with the receiver's message; nobody is patched twice."""
    receivers = Receivers(store, tmp_path)
    model = make(rng)
    with syncline.Publisher(store, full_copy_ratio=0, after_publish=receivers.tell) as publisher:
        for number in range(1, 7):
            publisher.publish(None, model)
            model = step(model, number)
        receivers.down = {1}
        with pytest.raises(syncline.IoError, match="receiver 1 is out of memory") as caught:
            publisher.publish(None, model)
        assert "version 6 stands" in str(caught.value)
        assert isinstance(caught.value.__cause__, RuntimeError)
        receivers.down = set()
        model = step(model, 7)
        publisher.publish(None, model)
    assert all(holds(replica, model) for replica in receivers.replicas)
    assert receivers.applied == [list(range(1, 8))] * 3


def test_br_07_a_publish_that_fails_leaves_the_baseline(rng, store: Path, replica: Path) -> None:
    """What could not be written is in the next version."""
    model = make(rng)
    with syncline.Publisher(store) as publisher:
        publisher.publish(None, model)
        lost = step(model, 1)
        staging = store / ".syncline" / "staging"
        staging.rmdir() if staging.exists() else None
        staging.write_text("in the way")
        staging.chmod(0)
        other = {**lost, "a": lost["a"].astype(np.float64)}
        with pytest.raises(syncline.InvalidArgumentError, match="tensor a"):
            publisher.publish(None, other)
        assert publisher.version == 0
        report = publisher.publish(None, step(lost, 2))
        assert (report.kind, report.tensors_changed) == ("delta", 2)
    syncline.pull(store, replica)
    assert holds(replica, step(lost, 2))


class Mount:
    """One host's view of an object store that is mounted as a directory.

    What this host writes is seen by the others after flush(), what they wrote by this one after
    refresh(). Renames and removals travel likewise.
    """

    lock = threading.Lock()

    def __init__(self, shared: Path, view: Path) -> None:
        self.shared, self.view = shared, view
        self.known: dict[str, bytes] = {}
        for path in (shared, view):
            path.mkdir(exist_ok=True)

    @staticmethod
    def files(root: Path) -> dict[str, bytes]:
        found = {}
        for path in root.rglob("*"):
            if path.is_file() and path.suffix not in (".lock", ".tmp"):
                try:
                    found[path.relative_to(root).as_posix()] = path.read_bytes()
                except FileNotFoundError:
                    continue
        return found

    def carry(self, source: Path, target: Path) -> None:
        with self.lock:
            now = self.files(source)
            for name, data in now.items():
                if self.known.get(name) != data:
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    (target / name).with_name((target / name).name + ".tmp").write_bytes(data)
                    (target / name).with_name((target / name).name + ".tmp").rename(target / name)
            for name in self.known.keys() - now.keys():
                (target / name).unlink(missing_ok=True)
            self.known = now

    def flush(self) -> None:
        self.carry(self.view, self.shared)

    def refresh(self) -> None:
        self.carry(self.shared, self.view)


def test_br_03_ranks_without_a_shared_view_publish_together(rng, replica: Path, tmp_path) -> None:
    """(4) Each rank sees what the other wrote only after its hooks ran; both shards arrive."""
    shared = tmp_path / "shared"
    models = [{f"r{rank}": rng.random((60, 20), np.float32)} for rank in range(2)]
    failed: list[str] = []

    def trainer(rank: int) -> None:
        mount = Mount(shared, tmp_path / f"host{rank}")
        with syncline.Publisher(
            mount.view,
            rank=rank,
            world=2,
            timeout=60,
            flush=mount.flush,
            refresh=mount.refresh,
            after_publish=lambda version, url: mount.flush(),
        ) as publisher:
            try:
                for number in range(3):
                    models[rank][f"r{rank}"][number] += 1
                    publisher.publish(None, models[rank])
            except syncline.Error as error:
                failed.append(f"rank {rank}: {error}")

    threads = [threading.Thread(target=trainer, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    syncline.pull(shared, replica)
    assert holds(replica, {**models[0], **models[1]})
