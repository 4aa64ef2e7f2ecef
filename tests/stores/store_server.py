"""An HTTP server of a directory that does as it should, or exactly as wrong as a test says.

It knows ranges, ETag and If-Match, and counts the bytes that it sends of each file.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Request:
    """A request, and how many came for the same file before."""

    method: str
    path: str  # below the directory
    earlier: int
    first: int = 0  # of the range
    last: int | None = None

    @property
    def is_body(self) -> bool:
        return self.method == "GET"


@dataclass(frozen=True)
class Fault:
    """What is wrong with one reply. Sizes are in bytes of the body that was asked for."""

    status: int | None = None  # reply with this, and nothing else
    drop_after: int | None = None  # close the connection after so many bytes
    stall_after: int | None = None  # then send nothing more until the client goes
    file_size: int | None = None  # pretend that the file ends here
    length_off: int = 0  # Content-Length is wrong by so much
    flip_bit: int | None = None  # in the byte at this place of the body
    headers: dict[str, str] = field(default_factory=dict)


Faults = Callable[[Request], "Fault | None"]


class StoreServer:
    """Serves `root` until the end of its `with` block. `faults` may be set at any time."""

    def __init__(self, root: Path, *, certificate: tuple[Path, Path] | None = None) -> None:
        self.root = root
        self.faults: Faults = lambda request: None
        self.requests: list[Request] = []
        self.sent: Counter[str] = Counter()  # bytes of bodies, by path
        self.stalled = threading.Event()  # a reply has stalled
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._tags: dict[tuple[str, int, int], str] = {}
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        scheme = "https" if certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Answers nobody any more; may be called twice."""
        self.stopping.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def forget(self) -> None:
        """Begins counting again."""
        with self._lock:
            self.requests.clear()
            self.sent.clear()

    def total(self, ending: str = "") -> int:
        """Bytes sent of the files whose path ends like this."""
        with self._lock:
            return sum(count for path, count in self.sent.items() if path.endswith(ending))

    # For the handlers.

    def note(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)

    def count(self, path: str, size: int) -> None:
        with self._lock:
            self.sent[path] += size

    def earlier(self, path: str) -> int:
        with self._lock:
            return sum(request.path == path for request in self.requests)

    def tag(self, path: Path) -> str:
        info = path.stat()
        key = (str(path), info.st_mtime_ns, info.st_size)
        with self._lock:
            if key not in self._tags:
                self._tags[key] = f'"{hashlib.sha256(path.read_bytes()).hexdigest()}"'
            return self._tags[key]


class _Handler(BaseHTTPRequestHandler):
    owner: StoreServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer("GET")

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True

    def _answer(self, method: str) -> None:
        name = unquote(urlsplit(self.path).path).lstrip("/")
        path = self.owner.root / name
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        first = int(span[1]) if span else 0
        last = int(span[2]) if span and span[2] else None
        request = Request(method, name, self.owner.earlier(name), first, last)
        self.owner.note(request)
        fault = self.owner.faults(request) or Fault()
        if fault.status is not None:
            return self._plain(fault.status, fault.headers)
        if not path.is_file():
            return self._plain(404)
        tag = self.owner.tag(path)
        if self.headers.get("If-Match", tag) != tag:
            return self._plain(412)
        data = path.read_bytes()
        if fault.file_size is not None:
            data = data[: fault.file_size]
        if span and first >= len(data):
            return self._plain(416, {"Content-Range": f"bytes */{len(data)}"})
        size = len(data)
        end = min(size, size if last is None else last + 1)
        body = bytearray(data[first:end])
        headers = {"ETag": tag, "Accept-Ranges": "bytes", **fault.headers}
        if span:
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{size}"
        headers["Content-Length"] = str(len(body) + fault.length_off)
        self._head(206 if span else 200, headers)
        if method == "GET":
            self._body(name, body, fault)
        return None

    def _plain(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._head(status, {"Content-Length": "0", **(headers or {})})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.flush()

    def _body(self, name: str, body: bytearray, fault: Fault) -> None:
        if fault.flip_bit is not None and fault.flip_bit < len(body):
            body[fault.flip_bit] ^= 1
        limit = next(
            (stop for stop in (fault.drop_after, fault.stall_after) if stop is not None), len(body)
        )
        for at in range(0, min(limit, len(body)), 1 << 18):
            if self.owner.stopping.is_set():
                self.close_connection = True
                return
            part = body[at : min(at + (1 << 18), limit)]
            self.wfile.write(part)
            self.owner.count(name, len(part))
        self.wfile.flush()
        if fault.stall_after is not None:
            self.owner.stalled.set()
            self._await_departure()
        if fault != Fault():
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def _await_departure(self) -> None:
        self.connection.settimeout(0.02)
        while not self.owner.stopping.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue
            except OSError:
                return
