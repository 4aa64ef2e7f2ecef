"""A store on a web server that does everything that servers and networks do.

Whatever comes, a pull succeeds with the right bytes or fails with an error, and the replica is what
it was; what was fetched stays fetched.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import directory_format as reference
import numpy as np
import pytest
from harness import FEW_DTYPES, Cli, Exit, changed, random_tensors, tree
from safetensors_files import Tensor, Tensors, read_checkpoint, write_checkpoint
from store_server import Fault, Request, StoreServer
from testing_authority import Authority

PIECE = 8 << 20  # what is fetched at a time
SPOOL = ".weight_sync/fetch/"


def no_faults(_: Request) -> Fault | None:
    return None


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Tensors]:
    steps = [random_tensors(rng, FEW_DTYPES)]
    for _ in range(2):
        steps.append(changed(rng, steps[-1]))
    return steps


@pytest.fixture
def published(cli: Cli, store: Path, steps: list[Tensors], tmp_path: Path) -> Path:
    """A full version and two deltas."""
    for tensors in steps:
        write_checkpoint(tmp_path / "trainer", tensors)
        (tmp_path / "trainer" / "config.json").write_text("{}")
        cli.ok("publish", tmp_path / "trainer", "--to", store, "--full-copy-ratio", 0)
    return store


def held(replica: Path) -> dict[str, str]:
    """The replica without what is on its way in."""
    picture = tree(replica) if replica.exists() else {}
    return {path: digest for path, digest in picture.items() if not path.startswith(SPOOL)}


def quick(package: ModuleType, **options: float) -> Any:
    return package.Connection(**({"retry_seconds": 0.2, "stall_seconds": 0.2} | options))


PASSING = {
    "a connection that closes at once": Fault(drop_after=0),
    "after one byte": Fault(drop_after=1),
    "in the middle": Fault(drop_after=300),
    "an error of the server": Fault(status=500),
    "a server that is busy": Fault(status=503, headers={"Retry-After": "0"}),
    "too many requests": Fault(status=429, headers={"Retry-After": "0"}),
    "a proxy without its server": Fault(status=502),
    "a time-out of the server": Fault(status=408),
    "fewer bytes than it says": Fault(length_off=10),
}


@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING.keys())
@pytest.mark.parametrize("version", [0, 2])
def test_what_passes(
    package: ModuleType, published, server: StoreServer, replica, steps, fault, version
) -> None:
    """The first try of every request for the weights fails."""
    if version > 0:
        package.pull(server.url, replica, version=version - 1)
    seen: set[tuple[str, str]] = set()  # not the range: what has come is not asked for again
    lock = threading.Lock()

    def once(request: Request) -> Fault | None:
        with lock:
            key = request.method, request.path
            fresh = key not in seen
            seen.add(key)
        return fault if fresh and request.path.endswith(".safetensors") else None

    server.faults = once
    connection = quick(package, retry_seconds=60, stall_seconds=30)
    report = package.pull(server.url, replica, version=version, connection=connection)
    assert report.version == version
    assert read_checkpoint(replica) == steps[version]
    assert package.verify(replica).versions == [version]


# Without a byte that comes: else the client gets on, and asks for the rest.
PERMANENT = {
    "a connection that closes": (Fault(drop_after=0), ["UnavailableError"]),
    "a server that stalls": (Fault(stall_after=0), ["TimedOutError"]),
    "an error of the server": (Fault(status=500), ["UnavailableError"]),
    "a file that is cut": (Fault(file_size=100), ["CorruptError"]),
    "an empty file": (Fault(file_size=0), ["CorruptError"]),
    "no such file": (Fault(status=404), ["NotFoundError", "CorruptError"]),
    "no right to read": (Fault(status=403), ["PermissionDeniedError"]),
    "not logged in": (Fault(status=401), ["PermissionDeniedError"]),
    "a wrong bit": (Fault(flip_bit=40), ["ChecksumMismatchError"]),
    "fewer bytes than it says": (Fault(length_off=10), ["UnavailableError", "CorruptError"]),
    "more bytes than it says": (Fault(length_off=-10), ["UnavailableError", "CorruptError"]),
}


@pytest.mark.parametrize(("fault", "kinds"), PERMANENT.values(), ids=PERMANENT.keys())
@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("fresh", [True, False])
def test_what_does_not_pass(
    package: ModuleType,
    published,
    server: StoreServer,
    replica,
    steps,
    fault,
    kinds,
    version,
    fresh,
) -> None:
    """The weights of one version never come; the error names the file."""
    if not fresh:
        package.pull(server.url, replica, version=1)
    before = held(replica)
    victim = f"weight_v{version:06}/"

    def always(request: Request) -> Fault | None:
        ours = request.path.startswith(victim) and request.path.endswith(".safetensors")
        return fault if ours else None

    server.faults = always
    with pytest.raises(package.Error) as caught:
        package.pull(server.url, replica, version=version, wait=0.1, connection=quick(package))
    assert type(caught.value).__name__ in kinds
    assert f"{victim}model" in str(caught.value)
    if fault.status != 404:
        assert server.url in str(caught.value)
    if fresh:
        assert not list(replica.glob("*.safetensors"))
        assert not (replica / ".weight_sync" / "state.json").exists()
    else:
        assert held(replica) == before
        assert read_checkpoint(replica) == steps[1]
    server.faults = no_faults
    assert package.pull(server.url, replica, version=version).version == version
    assert read_checkpoint(replica) == steps[version]


@pytest.mark.parametrize(
    "file", ["syncline.latest.json", "syncline.manifest.json", "model.safetensors.index.json"]
)
@pytest.mark.parametrize("fault", [Fault(flip_bit=30), Fault(file_size=60), Fault(status=500)])
def test_small_files_that_are_wrong(
    package: ModuleType, published, server: StoreServer, replica, steps, file, fault
) -> None:
    """A bit of the pointer may make it another right one; never is anything wrong pulled."""
    package.pull(server.url, replica, version=0)
    before = held(replica)
    server.faults = lambda request: fault if request.path.endswith(file) else None
    try:
        report = package.pull(server.url, replica, wait=0.1, connection=quick(package))
    except package.Error as error:
        assert file in str(error) or "version" in str(error)
        assert held(replica) == before
    else:
        assert read_checkpoint(replica) == steps[report.version]
    server.faults = no_faults
    assert package.pull(server.url, replica).version == 2
    assert read_checkpoint(replica) == steps[2]


def any_fault(dice: random.Random) -> Fault:
    size = dice.choice([0, 1, 300, 5000])
    return dice.choice(
        [
            Fault(drop_after=size),
            Fault(stall_after=size),
            Fault(file_size=size),
            Fault(length_off=dice.choice([-20, -1, 1, 20])),
            Fault(flip_bit=size),
            Fault(status=dice.choice([400, 403, 404, 408, 412, 416, 429, 500, 502, 503, 504])),
        ]
    )


@pytest.mark.parametrize("seed", range(12))
def test_anything(
    package: ModuleType, published, server: StoreServer, replica, steps, seed: int
) -> None:
    """Faults by lot in whatever request, again and again; at last everything goes well."""
    dice = random.Random(seed)
    lock = threading.Lock()
    for round_number in range(4):
        share = dice.choice([0.05, 0.2, 0.6]) if round_number < 3 else 0

        def by_lot(request: Request, share: float = share) -> Fault | None:
            with lock:
                return any_fault(dice) if dice.random() < share else None

        server.faults = by_lot
        before = held(replica)
        version = dice.choice([None, 1, 2]) if round_number < 3 else 2
        try:
            package.pull(server.url, replica, version=version, wait=0.1, connection=quick(package))
        except package.Error as error:
            assert not isinstance(error, package.InternalError)
            assert round_number < 3, error
            marker = reference.read_marker(replica)
            if marker is None:
                assert not list(replica.glob("*.safetensors"))
            elif held(replica) != before:
                # A chain that failed in the middle.
                assert read_checkpoint(replica) == steps[marker]
        else:
            assert read_checkpoint(replica) == steps[reference.read_marker(replica)]
    assert reference.read_marker(replica) == 2
    assert package.verify(replica).versions == [2]


@pytest.fixture
def large(cli: Cli, store: Path, rng: np.random.Generator, tmp_path: Path) -> Iterator[Tensors]:
    """One version of six and a half pieces."""
    data = rng.integers(0, 256, 13 * PIECE // 2, np.uint8)
    tensors = {"w": Tensor("U8", (data.size,), data)}
    write_checkpoint(tmp_path / "trainer", tensors)
    cli.ok("publish", tmp_path / "trainer", "--to", store)
    yield tensors
    shutil.rmtree(store)


def test_a_server_that_dies(
    package: ModuleType, large: Tensors, server: StoreServer, replica: Path
) -> None:
    """The next pull, from another server with the same files, fetches only what is missing."""
    server.faults = lambda request: Fault(stall_after=99) if request.first == 4 * PIECE else None
    pulling = package.pull(
        server.url, replica, threads=1, background=True, connection=quick(package, stall_seconds=60)
    )
    assert server.stalled.wait(60)
    server.stop()
    with pytest.raises(package.UnavailableError, match=server.url):
        pulling.result()
    assert not list(replica.glob("*.safetensors"))
    size = (server.root / "weight_v000000" / "model.safetensors").stat().st_size
    with StoreServer(server.root) as other:
        package.pull(other.url, replica)
        assert other.total("model.safetensors") == size - 4 * PIECE
    assert read_checkpoint(replica) == large


def test_what_was_fetched_of_an_object_that_changed_is_not_used(
    package: ModuleType, large: Tensors, server: StoreServer, replica: Path, cli: Cli, tmp_path
) -> None:
    """A store that was made anew under the same name while nobody pulled."""
    server.faults = lambda request: Fault(stall_after=99) if request.first == 4 * PIECE else None
    pulling = package.pull(server.url, replica, threads=1, background=True)
    assert server.stalled.wait(60)
    pulling.cancel()
    with pytest.raises(package.CancelledError):
        pulling.result()
    other = {"w": Tensor("U8", large["w"].shape, large["w"].data ^ 1)}
    shutil.rmtree(server.root / "weight_v000000")
    shutil.rmtree(server.root / ".syncline")
    (server.root / "syncline.latest.json").unlink()
    write_checkpoint(tmp_path / "trainer", other)
    cli.ok("publish", tmp_path / "trainer", "--to", server.root)
    server.faults = no_faults
    package.pull(server.url, replica)
    assert read_checkpoint(replica) == other


def test_an_object_that_changes_while_it_is_read(
    package: ModuleType, large: Tensors, server: StoreServer, replica: Path
) -> None:
    """No mixture, and no endless loop."""
    shard = server.root / "weight_v000000" / "model.safetensors"

    def change(request: Request) -> Fault | None:
        if request.first == 3 * PIECE and request.is_body and request.path.endswith(shard.name):
            data = bytearray(shard.read_bytes())
            data[-1] ^= 1
            shard.write_bytes(data)
        return None

    server.faults = change
    with pytest.raises(package.Error, match=r"model\.safetensors"):
        package.pull(server.url, replica, threads=1, wait=0.1)
    assert not list(replica.glob("*.safetensors"))


def test_foreign_store(
    cli: Cli, store: Path, server: StoreServer, replica: Path, steps: list[Tensors]
) -> None:
    """Without manifest and pointer versions must be asked for by number."""
    reference.write_full(store, 0, steps[0], shards=2)
    (store / "weight_v000000" / "config.json").write_text("{}")
    reference.write_delta(store, 1, *steps[0:2], "xor", shards=2)
    reference.write_delta(store, 2, *steps[1:3], "overwrite", "blake3")
    pull = ["pull", "--from", server.url, "--into", replica]
    message = cli.fails(*pull, naming=["by its number"], codes=[Exit.NOT_FOUND])
    assert server.url in message
    cli.fails(*pull, "--version", 3, "--wait", 0, naming=["version 3"], codes=[Exit.NOT_FOUND])
    for version in (1, 2):
        assert cli.ok(*pull, "--version", version)["applied"][-1] == version
        assert read_checkpoint(replica) == steps[version]
    assert (replica / "config.json").read_text() == "{}"
    server.forget()
    assert cli.ok(*pull, "--version", 2)["applied"] == []
    assert server.total(".safetensors") == 0


def test_https(
    cli: Cli,
    package: ModuleType,
    published: Path,
    secure_server: StoreServer,
    replica: Path,
    authority: Authority,
    steps: list[Tensors],
) -> None:
    """The server's authority must be known; there is no way around it."""
    pull = ["pull", "--from", secure_server.url, "--into", replica]
    cli.fails(*pull, naming=[secure_server.url, "certificate"], codes=[Exit.PERMISSION_DENIED])
    assert not secure_server.requests
    cli.ok(*pull, "--version", 1, "--ca-file", authority.ca_file)
    connection = package.Connection(ca_file=authority.ca_file)
    assert package.pull(secure_server.url, replica, connection=connection).applied == [2]
    assert read_checkpoint(replica) == steps[2]
    assert cli.ok("verify", secure_server.url, "--ca-file", authority.ca_file)["ok"]
    cli.fails(*pull, "--ca-file", "/nowhere/ca.pem", naming=["/nowhere/ca.pem"])
    # The server's own certificate, but for another name.
    elsewhere = secure_server.url.replace("127.0.0.1", "localhost")
    cli.fails("log", elsewhere, "--ca-file", authority.ca_file, codes=[Exit.PERMISSION_DENIED])


def test_user_info_is_never_shown(cli: Cli, replica: Path) -> None:
    with StoreServer(replica.parent) as server:
        url = server.url.replace("://", "://someone:secret@") + "/store?token=hidden"
        server.faults = lambda request: Fault(status=403)
        message = cli.fails("pull", "--from", url, "--into", replica)
    assert "secret" not in message
    assert "hidden" not in message


def test_only_what_is_needed_is_read(
    cli: Cli, published: Path, server: StoreServer, replica: Path
) -> None:
    """Of a delta its files, once, and nothing of the versions before."""
    pull = ["pull", "--from", server.url, "--into", replica]
    cli.ok(*pull, "--version", 1)
    server.forget()
    cli.ok(*pull)
    bodies = [r.path for r in server.requests if r.is_body and r.path.endswith(".safetensors")]
    assert bodies == ["weight_v000002/model-00000-of-00001.safetensors"]
    size = (published / bodies[0]).stat().st_size
    assert server.total(".safetensors") == size
