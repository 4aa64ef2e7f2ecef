"""Updates by checkpoint-engine's producers: its own ParameterServer on a CPU (parameter_server.py says
which part is whose), and a producer of ours for all that goes wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from groups import free_port
from producers import Producer
from server import PATIENCE, Background, Server
from trainer import OPTIONS, Cold, Trainer, Weights, load, named, serves, state, step

HERE = Path(__file__).resolve().parent
SUCCESS = "IPC weight update completed successfully"
BUCKET = 1 << 18
NORM = "model.norm.weight"

pytestmark = pytest.mark.usefixtures("by_name")


@pytest.fixture
def weights(small_llama: Path) -> Weights:
    return load(small_llama)


def uuids(server: Server) -> list[str]:
    return list(server.get("/server_info").ok()["device_uuids"])


def post(server: Server, producers: list[Producer], **more: object) -> Background:
    """The request, not waited for."""
    handles = dict(zip(uuids(server), (one.endpoint for one in producers), strict=True))
    return Background(server.post, "/update_weights_from_ipc", {"zmq_handles": handles} | more)


@contextmanager
def producers_of(trainer: Trainer) -> Iterator[list[Producer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Producer(BUCKET)) for _ in range(trainer.ranks)]


def on_all(producers: list[Producer], call: Callable[[Producer], Any]) -> list[Any]:
    """At the same time, as the ranks of a trainer."""
    running = [Background(call, one) for one in producers]
    return [one.result() for one in running]


def give_up(producer: Producer) -> None:
    producer.say(RuntimeError("Some workers failed to update weights"))


def refused(asked: Background, *texts: str) -> None:
    reply = asked.result()
    assert reply.status == 400
    assert reply.json["success"] is False
    for text in texts:
        assert text in reply.json["message"]


def update(trainer: Trainer, weights: Weights, **more: object) -> dict[str, Any]:
    with producers_of(trainer) as producers:
        asked = post(trainer.server, producers, **more)
        assert on_all(producers, lambda one: one.send(named(weights)) + one.end()) == [
            [] for _ in producers
        ]
        return dict(asked.result().ok())


def test_parameter_servers(
    trainer: Trainer, weights: Weights, cold: Cold, small_llama: Path
) -> None:
    """Two updates by checkpoint-engine itself, in many buckets; the last equals a cold start."""
    server, ranks = trainer.server, trainer.ranks
    steps = [step(weights, 1), step(weights, 2)]
    paths = [str(cold.write(small_llama, one)) for one in steps]
    url = f"http://127.0.0.1:{server.port}"
    environment = os.environ | {
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port() - 1),
        "GLOO_SOCKET_IFNAME": "lo",
        "PS_MAX_BUCKET_SIZE_GB": str(BUCKET / 2**30),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / "parameter_server.py"), url, uuid, *paths],
            env=environment | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank, uuid in enumerate(uuids(server))
    ]
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks
    replies = [json.loads(line) for line in outputs[0].splitlines()]
    assert [reply["message"] for reply in replies] == [
        f"{SUCCESS} Weight version updated to {version}." for version in (1, 2)
    ]
    assert serves(server, steps[1])
    assert state(server) == cold(small_llama, steps[1], "--tp", ranks, *OPTIONS)


def test_our_producer(trainer: Trainer, weights: Weights) -> None:
    """What is not shown any more is overwritten at once: the engine has its own copy."""
    new = step(weights, 3)
    reply = update(trainer, new, weight_version="3", flush_cache=False, torch_empty_cache=True)
    assert reply["message"] == f"{SUCCESS} Weight version updated to 3."
    assert reply["tensors"] == len(new)
    assert serves(trainer.server, new)
    assert trainer.version() == "3"


def test_while_paused(single: Trainer, weights: Weights) -> None:
    new = step(weights, 4)
    stream = single.server.stream(
        "/generate",
        {
            "input_ids": [1, 2],
            "stream": True,
            "sampling_params": {"max_new_tokens": 2000, "ignore_eos": True},
        },
    )
    events = stream.events()
    next(events)
    single.server.post("/pause_generation", {"mode": "in_place"}).ok()
    update(single, new, flush_cache=False)
    assert serves(single.server, new)
    single.server.post("/continue_generation").ok()
    next(events)
    stream.close()


def test_in_a_session(trainer: Trainer, weights: Weights) -> None:
    new = step(weights, 5)
    trainer.begin().ok()
    reply = update(trainer, new, weight_version="5")
    assert reply["message"] == SUCCESS
    assert reply["weight_version_pending"] == "5"
    assert serves(trainer.server, weights)
    trainer.end().ok()
    assert serves(trainer.server, new)
    assert trainer.version() == "5"


def test_without_the_session_that_is_required(
    start: Callable[..., Server], weights: Weights
) -> None:
    """As in SGLang: it needs none."""
    trainer = Trainer(start("--session", "required", *OPTIONS))
    update(trainer, step(weights, 6))
    assert serves(trainer.server, step(weights, 6))


def test_a_tensor_that_is_refused(trainer: Trainer, weights: Weights) -> None:
    """All producers give up when one has been told, as ParameterServer does; nothing has changed."""
    new = named(step(weights, 7))
    with producers_of(trainer) as producers:
        asked = post(trainer.server, producers, weight_version="7")
        assert not any(on_all(producers, lambda one: one.send(new)))
        wrong = producers[-1].place([("no.such.tensor", torch.ones(3))], 0)
        assert "no.such.tensor" in producers[-1].ask(wrong)
        for one in producers:
            give_up(one)
        refused(asked, "no.such.tensor")
    assert serves(trainer.server, weights)
    assert trainer.version() == "default"


def test_the_end_fails_on_all(pair: Trainer, weights: Weights) -> None:
    """One rank's producer gives up when the other's has said all: that one is told at its end."""
    new = named(step(weights, 8))
    with producers_of(pair) as producers:
        asked = post(pair.server, producers)
        assert not any(on_all(producers, lambda one: one.send(new)))
        assert producers[0].ask(None) == ""
        end = Background(producers[0].ask, None)
        give_up(producers[1])
        assert "rank 1" in end.result()
        assert "gave up: RuntimeError: Some workers failed" in end.result()
        refused(asked, "rank 1", "gave up: RuntimeError")
    assert serves(pair.server, weights)


def test_a_producer_that_is_told_why_it_is_refused(trainer: Trainer, weights: Weights) -> None:
    """A session for adapters alone: a producer would wait for ever for an engine that never comes."""
    trainer.begin(sync_base=False).ok()
    text = "base tensors arrived in a sync_base=False weight-update session"
    with producers_of(trainer) as producers:
        asked = post(trainer.server, producers)
        on_all(producers, Producer.show_buffer)
        entries = [one.place([(NORM, weights[NORM])], 0) for one in producers]
        assert [one.ask(e) for one, e in zip(producers, entries, strict=True)] == [
            text for _ in producers
        ]
        for one in producers:
            give_up(one)
        refused(asked, text)


def test_a_failure_fails_the_session(trainer: Trainer, weights: Weights) -> None:
    trainer.begin().ok()
    with producers_of(trainer) as producers:
        asked = post(trainer.server, producers)
        on_all(producers, Producer.show_buffer)
        for one in producers:
            give_up(one)
        refused(asked, "gave up")
    end = trainer.end()
    assert end.status == 400
    assert "gave up" in end.json["message"]
    assert serves(trainer.server, weights)


def test_a_producer_that_is_killed(trainer: Trainer, weights: Weights, small_llama: Path) -> None:
    """In the middle, with SIGKILL; nothing has changed, and the next update goes well."""
    script = (
        "import sys, torch.multiprocessing; from pathlib import Path;"
        "from producers import Producer; from trainer import load, named, step;"
        "torch.multiprocessing.set_sharing_strategy('file_system');"
        f"one = Producer({BUCKET}); print(one.endpoint, flush=True);"
        "print(one.send(named(step(load(Path(sys.argv[1])), 9))[:5]), flush=True); input()"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(small_llama)],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(trainer.ranks)
    ]
    outputs = [process.stdout for process in processes]
    endpoints = [output.readline().strip() for output in outputs if output]
    handles = dict(zip(uuids(trainer.server), endpoints, strict=True))
    asked = Background(trainer.server.post, "/update_weights_from_ipc", {"zmq_handles": handles})
    assert [output.readline() for output in outputs if output] == ["[]\n"] * trainer.ranks
    for process in processes:
        process.kill()
        process.communicate()
    refused(asked, "the producer at ipc://@", "went away")
    assert serves(trainer.server, weights)
    update(trainer, step(weights, 9))
    assert serves(trainer.server, step(weights, 9))


def test_a_producer_that_is_silent(start: Callable[..., Server], weights: Weights) -> None:
    trainer = Trainer(start("--transfer-timeout", 0.5, *OPTIONS))
    with producers_of(trainer) as producers:
        asked = post(trainer.server, producers)
        producers[0].show_buffer()
        refused(asked, "sent nothing for 500 ms")
    refused(
        Background(
            trainer.server.post,
            "/update_weights_from_ipc",
            {"zmq_handles": {uuids(trainer.server)[0]: "ipc://@syncline-nobody"}},
        ),
        "the producer at ipc://@syncline-nobody sent nothing",
    )
    assert serves(trainer.server, weights)


def test_the_end_of_the_engine_ends_waiting(start: Callable[..., Server]) -> None:
    trainer = Trainer(start(*OPTIONS, "--shutdown-timeout", 0))
    with producers_of(trainer) as producers:
        asked = post(trainer.server, producers)
        producers[0].show_buffer()
        assert trainer.server.stop() == 0
        refused(asked, "cancelled")


def test_handles_of_other_devices(trainer: Trainer) -> None:
    (*_, last) = uuids(trainer.server)
    handles = dict.fromkeys(uuids(trainer.server)[:-1], "ipc://@a") | {"GPU-1": "ipc://@b"}
    reply = trainer.server.post("/update_weights_from_ipc", {"zmq_handles": handles})
    assert reply.status == 400
    listed = ", ".join(f"'{uuid}'" for uuid in handles)
    text = f"Device UUID {last} not found in zmq_handles: [{listed}]"
    assert reply.json["message"] == text


@pytest.mark.parametrize("endpoint", ["tcp://10.0.0.1:80", "inproc://a", "", "/tmp/a.sock"])
def test_endpoints_elsewhere(single: Trainer, endpoint: str) -> None:
    handles = {uuids(single.server)[0]: endpoint}
    reply = single.server.post("/update_weights_from_ipc", {"zmq_handles": handles})
    assert reply.status == 400
    assert "expected ipc://NAME, or tcp://127.0.0.1:PORT" in reply.json["message"]


def open_files(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def resident(server: Server) -> int:
    """Bytes of its own, in pages that were touched."""
    text = Path(f"/proc/{server.process.pid}/smaps_rollup").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Pss_Anon:"))
    return int(line.split()[1]) << 10


def mappings(server: Server) -> int:
    return Path(f"/proc/{server.process.pid}/maps").read_text().count("/dev/shm/torch_")


def test_br41_a_hundred_updates(single: Trainer, weights: Weights) -> None:
    server = single.server
    before: tuple[int, int] | None = None
    for number in range(100):
        update(single, step(weights, number % 2))
        if number == 9:
            before = (open_files(server), resident(server))
    assert before is not None
    assert mappings(server) == 0
    assert open_files(server) == before[0]
    assert resident(server) < before[1] + (8 << 20)


def test_waiting_for_the_first_weights(start: Callable[..., Server], weights: Weights) -> None:
    """Unready until then; a failure, or a session without an end, changes nothing of that."""
    server = start("--checkpoint-engine-wait-weights-before-ready", *OPTIONS)
    trainer = Trainer(server)
    prompt = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2}}

    def waits() -> bool:
        reply = server.post("/generate", prompt)
        assert reply.status in (200, 503), reply.text
        paths = ("/health", "/health_generate", "/ping")
        assert {server.get(path).status for path in paths} == {reply.status}
        return reply.status == 503

    assert waits()
    assert "waits for its first weights" in server.post("/generate", prompt).text
    assert server.post("/update_weights_from_disk", {"model_path": "/nowhere"}).status == 400
    trainer.begin().ok()
    trainer.end(abort=True).ok()
    assert waits()
    update(trainer, step(weights, 10))
    assert not waits()
