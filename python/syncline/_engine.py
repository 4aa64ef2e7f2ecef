"""An engine in the background of a Python program."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import errors
from ._arguments import StrPath
from ._client import Client

if TYPE_CHECKING:
    from typing_extensions import Self

_PROGRAM = "syncline-engine"


class Engine(Client):
    """Serves a model with the program `syncline-engine` until `close()`, or until this process ends.

    Usable as a context manager. It is a `Client` of the engine that it started.

    Args:
        model: checkpoint directory.
        port: 0 for any free one.
        threads: for the model; None for one a processor.
        options: further options of `syncline serve`, without the dashes: {"max_running_requests": 8}.
        ca_file: of the authority behind the option ssl_certfile, if there is one (see `Client`).
        log: file for what the engine writes to standard error; None passes it on.

    Raises:
        NotFoundError: the program is not there; the message says how to get it.
        Error: the engine ended before it was ready; the message holds its own.
    """

    def __init__(
        self,
        model: StrPath,
        *,
        port: int = 0,
        threads: int | None = None,
        options: Mapping[str, Any] | None = None,
        log: StrPath | None = None,
        api_key: str | None = None,
        ca_file: StrPath | None = None,
        timeout: float | None = None,
    ) -> None:
        command = [find_program(), "--model", os.fspath(model), "--port", str(port)]
        command += ["--exit-with-parent"]
        if threads is not None:
            command += ["--threads", str(threads)]
        for name, value in ({"log_level": "warning"} | dict(options or {})).items():
            flag = "--" + name.replace("_", "-")
            command += [flag] if value is True else [flag, str(value)]
        environment = {"OMP_WAIT_POLICY": "passive", "SYNCLINE_PYTHON": sys.executable} | os.environ
        if api_key is not None:
            environment["SYNCLINE_API_KEY"] = api_key  # arguments are seen by everybody
        # The engine ends when its standard input does, so also when this process is killed.
        with open(log, "ab") if log is not None else contextlib.nullcontext() as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr or subprocess.PIPE,
                env=environment,
            )
        self._finalizer = weakref.finalize(self, _stop, self._process)
        self._errors: list[str] = []
        if self._process.stderr is not None:
            threading.Thread(target=self._pass_on, daemon=True).start()
        super().__init__(
            self._wait_until_ready(), api_key=api_key, ca_file=ca_file, timeout=timeout
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends the engine: running requests get a few seconds. Harmless if it has ended already."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_until_ready(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        try:
            return str(json.loads(line)["url"])
        except (ValueError, KeyError):
            code = self._process.wait()
            told = "".join(self._errors[-20:]).strip() or "it said nothing"
            raise errors.Error(f"{_PROGRAM} ended with status {code}: {told}") from None

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            text = line.decode("utf-8", "replace")
            self._errors.append(text)
            del self._errors[:-100]
            sys.stderr.write(text)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def find_program() -> str:
    """Path of `syncline-engine`: SYNCLINE_ENGINE, beside the interpreter, in the build folder that
    holds the interpreter's environment, or in PATH."""
    given = os.environ.get("SYNCLINE_ENGINE")
    if given:
        return given
    folder = Path(sys.prefix)
    for path in (folder / "bin" / _PROGRAM, folder.parent / "build" / "bin" / _PROGRAM):
        if path.is_file():
            return str(path)
    found = shutil.which(_PROGRAM)
    if found is None:
        raise errors.NotFoundError(
            f"{_PROGRAM} was not found: build it with `make build`, or name it in SYNCLINE_ENGINE"
        )
    return found
