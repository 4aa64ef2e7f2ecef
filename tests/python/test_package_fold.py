"""`syncline.fold`: what it reports, and what it raises."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def published(package: ModuleType, store: Path, rng: np.random.Generator) -> Path:
    """A full version and three deltas."""
    weights = rng.standard_normal((100, 50)).astype(np.float32)
    with package.Publisher(store, full_copy_ratio=0) as publisher:
        for _ in range(4):
            publisher.publish(None, {"w": weights})
            weights[rng.integers(0, 100, 5)] += 1
    return store


def test_a_fold_is_taken(package: ModuleType, published: Path, replica: Path) -> None:
    package.pull(published, replica, version=0)
    made = package.fold(published, 0, 3)
    assert isinstance(made, package.FoldReport)
    assert (made.from_version, made.to_version) == (0, 3)
    assert (made.tensors, made.tensors_changed, made.elements) == (1, 1, 5000)
    assert 0 < made.elements_changed <= 750
    assert made.bytes_without is not None
    assert [version.version for version in package.log(published)] == [0, 1, 2, 3]
    report = package.pull(published, replica)
    assert report.version == 3
    package.verify(published)
    package.verify(replica)


def test_what_it_raises(package: ModuleType, published: Path, tmp_path: Path) -> None:
    with pytest.raises(package.InvalidArgumentError, match="from version 3 to 1"):
        package.fold(published, 3, 1)
    with pytest.raises(package.InvalidArgumentError, match="gzip"):
        package.fold(published, 1, 3, encoding="gzip")
    with pytest.raises(package.NotFoundError, match="version 9"):
        package.fold(published, 1, 9)
    with pytest.raises(package.NotFoundError, match="nothing"):
        package.fold(published, 1, 3, base=tmp_path / "nothing")
    with pytest.raises(TypeError):
        package.fold(published, None, 3)
    package.fold(published, 1, 3, work_directory=tmp_path / "work")
    with pytest.raises(package.AlreadyExistsError, match="fold_v000001_v000003"):
        package.fold(published, 1, 3)
