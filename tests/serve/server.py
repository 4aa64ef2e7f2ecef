"""Runs `syncline-engine` and talks to it as trainers do: plain HTTP, no library of ours."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
ENGINE = Path(os.environ.get("SYNCLINE_ENGINE") or ROOT / "build" / "bin" / "syncline-engine")
PATIENCE = 120.0  # seconds after which a test has failed; no test needs them


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def ok(self) -> Any:
        """The JSON of a reply that must be a success."""
        assert self.status == 200, f"status {self.status}: {self.text}"
        return self.json


class Stream:
    """A streamed reply: its events one after the other. Closing it is the client going away."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._response = connection.getresponse()
        self.status = self._response.status
        self.content_type = self._response.headers["Content-Type"]
        # Else `close` of the connection would leave the socket to the response.
        self._socket = connection.sock

    def events(self) -> Iterator[Any]:
        """Ends with "[DONE]"; fails where the stream ends without it."""
        for line in self._response:
            if line.strip():
                assert line.startswith(b"data: "), line
                data = line[6:].strip()
                if data == b"[DONE]":
                    return
                yield json.loads(data)
        raise AssertionError("the stream ended without [DONE]")

    def close(self) -> None:
        self._response.close()
        self._connection.close()


class Server:
    """A running engine. `arguments` are those of `syncline serve` after --model."""

    def __init__(
        self,
        model: Path,
        *arguments: object,
        wait: bool = True,
        port: int = 0,
        environment: dict[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
    ) -> None:
        helper = f"{sys.executable} {ROOT / 'python' / 'syncline' / 'tokenizer_helper.py'}"
        command = [str(ENGINE), "--model", str(model), "--port", str(port)]
        command += ["--log-level", "warning", "--tokenizer-command", helper]
        if not (model / "tokenizer.json").exists():
            command.append("--skip-tokenizer-init")
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | (environment or {}),
            text=True,
        )
        self.host, self.port = "127.0.0.1", port
        self.headers: dict[str, str] = {}
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Reads the line that says where the model is served."""
        line = _stream(self.process.stdout).readline()
        assert line, f"the engine ended: {_stream(self.process.stderr).read()}"
        ready = json.loads(line)
        assert ready["ready"] is True
        self.port = int(ready["url"].rsplit(":", 1)[1])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit status."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        connection = self.connect()
        try:
            self._send(connection, method, path, body, headers)
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.headers.items()}
            return Reply(response.status, names, response.read())
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: Any = None) -> Reply:
        return self.request("POST", path, {} if body is None else body)

    def load(self) -> int:
        """Requests that the engine has not finished; its figures follow its replies a step later."""
        return int(self.get("/v1/loads?include=core").ok()["loads"][0]["num_total_reqs"])

    def generate(self, **fields: Any) -> Any:
        return self.post("/generate", fields).ok()

    def stream(self, path: str, body: Any) -> Stream:
        connection = self.connect()
        self._send(connection, "POST", path, body, {})
        return Stream(connection)

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
    ) -> None:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        all_headers = {"Content-Type": "application/json"} | self.headers | headers
        connection.request(method, path, data, all_headers)


class Background:
    """A call on a thread of its own; `result` waits for it and raises what it raised."""

    def __init__(self, call: Any, *arguments: Any, **named: Any) -> None:
        self._value: Any = None
        self._error: Exception | None = None

        def run() -> None:
            try:
                self._value = call(*arguments, **named)
            except Exception as error:  # noqa: BLE001
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert self.done(), "the call did not return"
        if self._error is not None:
            raise self._error
        return self._value


def _stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def eventually(condition: Any, what: str) -> None:
    """Waits until `condition()` is true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.005)
