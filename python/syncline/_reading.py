"""How stores in other places are reached and read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from . import _core
from ._arguments import StrPath, optional_path, path_bytes, seconds
from .errors import InvalidArgumentError


@dataclass(frozen=True)
class Connection:
    """How web servers and buckets are spoken to. What is None comes from the environment.

    Credentials for S3 always come from where the tools of AWS look for them: AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or the profile AWS_PROFILE in ~/.aws.

    Attributes:
        ca_file: PEM file of authorities to trust beside the system's.
        s3_endpoint: URL of a server that speaks S3; None for AWS_ENDPOINT_URL, or AWS itself.
        s3_region: region of the bucket; None for AWS_REGION, or us-east-1.
        s3_path_style: whether the bucket's name is in the path; None for yes with an endpoint.
        connect_seconds: how long to wait for a connection.
        stall_seconds: how long nothing may move.
        retry_seconds: for how long what may pass is tried again, without any progress; 0 for never.
    """

    ca_file: StrPath | None = None
    s3_endpoint: str | None = None
    s3_region: str | None = None
    s3_path_style: bool | None = None
    connect_seconds: float = 10.0
    stall_seconds: float = 30.0
    retry_seconds: float = 120.0


def core_connection(connection: Connection | None) -> _core.Connection:
    """The binding's form of it. Raises InvalidArgumentError for what makes no sense."""
    given = Connection() if connection is None else connection
    if not isinstance(given, Connection):
        raise TypeError(f"connection: expected a Connection, found {type(given).__name__}")
    return _core.Connection(
        optional_path("ca_file", given.ca_file),
        given.s3_endpoint or "",
        given.s3_region or "",
        given.s3_path_style,
        seconds("connect_seconds", given.connect_seconds, zero=False),
        seconds("stall_seconds", given.stall_seconds, zero=False),
        seconds("retry_seconds", given.retry_seconds),
    )


def core_reading(
    trust: Iterable[StrPath],
    wait: float | None,
    before_read: Callable[[int | None], object] | None,
    connection: Connection | None,
) -> _core.Reading:
    """The binding's form of the arguments that all readers of stores share."""
    if isinstance(trust, (str, bytes, os.PathLike)):
        raise InvalidArgumentError(f"trust: expected a list of paths, found {trust!r}")
    if before_read is not None and not callable(before_read):
        raise TypeError(f"before_read: expected a callable, found {type(before_read).__name__}")
    return _core.Reading(
        [path_bytes("trust", key) for key in trust],
        None if wait is None else seconds("wait", wait),
        before_read,
        core_connection(connection),
    )
