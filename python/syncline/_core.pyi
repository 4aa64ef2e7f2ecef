"""The C++ side (python/src). Private. Paths are bytes, an empty one is none; threads 0 is one for
each processor; a report is the keyword arguments of its class in _reports.py.

All but the small accessors release the GIL, raise what a signal handler raises or a hook does, and
otherwise the exceptions of errors.py.
"""

from collections.abc import Callable
from typing import Any

__version__: str

def error_table() -> list[tuple[int, str, int, str]]:
    """(number, name, exit code, exception class) of every code of the error table."""

def read_dlpack(source: object) -> tuple[int, int, int, Any]:
    """(DLPack type code, bits, device type, view) of a DLPack array.

    The view is a read-only numpy array of unsigned integers of the same size, over the same memory;
    None if that is not the host's, or there is no such integer.
    """

class Connection:
    """How servers are spoken to. Empty strings: from the environment."""

    def __init__(
        self,
        ca_file: bytes,
        s3_endpoint: str,
        s3_region: str,
        s3_path_style: bool | None,
        connect_seconds: float,
        stall_seconds: float,
        retry_seconds: float,
    ) -> None: ...

class Reading:
    """How a store is read."""

    def __init__(
        self,
        trust: list[bytes],
        wait: float | None,
        before_read: Callable[[int | None], object] | None,
        connection: Connection,
    ) -> None: ...

class Control:
    """What another thread can do to one pull at work."""

    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    def progress(self) -> tuple[str, int, int]:
        """(phase, bytes done, bytes in all; 0 if that is not known); phase "" before the first."""

def pull(
    store: bytes,
    into: bytes,
    version: int | None,
    seed: bytes,
    verify: str,
    threads: int,
    reading: Reading,
    control: Control,
) -> dict[str, Any]: ...
def undo(replica: bytes, threads: int) -> dict[str, Any]: ...
def verify(
    path: bytes,
    version: int | None,
    repair: bool,
    store: bytes,
    seed: bytes,
    threads: int,
    reading: Reading,
) -> dict[str, Any]: ...
def fold(
    store: bytes,
    from_version: int,
    to_version: int,
    base: bytes,
    work_directory: bytes,
    encoding: str,
    link_gbps: float,
    signing_key: bytes,
    threads: int,
    reading: Reading,
) -> dict[str, Any]: ...
def changes(replica: bytes, since: int) -> dict[str, Any]: ...
def log(store: bytes, reading: Reading) -> list[dict[str, Any]]:
    """Rows for VersionInfo, with created_ns (since the epoch) in place of created."""

def open_checkpoint(path: bytes) -> Checkpoint: ...

class Checkpoint:
    """A checkpoint whose files are mapped."""

    def names(self) -> list[str]: ...
    @property
    def nbytes(self) -> int: ...

class TensorView:
    """A tensor of it; exports its bytes as a read-only buffer."""

    def __init__(self, checkpoint: Checkpoint, name: str) -> None:
        """Raises KeyError if there is no such tensor."""

    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def nbytes(self) -> int: ...

class Publisher:
    """One thread at a time."""

    def __init__(
        self,
        store: bytes,
        encoding: str,
        base: bytes,
        files: bytes,
        threads: int,
        durable: bool,
        signing_key: bytes,
        full_copy_ratio: float,
        baseline: str,
        baseline_directory: bytes,
        work_directory: bytes,
        rank: int,
        world: int,
        timeout: float,
        flush: Callable[[], object] | None,
        refresh: Callable[[], object] | None,
        connection: Connection,
        link_gbps: float,
    ) -> None: ...
    @property
    def can_take_arriving(self) -> bool: ...
    def publish_arriving(
        self, version: int | None, next: Callable[[], list[Any]]
    ) -> dict[str, Any]:
        """next: the next tensors, as publish takes them; an empty list at the end."""
    def publish(self, version: int | None, tensors: list[Any], full: bool) -> dict[str, Any]:
        """tensors: tuples (name, dtype, shape, buffer of the packed bytes).

        Beside the report the dictionary has `url`, the bytes of the version's path or URL.
        """

    @property
    def version(self) -> int | None: ...
    def close(self) -> None: ...
