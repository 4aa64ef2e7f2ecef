"""Updates over process groups of torch: a real trainer's group, with the engine's ranks in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from groups import RESULT_SECONDS, TrainerGroup, described, free_port, group
from payloads import chunks
from server import Server, eventually
from trainer import Trainer, Weights, load, named, ranks_of, serves, state, step

NORM = "model.norm.weight"
GROUP_PROGRAM = "syncline-group"
HERE = Path(__file__).resolve().parent


def refused(
    group: TrainerGroup, tensors: list[tuple[str, torch.Tensor]], *texts: str, **more: object
) -> None:
    (reply,) = group.send(tensors, **more)
    assert reply.status == 400
    for text in texts:
        assert text in reply.json["message"], reply.json


@pytest.fixture
def weights(small_llama: Path) -> Weights:
    return load(small_llama)


@pytest.mark.parametrize("flattened", [False, True], ids=["plain", "flattened"])
def test_an_update_in_buckets(trainer: Trainer, weights: Weights, flattened: bool) -> None:
    """miles: begin, a bucket at a time, the label, end; then anew over the same group."""
    server = trainer.server
    with group((server, trainer.ranks)) as one:
        for number in (1, 2):
            new = step(weights, number)
            server.post("/pause_generation", {"mode": "retract"}).ok()
            server.post("/begin_weight_update", {"selector": "all"}).ok()
            for bucket in chunks(named(new), 3):
                (reply,) = one.send(bucket, flattened, weight_version=str(number))
                assert reply.ok()["message"] == "Succeeded to update parameter online."
            server.post(
                "/update_weight_version", {"new_version": str(number), "abort_all_requests": False}
            ).ok()
            server.post("/end_weight_update").ok()
            server.post("/continue_generation").ok()
            assert serves(server, new)
            assert server.get("/model_info").ok()["weight_version"] == str(number)


def test_an_update_without_a_session(trainer: Trainer, weights: Weights) -> None:
    """slime and AReaL: each request for itself; the port as a string, and a field of AReaL's own."""
    new = step(weights, 3)
    with group((trainer.server, trainer.ranks), pp_rank=0) as one:
        (reply,) = one.send(named(new), weight_version="3", abort_all_requests=True)
        text = "Succeeded to update parameter online. Weight version updated to 3."
        assert reply.ok()["message"] == text
        assert serves(trainer.server, new)


def test_several_groups_and_addresses(trainer: Trainer, weights: Weights) -> None:
    """One group for each of the trainer's pipeline ranks; over IPv6 too. Both broadcast at once."""
    new = named(step(weights, 4))
    half = len(new) // 2
    with (
        group((trainer.server, trainer.ranks), name="miles-pp_0") as first,
        group((trainer.server, trainer.ranks), name="miles-pp_1", host="::1") as second,
    ):
        trainer.server.post("/begin_weight_update").ok()
        first_asked = first.post(described(new[:half]))
        second_asked = second.post(described(new[half:]))
        second.broadcast(new[half:])
        first.broadcast(new[:half])
        for asked in (*first_asked, *second_asked):
            asked.result(RESULT_SECONDS).ok()
        trainer.server.post("/end_weight_update").ok()
        assert serves(trainer.server, dict(new))


def test_two_engines_in_one_group(single: Trainer, pair: Trainer, weights: Weights) -> None:
    """Of one and of two ranks: the offsets of the second follow the first's."""
    new = step(weights, 5)
    with group((single.server, 1), (pair.server, 2)) as one:
        for reply in one.send(named(new), flattened=True):
            reply.ok()
    assert serves(single.server, new)
    assert serves(pair.server, new)


def test_br40_tensors_that_are_not_contiguous(single: Trainer, weights: Weights) -> None:
    """What trainers pack before they broadcast: a transpose and a slice at an offset."""
    new = dict(weights)
    name = next(n for n, t in weights.items() if t.dim() == 2)
    new[name] = torch.randn(weights[name].T.shape).to(weights[name].dtype).T
    new[NORM] = torch.cat([weights[NORM]] * 3)[1::3][: len(weights[NORM])]
    with group((single.server, 1)) as one:
        one.send(named(new))[0].ok()
    assert serves(single.server, new)


