"""The receivers' side, and what looks at stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Literal, SupportsIndex, overload

from . import _core
from ._arguments import (
    StrPath,
    optional_path,
    optional_store,
    path_bytes,
    store_bytes,
    thread_count,
    verify_by,
    version_number,
)
from ._pulling import Pulling
from ._reading import Connection, core_reading
from ._reports import (
    ChangeSummary,
    FoldReport,
    PullReport,
    UndoReport,
    VerifyReport,
    VersionInfo,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

BeforeRead = Callable[["int | None"], object]


@overload
def pull(
    store: StrPath,
    into: StrPath,
    *,
    version: SupportsIndex | None = None,
    seed: StrPath | None = None,
    verify: Literal["hash", "chained", "full"] = "hash",
    threads: SupportsIndex | None = None,
    trust: Iterable[StrPath] = (),
    wait: float | None = None,
    before_read: BeforeRead | None = None,
    connection: Connection | None = None,
    background: Literal[False] = False,
) -> PullReport: ...


@overload
def pull(
    store: StrPath,
    into: StrPath,
    *,
    version: SupportsIndex | None = None,
    seed: StrPath | None = None,
    verify: Literal["hash", "chained", "full"] = "hash",
    threads: SupportsIndex | None = None,
    trust: Iterable[StrPath] = (),
    wait: float | None = None,
    before_read: BeforeRead | None = None,
    connection: Connection | None = None,
    background: Literal[True],
) -> Pulling: ...


def pull(
    store: StrPath,
    into: StrPath,
    *,
    version: SupportsIndex | None = None,
    seed: StrPath | None = None,
    verify: Literal["hash", "chained", "full"] = "hash",
    threads: SupportsIndex | None = None,
    trust: Iterable[StrPath] = (),
    wait: float | None = None,
    before_read: BeforeRead | None = None,
    connection: Connection | None = None,
    background: bool = False,
) -> PullReport | Pulling:
    """Brings this host's copy of the checkpoint, the replica, to a version of a store.

    Applies the deltas after the version that the replica holds; copies a full version (or the seed)
    first where it holds none, or where that is less to read. Every tensor that changed is checked
    against the hash that was published, and one that turns out to be damaged is healed from the
    store. After an error or Ctrl-C the replica is exactly some version, and the next pull goes on
    from there; what was fetched is not fetched again. Waits for another pull into the same replica.

    Args:
        store: directory of the store, or its URL: https://host/path, http://…, s3://bucket/prefix,
            file:///path.
        into: directory of the replica; made if missing. Other programs can load it as an ordinary
            checkpoint.
        version: None for the newest one. An older one than the replica holds can be reached as far
            as the last pull went; 0 always, which sets the replica back to the seed or the store's
            version 0.
        seed: checkpoint that is version 0, where the store does not hold it. A replica remembers
            it.
        verify: how each tensor that a delta changes is checked. "hash": the content hash of all of
            it. "full": its additive digest, of all of it. "chained": the digest of what was there
            and what the changes add to it; says nothing of bytes that do not change. But for "hash"
            the deltas must carry digests, which `xor` and `overwrite` do not.
        threads: how many to use; None for one a processor.
        trust: files of public keys (see `syncline keygen`). If there are any, only what one of them
            has signed is read.
        wait: seconds to wait for a version, or files of it, that cannot be seen yet; None for 0 in
            a directory and 30 elsewhere.
        before_read: called with `version` before the store is read, and again, with the version
            that is needed, while something is waited for: a place to refresh a mount. It runs on
            another thread than the caller's; an exception that it raises ends the pull and comes
            out of it.
        connection: how to reach a URL; None for what the environment says.
        background: return at once, with a handle of the pull that goes on.

    Raises:
        NotFoundError: the store, a version on the way, a file of it, or the seed is not there.
        OutOfOrderError: the version is older than what the replica can go back to, or the versions
            do not build on each other.
        AlreadyExistsError: `into` has files and was never a replica.
        CorruptError, ChecksumMismatchError, IncompatibleError: a version cannot be read, or does
            not give what was published.
        PermissionDeniedError: a version is not signed by a key in `trust`; the server refuses, or
            its certificate is not trusted; or the replica cannot be written.
        UnavailableError, TimedOutError: the server cannot be reached, or does not answer.
        NoSpaceError, IoError: the replica cannot be written.
    """
    # All arguments are checked here and now, also for a pull in the background.
    start = partial(
        _core.pull,
        store_bytes("store", store),
        path_bytes("into", into),
        version_number(version),
        optional_path("seed", seed),
        verify_by(verify),
        thread_count(threads),
        core_reading(trust, wait, before_read, connection),
    )

    def work(control: _core.Control) -> PullReport:
        return PullReport(**start(control))

    return Pulling(work) if background else work(_core.Control())


def undo(replica: StrPath, *, threads: SupportsIndex | None = None) -> UndoReport:
    """Returns a replica to the version that it held before the last pull that changed something.

    Needs no store. What is replaced may still be mapped by readers, as with a pull.

    Args:
        replica: its directory.
        threads: how many to use; None for one a processor.

    Raises:
        NotFoundError: there is nothing to return to: the first pull, or one that was undone.
    """
    return UndoReport(**_core.undo(path_bytes("replica", replica), thread_count(threads)))


def verify(
    path: StrPath,
    *,
    version: SupportsIndex | None = None,
    repair: bool = False,
    store: StrPath | None = None,
    seed: StrPath | None = None,
    threads: SupportsIndex | None = None,
    trust: Iterable[StrPath] = (),
    wait: float | None = None,
    before_read: BeforeRead | None = None,
    connection: Connection | None = None,
) -> VerifyReport:
    """Checks a store, a replica or any other checkpoint, and raises an error if it is not whole.

    Of a store all files follow their formats and have the hashes of the manifest, and each delta's
    base is there; of a replica every tensor and file has the hash that the pull recorded; of
    another checkpoint the files follow their format.

    Args:
        path: directory of any of them, a .safetensors file, or URL of a store.
        version: of a store: check only this one; of a replica: it must hold this one.
        repair: of a replica: heal what is damaged, and only that, from a store.
        store: that store; None for the one that the replica was pulled from.
        seed: checkpoint that is version 0; None for the one that an earlier pull was given.
        threads, trust, wait, before_read, connection: as in `pull`.

    Raises:
        CorruptError, ChecksumMismatchError, NotFoundError, OutOfOrderError, PermissionDeniedError:
            what is wrong; the message names the version, the file and the tensor.
    """
    report = _core.verify(
        store_bytes("path", path),
        version_number(version),
        bool(repair),
        optional_store("store", store),
        optional_path("seed", seed),
        thread_count(threads),
        core_reading(trust, wait, before_read, connection),
    )
    return VerifyReport(**report)


def fold(
    store: StrPath,
    from_version: SupportsIndex,
    to_version: SupportsIndex,
    *,
    base: StrPath | None = None,
    work_directory: StrPath | None = None,
    encoding: Literal["xor", "overwrite", "compact", "compact-gap", "auto"] = "xor",
    link_gbps: float = 0.0,
    signing_key: StrPath | None = None,
    threads: SupportsIndex | None = None,
    trust: Iterable[StrPath] = (),
    wait: float | None = None,
    before_read: BeforeRead | None = None,
    connection: Connection | None = None,
) -> FoldReport:
    """Makes one delta of those between two versions of a store, and puts it beside the versions.

    Whoever holds the first version, or comes by it, reads that instead wherever it has fewer bytes.
    Both versions are made as checkpoints first, so there must be room for two models, and for one
    with `base`. May run beside a publisher and readers.

    Args:
        store: its directory, or s3://bucket/prefix.
        from_version: the version that it builds on.
        to_version: the version that it makes.
        base: checkpoint or replica that is `from_version`, which nothing may change meanwhile; None
            to make it from the store.
        work_directory: where both are made; None for a place inside the store, or below $TMPDIR.
        encoding, link_gbps: as of `Publisher`.
        signing_key: private key (a PEM file) that signs it. Readers with `trust` need it.
        threads, trust, wait, before_read, connection: as in `pull`.

    Raises:
        NotFoundError: a version is not in the store, or the store does not lead to `from_version`,
            so that `base` is needed.
        AlreadyExistsError: there is such a fold.
        ChecksumMismatchError, OutOfOrderError: `base` is not that version.
        InvalidArgumentError, IncompatibleError: the versions are no two that can be folded.
        LockedError: another fold is at work there.
    """
    first, last = version_number(from_version), version_number(to_version)
    if first is None or last is None:
        raise TypeError("expected the numbers of two versions, found None")
    report = _core.fold(
        store_bytes("store", store),
        first,
        last,
        optional_path("base", base),
        optional_path("work_directory", work_directory),
        encoding,
        float(link_gbps),
        optional_path("signing_key", signing_key),
        thread_count(threads),
        core_reading(trust, wait, before_read, connection),
    )
    return FoldReport(**report)


def changes(replica: StrPath, since: SupportsIndex) -> ChangeSummary:
    """What may differ between version `since`, as the replica last held it, and what it holds now.

    Reads the replica's own record of its pulls, not the checkpoint.

    Args:
        replica: its directory.
        since: number of a version that it held before.

    Raises:
        NotFoundError: the replica holds no whole version.
    """
    number = version_number(since)
    if number is None:
        raise TypeError("since: expected the number of a version, found None")
    return ChangeSummary(**_core.changes(path_bytes("replica", replica), number))


def log(
    store: StrPath,
    *,
    trust: Iterable[StrPath] = (),
    wait: float | None = None,
    before_read: BeforeRead | None = None,
    connection: Connection | None = None,
) -> list[VersionInfo]:
    """All versions of a store, oldest first. One that cannot be read is listed with its fault.

    Of a web server, which cannot be asked what it holds, those that lead to the newest one.

    Args:
        store: directory of the store, or its URL.
        trust: files of public keys. If there are any, a version that none of them has signed is
            listed as one that cannot be read.
        wait, before_read, connection: as in `pull`.

    Raises:
        NotFoundError: there is no such directory or bucket.
    """
    rows = _core.log(
        store_bytes("store", store), core_reading(trust, wait, before_read, connection)
    )
    return [_version_info(**row) for row in rows]


def _version_info(*, created_ns: int | None, **row: Any) -> VersionInfo:
    created = None if created_ns is None else _EPOCH + timedelta(microseconds=created_ns // 1000)
    return VersionInfo(created=created, **row)
