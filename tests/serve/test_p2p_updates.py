"""Sessions in which a trainer writes straight into the parameters, over Mooncake's transfer engine."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from quantised import SCHEMES, Case
from server import ENGINE, Server, eventually
from trainer import OPTIONS, Cold, Trainer, greedy, load, serves, state, step
from writes import Writer, changed

pytest.importorskip("mooncake.engine")
Start = Callable[..., Server]
MakeCase = Callable[..., Case]
MakeWriter = Callable[..., Writer]


@pytest.fixture
def write(tmp_path: Path) -> Iterator[MakeWriter]:
    made: list[Writer] = []

    def one(server: Server, ranks: int) -> Writer:
        made.append(Writer(server, ranks, tmp_path / f"memory-{len(made)}"))
        return made[-1]

    yield one
    for writer in made:
        writer.peer.kill()


@pytest.fixture(params=["undo", "in place"])
def undo(request: pytest.FixtureRequest) -> tuple[object, ...]:
    return () if request.param == "undo" else ("--undo-memory", 0)


@pytest.fixture
def p2p(
    borrow: Callable[..., Server], ranks: int, undo: tuple[object, ...], write: MakeWriter
) -> Writer:
    return write(borrow("--tp", ranks, "--p2p", *undo, *OPTIONS), ranks)


def test_everything_a_half_and_nothing(p2p: Writer, small_llama: Path, cold: Cold) -> None:
    first = load(small_llama)
    second = step(first, 1)
    arguments = ("--tp", p2p.ranks, *OPTIONS)
    p2p.begin()
    p2p.write_weights(second)
    assert p2p.end("2")["weight_version"] == "2"
    assert state(p2p.server) == cold(small_llama, second, *arguments)
    assert serves(p2p.server, second)
    third = step(second, 2)
    half = changed(third, [0])
    p2p.begin()
    p2p.write_weights(third, half)
    p2p.end()
    held = {n: third[n] if n.startswith("model.layers.0.") else t for n, t in second.items()}
    assert state(p2p.server) == cold(small_llama, held, *arguments)
    p2p.begin()
    p2p.end()
    assert state(p2p.server) == cold(small_llama, held, *arguments)
    assert greedy(p2p.server)


def test_addresses_stay_over_a_hundred_sessions(p2p: Writer, small_llama: Path) -> None:
    weights = load(small_llama)
    held = dict(weights)
    places = p2p.all_places()
    names = sorted({name for _, by_name in places for name in by_name})
    dice = random.Random(3)
    for turn in range(100):
        new = step(weights, turn % 2)
        chosen = dice.sample(names, dice.randint(0, 3))
        p2p.begin()
        p2p.write_weights(new, chosen)
        p2p.end(str(turn))
        assert p2p.all_places() == places
        for name in chosen:
            held |= {piece: new[piece] for piece in pieces(name)}
    assert serves(p2p.server, held)


def pieces(name: str) -> list[str]:
    """The checkpoint's tensors of a parameter."""
    for fused, parts in (("qkv_proj", "qkv"), ("gate_up_proj", ("gate", "up"))):
        if fused in name:
            return [name.replace(fused, f"{part}_proj") for part in parts]
    return [name]


def test_messages_and_writes_together(p2p: Writer, small_llama: Path, by_name: None) -> None:
    new = step(load(small_llama), 5)
    norms = [name for name in new if "norm" in name]
    trainer = Trainer(p2p.server, p2p.ranks)
    p2p.begin()
    trainer.send([(name, new[name]) for name in norms], weight_version="7").ok()
    written = [name for name in p2p.places(0)[1] if name not in norms]
    p2p.write_weights(new, written)
    p2p.end()
    assert serves(p2p.server, new)
    assert trainer.version() == "7"


def test_a_trainer_that_is_killed_leaves_nothing(
    borrow: Callable[..., Server], ranks: int, write: MakeWriter, small_llama: Path
) -> None:
    server = borrow("--tp", ranks, "--p2p", *OPTIONS)
    first, new = load(small_llama), step(load(small_llama), 6)
    before = greedy(server)
    dying = write(server, ranks)
    dying.begin()
    dying.write_weights(new, changed(new, [0]))
    dying.peer.kill()
    assert greedy(server) == before  # whole old weights are served
    assert serves(server, first)
    heir = write(server, ranks)
    heir.begin()  # anew
    heir.end()
    assert serves(server, first)
    heir.begin()
    heir.write_weights(new, changed(new, [1]))
    heir.end(abort=True)
    assert serves(server, first)
    heir.begin()
    heir.write_weights(new)
    heir.end()
    assert serves(server, new)


