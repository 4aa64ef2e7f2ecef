"""Pulls that go on while their caller does something else."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import NamedTuple

from . import _core
from ._reports import PullReport
from .errors import TimedOutError


class Progress(NamedTuple):
    """How far a pull has come."""

    phase: str  # what is being done: "fetch", "apply" …; "" before the first
    done: int  # bytes of this phase
    total: int  # 0 while that is not known


class Pulling:
    """A pull at work in the background; made by `pull(…, background=True)`.

    It goes on if this object is dropped. When the interpreter ends, what is still at work is
    cancelled first. All methods may be called from any thread.
    """

    def __init__(self, work: Callable[[_core.Control], PullReport]) -> None:
        self._work = work
        self._control = _core.Control()
        self._ended = threading.Event()
        self._report: PullReport | None = None
        self._error: BaseException | None = None
        # Does not keep the interpreter from ending: _end_all does.
        self._thread = threading.Thread(target=self._run, name="syncline-pull", daemon=True)
        with _lock:
            _at_work.add(self)
        try:
            self._thread.start()
        except BaseException:
            with _lock:
                _at_work.discard(self)
            raise

    def _run(self) -> None:
        try:
            self._report = self._work(self._control)
        except BaseException as error:  # noqa: BLE001 - result() raises it
            self._error = error
        finally:
            self._ended.set()
            with _lock:
                _at_work.discard(self)

    def cancel(self) -> None:
        """Tells the pull to stop, and does not wait for it.

        The replica is left at some version, and what was fetched is kept: the next pull of the same
        version goes on from there. Does nothing to a pull that has ended.
        """
        self._control.cancel()

    def done(self) -> bool:
        """Whether it has ended, in whichever way."""
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> PullReport:
        """Waits for the end and returns the report.

        Ctrl-C ends the wait, not the pull.

        Args:
            timeout: seconds to wait; None for as long as it takes.

        Raises:
            CancelledError: `cancel` came before the end.
            TimedOutError: the pull has not ended in time; it goes on.
            Error: whatever the pull raised.
        """
        if not self._ended.wait(timeout):
            raise TimedOutError(f"the pull has not ended within {timeout} s")
        if self._error is not None:
            raise self._error
        assert self._report is not None
        return self._report

    def progress(self) -> Progress:
        """What it does now, and how much of that is done."""
        return Progress(*self._control.progress())

    def __repr__(self) -> str:
        if not self.done():
            state = "at work"
        else:
            state = "failed" if self._error is not None else "done"
        return f"<Pulling: {state}>"


_lock = threading.Lock()
_at_work: set[Pulling] = set()


@atexit.register
def _end_all() -> None:
    """Nothing may run in the rooms when the interpreter and the process go down."""
    with _lock:
        left = list(_at_work)
    for pulling in left:
        pulling.cancel()
    for pulling in left:
        pulling._thread.join()
