"""Versions arrive while 32 requests stream: nothing is lost, and every token says what made it."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

STREAMS = 32
VERSIONS = 10


@dataclass
class Versions:
    """A store of version 0 (a real model) and deltas on it, and what each version's tensors are."""

    store: Path
    tensors: list[dict[str, np.ndarray[Any, Any]]] = field(default_factory=list)


@pytest.fixture(scope="module")
def versions(smollm2: Path, tmp_path_factory: pytest.TempPathFactory, package: Any) -> Versions:
    """Each version changes 2 % of the elements of some tensors by one unit of the last place."""
    rng = np.random.default_rng(4)
    made = Versions(tmp_path_factory.mktemp("versions") / "store")
    views = package.open_checkpoint(smollm2)
    tensors = {name: views[name].numpy().copy() for name in views}
    publisher = package.Publisher(made.store, files=smollm2)
    for version in range(VERSIONS + 1):
        if version > 0:
            for name in rng.choice(sorted(tensors), 40, replace=False):
                bits = tensors[name].view(np.uint16).reshape(-1)
                bits[rng.integers(0, bits.size, bits.size // 50)] ^= 1
        publisher.publish(version, tensors)
        made.tensors.append({name: value.copy() for name, value in tensors.items()})
    return made


class Load:
    """Keeps `STREAMS` requests streaming until it is stopped, and keeps what they got."""

    def __init__(self, client: Any, new_tokens: int) -> None:
        self._client = client
        self._new_tokens = new_tokens
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(STREAMS)
        self.replies: list[dict[str, Any]] = []
        self.chunks = 0
        self._futures = [self._pool.submit(self._run, i) for i in range(STREAMS)]

    def _run(self, number: int) -> None:
        round_ = 0
        while not self._stop.is_set():
            round_ += 1
            last: dict[str, Any] = {}
            seen = 0
            for event in self._client.stream(
                input_ids=[1 + number, 2 + round_ % 100, 3],
                sampling_params={
                    "temperature": 1.0,
                    "max_new_tokens": self._new_tokens,
                    "ignore_eos": True,
                },
            ):
                assert len(event["output_ids"]) >= seen, "a token was taken back"
                seen = len(event["output_ids"])
                self.chunks += 1
                last = event
            self.replies.append(last)

    def wait_for_chunks(self, count: int) -> None:
        goal = self.chunks + count
        deadline = time.monotonic() + 120
        while self.chunks < goal:
            assert time.monotonic() < deadline, "generation stands still"
            time.sleep(0.01)

    def finish(self) -> None:
        self._stop.set()
        for future in self._futures:
            future.result(timeout=300)
        self._pool.shutdown()


def update_under_load(
    engine: Any, versions: Versions, replica: Path, count: int, mode: str
) -> list[dict[str, Any]]:
    """Takes versions 1 to `count` while requests of 48 tokens stream. What the requests got."""
    load = Load(engine, 48)
    load.wait_for_chunks(2 * STREAMS)
    for version in range(1, count + 1):
        engine.update(versions.store, replica, version, mode=mode)
        assert engine.weight_version == str(version)
        load.wait_for_chunks(STREAMS)
    load.finish()
    return load.replies


def check_reply(reply: dict[str, Any], new_tokens: int) -> list[str]:
    """The reply is whole and its spans cover its tokens. Returns the versions."""
    meta = reply["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": new_tokens}
    assert meta["completion_tokens"] == len(reply["output_ids"]) == new_tokens
    spans = meta["weight_versions"]
    assert spans[0]["start"] == 0
    assert spans[-1]["end"] == new_tokens
    for before, after in itertools.pairwise(spans):
        assert before["end"] == after["start"]
        assert before["version"] != after["version"]
    assert all(span["start"] < span["end"] for span in spans)
    assert meta["weight_version"] == spans[-1]["version"]
    return [span["version"] for span in spans]


def served(client: Any) -> dict[str, tuple[str, bytes]]:
    found = {}
    for name in client.weight_names():
        dtype, _, data = client.export_weight(name)
        found[name] = (dtype, data)
    return found


def test_ten_versions_under_streams_retract(
    start_engine: Any, smollm2: Path, versions: Versions, tmp_path: Path
) -> None:
    engine = start_engine(smollm2, options={"weight_version": "0"})
    replies = update_under_load(engine, versions, tmp_path / "replica", VERSIONS, "retract")
    labels = [check_reply(reply, 48) for reply in replies]
    assert any(len(seen) > 1 for seen in labels), "no request saw two versions"
    for seen in labels:
        assert [int(label) for label in seen] == sorted({int(label) for label in seen})
    expected = versions.tensors[VERSIONS]
    assert served(engine) == {name: ("BF16", value.tobytes()) for name, value in expected.items()}


def test_versions_under_streams_in_place(
    start_engine: Any, smollm2: Path, versions: Versions, tmp_path: Path
) -> None:
    engine = start_engine(smollm2, options={"weight_version": "0"})
    replies = update_under_load(engine, versions, tmp_path / "replica", 5, "in_place")
    for reply in replies:
        check_reply(reply, 48)
        assert reply["meta_info"]["num_retractions"] == 0
    assert engine.weight_version == "5"


def test_versions_under_streams_abort(
    start_engine: Any, smollm2: Path, versions: Versions, tmp_path: Path
) -> None:
    """A pause that aborts ends what runs, with what it has, and nothing else."""
    engine = start_engine(smollm2, options={"weight_version": "0"})
    replies = update_under_load(engine, versions, tmp_path / "replica", 3, "abort")
    kinds = [reply["meta_info"]["finish_reason"]["type"] for reply in replies]
    assert set(kinds) == {"abort", "length"}
    assert kinds.count("abort") <= 3 * STREAMS
    for reply in replies:
        assert len({span["version"] for span in reply["meta_info"]["weight_versions"]}) == 1


def test_unpaused_update_waits_for_running_requests(
    start_engine: Any, smollm2: Path, versions: Versions, tmp_path: Path
) -> None:
    engine = start_engine(smollm2, options={"weight_version": "0"})
    load = Load(engine, 32)
    load.wait_for_chunks(STREAMS)
    engine.pull_weights(versions.store, tmp_path / "replica", 3)
    engine.update_weights_from_disk(tmp_path / "replica", weight_version="3")
    load.wait_for_chunks(STREAMS)
    load.finish()
    labels = [check_reply(reply, 32) for reply in load.replies]
    assert all(len(seen) == 1 for seen in labels)
    assert {seen[0] for seen in labels} == {"0", "3"}


def test_greedy_output_follows_the_version(
    start_engine: Any, smollm2: Path, versions: Versions, tmp_path: Path
) -> None:
    """What an updated engine answers is what an engine answers that was started with the version."""
    updated = start_engine(smollm2)
    updated.update(versions.store, tmp_path / "replica", VERSIONS)
    fresh = start_engine(tmp_path / "replica")
    params = {"temperature": 0, "max_new_tokens": 32, "ignore_eos": True}
    prompts = [[5, 6, 7], [504, 3575, 282, 4649, 314], list(range(100, 160))]
    found = [updated.generate(input_ids=ids, sampling_params=params) for ids in prompts]
    expected = [fresh.generate(input_ids=ids, sampling_params=params) for ids in prompts]
    assert [r["output_ids"] for r in found] == [r["output_ids"] for r in expected]
    assert load_file(tmp_path / "replica" / "model.safetensors").keys() == set(
        updated.weight_names()
    )
