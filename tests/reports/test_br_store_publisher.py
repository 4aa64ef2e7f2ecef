"""Bug reports about publishing, as cases. Each test is named after its report."""

from __future__ import annotations

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
