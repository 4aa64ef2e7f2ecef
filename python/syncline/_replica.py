"""The receivers' side, and what looks at stores."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, SupportsIndex

from . import _core
from ._arguments import StrPath, optional_path, path_bytes, thread_count, version_number
from ._reports import PullReport, VerifyReport, VersionInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def pull(
    store: StrPath,
    into: StrPath,
    *,
    version: SupportsIndex | None = None,
    seed: StrPath | None = None,
    threads: SupportsIndex | None = None,
) -> PullReport:
    """Brings this host's copy of the checkpoint, the replica, to a version of a store.

    Applies the deltas after the version that the replica holds; copies the newest full version (or
    the seed) first where it holds none. Every tensor that changed is checked against the hash that
    was published. After an error or Ctrl-C the replica is exactly some version, and the next pull
    goes on from there. Waits for another pull into the same replica.

    Args:
        store: directory of the store.
        into: directory of the replica; made if missing. Other programs can load it as an ordinary
            checkpoint.
        version: None for the newest one. 0 sets a newer replica back.
        seed: checkpoint that is version 0, where the store does not hold it.
        threads: how many to use; None for one a processor.

    Raises:
        NotFoundError: the store, a version on the way, or the seed is not there.
        OutOfOrderError: the version is older than what the replica holds.
        AlreadyExistsError: `into` has files and was never a replica.
        CorruptError, ChecksumMismatchError, IncompatibleError: a version cannot be read, or does
            not give what was published.
        NoSpaceError, IoError, PermissionDeniedError: the replica cannot be written.
    """
    report = _core.pull(
        path_bytes("store", store),
        path_bytes("into", into),
        version_number(version),
        optional_path("seed", seed),
        thread_count(threads),
    )
    return PullReport(**report)


def verify(
    path: StrPath, *, version: SupportsIndex | None = None, threads: SupportsIndex | None = None
) -> VerifyReport:
    """Checks a store, a replica or any other checkpoint, and raises an error if it is not whole.

    Of a store all files follow their formats and each delta's base is there; of a replica every
    tensor has the hash that the pull recorded; of another checkpoint the files follow their format.

    Args:
        path: directory of any of them, or a .safetensors file.
        version: of a store: check only this one; of a replica: it must hold this one.
        threads: how many to use; None for one a processor.

    Raises:
        CorruptError, ChecksumMismatchError, NotFoundError, OutOfOrderError: what is wrong; the
            message names the version, the file and the tensor.
    """
    report = _core.verify(path_bytes("path", path), version_number(version), thread_count(threads))
    return VerifyReport(**report)


def log(store: StrPath) -> list[VersionInfo]:
    """All versions of a store, oldest first. One that cannot be read is listed with its fault.

    Raises:
        NotFoundError: there is no such directory.
    """
    return [_version_info(**row) for row in _core.log(path_bytes("store", store))]


def _version_info(*, created_ns: int | None, **row: Any) -> VersionInfo:
    created = None if created_ns is None else _EPOCH + timedelta(microseconds=created_ns // 1000)
    return VersionInfo(created=created, **row)
