"""Options of the publisher: where the baseline is, signatures, full copies, what comes after."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import syncline
from numpy.typing import NDArray

Model = dict[str, NDArray[np.float32]]


def make(rng: np.random.Generator) -> Model:
    return {"a": rng.random((100, 50), np.float32), "b": rng.random(7, np.float32)}


def step(model: Model) -> Model:
    result = {name: array.copy() for name, array in model.items()}
    result["a"][3, 5] += 1
    return result


def pulled(store: Path, replica: Path) -> Model:
    syncline.pull(store, replica)
    checkpoint = syncline.open_checkpoint(replica)
    return {name: np.asarray(checkpoint[name]).view(np.float32) for name in ("a", "b")}


def same(one: Model, other: Model) -> bool:
    return all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize("baseline", ["memory", "disk", "none"])
def test_baselines(rng, store: Path, replica: Path, tmp_path: Path, baseline: str) -> None:
    model = make(rng)
    options = {"baseline": baseline}
    if baseline == "disk":
        options["baseline_directory"] = tmp_path / "kept"
    kinds = []
    for _ in range(2):
        with syncline.Publisher(store, **options) as publisher:
            for _ in range(2):
                kinds.append(publisher.publish(None, model).kind)
                assert same(pulled(store, replica), model)
                model = step(model)
    assert kinds == ["full", *[{"none": "full"}.get(baseline, "delta")] * 3]
    assert (tmp_path / "kept").exists() == (baseline == "disk")
    with pytest.raises(syncline.InvalidArgumentError, match="expected memory, disk or none"):
        syncline.Publisher(store, baseline="cloud")


def test_a_disk_baseline_on_a_base(rng, store: Path, replica: Path, tmp_path: Path) -> None:
    """A wrong base is found by the next publisher, not believed."""
    model = make(rng)
    with syncline.Publisher(tmp_path / "zero") as publisher:
        publisher.publish(None, model)
    base = tmp_path / "zero" / "weight_v000000"
    with syncline.Publisher(store, baseline="disk", base=base) as publisher:
        assert publisher.version == 0
        for _ in range(2):
            model = step(model)
            assert publisher.publish(None, model).kind == "delta"
    syncline.pull(store, replica, seed=base)
    assert same(pulled(store, replica), model)


def test_full_copies(rng, store: Path) -> None:
    model = make(rng)
    with syncline.Publisher(store, full_copy_ratio=0) as publisher:
        publisher.publish(None, model)
        assert not publisher.publish(None, step(model)).full_copy
    with syncline.Publisher(store, full_copy_ratio=0.001) as publisher:
        report = publisher.publish(None, model)
    assert report.full_copy
    assert (store / "weight_v000002" / "full" / "model.safetensors").exists()
    manifest = json.loads((store / "weight_v000002" / "syncline.manifest.json").read_text())
    assert manifest["chain_bytes"] == 0
    for ratio in (-1, float("nan")):
        with pytest.raises(syncline.InvalidArgumentError, match="full_copy_ratio"):
            syncline.Publisher(store, full_copy_ratio=ratio)


def test_a_missing_key(store: Path, tmp_path: Path) -> None:
    with pytest.raises(syncline.NotFoundError, match="no.key"):
        syncline.Publisher(store, signing_key=tmp_path / "no.key")
    assert not store.exists()


def test_a_name_may_come_twice(rng, store: Path) -> None:
    model = make(rng)
    pairs = [*model.items(), ("a", model["a"].copy())]
    with syncline.Publisher(store) as publisher:
        assert publisher.publish(None, pairs).tensors == 2
        pairs[2] = ("a", model["a"] + 1)
        with pytest.raises(syncline.InvalidArgumentError, match="tensor a was given twice"):
            publisher.publish(None, pairs)
        assert publisher.version == 0