def test_outside_a_session_writes_are_refused(p2p: Writer, small_llama: Path) -> None:
    weights = load(small_llama)
    new = step(weights, 7)

    assert 0 not in p2p.write(p2p.of(new), changed(new, [0]))
    p2p.begin()
    p2p.end()
    assert 0 not in p2p.write(p2p.of(new), changed(new, [0]))
    assert serves(p2p.server, weights)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantised_weights_are_processed(
    make_case: MakeCase,
    scheme: str,
    ranks: int,
    undo: tuple[object, ...],
    write: MakeWriter,
) -> None:
    """Everything, a half, and nothing: always a cold load of what was there."""
    case = make_case("llama", scheme, ranks, "--p2p", *undo, attention_bias=False)
    first, second = load(case.first), load(case.second)
    writer = write(case.server, ranks)
    writer.begin()
    writer.write_weights(second, changed(second, [1]))
    writer.end()
    held = {n: second[n] if n.startswith("model.layers.1.") else t for n, t in first.items()}
    assert case.told() == case.cold(held)
    writer.begin()
    writer.end()
    assert case.told() == case.cold(held)
    writer.begin()
    writer.write_weights(second)
    writer.end()
    assert case.told() == case.cold(second)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_derived_is_derived_anew(
    make_case: MakeCase, scheme: str, start: Start, write: MakeWriter
) -> None:
    """Experts and latent attention: the trainer has a replica of the engine, as miles has."""
    case = make_case("deepseek v3", scheme, 2, "--p2p")
    donor = write(start(*case.arguments, model=case.second), 2)
    donor.begin()
    replica = donor.read()
    writer = write(case.server, 2)
    writer.begin()
    assert set(writer.write(lambda name, rank, _: replica[name, rank])) == {0}
    writer.end()
    assert case.told() == case.cold(load(case.second))


def test_a_session_that_is_left_alone_is_undone(
    start: Start, write: MakeWriter, small_llama: Path
) -> None:
    server = start("--p2p", "--session-timeout", 0.5, *OPTIONS)
    writer = write(server, 1)
    new = step(load(small_llama), 8)
    writer.begin()
    writer.write_weights(new)
    session = Trainer(server)
    eventually(lambda: not session.open()["open"], "the session is undone")
    assert serves(server, load(small_llama))


def test_the_bootstrap_server(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = start("--p2p", "--tp", 2, "--engine-info-bootstrap-port", port, *OPTIONS)
    info = server.get("/remote_instance_transfer_engine_info?rank=1").ok()
    config = server.get("/parallelism_config?rank=1").ok()
    assert (config["tp_size"], config["tp_rank"], config["local_rank"]) == (2, 1, 1)
    bootstrap = Server.__new__(Server)
    bootstrap.host, bootstrap.port, bootstrap.headers = "127.0.0.1", port, {}
    assert bootstrap.get("/get_transfer_engine_info?rank=1").ok() == info
    assert bootstrap.get("/get_transfer_engine_info?rank=2").status == 404
    own = {"session_id": "elsewhere:1", "weights_info_dict": {}}
    message = {"rank": 1, "transfer_engine_info": own}
    assert bootstrap.request("PUT", "/register_transfer_engine_info", message).status == 400
    assert server.get("/remote_instance_transfer_engine_info?rank=1").ok() == info


def test_without_the_option_nothing_is_offered(borrow: Callable[..., Server]) -> None:
    server = borrow(*OPTIONS)
    reply = server.get("/get_remote_instance_transfer_engine_info?rank=0")
    assert reply.status == 400
    message = "Failed to get transfer engine info for rank 0"
    assert reply.json == {"error": {"message": message}}


def test_without_mooncake_the_engine_does_not_start(small_llama: Path, tmp_path: Path) -> None:
    assert ENGINE.exists()
    (tmp_path / "mooncake.py").write_text("raise ImportError('none here')\n")
    environment = {"PYTHONPATH": str(tmp_path)}
    server = Server(small_llama, "--p2p", *OPTIONS, wait=False, environment=environment)
    _, error = server.process.communicate()
    assert server.process.returncode != 0
    assert "pip install mooncake-transfer-engine-non-cuda" in error
