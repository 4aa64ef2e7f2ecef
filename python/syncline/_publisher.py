"""The trainer's side."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

from . import _core
from ._arguments import (
    StrPath,
    optional_path,
    rank_of,
    store_bytes,
    thread_count,
    version_number,
)
from ._reading import Connection, core_connection
from ._reports import PublishReport
from ._tensors import NamedTensors, pack
from .errors import Error, IoError

if TYPE_CHECKING:
    from typing_extensions import Self


# Of tensors that are made one after the other, how many bytes are read together.
_BATCH_BYTES = 64 << 20


class Publisher:
    """Publishes each set of weights as the next version of a store.

    It keeps a copy of the last version in memory to find out what changed. On a store that holds
    versions it goes on after the newest one, which it reads first. The store is locked for other
    publishers until `close` (or the end of a `with` block, or of the object).

    Threads may share a publisher; their calls wait for each other. A process that was forked off
    cannot use it.
    """

    def __init__(
        self,
        store: StrPath,
        *,
        encoding: Literal["xor", "overwrite", "compact", "compact-gap", "auto"] = "xor",
        base: StrPath | None = None,
        files: StrPath | None = None,
        threads: SupportsIndex | None = None,
        durable: bool = True,
        signing_key: StrPath | None = None,
        full_copy_ratio: float = 1.0,
        baseline: Literal["memory", "disk", "none"] = "memory",
        baseline_directory: StrPath | None = None,
        work_directory: StrPath | None = None,
        after_publish: Callable[[int, str], object] | None = None,
        rank: SupportsIndex = 0,
        world: SupportsIndex = 1,
        timeout: float = 600.0,
        flush: Callable[[], object] | None = None,
        refresh: Callable[[], object] | None = None,
        connection: Connection | None = None,
        link_gbps: float = 0.0,
    ) -> None:
        """Opens a store.

        Args:
            store: its directory, made if missing; or s3://bucket/prefix.
            encoding: how deltas are written. "xor" and "overwrite" (larger, needs no old bytes) are
                read by SGLang, slime and miles as well. "compact" is the smallest, near the entropy
                of the steps; "compact-gap" is larger and faster; "auto" takes one of these two by
                what changes, and by `link_gbps`.
            base: checkpoint directory that is version 0 and that receivers have already. Nothing is
                written for it; the first version that is published is 1.
            files: directory whose files beside the weights (configuration, tokenizer …) are copied
                into full versions; None for those of `base`, if there is one.
            threads: how many to use; None for one a processor.
            durable: a version that is announced has reached the device.
            signing_key: private key (a PEM file, see `syncline keygen`) that signs each version.
            full_copy_ratio: a delta carries a full copy too, for receivers that come late, once the
                deltas since the last full version or copy have this share of the model's bytes; 0
                for never.
            baseline: where the last version is kept, which the next one is compared with: "memory"
                (a copy), "disk" (a replica of the store, mapped), or "none" (every version is a
                full one).
            baseline_directory: for the replica of "disk"; None for a folder inside the store.
            work_directory: for a store in a bucket: local directory where a version is made before
                it is uploaded; None for one below $TMPDIR.
            after_publish: called with the number and the path (or URL) of each version when it
                stands, to tell receivers, say. If it raises, `publish` raises; the version stands
                nevertheless. Of several ranks each calls its own.
            rank, world: of several processes of one trainer that publish together, each with its
                own tensors (any split; what several hold must be equal): which one this is, and how
                many. All of them call `publish` equally often, and a call ends in the same way for
                all: with the version, or with the error of the rank that failed. Rank 0 decides on
                the number and the kind. The store is a directory that all share.
            timeout: seconds that a rank waits for the others in one step.
            flush, refresh: for file systems that show the files of one host to another only on
                request: called after something was written for other ranks, and before looking for
                something of theirs.
            connection: how to reach the bucket; None for what the environment says.
            link_gbps: for "auto": gigabits a second between here and the receivers; 0: not known.

        Raises:
            LockedError: another publisher has the store open, or another process is this rank.
            NotFoundError: `base` or `files` is not there; or the store holds nothing but deltas on
                a version 0 that is not in it, and `base` does not say which checkpoint that is.
            ChecksumMismatchError: what the store holds does not lead to the newest version, or
                `base` is another checkpoint than the store was begun with.
            CorruptError: a file of the store or of `base` does not follow its format.
        """
        self._lock = threading.Lock()
        self._core = _core.Publisher(
            store_bytes("store", store),
            encoding,
            optional_path("base", base),
            optional_path("files", files),
            thread_count(threads),
            durable,
            optional_path("signing_key", signing_key),
            float(full_copy_ratio),
            baseline,
            optional_path("baseline_directory", baseline_directory),
            optional_path("work_directory", work_directory),
            *rank_of(rank, world),
            float(timeout),
            flush,
            refresh,
            core_connection(connection),
            float(link_gbps),
        )
        self._after_publish = after_publish

    @property
    def version(self) -> int | None:
        """The last version of the store; 0 on a base of its own; None before the first one."""
        return self._core.version

    def publish(
        self,
        version: SupportsIndex | None = None,
        named_tensors: NamedTensors = (),
        *,
        full: bool = False,
    ) -> PublishReport:
        """Publishes the weights of the whole model as one version.

        The first version of a store without base is a full one, every other the difference from the
        one before. Readers see the version when it is whole. After an error or Ctrl-C the store is
        as it was, and the next version carries what this one would have.

        Args:
            version: its number; None for the next one. A full version may skip numbers.
            named_tensors: every tensor of the model (or of this rank), by name: a mapping, or pairs of name and
                tensor. A name may come twice with the same content. A tensor is a numpy array (also of a type of ml_dtypes), a torch tensor, a
                tensor of `open_checkpoint`, or another object with `__dlpack__`. It is read in
                place, and must not change meanwhile; only one with gaps (a transpose, a slice) is
                packed, and only one on another device copied to the host. Names, dtypes and shapes
                stay those of the first version, unless `full`. Of an iterator (a generator that gathers
                one parameter after the other) with "compact" each tensor is read when it comes and can
                go then, in whatever order they come; only the changes are kept. The first version,
                and one that carries a full copy, are made of all tensors together.
            full: publish all bytes, not the difference.

        Raises:
            InvalidArgumentError: a tensor of a type that cannot be stored, or none that the last
                version holds; the message names it.
            AlreadyExistsError: `version` is not newer than the last one.
            OutOfOrderError: `version` skips a number and is not full.
            LimitExceededError: a name is too long for the format.
            IoError: `after_publish` raised; its error is the cause. (An error of this package
                keeps its class.) The version stands.
            TimedOutError: another rank did not do its part in time; the message names it.
            NoSpaceError, IoError, PermissionDeniedError: the store cannot be written.
        """
        number = version_number(version)
        with self._lock:
            one_by_one = self._core.can_take_arriving and not full
            if isinstance(named_tensors, Iterator) and one_by_one:
                outcome = self._publish_arriving(number, named_tensors)
            else:
                outcome = self._core.publish(number, pack(named_tensors), full)
            url = os.fsdecode(outcome.pop("url"))
            report = PublishReport(**outcome)
            if self._after_publish is not None:
                self._call_after(self._after_publish, report.version, url)
            return report

    def _publish_arriving(
        self, number: int | None, named_tensors: Iterator[tuple[str, Any]]
    ) -> dict[str, Any]:
        """Takes tensors as they are made, some `_BATCH_BYTES` at a time."""
        raised: list[BaseException] = []

        def take() -> list[Any]:
            batch: list[Any] = []
            size = 0
            try:
                for pair in named_tensors:
                    packed = pack([pair])
                    batch += packed
                    size += sum(memoryview(tensor[3]).nbytes for tensor in packed)
                    if size >= _BATCH_BYTES:
                        break
            except BaseException as error:
                raised.append(error)
                raise
            return batch

        try:
            return self._core.publish_arriving(number, take)
        except Error:
            if raised:
                raise raised[0] from None
            raise

    @staticmethod
    def _call_after(after_publish: Callable[[int, str], object], version: int, url: str) -> None:
        try:
            after_publish(version, url)
        except Exception as error:
            text = f"version {version} stands, but after_publish failed: {error}"
            kind = type(error) if isinstance(error, Error) else IoError
            raise kind(text) from error

    def close(self) -> None:
        """Unlocks the store and frees the copy of the last version. May be called twice."""
        with self._lock:
            self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
