"""Requests of trainers in any order: each is answered as its description says, and the weights follow.

A model of the rules, in Python, goes beside the engine: what is live, what is open, which label waits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from server import Background, Reply
from trainer import (
    OPTIONS,
    Borrow,
    Cold,
    Trainer,
    Weights,
    greedy,
    load,
    named,
    serves,
    state,
    step,
)

pytestmark = pytest.mark.usefixtures("by_name")

NORM = "model.norm.weight"
SHORT = {"max_new_tokens": 8, "ignore_eos": True}


class Rules:
    """What the engine is to hold and to answer."""

    def __init__(self, weights: Weights, in_place: bool) -> None:
        self.live = dict(weights)
        self.in_place = in_place  # what comes cannot be undone
        self.groups = {name: fused_with(name, weights) for name in weights}
        self.lost: set[str] = set()  # tensors of groups that hold parts of what failed
        self.label = "default"
        self.session: dict[str, object] | None = None
        self.came: Weights = {}
        self.pending: str | None = None
        self.failed = False

    def open(self, settings: dict[str, object]) -> bool:
        if self.session is not None and self.session != settings:
            return False
        self._drop()
        self.session, self.pending, self.failed = settings, None, False
        return True

    def update(self, tensors: Weights, label: str | None, good: bool) -> bool:
        if self.session is None:
            if good:
                self._commit(tensors)
                self.label = label or self.label
            return good
        if self.failed or not self.session["sync_base"]:
            return False
        if not good:
            self.failed = True
            return False
        self.came |= tensors
        self.pending = label or self.pending
        return True

    def end(self, abort: bool) -> bool:
        if self.session is None:
            return False
        good = abort or not self.failed
        if good and not abort:
            self._commit(self.came)
            self.label = self.pending or self.label
        else:
            self._drop()
        self.session, self.came, self.pending, self.failed = None, {}, None, False
        return good

    def relabel(self, label: str) -> None:
        if self.session is None:
            self.label = label
        else:
            self.pending = label

    def disk(self, weights: Weights | None, label: str) -> bool:
        """Replaces all, also what came in a session; if it fails, that is lost."""
        if weights is None:
            self.failed = self.failed or bool(self.came)
            self._drop()
            return False
        self.live, self.label, self.lost = dict(weights), label, set()
        self.came, self.pending, self.failed = {}, None, False
        return True

    def _commit(self, tensors: Weights) -> None:
        """Groups that have come as a whole are whole again."""
        self.live |= tensors
        self.lost -= {name for name in tensors if self.groups[name] <= set(tensors)}

    def _drop(self) -> None:
        if self.in_place:
            self.live |= self.came
            self.lost |= {name for came in self.came for name in self.groups[came]}
        self.came = {}


def fused_with(name: str, weights: Weights) -> set[str]:
    """Tensors that lie in the same parameter of a Llama, itself included."""
    for parts in ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"):
        for part in parts:
            if part in name:
                return {name.replace(part, other) for other in parts} & set(weights)
    return {name}


class Play:
    """Draws requests, sends them, and compares."""

    def __init__(
        self, trainer: Trainer, rules: Rules, disks: list[tuple[Path, Weights]], seed: int
    ):
        self.trainer = trainer
        self.server = trainer.server
        self.rules = rules
        self.disks = disks
        self.paused = False
        self.dice = random.Random(seed)
        self.count = 0
        self.told: list[str] = []

    def next_label(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def begin(self) -> bool:
        settings = self.dice.choice(
            [{"selector": "all", "sync_base": True}] * 4
            + [{"selector": "target", "sync_base": True}, {"selector": "all", "sync_base": False}]
        )
        reply = self.trainer.begin(**settings)
        return (reply.status == 200) == self.rules.open(settings)

    def send(self) -> bool:
        self.count += 1
        new = named(step(self.rules.live, self.count))
        tensors = dict(self.dice.sample(new, self.dice.randint(0, len(new))))
        label = self.next_label() if self.dice.random() < 0.5 else None
        reply = self.trainer.send(named(tensors), weight_version=label)
        return (reply.status == 200) == self.rules.update(tensors, label, good=True)

    def send_wrong(self) -> bool:
        tensors = named(step(self.rules.live, 1))[:5]
        wrong = self.dice.choice([(NORM, torch.ones(3)), ("no.such.weight", torch.ones(48))])
        reply = self.trainer.send([*tensors, wrong], weight_version="wrong")
        return (reply.status == 200) == self.rules.update({}, None, good=False)

    def end(self) -> bool:
        return (self.trainer.end().status == 200) == self.rules.end(abort=False)

    def abort(self) -> bool:
        return (self.trainer.end(abort=True).status == 200) == self.rules.end(abort=True)

    def relabel(self) -> bool:
        label = self.next_label()
        body = {"new_version": label, "abort_all_requests": False}
        self.server.post("/update_weight_version", body).ok()
        self.rules.relabel(label)
        return True

    def disk(self) -> bool:
        path, weights = self.dice.choice(self.disks)
        label = self.next_label()
        body = {"model_path": str(path), "weight_version": label}
        reply = self.server.post("/update_weights_from_disk", body)
        return (reply.status == 200) == self.rules.disk(weights, label)

    def disk_wrong(self) -> bool:
        body = {"model_path": "/nowhere", "weight_version": "wrong"}
        reply = self.server.post("/update_weights_from_disk", body)
        return (reply.status == 200) == self.rules.disk(None, "wrong")

    def generate(self) -> bool:
        """Refused while parts of something that failed are live."""
        if self.paused or (self.rules.in_place and self.rules.session is not None):
            return True  # it would wait
        if not self.rules.lost:
            return len(greedy(self.server, 4)) == 4
        return self.server.post("/generate", {"input_ids": [1]}).status == 503

    def pause(self) -> bool:
        self.paused = True
        mode = self.dice.choice(["abort", "retract", "in_place"])
        return self.server.post("/pause_generation", {"mode": mode}).status == 200

    def resume(self) -> bool:
        self.paused = False
        return self.server.post("/continue_generation").status == 200

    def move(self) -> None:
        move = self.dice.choice(
            [self.begin] * 4
            + [self.send] * 8
            + [self.end] * 4
            + [
                self.send_wrong,
                self.abort,
                self.relabel,
                self.disk,
                self.disk_wrong,
                self.pause,
            ]
            + [self.resume, self.generate] * 2
        )
        self.told.append(move.__name__)
        assert move(), f"{self.told}: not as the rules say"
        session = self.trainer.open()
        rules = self.rules
        assert session["open"] == (rules.session is not None), self.told
        assert session["weight_version_pending"] == rules.pending, self.told
        assert (session["failure"] is not None) == rules.failed, self.told
        assert self.trainer.version() == rules.label, self.told
        assert (session["incomplete"] is not None) == bool(rules.lost), self.told
        writing = rules.in_place and rules.session is not None
        if not writing and move not in (self.begin, self.relabel, self.pause, self.resume):
            assert serves(self.server, rules.live), self.told


@pytest.fixture(scope="module")
def disks(
    tmp_path_factory: pytest.TempPathFactory, small_llama: Path, cold: Cold
) -> list[tuple[Path, Weights]]:
    made = [step(load(small_llama), seed) for seed in (101, 102)]
    return [(cold.write(small_llama, weights), weights) for weights in made]


@pytest.mark.parametrize("in_place", [False, True], ids=["undoable", "in place"])
@pytest.mark.parametrize("seed", range(4))
def test_requests_in_any_order(
    borrow: Borrow,
    ranks: int,
    small_llama: Path,
    disks: list[tuple[Path, Weights]],
    seed: int,
    in_place: bool,
) -> None:
    memory = ("--undo-memory", 0) if in_place else ()
    trainer = Trainer(borrow("--tp", ranks, *memory, *OPTIONS), ranks)
    play = Play(trainer, Rules(load(small_llama), in_place), disks, seed)
    for _ in range(60):
        play.move()
    newest = step(play.rules.live, 1000)
    trainer.end(abort=True)
    trainer.session(named(newest), "newest")
    assert serves(trainer.server, newest)
    assert play.resume()
    assert len(greedy(trainer.server)) == 16


def test_clients_that_know_nothing_of_each_other(
    trainer: Trainer, cold: Cold, small_llama: Path, disks: list[tuple[Path, Weights]]
) -> None:
    """No answer but a success or a refusal, and no mix: what is live is one of what was sent whole."""
    versions = [step(load(small_llama), seed) for seed in range(4)]
    server = trainer.server

    def play(client: int) -> None:
        dice = random.Random(client)
        mine = Trainer(server, trainer.ranks)
        body = {"model_path": str(disks[client % 2][0]), "weight_version": f"disk {client}"}
        for _ in range(25):
            call: Callable[[], Reply] = dice.choice(
                [
                    lambda: mine.begin(),
                    lambda: mine.end(),
                    lambda: mine.end(abort=True),
                    lambda: mine.send(named(versions[client]), weight_version=str(client)),
                    lambda: server.post("/update_weights_from_disk", body),
                    lambda: server.post("/generate", {"input_ids": [1], "sampling_params": SHORT}),
                    lambda: mine.check("checksum"),
                ]
            )
            assert call().status in (200, 400)

    calls = [Background(play, client) for client in range(4)]
    for done in calls:
        done.result()
    trainer.end(abort=True)
    known = [load(small_llama), *versions, *(weights for _, weights in disks)]
    assert state(server) in [cold(small_llama, each, "--tp", trainer.ranks) for each in known]
    trainer.session(named(versions[0]), "last")
    assert serves(server, versions[0])
    assert trainer.version() == "last"
