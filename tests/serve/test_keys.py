"""Keys: a walk of all routes over HTTP under each combination of keys, and where keys never show."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from server import ENGINE, ROOT, Server

USER, ADMIN = "key-of-users", "key-of-admins"
OPEN, NORMAL, OPTIONAL = "open", "normal", "admin_optional"

# Whoever adds a route decides here who may call it.
ROUTES: dict[str, tuple[str, list[str]]] = {
    "/health": (OPEN, ["GET"]),
    "/health_generate": (OPEN, ["GET"]),
    "/metrics": (OPEN, ["GET"]),
    "/generate": (NORMAL, ["POST", "PUT"]),
    "/v1/completions": (NORMAL, ["POST"]),
    "/v1/chat/completions": (NORMAL, ["POST"]),
    "/v1/models": (NORMAL, ["GET"]),
    "/ping": (NORMAL, ["GET"]),
    "/v1/models/NAME": (NORMAL, ["GET"]),
    "/v1/loads": (NORMAL, ["GET"]),
    "/model_info": (NORMAL, ["GET"]),
    "/get_model_info": (NORMAL, ["GET"]),
    "/server_info": (NORMAL, ["GET"]),
    "/get_server_info": (NORMAL, ["GET"]),
    "/get_weight_version": (NORMAL, ["GET"]),
    "/weight_version": (NORMAL, ["GET"]),
    "/pause_generation": (OPTIONAL, ["POST"]),
    "/continue_generation": (OPTIONAL, ["POST"]),
    "/flush_cache": (OPTIONAL, ["GET", "POST"]),
    "/abort_request": (OPTIONAL, ["POST"]),
    "/pull_weights": (OPTIONAL, ["POST"]),
    "/update_weights_from_disk": (OPTIONAL, ["POST"]),
    "/begin_weight_update": (OPTIONAL, ["POST"]),
    "/end_weight_update": (OPTIONAL, ["POST"]),
    "/update_weights_from_tensor": (OPTIONAL, ["POST"]),
    "/init_weights_update_group": (OPTIONAL, ["POST"]),
    "/destroy_weights_update_group": (OPTIONAL, ["POST"]),
    "/update_weights_from_distributed": (OPTIONAL, ["POST"]),
    "/update_weights_from_ipc": (OPTIONAL, ["POST"]),
    "/remote_instance_transfer_engine_info": (OPTIONAL, ["GET"]),
    "/get_remote_instance_transfer_engine_info": (OPTIONAL, ["GET"]),
    "/parallelism_config": (OPTIONAL, ["GET"]),
    "/init_weights_send_group_for_remote_instance": (OPTIONAL, ["POST"]),
    "/send_weights_to_remote_instance": (OPTIONAL, ["POST"]),
    "/seed_info": (OPTIONAL, ["GET"]),
    "/release_memory_occupation": (OPTIONAL, ["GET", "POST"]),
    "/resume_memory_occupation": (OPTIONAL, ["GET", "POST"]),
    "/update_weights_from_tensor_raw": (OPTIONAL, ["POST"]),
    "/post_process_weights": (OPTIONAL, ["POST"]),
    "/weights_checker": (OPTIONAL, ["GET", "POST"]),
    "/update_weight_version": (OPTIONAL, ["POST"]),
    "/get_weights_by_name": (OPTIONAL, ["GET", "POST"]),
    "/get_parameter_by_name": (OPTIONAL, ["GET", "POST"]),
    "/weights_digest": (OPTIONAL, ["GET"]),
    "/export_weights": (OPTIONAL, ["GET"]),
}

# The keys that the server has, and which one lets in ("": whoever comes) at each level.
COMBINATIONS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "none": ({}, {NORMAL: "", OPTIONAL: ""}),
    "api": ({"SYNCLINE_API_KEY": USER}, {NORMAL: USER, OPTIONAL: USER}),
    "admin": ({"SYNCLINE_ADMIN_API_KEY": ADMIN}, {NORMAL: "", OPTIONAL: ADMIN}),
    "both": (
        {"SYNCLINE_API_KEY": USER, "SYNCLINE_ADMIN_API_KEY": ADMIN},
        {NORMAL: USER, OPTIONAL: ADMIN},
    ),
}


def test_the_table_is_that_of_the_documents() -> None:
    documented: set[str] = set()
    for line in (ROOT / "docs" / "http.md").read_text().splitlines():
        if re.match(r"\| `(GET|POST)", line):
            documented |= set(re.findall(r"/[A-Za-z0-9_/]+", line.split("|")[1]))
    assert documented == ROUTES.keys()


@pytest.mark.parametrize("combination", COMBINATIONS)
def test_every_route(start: Callable[..., Server], combination: str) -> None:
    environment, allowed = COMBINATIONS[combination]
    server = start(environment=environment)
    for path, (level, methods) in ROUTES.items():
        wanted = "" if level == OPEN else allowed[level]
        for method in [*methods, "DELETE"]:
            for key in ("", "wrong", "None", USER, ADMIN):
                status = server.request(method, path, **_bearer(key)).status
                let_in = wanted in ("", key)
                assert (status != 401) == let_in, f"{method} {path} with {key!r}: {status}"
                if method == "DELETE" and let_in:
                    assert status == 405
    assert server.request("GET", "/nowhere").status == (401 if allowed[OPTIONAL] else 404)
    assert server.request("OPTIONS", "/pull_weights").status == 405


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


# ---- Where keys never show.

SECRETS = {name: f"sesame-{name}-3f9c" for name in ("user", "admin", "wrong")}


def _raw(server: Server, request: bytes) -> bytes:
    """The reply to bytes that no HTTP library would send."""
    with socket.create_connection((server.host, server.port)) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        reply = b""
        while data := connection.recv(65536):
            reply += data
        return reply


def _processes_of(parent: int) -> list[int]:
    lists = [task.read_text() for task in Path(f"/proc/{parent}/task").glob("*/children")]
    children = " ".join(lists).split()
    return [parent, *(process for child in children for process in _processes_of(int(child)))]


def _sources(tmp_path: Path, kind: str) -> tuple[list[object], dict[str, str]]:
    """Arguments and variables that give an engine both keys."""
    user, admin = SECRETS["user"], SECRETS["admin"]
    if kind == "flags":
        return ["--api-key", user, f"--admin-api-key={admin}"], {}
    if kind == "variables":
        return [], {"SYNCLINE_API_KEY": user, "SYNCLINE_ADMIN_API_KEY": admin}
    for name, key in (("user", user), ("admin", admin)):
        (tmp_path / name).write_text(key + "\n")
    files = ["--api-key-file", tmp_path / "user", "--admin-api-key-file", tmp_path / "admin"]
    return files, {}


@pytest.mark.parametrize("kind", ["flags", "variables", "files"])
def test_keys_show_nowhere(start: Callable[..., Server], tmp_path: Path, kind: str) -> None:
    arguments, environment = _sources(tmp_path, kind)
    server = start(*arguments, "--tp", 2, "--log-level", "debug", environment=environment)
    seen: list[bytes] = []
    for key in SECRETS.values():
        for path in ("/server_info", "/model_info", "/metrics", "/v1/loads", "/nowhere"):
            for headers in (_bearer(key), {"X-API-Key": key}):
                reply = server.request("GET", path, **headers)
                seen.append(reply.body + str(reply.headers).encode())
        seen.append(server.request("POST", "/generate", {"input_ids": "x"}, **_bearer(key)).body)
        seen.append(server.request("POST", "/pull_weights", {}, **_bearer(key)).body)
        for line in (f"X-API-Key : {key}", f"X-API-Key: {key}\0", f"{key}", f"{key}:\1"):
            request = f"GET /model_info HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n"
            seen.append(_raw(server, request.encode()))
    assert server.request("GET", "/server_info", **_bearer(SECRETS["user"])).status == 200
    processes = _processes_of(server.process.pid)
    assert len(processes) > 1
    for process in processes:
        seen.append(Path(f"/proc/{process}/cmdline").read_bytes())
        if process != server.process.pid:
            seen.append(Path(f"/proc/{process}/environ").read_bytes())
    server.process.send_signal(signal.SIGTERM)
    seen += [output.encode() for output in server.process.communicate()]
    for key in SECRETS.values():
        assert all(key.encode() not in text for text in seen), kind


def test_a_key_that_is_none_is_refused_without_showing_it(
    small_llama: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(SECRETS["user"] + "\t\n")
    refused = _refused(small_llama, "--api-key-file", tmp_path / "key")
    assert "api-key-file" in refused and SECRETS["user"] not in refused
    assert "the key is empty" in _refused(small_llama, "--admin-api-key", "")


def test_br_46_other_machines_need_a_key(start: Callable[..., Server], small_llama: Path) -> None:
    for host in ("0.0.0.0", "::"):
        assert "--allow-unauthenticated" in _refused(small_llama, "--host", host)
    for arguments in (["--allow-unauthenticated"], ["--admin-api-key", "key"]):
        assert start("--host", "0.0.0.0", *arguments).get("/model_info").status == 200


def _refused(model: Path, *arguments: object) -> str:
    """What an engine says that does not start."""
    command = [ENGINE, "--model", model, "--port", 0, "--skip-tokenizer-init", *arguments]
    done = subprocess.run(
        [*map(str, command)], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    return done.stderr
