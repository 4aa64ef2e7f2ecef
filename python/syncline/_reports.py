"""What the functions of the package report. All sizes are in bytes, all times in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True)
class PublishReport:
    """A version that was published.

    Attributes:
        version: its number.
        kind: "full" or "delta".
        base_version: the version that the delta builds on; None for a full version.
        full_copy: whether the delta carries a full copy too, for receivers that come late.
        identity: SHA-256 of the manifest, which stands for the version and the chain behind it.
        tensors: number of tensors of the model.
        tensors_changed: how many of them differ from the base; of a full version all.
        elements: number of elements of the model.
        elements_changed: how many of them differ from the base; of a full version all.
        density: elements_changed / elements, from 0 to 1.
        bytes: size of all files of the version.
        full_bytes: size of all tensors.
        seconds: time that it took.
    """

    version: int
    kind: Literal["full", "delta"]
    base_version: int | None
    full_copy: bool
    identity: str
    tensors: int
    tensors_changed: int
    elements: int
    elements_changed: int
    density: float
    bytes: int
    full_bytes: int
    seconds: float


@dataclass(frozen=True)
class PullReport:
    """What a pull did.

    Attributes:
        version: the version that the replica holds now.
        from_version: the version that it held before; None if it held no whole one.
        recovered: whether something that was interrupted had to be completed first.
        seeded_from: "full:N" if the full version N of the store (or the full copy that the delta N
            carries) was copied, "seed" if the seed was, None if neither was needed.
        applied: the deltas that were applied, in order.
        undone: the deltas that were taken back, in order.
        tensors_repaired: number of tensors that were damaged, and healed from the store.
        tensors_changed: summed over `applied`.
        elements_changed: summed over `applied`.
        bytes_read: from the store and the seed.
        seconds: time that it took.
    """

    version: int
    from_version: int | None
    recovered: bool
    seeded_from: str | None
    applied: list[int]
    undone: list[int]
    tensors_repaired: int
    tensors_changed: int
    elements_changed: int
    bytes_read: int
    seconds: float


@dataclass(frozen=True)
class FoldReport:
    """A fold that was made.

    Attributes:
        from_version: the version that it builds on.
        to_version: the version that it makes.
        identity: SHA-256 of its manifest.
        tensors: number of tensors of the model.
        tensors_changed: how many of them differ between both versions.
        elements: number of elements of the model.
        elements_changed: how many of them differ between both versions.
        bytes: size of all its files.
        bytes_without: size of what else leads from one to the other; None if nothing does.
        seconds: time that it took.
    """

    from_version: int
    to_version: int
    identity: str
    tensors: int
    tensors_changed: int
    elements: int
    elements_changed: int
    bytes: int
    bytes_without: int | None
    seconds: float


@dataclass(frozen=True)
class UndoReport:
    """A pull that was taken back.

    Attributes:
        version: the version that the replica holds now.
        from_version: the version that it held before.
        seconds: time that it took.
    """

    version: int
    from_version: int
    seconds: float


@dataclass(frozen=True)
class ChangeSummary:
    """What may differ between a version as a replica held it and what it holds now.

    Attributes:
        from_version: the version that was asked about.
        to_version: the version that the replica holds.
        everything: whether any tensor may differ: another checkpoint took the place of the one
            before, or nobody knows any more. `tensors` is empty then.
        tensors: name → how many elements differ; over several versions an upper bound. No tensor
            that differs is left out.
    """

    from_version: int
    to_version: int
    everything: bool
    tensors: dict[str, int]


@dataclass(frozen=True)
class VerifyReport:
    """What was checked and found right.

    Attributes:
        kind: what stands at the path.
        versions: of a store those that were checked, of a replica the one that it holds.
        tensors: number of tensors that were seen.
        tensors_hashed: how many of them were compared with a known hash.
        tensors_repaired: how many were damaged, and healed.
        edited: of a replica: names of the files beside the weights that are not as they came.
        bytes: size of what was checked.
        seconds: time that it took.
    """

    kind: Literal["store", "replica", "checkpoint"]
    versions: list[int]
    tensors: int
    tensors_hashed: int
    tensors_repaired: int
    edited: list[str]
    bytes: int
    seconds: float


@dataclass(frozen=True)
class VersionInfo:
    """A version of a store.

    Attributes:
        version: its number.
        kind: "full", "delta", or "broken" if it cannot be read.
        base_version: the version that the delta builds on; None for a full version.
        full_copy: whether the delta carries a full copy too.
        bytes: size of all its files.
        tensors: number of tensors that it holds: all of a full version, the changed ones of a delta.
        elements: number of elements of the model; None if another program published the version.
        elements_changed: how many of them changed; None likewise.
        density: elements_changed / elements; None likewise.
        created: when it was published, in UTC; None likewise.
        signed_by: fingerprint of the key that its signature names, which `log` checks only if it was
            told what to trust; None if it is not signed.
        fault: why it cannot be read; None if it can.
    """

    version: int
    kind: Literal["full", "delta", "broken"]
    base_version: int | None
    full_copy: bool
    bytes: int
    tensors: int
    elements: int | None
    elements_changed: int | None
    density: float | None
    created: datetime | None
    signed_by: str | None
    fault: str | None
