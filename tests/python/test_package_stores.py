"""What receivers do with stores in the package: hooks, keys, pulls in the background, undo, repair,
what changed; and stores on a web server."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import syncline
from directory_format import version_dir
from harness import Cli, tree
from numpy.typing import NDArray
from store_server import Fault, Request, StoreServer

Weights = dict[str, NDArray[np.float32]]
PIECE = 8 << 20  # what is fetched at a time


def make(rng: np.random.Generator) -> Weights:
    return {name: rng.random((40, 25), np.float32) for name in "abc"}


def step(model: Weights, *, name: str = "a", count: int = 7) -> Weights:
    result = {key: array.copy() for key, array in model.items()}
    result[name].reshape(-1)[:count] += 1
    return result


def holds(replica: Path, model: Weights) -> bool:
    checkpoint = syncline.open_checkpoint(replica)
    return set(checkpoint) == set(model) and all(
        checkpoint[name].tobytes() == array.tobytes() for name, array in model.items()
    )


@pytest.fixture
def models(rng: np.random.Generator) -> list[Weights]:
    """Three steps; the first changes 7 elements of a, the second 3 of b."""
    first = make(rng)
    second = step(first)
    return [first, second, step(second, name="b", count=3)]


@pytest.fixture
def published(store: Path, models: list[Weights]) -> Path:
    with syncline.Publisher(store, full_copy_ratio=0) as publisher:
        for model in models:
            publisher.publish(None, model)
    return store


@pytest.fixture
def server(published: Path) -> Iterator[StoreServer]:
    with StoreServer(published) as server:
        yield server


def test_urls(server: StoreServer, replica: Path, models: list[Weights]) -> None:
    report = syncline.pull(server.url, replica)
    assert (report.version, report.seeded_from, report.applied) == (2, "full:0", [1, 2])
    assert holds(replica, models[2])
    assert [row.version for row in syncline.log(server.url)] == [0, 1, 2]
    assert syncline.verify(server.url).versions == [0, 1, 2]
    other = replica.with_name("other")
    assert syncline.pull(server.root.as_uri(), other).version == 2
    assert holds(other, models[2])


def test_a_url_that_was_a_path(replica: Path) -> None:
    for url in ("s3://bucket/run", "https://host/run", "file:///run"):
        with pytest.raises(syncline.InvalidArgumentError, match="lost a slash"):
            syncline.pull(Path(url), replica)
    assert not replica.exists()


def test_reports(published: Path, replica: Path) -> None:
    first = syncline.pull(published, replica, version=1)
    assert (first.recovered, first.undone, first.tensors_repaired) == (False, [], 0)
    syncline.pull(published, replica)
    back = syncline.pull(published, replica, version=1)
    assert (back.version, back.from_version, back.undone, back.applied) == (1, 2, [2], [])
    row = syncline.log(published)[1]
    assert (row.full_copy, row.signed_by) == (False, None)


def test_undo(published: Path, replica: Path, models: list[Weights]) -> None:
    syncline.pull(published, replica, version=1)
    syncline.pull(published, replica)
    report = syncline.undo(replica)
    assert (report.version, report.from_version) == (1, 2)
    assert report.seconds > 0
    assert holds(replica, models[1])
    with pytest.raises(syncline.NotFoundError):
        syncline.undo(replica)
    assert syncline.pull(published, replica).applied == [2]
    assert holds(replica, models[2])


def test_changes(published: Path, replica: Path) -> None:
    with pytest.raises(syncline.NotFoundError):
        syncline.changes(replica, 0)
    syncline.pull(published, replica, version=0)
    for version in (1, 2):
        syncline.pull(published, replica, version=version)
    summary = syncline.changes(replica, 0)
    assert (summary.from_version, summary.to_version, summary.everything) == (0, 2, False)
    assert summary.tensors == {"a": 7, "b": 3}
    assert syncline.changes(replica, np.int64(1)).tensors == {"b": 3}
    assert syncline.changes(replica, 2).tensors == {}
    unknown = syncline.changes(replica, 9)
    assert (unknown.everything, unknown.tensors) == (True, {})
    with pytest.raises(TypeError):
        syncline.changes(replica, None)  # type: ignore[arg-type]


def damage(replica: Path) -> None:
    path = replica / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_repair(
    server: StoreServer, published: Path, replica: Path, models: list[Weights], tmp_path: Path
) -> None:
    syncline.pull(published, replica)
    damage(replica)
    with pytest.raises(syncline.ChecksumMismatchError):
        syncline.verify(replica)
    report = syncline.verify(replica, repair=True)
    assert (report.tensors_repaired, report.edited, report.versions) == (1, [], [2])
    assert holds(replica, models[2])
    damage(replica)
    published.rename(tmp_path / "moved")
    with pytest.raises(syncline.Error):
        syncline.verify(replica, repair=True)
    server.root = tmp_path / "moved"
    assert syncline.verify(replica, repair=True, store=server.url).tensors_repaired == 1
    assert syncline.verify(replica).tensors_repaired == 0
    assert holds(replica, models[2])


def test_edited_files(store: Path, replica: Path, tmp_path: Path, models: list[Weights]) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "config.json").write_text("{}")
    with syncline.Publisher(store, files=files) as publisher:
        publisher.publish(None, models[0])
    syncline.pull(store, replica)
    (replica / "config.json").write_text('{"mine": 1}')
    assert syncline.verify(replica).edited == ["config.json"]
    syncline.verify(replica, repair=True)
    assert (replica / "config.json").read_text() == "{}"


def test_trust(cli: Cli, store: Path, replica: Path, tmp_path: Path, models: list[Weights]) -> None:
    keys = [tmp_path / "ours", tmp_path / "theirs"]
    prints = [cli.ok("keygen", key)["fingerprint"] for key in keys]
    ours, theirs = (key.with_name(f"{key.name}.pub") for key in keys)
    with syncline.Publisher(store, signing_key=keys[0]) as publisher:
        publisher.publish(None, models[0])
    syncline.pull(store, replica, trust=[ours])
    with syncline.Publisher(store, signing_key=keys[1]) as publisher:
        publisher.publish(None, models[1])
    before = tree(replica)
    with pytest.raises(syncline.PermissionDeniedError, match="version 1"):
        syncline.pull(store, replica, trust=[ours])
    with pytest.raises(syncline.PermissionDeniedError, match="version 1"):
        syncline.verify(store, trust=[ours])
    assert tree(replica) == before
    assert [row.signed_by for row in syncline.log(store)] == prints
    assert [row.signed_by for row in syncline.log(store, trust=[ours, theirs])] == prints
    rows = syncline.log(store, trust=[ours])
    assert [row.kind for row in rows] == ["full", "broken"]
    assert rows[1].fault is not None
    assert "version 1" in rows[1].fault
    assert syncline.pull(store, replica, trust=(ours, theirs)).version == 1
    assert syncline.verify(store, trust=[ours, str(theirs)]).versions == [0, 1]
    with pytest.raises(syncline.NotFoundError, match="nobody"):
        syncline.pull(store, replica, trust=[tmp_path / "nobody.pub"])
    with pytest.raises(syncline.InvalidArgumentError, match="trust"):
        syncline.pull(store, replica, trust=ours)  # type: ignore[arg-type]


def test_before_read(published: Path, store: Path, replica: Path, tmp_path: Path) -> None:
    """A mount that shows a version only after it was refreshed."""
    hidden = tmp_path / "hidden"
    version_dir(published, 2).rename(hidden)
    asked: list[int | None] = []
    threads: set[threading.Thread] = set()

    def show(version: int | None) -> None:
        asked.append(version)
        threads.add(threading.current_thread())
        if hidden.exists():
            hidden.rename(version_dir(published, 2))

    assert syncline.pull(published, replica, version=2, before_read=show).version == 2
    assert asked == [2]
    assert threading.current_thread() not in threads
    assert syncline.pull(published, replica, before_read=show).version == 2
    assert asked == [2, None]
    syncline.log(published, before_read=show)
    syncline.verify(published, before_read=show)
    syncline.verify(replica, repair=True, before_read=show)
    assert asked[:4] == [2, None, None, None]


def test_before_read_while_something_is_waited_for(published: Path, replica: Path) -> None:
    hidden = published.with_name("hidden")
    version_dir(published, 2).rename(hidden)
    asked: list[int | None] = []

    def show(version: int | None) -> None:
        asked.append(version)
        if len(asked) == 3:
            hidden.rename(version_dir(published, 2))

    report = syncline.pull(published, replica, version=2, wait=60, before_read=show)
    assert report.version == 2
    assert asked == [2, 2, 2]


class MountError(Exception):
    pass


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("kind", [MountError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("call", [1, 2])
def test_an_exception_of_the_hook_comes_out(
    published: Path, replica: Path, background: bool, kind: type[BaseException], call: int
) -> None:
    """The very object, also from a later call, where the pull waits for something."""
    syncline.pull(published, replica, version=1)
    version_dir(published, 2).rename(published / "hidden")
    before = tree(replica)
    error = kind("the mount is gone")
    calls: list[int | None] = []

    def fail(version: int | None) -> None:
        calls.append(version)
        if len(calls) == call:
            raise error

    with pytest.raises(kind) as caught:
        if background:
            syncline.pull(
                published, replica, version=2, wait=60, before_read=fail, background=True
            ).result()
        else:
            syncline.pull(published, replica, version=2, wait=60, before_read=fail)
    assert caught.value is error
    assert len(calls) == call
    assert tree(replica) == before


def test_a_pull_in_the_background(published: Path, replica: Path, models: list[Weights]) -> None:
    pulling = syncline.pull(published, replica, background=True)
    assert isinstance(pulling, syncline.Pulling)
    report = pulling.result(timeout=60)
    assert pulling.done()
    assert report == pulling.result()
    assert (report.version, report.applied) == (2, [1, 2])
    assert holds(replica, models[2])
    phase, done, total = pulling.progress()
    assert phase
    assert done == total > 0
    pulling.cancel()  # too late
    assert pulling.result() == report
    assert "done" in repr(pulling)


def test_errors_of_the_background(tmp_path: Path, replica: Path) -> None:
    pulling = syncline.pull(tmp_path / "nowhere", replica, background=True)
    for _ in range(2):
        with pytest.raises(syncline.NotFoundError, match="nowhere"):
            pulling.result()
    assert pulling.done()
    assert "failed" in repr(pulling)
    with pytest.raises(syncline.InvalidArgumentError):  # at once
        syncline.pull("", replica, background=True)


@pytest.fixture
def large(store: Path) -> Iterator[StoreServer]:
    """One version of six and a half pieces."""
    with syncline.Publisher(store, durable=False) as publisher:
        publisher.publish(None, {"w": np.arange(13 << 20, dtype=np.uint32)})
    with StoreServer(store) as server:
        yield server


def stall_in_piece(number: int) -> object:
    def fault(request: Request) -> Fault | None:
        if request.is_body and request.first == number * PIECE:
            return Fault(stall_after=1000)
        return None

    return fault


def test_a_cancelled_pull_goes_on_where_it_stopped(large: StoreServer, replica: Path) -> None:
    large.faults = stall_in_piece(3)
    pulling = syncline.pull(large.url, replica, threads=1, background=True)
    assert large.stalled.wait(60)
    assert not pulling.done()
    with pytest.raises(syncline.TimedOutError):
        pulling.result(timeout=0)
    phase, done, total = pulling.progress()  # told in steps of 1/200
    assert (phase, total) == ("fetch", large_size(large))
    assert 3 * PIECE - total // 100 <= done < 4 * PIECE
    assert "at work" in repr(pulling)
    pulling.cancel()
    with pytest.raises(syncline.CancelledError):
        pulling.result()
    assert syncline_version(replica) is None
    large.faults = lambda request: None
    large.forget()
    report = syncline.pull(large.url, replica, threads=1)
    assert report.version == 0
    assert large.total("model.safetensors") == large_size(large) - 3 * PIECE
    assert syncline.verify(replica).versions == [0]
    assert not (replica / ".weight_sync" / "fetch").exists()


def large_size(large: StoreServer) -> int:
    return (version_dir(large.root, 0) / "model.safetensors").stat().st_size


def syncline_version(replica: Path) -> int | None:
    try:
        return syncline.verify(replica).versions[0]
    except syncline.Error:
        return None


def test_the_end_of_the_interpreter_ends_pulls(large: StoreServer, replica: Path) -> None:
    """Whether somebody holds the handle or not; the process ends by itself."""
    large.faults = stall_in_piece(1)
    code = """
        import sys, urllib.request, syncline
        url, replica = sys.argv[1:]
        handle = syncline.pull(url, replica + "-1", background=True)
        syncline.pull(url, replica + "-2", background=True)
        print("ending")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), large.url, replica],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ending\n", "")


