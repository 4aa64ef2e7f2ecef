"""Checks of arguments that all functions share."""

from __future__ import annotations

import math
import operator
import os
import re
from typing import SupportsIndex, Union

from .errors import InvalidArgumentError

StrPath = Union[str, "os.PathLike[str]"]

_BROKEN_URL = re.compile(r"(https?|s3|file):/(?!/)", re.IGNORECASE)
_MAX_VERSION = 2**64 - 1
_MAX_THREADS = 1024
_MAX_RANKS = 10**5
_VERIFY_BY = ("hash", "chained", "full")


def path_bytes(name: str, path: StrPath) -> bytes:
    """The bytes of a path for the operating system. `name` is the argument's, for the message.

    Raises:
        InvalidArgumentError: empty, or with a NUL character.
        TypeError: not a path.
    """
    encoded = os.fsencode(path)
    if not encoded or b"\0" in encoded:
        raise InvalidArgumentError(f"{name}: {path!r} is not a path")
    return encoded


def optional_path(name: str, path: StrPath | None) -> bytes:
    """Like path_bytes; empty for None."""
    return b"" if path is None else path_bytes(name, path)


def store_bytes(name: str, store: StrPath) -> bytes:
    """Like path_bytes, for a path or a URL.

    Raises:
        InvalidArgumentError: also for a URL that went through pathlib, which makes s3:/ of s3://.
    """
    if not isinstance(store, (str, bytes)) and _BROKEN_URL.match(os.fsdecode(store)):
        raise InvalidArgumentError(
            f"{name}: {store!r} is a URL that lost a slash; pass it as a str, not as a path"
        )
    return path_bytes(name, store)


def optional_store(name: str, store: StrPath | None) -> bytes:
    """Like store_bytes; empty for None."""
    return b"" if store is None else store_bytes(name, store)


def seconds(name: str, value: float, *, zero: bool = True) -> float:
    """A time. Raises InvalidArgumentError if it is negative or no number, or 0 where that is none."""
    number = float(value)
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        least = "0 or more" if zero else "more than 0"
        raise InvalidArgumentError(f"{name}={value!r}: expected a number of seconds, {least}")
    return number


def version_number(version: SupportsIndex | None) -> int | None:
    """A version as a number of 64 bits. Raises InvalidArgumentError if it is none."""
    if version is None:
        return None
    number = operator.index(version)
    if not 0 <= number <= _MAX_VERSION:
        raise InvalidArgumentError(f"version {number}: expected a number from 0 to 2**64 - 1")
    return number


def thread_count(threads: SupportsIndex | None) -> int:
    """0 for None: one for each processor. Raises InvalidArgumentError if it is no sensible count."""
    if threads is None:
        return 0
    count = operator.index(threads)
    if not 1 <= count <= _MAX_THREADS:
        raise InvalidArgumentError(f"threads={count}: expected a number from 1 to {_MAX_THREADS}")
    return count


def verify_by(verify: str) -> str:
    """How a pull checks tensors. Raises InvalidArgumentError if there is no such way."""
    if not isinstance(verify, str):
        raise TypeError(f"verify: expected a str, found {verify!r}")
    if verify not in _VERIFY_BY:
        raise InvalidArgumentError(f"verify={verify!r}: expected hash, chained or full")
    return verify


def rank_of(rank: SupportsIndex, world: SupportsIndex) -> tuple[int, int]:
    """Both as numbers. Raises InvalidArgumentError if that is no rank of so many."""
    number, count = operator.index(rank), operator.index(world)
    if not (1 <= count <= _MAX_RANKS and 0 <= number < count):
        raise InvalidArgumentError(
            f"rank={number}, world={count}: expected a world from 1 to {_MAX_RANKS} and a rank below it"
        )
    return number, count
