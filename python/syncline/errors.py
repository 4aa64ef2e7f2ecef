"""The exceptions of the package: one class for each code of the error table.

`code` is the name that JSON output uses and `exit_code` the exit status of the `syncline` command,
so that a program can treat both interfaces alike. Where Python has a natural exception for the same
thing, the class derives from it too: `except FileNotFoundError` catches a `NotFoundError`.
"""

from __future__ import annotations

from typing import ClassVar


class Error(Exception):
    """Base class of all. The message names the file, tensor or version, and what was expected."""

    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 1


class InternalError(Error):
    """A fault of the package itself."""

    code = "internal"
    exit_code = 1


class InvalidArgumentError(Error, ValueError):
    """The request makes no sense: an unknown option, a tensor of a type that cannot be stored."""

    code = "invalid_argument"
    exit_code = 2


class NotFoundError(Error, FileNotFoundError):
    """A file, tensor or version is not there."""

    code = "not_found"
    exit_code = 3


class AlreadyExistsError(Error, FileExistsError):
    """Something stands where a new thing should go."""

    code = "already_exists"
    exit_code = 4


class CorruptError(Error):
    """Bytes do not follow their format."""

    code = "corrupt"
    exit_code = 5


class ChecksumMismatchError(Error):
    """Bytes follow their format but are not the ones that were meant."""

    code = "checksum_mismatch"
    exit_code = 6


class IncompatibleError(Error):
    """Well formed, but of a kind that cannot be read."""

    code = "incompatible"
    exit_code = 7


class OutOfOrderError(Error):
    """Versions do not build on each other."""

    code = "out_of_order"
    exit_code = 8


class LockedError(Error):
    """Another process (or another object of this one) holds the store."""

    code = "locked"
    exit_code = 9


class IoError(Error, OSError):
    """The operating system failed to read or write."""

    code = "io"
    exit_code = 10


class NoSpaceError(Error, OSError):
    """No room is left on the device."""

    code = "no_space"
    exit_code = 11


class PermissionDeniedError(Error, PermissionError):
    """The operating system refuses access."""

    code = "permission_denied"
    exit_code = 12


class TimedOutError(Error, TimeoutError):
    """Something took longer than it was allowed to."""

    code = "timeout"
    exit_code = 13


class UnavailableError(Error, ConnectionError):
    """A peer cannot be reached now; trying again later may help."""

    code = "unavailable"
    exit_code = 14


class LimitExceededError(Error):
    """Larger than a bound that was given."""

    code = "limit_exceeded"
    exit_code = 15


class CancelledError(Error):
    """The work was told to stop. Versions that were whole by then stand, the rest was undone."""

    code = "cancelled"
    exit_code = 130


_BY_CODE: dict[str, type[Error]] = {kind.code: kind for kind in Error.__subclasses__()}


def from_code(code: str, message: str) -> Error:
    """The exception for a code of the error table; used by the binding."""
    return _BY_CODE.get(code, Error)(message)