def test_many_at_once(published: Path, tmp_path: Path, models: list[Weights]) -> None:
    replicas = [tmp_path / f"replica{number % 3}" for number in range(9)]
    for pulling in [syncline.pull(published, path, background=True) for path in replicas]:
        assert pulling.result().version == 2
    assert all(holds(path, models[2]) for path in replicas)


@pytest.mark.parametrize(
    "options",
    [
        {"wait": -1},
        {"wait": float("nan")},
        {"wait": float("inf")},
        {"connection": syncline.Connection(connect_seconds=0)},
        {"connection": syncline.Connection(stall_seconds=-1)},
        {"connection": syncline.Connection(retry_seconds=float("inf"))},
        {"connection": syncline.Connection(ca_file="")},
    ],
)
def test_options_that_make_no_sense(published: Path, replica: Path, options) -> None:
    for call in (
        lambda: syncline.pull(published, replica, **options),
        lambda: syncline.verify(published, **options),
        lambda: syncline.log(published, **options),
    ):
        with pytest.raises(syncline.InvalidArgumentError):
            call()
    assert not replica.exists()


def test_options_of_other_types(published: Path, replica: Path) -> None:
    for options in ({"connection": "https"}, {"before_read": 1}, {"wait": "soon"}, {"trust": 3}):
        with pytest.raises((TypeError, ValueError)):
            syncline.pull(published, replica, **options)  # type: ignore[call-overload]


def test_connection(server: StoreServer, replica: Path) -> None:
    assert syncline.Connection() == syncline.Connection(connect_seconds=10)
    server.faults = lambda request: Fault(status=503)
    quick = syncline.Connection(retry_seconds=0)
    with pytest.raises(syncline.UnavailableError, match="503"):
        syncline.pull(server.url, replica, connection=quick)
    server.faults = lambda request: Fault(status=503) if request.earlier == 0 else None
    server.forget()
    assert syncline.pull(server.url, replica).version == 2
    server.faults = lambda request: Fault(stall_after=0)
    short = syncline.Connection(retry_seconds=0, stall_seconds=0.2)
    with pytest.raises(syncline.TimedOutError):
        syncline.pull(server.url, replica, connection=short)


def test_versions_follow_one_another(published: Path, models: list[Weights]) -> None:
    """The fixture is what the other tests take it for."""
    assert [row.elements_changed for row in syncline.log(published)] == [3000, 7, 3]
    changes = [sum(int((a[n] != b[n]).sum()) for n in a) for a, b in pairwise(models)]
    assert changes == [7, 3]