def test_what_must_be_refused_is_received_first(trainer: Trainer, weights: Weights) -> None:
    """The trainer's broadcast ends, the reply is 400, the group stays, and nothing has changed."""
    before = state(trainer.server)
    new = named(step(weights, 6))
    with group((trainer.server, trainer.ranks)) as one:
        refused(one, [*new, ("no.such.weight", torch.ones(3))], "no.such.weight")
        refused(one, [*new[:-1], (new[-1][0], torch.ones(3))], new[-1][0])
        refused(one, new, "selector", selector="vl")
        assert state(trainer.server) == before
        one.send(new)[0].ok()
        assert serves(trainer.server, dict(new))


def test_a_session_is_needed_where_it_is_required(
    borrow: Callable[..., Server], weights: Weights
) -> None:
    server = borrow("--max-total-tokens", 4096, "--session", "required")
    with group((server, 1)) as one:
        text = (
            "update_weights_from_distributed must run between begin_weight_update() and "
            "end_weight_update()"
        )
        refused(one, named(step(weights, 7)), text)


def test_lists_that_make_no_sense_end_the_broadcast(trainer: Trainer, weights: Weights) -> None:
    """Nobody knows what will come: the group is left, so that the sender fails at once; the next one works."""
    before = state(trainer.server)
    new = named(step(weights, 8))
    one = TrainerGroup([(trainer.server, trainer.ranks)])
    body = described(new)
    body["names"] = body["names"][:-1]
    (asked,) = one.post(body)
    with pytest.raises(RuntimeError, match=r"(?i)closed|reset|broken"):
        large = torch.zeros(1 << 28, dtype=torch.uint8)
        one.broadcast([("large", large)])
    reply = asked.result(RESULT_SECONDS)
    assert reply.status == 400
    assert "names, dtypes and shapes have" in reply.json["message"]
    one.leave()
    assert state(trainer.server) == before
    with group((trainer.server, trainer.ranks)) as again:
        again.send(new)[0].ok()
    assert serves(trainer.server, dict(new))


def test_more_than_was_announced(trainer: Trainer, weights: Weights) -> None:
    """The library under a group ends its process on that: never the engine's."""
    before = state(trainer.server)
    one = TrainerGroup([(trainer.server, trainer.ranks)])
    trainer.server.post("/begin_weight_update").ok()
    (asked,) = one.post(described([(NORM, weights[NORM])]))
    try:
        one.broadcast([(NORM, torch.cat([weights[NORM]] * 50))])
    except RuntimeError:
        pass  # it may have heard of it
    reply = asked.result(RESULT_SECONDS)
    assert reply.status == 400
    assert reply.json["message"].startswith("Failed to receive weights: ")
    one.leave()
    ended = trainer.server.post("/end_weight_update")
    assert ended.status == 400
    assert "was undone" in ended.json["message"]
    assert state(trainer.server) == before


TRAINER_THAT_DIES = """
import os, sys, torch
from groups import join
host, port, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
group = join(host, port, "dying", 0, size)
print("joined", flush=True)
sys.stdin.readline()
import torch.distributed as dist
for i in range(count):
    dist.broadcast(torch.zeros(48, dtype=torch.bfloat16), src=0, group=group)
os._exit(1)
"""


def test_br37_a_trainer_that_dies_in_a_broadcast(trainer: Trainer, weights: Weights) -> None:
    """An error at once, the group gone on all ranks, the session undone, and a new trainer can go on."""
    before = state(trainer.server)
    port = free_port()
    size = 1 + trainer.ranks
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER_THAT_DIES, "127.0.0.1", str(port), str(size), "1"],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    body: dict[str, Any] = {
        "master_address": "127.0.0.1",
        "master_port": str(port),
        "rank_offset": 1,
        "world_size": size,
        "group_name": "dying",
        "backend": "gloo",
    }
    trainer.server.post("/init_weights_update_group", body).ok()
    assert process.stdout.readline() == "joined\n"
    trainer.server.post("/begin_weight_update").ok()
    tensors = [
        (NORM, weights[NORM]),
        ("model.embed_tokens.weight", weights["model.embed_tokens.weight"]),
    ]
    with ThreadPoolExecutor() as threads:
        asked = threads.submit(
            trainer.server.post,
            "/update_weights_from_distributed",
            described(tensors) | {"group_name": "dying"},
        )
        process.stdin.write("\n")
        process.stdin.flush()
        reply = asked.result(RESULT_SECONDS)
    process.wait()
    assert reply.status == 400
    assert reply.json["message"].startswith("Failed to receive weights: ")
    gone = trainer.server.post("/destroy_weights_update_group", {"group_name": "dying"})
    assert gone.status == 400
    assert gone.json["message"] == "The group to be destroyed does not exist."
    assert "was undone" in trainer.server.post("/end_weight_update").json["message"]
    assert state(trainer.server) == before
    new = step(weights, 9)
    with group((trainer.server, trainer.ranks), name="dying") as one:
        one.send(named(new))[0].ok()
    assert serves(trainer.server, new)


