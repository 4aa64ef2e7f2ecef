"""HTTPS as clients of trainers speak it: requests, openai, and our own client."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import openai
import pytest
import requests
from server import ENGINE, PATIENCE, Server
from testing_authority import Authority

KEY = "key-of-users"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def secured(start: Callable[..., Server], authority: Authority) -> str:
    """The URL of an engine that speaks HTTPS and asks for a key."""
    certificate, key = authority.server
    environment = {"SYNCLINE_API_KEY": KEY}
    files = ("--ssl-certfile", certificate, "--ssl-keyfile", key)
    server = start(*files, "--max-total-tokens", 4096, environment=environment)
    return f"https://{server.host}:{server.port}"


def test_requests(secured: str, authority: Authority, tmp_path: Path) -> None:
    with requests.Session() as session:
        session.trust_env = False  # else a variable of the environment names the authorities
        session.verify = str(authority.ca_file)
        session.headers["Authorization"] = f"Bearer {KEY}"
        for _ in range(3):  # on one connection
            assert session.get(f"{secured}/model_info", timeout=PATIENCE).status_code == 200
        body = {"input_ids": [1, 2], "stream": True, "sampling_params": {"max_new_tokens": 5}}
        reply = session.post(f"{secured}/generate", json=body, stream=True, timeout=PATIENCE)
        lines = [line for line in reply.iter_lines() if line]
        assert lines[-1] == b"data: [DONE]" and len(lines) == 6
        # Large: it is refused by its content, once it is there.
        raw = session.post(
            f"{secured}/update_weights_from_tensor_raw", data=bytes(64 << 20), timeout=PATIENCE
        )
        assert raw.status_code == 400 and "success" in raw.text
    wrong = f"Bearer {KEY}x"
    denied = requests.get(
        f"{secured}/model_info",
        headers={"Authorization": wrong},
        verify=str(authority.ca_file),
        timeout=PATIENCE,
    )
    assert denied.status_code == 401
    (tmp_path / "other").mkdir()
    other = Authority(tmp_path / "other").ca_file
    with pytest.raises(requests.exceptions.SSLError):
        requests.get(f"{secured}/health", verify=str(other), timeout=PATIENCE)
    with pytest.raises(requests.exceptions.ConnectionError):
        requests.get(secured.replace("https", "http") + "/health", timeout=PATIENCE)


def test_openai(secured: str, authority: Authority) -> None:
    context = ssl.create_default_context(cafile=authority.ca_file)
    with openai.DefaultHttpxClient(verify=context) as http_client:
        client = openai.OpenAI(
            base_url=f"{secured}/v1", api_key=KEY, max_retries=0, http_client=http_client
        )
        reply = client.completions.create(model="any", prompt=[1, 2], max_tokens=5)
        assert reply.usage is not None and reply.usage.completion_tokens == 5
        chunks = client.completions.create(model="any", prompt=[1, 2], max_tokens=5, stream=True)
        assert list(chunks)


def test_our_client(secured: str, authority: Authority, package: ModuleType) -> None:
    client = package.Client(secured, api_key=KEY, ca_file=authority.ca_file)
    assert client.healthy()
    assert client.weight_version == "default"
    events = list(client.stream(input_ids=[1, 2], sampling_params={"max_new_tokens": 5}))
    assert len(events[-1]["output_ids"]) == 5
    name = client.weight_names()[0]
    assert client.export_weight(name)[2]
    with pytest.raises(package.PermissionDeniedError):
        package.Client(secured, ca_file=authority.ca_file).model_info()
    with pytest.raises(package.UnavailableError, match="certificate"):
        package.Client(secured, api_key=KEY).model_info()
    with pytest.raises(package.InvalidArgumentError, match="ca_file"):
        package.Client(secured, ca_file=authority.server[1])


def test_files_that_do_not_do(small_llama: Path, authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.server
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").server[1]
    for arguments, named in (
        (["--ssl-certfile", certificate], "--ssl-keyfile"),
        (["--ssl-certfile", certificate, "--ssl-keyfile", foreign], str(foreign)),
        (["--ssl-certfile", key, "--ssl-keyfile", key], str(key)),
    ):
        command = [ENGINE, "--model", small_llama, "--port", 0, "--skip-tokenizer-init", *arguments]
        done = subprocess.run(
            [*map(str, command)], check=False, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 2 and named in done.stderr
