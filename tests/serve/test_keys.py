"""Keys: a walk of all routes over HTTP under each combination of keys, and where keys never show."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from server import ROOT, Server

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