def children(pid: int, name: str) -> list[int]:
    """Processes of that name that it has started."""
    found = subprocess.run(
        ["pgrep", "-P", str(pid), "-x", name], capture_output=True, text=True, check=False
    )
    return [int(line) for line in found.stdout.split()]


def test_br37_one_rank_fails(pair: Trainer, weights: Weights) -> None:
    """The others do not wait for it, the error is that rank's, and the session is undone."""
    server = pair.server
    before = state(server)
    new = named(step(weights, 11))
    one = TrainerGroup([(server, 2)])
    server.post("/begin_weight_update").ok()
    one.send(new[:2])[0].ok()
    (rank,) = ranks_of(server)
    (member,) = children(rank, GROUP_PROGRAM)
    os.kill(member, signal.SIGKILL)
    (asked,) = one.post(described(new[2:]))
    reply = asked.result(RESULT_SECONDS)
    assert reply.status == 400
    assert "rank 1" in reply.json["message"]
    assert "signal 9" in reply.json["message"]
    one.leave()
    assert "was undone" in server.post("/end_weight_update").json["message"]
    assert state(server) == before
    with group((server, 2)) as again:
        again.send(new)[0].ok()
    assert serves(server, dict(new))


def test_unknown_groups(single: Trainer, weights: Weights) -> None:
    body = described([(NORM, weights[NORM])]) | {"group_name": "nobody"}
    reply = single.server.post("/update_weights_from_distributed", body)
    assert reply.status == 400
    text = "Group nobody not in []. Please call `init_weights_update_group` first."
    assert reply.json["message"] == f"Failed to receive weights: {text}"
    reply = single.server.post("/destroy_weights_update_group", {"group_name": "nobody"})
    assert reply.status == 400


def test_br38_addresses_that_lead_nowhere(start: Callable[..., Server]) -> None:
    """The reason within the time-out; the engine goes on."""
    server = start("--max-total-tokens", 1024, "--transfer-timeout", 1)
    body = {"master_port": free_port(), "rank_offset": 1, "world_size": 2, "backend": "gloo"}
    for host, text in (("127.0.0.1", "refused"), ("no.such.host.invalid", "no.such.host.invalid")):
        reply = server.post("/init_weights_update_group", body | {"master_address": host})
        assert reply.status == 400
        assert reply.json["message"].startswith("Failed to initialize custom process group: ")
        assert text in reply.json["message"]
    for more, text in (
        ({"rank_offset": 0}, "rank_offset 0"),
        ({"rank_offset": 2}, "world_size 2"),
        ({"backend": "nccl"}, "gloo"),
        ({"group_name": ""}, "group_name"),
    ):
        reply = server.post("/init_weights_update_group", body | {"master_address": "::1"} | more)
        assert reply.status == 400
        assert text in reply.json["message"]


def test_joining_anew_ends_a_stale_join(single: Trainer, weights: Weights) -> None:
    """A trainer that died before its group had come together comes again under the same name."""
    with ThreadPoolExecutor() as threads:
        stale = threads.submit(
            single.server.post,
            "/init_weights_update_group",
            {
                "master_address": "127.0.0.1",
                "master_port": free_port(),
                "rank_offset": 1,
                "world_size": 2,
                "backend": "gloo",
            },
        )
        joining = single.server.process.pid
        eventually(lambda: len(children(joining, GROUP_PROGRAM)) == 1, "the engine joins")
        with group((single.server, 1)) as one:
            new = step(weights, 10)
            one.send(named(new))[0].ok()
        assert stale.result(RESULT_SECONDS).status == 400
    assert serves(single.server, new)


def test_nothing_is_left_of_a_group(single: Trainer, weights: Weights) -> None:
    for _ in range(3):
        with group((single.server, 1)) as one:
            one.send(named(weights), flattened=True)[0].ok()
            assert len(children(single.server.process.pid, GROUP_PROGRAM)) == 1
    eventually(
        lambda: not children(single.server.process.pid, GROUP_PROGRAM),
        "the groups' programs have ended",
    )
