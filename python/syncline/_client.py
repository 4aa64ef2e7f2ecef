"""A client of an inference engine's HTTP interface: ours, or any that speaks the same routes."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from . import errors
from ._arguments import StrPath
from ._tensors import NamedTensors, pack, safetensors_file

Selector = Literal["all", "target", "draft"]

_BY_STATUS: dict[int, type[errors.Error]] = {
    400: errors.InvalidArgumentError,
    401: errors.PermissionDeniedError,
    403: errors.PermissionDeniedError,
    404: errors.NotFoundError,
    408: errors.TimedOutError,
    413: errors.LimitExceededError,
    429: errors.UnavailableError,
    503: errors.UnavailableError,
}


@dataclass(frozen=True)
class UpdateReport:
    """What one update of a running engine took."""

    version: int
    pull_s: float  # fetching the version into the replica, while generation goes on
    pause_s: float  # from the pause of generation to its continuation
    apply_s: float  # part of it in which no forward pass could run


class Client:
    """Talks to one engine. Thread-safe: every call has a connection of its own.

    Args:
        url: for example "http://127.0.0.1:30000", or "https://…".
        api_key: sent as a bearer token.
        ca_file: PEM file of the authorities that are trusted; None: those of the system.
        timeout: seconds that a call may be silent; None waits for ever, as trainers do.

    All methods raise UnavailableError where the engine cannot be reached, and the exception for the
    reply's status with the engine's own message otherwise: InvalidArgumentError for 400,
    PermissionDeniedError for 401 and 403, NotFoundError for 404, UnavailableError for 429 and 503.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        ca_file: StrPath | None = None,
        timeout: float | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise errors.InvalidArgumentError(f"url: expected http://host:port, found {url!r}")
        self.url = url.rstrip("/")
        self._parts = parts
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout
        self._tls = _trusting(ca_file) if parts.scheme == "https" else None

    # What engineers do with a model.

    def generate(
        self,
        text: str | Sequence[str] | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        **fields: Any,
    ) -> Any:
        """One reply of `/generate` as a dict, or a list of them for several prompts.

        `fields` are those of the route: sampling_params, return_logprob, rid, …
        """
        return self.post("/generate", _prompt(text, input_ids, fields))

    def stream(
        self,
        text: str | None = None,
        *,
        input_ids: Sequence[int] | None = None,
        **fields: Any,
    ) -> Iterator[dict[str, Any]]:
        """The events of one streamed `/generate`: each holds all that came so far."""
        body = _prompt(text, input_ids, fields) | {"stream": True}
        connection = self._connect()
        try:
            response = self._send(connection, "POST", "/generate", body)
            for line in response:
                if not line.startswith(b"data: "):
                    continue
                data = line[6:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise errors.InternalError(str(event["error"].get("message", event)))
                yield event
            raise errors.UnavailableError(f"{self.url}: the stream broke off")
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, errors.Error):
                raise
            raise errors.UnavailableError(f"{self.url}/generate: {error}") from error
        finally:
            connection.close()

    def chat(self, messages: Sequence[dict[str, Any]], **fields: Any) -> str:
        """The text that the model answers to a conversation (`/v1/chat/completions`)."""
        reply = self.post("/v1/chat/completions", {"messages": list(messages), **fields})
        return str(reply["choices"][0]["message"]["content"])

    # Its state.

    def healthy(self) -> bool:
        """Whether `/health` answers 200."""
        try:
            self.get("/health")
        except errors.Error:
            return False
        return True

    def wait_until_healthy(self, timeout: float = 120.0) -> None:
        """Raises TimedOutError if the engine is not healthy within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not self.healthy():
            if time.monotonic() > deadline:
                raise errors.TimedOutError(f"{self.url}: not healthy within {timeout} s")
            time.sleep(0.05)

    def model_info(self) -> dict[str, Any]:
        return dict(self.get("/model_info"))

    def server_info(self) -> dict[str, Any]:
        return dict(self.get("/server_info"))

    @property
    def weight_version(self) -> str:
        """The label of the weights that are served."""
        return str(self.model_info()["weight_version"])

    @weight_version.setter
    def weight_version(self, label: str) -> None:
        self.post("/update_weight_version", {"new_version": label, "abort_all_requests": False})

    def weight_names(self) -> list[str]:
        """Names of all checkpoint tensors that the engine serves."""
        return list(self.get("/export_weights"))

    def export_weight(self, name: str) -> tuple[str, tuple[int, ...], bytes]:
        """A live checkpoint tensor: dtype as in safetensors, shape, packed bytes."""
        query = urllib.parse.urlencode({"name": name})
        connection = self._connect()
        try:
            response = self._send(connection, "GET", f"/export_weights?{query}", None)
            data = response.read()
            shape = response.headers["X-Syncline-Shape"] or ""
            sizes = tuple(int(size) for size in shape.split(",") if size)
            return str(response.headers["X-Syncline-Dtype"]), sizes, data
        finally:
            connection.close()

    def weights_digest(
        self, version: int | None = None, *, source: StrPath | None = None
    ) -> dict[str, Any]:
        """Digests of all live checkpoint tensors, summed over the ranks that hold parts of them.

        With `version`, "equal" says whether they are those of that version of a store (default: the
        one of the last pull), and "different" which tensors are not.
        """
        fields = {"version": version, "source": None if source is None else str(source)}
        query = urllib.parse.urlencode({k: v for k, v in fields.items() if v is not None})
        return dict(self.get(f"/weights_digest?{query}"))

    # What trainers do with it.

    def pause(self, mode: str = "abort") -> None:
        """Stops generation. `mode`: "abort" ends what runs; "retract" keeps requests, without their
        cache; "in_place" keeps them with it."""
        self.post("/pause_generation", {"mode": mode})

    def resume(self) -> None:
        """Continues generation."""
        self.post("/continue_generation", {})

    def flush_cache(self, timeout: float = 0.0) -> None:
        """Forgets the key-value cache. InvalidArgumentError while requests need it."""
        self.post(f"/flush_cache?timeout={timeout}", None)

    def abort(self, rid: str | None = None) -> None:
        """Ends one request, or all of them."""
        self.post("/abort_request", {"rid": rid} if rid is not None else {"abort_all": True})

    def pull_weights(self, store: StrPath, replica: StrPath, version: int) -> None:
        """Lets the engine bring its host's checkpoint to a version; generation goes on."""
        self.post(
            "/pull_weights",
            {
                "source_dir": str(store),
                "local_checkpoint_dir": str(replica),
                "target_version": version,
            },
        )

    def update_weights_from_disk(
        self, path: StrPath, *, weight_version: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Lets the engine serve the weights of a checkpoint directory. Its reply as a dict."""
        body = {"model_path": str(path), "weight_version": weight_version, **fields}
        return dict(self.post("/update_weights_from_disk", body))

    def begin_update(self, *, selector: Selector = "all", sync_base: bool = True) -> dict[str, Any]:
        """Begins a session: what `update_from_tensors` sends from now on is one transaction.

        `selector`: the models of the engine that it is for.
        """
        body = {"selector": selector, "sync_base": sync_base}
        return dict(self.post("/begin_weight_update", body))

    def update_from_tensors(
        self,
        named_tensors: NamedTensors,
        *,
        weight_version: str | None = None,
        flush_cache: bool = True,
        selector: Selector | None = None,
    ) -> dict[str, Any]:
        """Sends tensors, by their names in the checkpoint: numpy arrays, torch tensors or others
        with `__dlpack__`. All ranks of the engine get them. The route's reply as a dict.

        In a session `end_update` makes them live, with `weight_version`; else this call does.
        """
        pieces = safetensors_file(pack(named_tensors))
        fields = {"weight_version": weight_version, "selector": selector}
        query = {name: value for name, value in fields.items() if value is not None}
        query["flush_cache"] = "true" if flush_cache else "false"
        path = f"/update_weights_from_tensor_raw?{urllib.parse.urlencode(query)}"
        return dict(self._call("POST", path, pieces))

    def end_update(self, *, abort: bool = False) -> dict[str, Any]:
        """Ends the session: its tensors are live on all ranks from then on, or, with `abort` or
        after an error inside it, none of them. The route's reply as a dict."""
        return dict(self.post("/end_weight_update", {"abort": abort}))

    def weights_checker(
        self,
        action: Literal["checksum", "snapshot", "reset_tensors", "compare"] = "checksum",
        *,
        selector: Selector = "all",
        skip: Sequence[str] = (),
        allow_quant_error: bool = False,
        hash: Literal["device", "sha256"] = "device",
    ) -> dict[str, Any]:
        """Checksums of the live weights, or their comparison with a snapshot of them.

        `skip`: parts of names that are left out. A comparison that fails raises
        InvalidArgumentError, whose message names the tensors.
        """
        body = {
            "action": action,
            "selector": selector,
            "skip_tensor_list": list(skip),
            "allow_quant_error": allow_quant_error,
            "hash": hash,
        }
        return dict(self.post("/weights_checker", body))

    def update(
        self, store: StrPath, replica: StrPath, version: int, *, mode: str = "retract"
    ) -> UpdateReport:
        """Pulls a version while generation goes on, then serves it: pause, flush, load, continue.

        With mode "in_place" the cache is kept. Generation continues after an error too, with the
        old weights.
        """
        start = time.perf_counter()
        self.pull_weights(store, replica, version)
        pulled = time.perf_counter()
        try:
            self.pause(mode)
            if mode != "in_place":
                self.flush_cache()
            reply = self.update_weights_from_disk(
                replica, weight_version=str(version), flush_cache=mode != "in_place"
            )
        finally:
            self.resume()
        return UpdateReport(
            version=version,
            pull_s=pulled - start,
            pause_s=time.perf_counter() - pulled,
            apply_s=float(reply.get("apply_seconds", 0.0)),
        )

    # Any route.

    def get(self, path: str) -> Any:
        """The reply to a GET: decoded if it is JSON, else its text; None if it is empty."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        """The reply to a POST of `body` as JSON."""
        return self._call("POST", path, body)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._parts.hostname or "", self._parts.port
        if self._tls is None:
            return http.client.HTTPConnection(host, port, timeout=self._timeout)
        return http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._tls)

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any
    ) -> http.client.HTTPResponse:
        pieces, kind = _encode(body)
        headers = self._headers | {"Content-Type": kind}
        if pieces:
            headers["Content-Length"] = str(sum(len(piece) for piece in pieces))
        try:
            connection.request(method, self._parts.path.rstrip("/") + path, pieces, headers)
            response = connection.getresponse()
        except TimeoutError as error:
            raise errors.TimedOutError(f"{self.url}{path}: no answer in time") from error
        except (OSError, http.client.HTTPException) as error:
            raise errors.UnavailableError(f"{self.url}{path}: {error}") from error
        if response.status >= 400:
            text = response.read().decode("utf-8", "replace")
            fault = _BY_STATUS.get(response.status, errors.InternalError)
            raise fault(_message(text) or f"{self.url}{path}: HTTP status {response.status}")
        return response

    def _call(self, method: str, path: str, body: Any) -> Any:
        connection = self._connect()
        try:
            response = self._send(connection, method, path, body)
            try:
                data = response.read()
            except (OSError, http.client.HTTPException) as error:
                raise errors.UnavailableError(f"{self.url}{path}: {error}") from error
            if "json" in (response.headers.get("Content-Type") or ""):
                return json.loads(data) if data else None
            return data.decode("utf-8", "replace") or None
        finally:
            connection.close()


def _encode(body: Any) -> tuple[list[bytes] | list[memoryview] | None, str]:
    """The pieces of a request's body, and their type: pieces of a file, or anything as JSON."""
    if isinstance(body, list) and body and isinstance(body[0], memoryview):
        return body, "application/octet-stream"
    return None if body is None else [json.dumps(body).encode()], "application/json"


def _trusting(ca_file: StrPath | None) -> ssl.SSLContext:
    if ca_file is None:
        return ssl.create_default_context()
    path = os.fspath(ca_file)
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # ssl.SSLError too
        raise errors.InvalidArgumentError(f"ca_file: {path}: {error}") from error


def _prompt(text: Any, input_ids: Any, fields: dict[str, Any]) -> dict[str, Any]:
    if (text is None) == (input_ids is None):
        raise errors.InvalidArgumentError("expected either text or input_ids")
    return fields | ({"text": text} if input_ids is None else {"input_ids": input_ids})


def _message(text: str) -> str:
    """The message in a reply's body, in any of the forms that routes use."""
    try:
        body = json.loads(text)
    except ValueError:
        return text
    if isinstance(body, dict):
        error = body.get("error")
        if isinstance(error, dict):
            return str(error.get("message", error))
        return str(body.get("message") or error or text)
    return text
