"""Keeps the weights of running inference engines up to date with a trainer.

The trainer publishes each step into a store directory; every host pulls what changed into its own
checkpoint:

    publisher = syncline.Publisher("/shared/weights")
    publisher.publish(step, model.named_parameters())

    syncline.pull("/shared/weights", "/local/model")

A store may also be in a bucket ("s3://bucket/prefix"), and be read from a web server
("https://host/weights"). An engine serves the model and takes each version while it generates:

    with syncline.Engine("/models/base") as engine:
        engine.update("/shared/weights", "/local/model", version)
        engine.generate("Why is the sky blue?")

All functions release the GIL while they work, and Ctrl-C ends them with store and replica whole.
"""

from ._checkpoint import Checkpoint, TensorView, open_checkpoint
from ._client import Client, UpdateReport
from ._core import __version__
from ._engine import Engine
from ._publisher import Publisher
from ._pulling import Pulling
from ._reading import Connection
from ._replica import changes, fold, log, pull, undo, verify
from ._reports import (
    ChangeSummary,
    FoldReport,
    PublishReport,
    PullReport,
    UndoReport,
    VerifyReport,
    VersionInfo,
)
from .errors import (
    AlreadyExistsError,
    CancelledError,
    ChecksumMismatchError,
    CorruptError,
    Error,
    IncompatibleError,
    InternalError,
    InvalidArgumentError,
    IoError,
    LimitExceededError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    OutOfOrderError,
    PermissionDeniedError,
    TimedOutError,
    UnavailableError,
)

__all__ = [
    "AlreadyExistsError",
    "CancelledError",
    "ChangeSummary",
    "Checkpoint",
    "ChecksumMismatchError",
    "Client",
    "Connection",
    "CorruptError",
    "Engine",
    "Error",
    "FoldReport",
    "IncompatibleError",
    "InternalError",
    "InvalidArgumentError",
    "IoError",
    "LimitExceededError",
    "LockedError",
    "NoSpaceError",
    "NotFoundError",
    "OutOfOrderError",
    "PermissionDeniedError",
    "PublishReport",
    "Publisher",
    "PullReport",
    "Pulling",
    "TensorView",
    "TimedOutError",
    "UnavailableError",
    "UndoReport",
    "UpdateReport",
    "VerifyReport",
    "VersionInfo",
    "__version__",
    "changes",
    "fold",
    "log",
    "open_checkpoint",
    "pull",
    "undo",
    "verify",
]
