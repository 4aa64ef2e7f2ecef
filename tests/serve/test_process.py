"""Start and end of the program."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Cli
from server import ENGINE, Background, Server, eventually

LONG = {"max_new_tokens": 100000, "ignore_eos": True}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ENGINE), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | environment,
    )


def test_the_server_answers_while_the_model_loads(smollm2: Path) -> None:
    server = Server(smollm2, wait=False, port=free_port())
    try:
        statuses = set()

        def asked() -> bool:
            try:
                reply = server.get("/health")
            except ConnectionRefusedError:
                return False
            statuses.add(reply.status)
            if reply.status == 503:
                refused = server.post("/generate", {"text": "x"})
                if refused.status == 503:
                    assert "being loaded" in refused.json["error"]["message"]
            return reply.status == 200

        eventually(asked, "healthy")
        server.wait_until_ready()
        assert statuses == {200, 503}
    finally:
        server.close()


def test_a_model_that_cannot_be_loaded(small_llama: Path, tmp_path: Path) -> None:
    ended = run("--model", tmp_path / "gone", "--port", 0, "--skip-tokenizer-init")
    assert ended.returncode == 3
    assert str(tmp_path / "gone") in ended.stderr
    assert ended.stdout == ""
    no_tokenizer = run("--model", small_llama, "--port", 0)
    assert no_tokenizer.returncode == 3
    assert "--skip-tokenizer-init" in no_tokenizer.stderr
    wrong = run("--model", small_llama, "--port", "many")
    assert wrong.returncode == 2
    assert "--help" in wrong.stderr


def test_a_port_that_is_taken(server: Server, small_llama: Path) -> None:
    ended = run("--model", small_llama, "--skip-tokenizer-init", "--port", server.port)
    assert ended.returncode == 14
    assert str(server.port) in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_short_requests_finish(
    start: Callable[..., Server], number: signal.Signals
) -> None:
    server = start("--shutdown-timeout", 60)
    call = Background(
        server.generate, input_ids=[1], sampling_params={"max_new_tokens": 800, "ignore_eos": True}
    )
    eventually(lambda: server.load() == 1, "it runs")
    assert server.stop(number) == 0
    assert len(call.result()["output_ids"]) == 800


def test_a_signal_cuts_long_requests_with_503(start: Callable[..., Server]) -> None:
    server = start("--shutdown-timeout", 0.3)
    body = {"input_ids": [1], "sampling_params": LONG}
    whole = Background(server.post, "/generate", body)
    stream = server.stream("/generate", body | {"stream": True})
    events = stream.events()
    next(events)
    eventually(lambda: server.load() == 2, "both run")
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: server.get("/health").status == 503, "not healthy any more")
    assert server.post("/generate", {"input_ids": [1]}).status == 503
    reply = whole.result()
    assert (reply.status, reply.json["code"]) == (503, 503)
    last = list(events)[-1]["meta_info"]["finish_reason"]
    assert (last["type"], last["status_code"]) == ("abort", 503)
    assert server.process.wait(60) == 0


def test_paused_requests_do_not_hold_up_the_end(start: Callable[..., Server]) -> None:
    server = start("--shutdown-timeout", 0.1)
    server.post("/pause_generation", {"mode": "retract"}).ok()
    call = Background(server.post, "/generate", {"input_ids": [1], "sampling_params": LONG})
    eventually(lambda: server.load() == 1, "it waits")
    assert server.stop() == 0
    assert call.result().status == 503


def test_it_can_end_with_its_parent(start: Callable[..., Server]) -> None:
    server = start("--exit-with-parent", stdin=subprocess.PIPE)
    assert server.get("/health").status == 200
    assert server.process.stdin is not None
    server.process.stdin.close()
    server.process.stdin = None  # `communicate` would flush it
    assert server.process.wait(60) == 0


def test_idle_threads_of_openmp_are_passive(server: Server) -> None:
    environment = Path(f"/proc/{server.process.pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_WAIT_POLICY=passive" in environment


def test_no_tokenizer_helper_is_left_behind(smollm2: Path) -> None:
    server = Server(smollm2)
    try:
        server.generate(text="A", sampling_params={"max_new_tokens": 1})
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        tasks = Path(f"/proc/{pid}/task").iterdir()
        for task in tasks:
            children += (task / "children").read_text().split()
        assert children, "the helper runs"
        assert server.stop() == 0
        eventually(
            lambda: not any(Path(f"/proc/{child}").exists() for child in children), "it is gone"
        )
    finally:
        server.close()


def test_syncline_serve_becomes_the_engine(cli: Cli, tmp_path: Path, monkeypatch) -> None:
    stand_in = tmp_path / "syncline-engine"
    stand_in.write_text('#!/bin/sh\necho "$OMP_WAIT_POLICY"\nprintf "[%s]" "$@"\n')
    stand_in.chmod(0o755)
    monkeypatch.setenv("SYNCLINE_ENGINE", str(stand_in))
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    result = cli("serve", "--model", "a b", "--port=3", "--help", "--json")
    assert result.rc == 0
    assert result.stdout == "passive\n[--model][a b][--port=3][--help][--json]"
    monkeypatch.setenv("SYNCLINE_ENGINE", str(tmp_path / "gone"))
    told = cli("serve", "--model", "x")
    assert told.rc == 3
    assert "SYNCLINE_ENGINE" in told.stderr


def test_help(cli: Cli, monkeypatch) -> None:
    monkeypatch.setenv("SYNCLINE_ENGINE", str(ENGINE))
    result = cli("serve", "--help")
    assert result.rc == 0
    assert "Example:\n  syncline serve --model" in result.stdout
    assert "--shutdown-timeout" in result.stdout
