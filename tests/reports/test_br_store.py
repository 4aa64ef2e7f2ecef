"""Bug reports about stores and receivers, as cases. Each test is named after its report.

Of BR-04 the shared memory of transports is the engine's matter, and of BR-05 the faults inside one
apply (EIO, ENOSPC, a bad checksum and a kill after each of its steps) are those of the torture
program (tests/torture: pull_cases.cc, process_cases.cc, damage_cases.cc) and of
src/replica/replica_test.cc; here processes are killed from outside.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import directory_format as reference
import numpy as np
import pytest
import torch
from harness import BINARY, FEW_DTYPES, Cli, Exit, changed, random_tensors, tree
from safetensors_files import Tensor, Tensors, read_checkpoint, write_checkpoint

# BR-01: a checkpoint is saved over the old one, under the same name.


def in_place(path: Path, data: bytes) -> None:
    with path.open("r+b") as file:
        file.write(data)


def rename_over(path: Path, data: bytes) -> None:
    other = path.with_name("other")
    other.write_bytes(data)
    other.rename(path)


def overwrite(directory: Path, how: Callable[[Path, bytes], None], tensors: Tensors) -> None:
    """Other bytes under the same names, with the same sizes and times."""
    fresh = directory.parent / "fresh"
    write_checkpoint(fresh, tensors)
    for path in directory.glob("*.safetensors"):
        info = path.stat()
        data = (fresh / path.name).read_bytes()
        assert len(data) == info.st_size
        how(path, data)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    shutil.rmtree(fresh)


@pytest.mark.parametrize("how", [in_place, rename_over])
@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    "held",
    [
        True,
        False,
    ],
)
def test_br_01_a_version_that_was_overwritten(
    cli: Cli, store: Path, replica: Path, rng, tmp_path: Path, how, ours: bool, held: bool
) -> None:
    """The new bytes, or an error; never success with the old ones."""
    old = random_tensors(rng, FEW_DTYPES)
    new = changed(rng, old)
    if ours:
        write_checkpoint(tmp_path / "trainer", old)
        cli.ok("publish", tmp_path / "trainer", "--to", store)
    else:
        reference.write_full(store, 0, old)
    pull = ["pull", "--from", store, "--into", replica, "--version", 0]
    if held:
        cli.ok(*pull)
    overwrite(store / "weight_v000000", how, new)
    result = cli(*pull, "--json")
    if result.rc == 0:
        assert read_checkpoint(replica) == new
    else:
        assert result.rc in (Exit.CHECKSUM_MISMATCH, Exit.OUT_OF_ORDER), result
        assert "weight_v000000" in result.stderr or "version 0" in result.stderr
    if ours:
        cli.fails("verify", store, naming=["weight_v000000"], codes=[Exit.CHECKSUM_MISMATCH])


@pytest.mark.parametrize("seed", [True, False])
def test_br_01_another_run_under_the_same_numbers(
    cli: Cli, store: Path, replica: Path, rng, tmp_path: Path, seed: bool
) -> None:
    """The store was removed and made anew: the replica's version 1 is another one."""
    base = random_tensors(rng, FEW_DTYPES)
    write_checkpoint(tmp_path / "base", base)
    for run in range(2):
        steps = [changed(rng, base)]
        steps.append(changed(rng, steps[0]))
        shutil.rmtree(store, ignore_errors=True)
        for tensors in steps:
            write_checkpoint(tmp_path / "trainer", tensors)
            options = ["--base", tmp_path / "base"] if seed else []
            cli.ok("publish", tmp_path / "trainer", "--to", store, *options)
        pull = ["pull", "--from", store, "--into", replica, "--seed", tmp_path / "base"]
        for _ in range(2):
            cli.ok(*pull)
            assert read_checkpoint(replica) == steps[1], f"of run {run}"


# BR-03: a mount that shows files late.


class Mount:
    """What one host sees of the store of another: whatever was there at the last refresh."""

    def __init__(self, behind: Path, seen: Path) -> None:
        self.behind, self.seen = behind, seen

    def refresh(self) -> None:
        shutil.copytree(self.behind, self.seen, dirs_exist_ok=True)

    @property
    def command(self) -> str:
        return f"cp -r {shlex.quote(str(self.behind))}/. {shlex.quote(str(self.seen))}"


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Tensors]:
    steps = [random_tensors(rng, FEW_DTYPES)]
    for _ in range(2):
        steps.append(changed(rng, steps[-1]))
    return steps


@pytest.fixture
def mount(cli: Cli, steps: list[Tensors], replica: Path, tmp_path: Path) -> Mount:
    """Version 0 is seen and pulled; 1 and 2 are published but not seen yet."""
    mount = Mount(tmp_path / "behind", tmp_path / "seen")
    for number, tensors in enumerate(steps):
        write_checkpoint(tmp_path / "trainer", tensors)
        cli.ok("publish", tmp_path / "trainer", "--to", mount.behind, "--full-copy-ratio", 0)
        if number == 0:
            mount.refresh()
            cli.ok("pull", "--from", mount.seen, "--into", replica)
    return mount


def test_br_03_a_version_that_is_not_visible(cli: Cli, mount: Mount, replica: Path) -> None:
    """(1) An error that says so, at once or after the time that was given."""
    before = tree(replica)
    for wait in ([], ["--wait", 0], ["--wait", 0.3]):
        message = cli.fails(
            *["pull", "--from", mount.seen, "--into", replica, "--version", 2, *wait],
            naming=["version 2 is not in", str(mount.seen)],
            codes=[Exit.NOT_FOUND],
        )
        assert "Traceback" not in message
        assert tree(replica) == before


@pytest.mark.parametrize("keep", [0, 100, -1])
@pytest.mark.parametrize("kind", ["delta", "full"])
def test_br_03_a_short_shard(
    cli: Cli, mount: Mount, replica: Path, steps, keep: int, kind: str, tmp_path: Path
) -> None:
    """(2) Name and sizes come before the bytes: the error names the shard and both sizes."""
    if kind == "full":
        cli.ok("publish", tmp_path / "trainer", "--to", mount.behind, "--full")
    mount.refresh()
    version = 3 if kind == "full" else 2
    (shard,) = (mount.seen / f"weight_v{version:06}").glob("*.safetensors")
    whole = shard.read_bytes()
    shard.write_bytes(whole[:keep])
    before = tree(replica)
    pull = ["pull", "--from", mount.seen, "--into", replica, "--version", version]
    for wait in ([], ["--wait", 0.3]):
        cli.fails(
            *pull,
            *wait,
            naming=[str(shard), f"{len(whole[:keep])} bytes", f"{len(whole)}"],
            codes=[Exit.CORRUPT],
        )
        assert tree(replica) == before
    assert read_checkpoint(replica) == steps[0]
    cli.ok(*pull, "--before-read", mount.command)
    assert read_checkpoint(replica) == steps[2]


def test_br_03_after_a_refresh(cli: Cli, mount: Mount, replica: Path, steps) -> None:
    """(3) The hook refreshes the mount before it is read."""
    pull = ["pull", "--from", mount.seen, "--into", replica]
    assert cli.ok(*pull, "--before-read", mount.command)["version"] == 2
    assert read_checkpoint(replica) == steps[2]


def test_br_03_a_refresh_while_the_pull_waits(
    package: ModuleType, mount: Mount, replica: Path, steps
) -> None:
    """(3) Visible only some time later: a bounded wait, in which the hook is called again."""
    calls: list[int | None] = []

    def refresh(version: int | None) -> None:
        calls.append(version)
        if len(calls) == 4:
            mount.refresh()

    report = package.pull(mount.seen, replica, version=2, wait=60, before_read=refresh)
    assert report.version == 2
    assert len(calls) >= 4
    assert set(calls) <= {1, 2}
    assert read_checkpoint(replica) == steps[2]


def test_br_03_a_hook_that_fails(cli: Cli, mount: Mount, replica: Path) -> None:
    before = tree(replica)
    pull = ["pull", "--from", mount.seen, "--into", replica]
    cli.fails(*pull, "--before-read", "exit 3", naming=["exit 3", "3"], codes=[Exit.IO])
    assert tree(replica) == before


# BR-04: what a killed receiver leaves.


@pytest.fixture
def large(cli: Cli, store: Path, rng: np.random.Generator, tmp_path: Path) -> list[Tensors]:
    """A full version of 48 tensors of 256 KiB and a delta that touches all of them."""
    shape = (1 << 17,)
    first = {
        f"layer.{number}": Tensor("BF16", shape, rng.integers(0, 256, 1 << 18, np.uint8))
        for number in range(48)
    }
    steps = [first, changed(rng, first, density=0.01)]
    for tensors in steps:
        write_checkpoint(tmp_path / "trainer", tensors, shards=3)
        cli.ok("publish", tmp_path / "trainer", "--to", store, "--full-copy-ratio", 0)
    return steps


def kill_a_pull(store: Path, replica: Path, dice: random.Random, temporary: Path) -> bool:
    """Whether it was killed before its end."""
    process = subprocess.Popen(
        [BINARY, "pull", "--from", store, "--into", replica],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        process.wait(dice.uniform(0.001, 0.025))
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -signal.SIGKILL


def is_ours(name: str) -> bool:
    """Not what tests that run at the same time have there."""
    return "syncline" in name and not name.startswith("syncline_test_")


def in_shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir() if is_ours(path.name)}


@pytest.mark.parametrize("start", ["nothing", "version 0"])
def test_br_04_killed_ten_times(
    cli: Cli, store: Path, replica: Path, large, tmp_path: Path, start: str
) -> None:
    """Nothing adds up, nothing that was left is trusted, and the next pull succeeds."""
    dice = random.Random(start)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    pull = ["pull", "--from", store, "--into", replica]
    shared = in_shared_memory()
    killed = 0
    for _ in range(10):
        shutil.rmtree(replica, ignore_errors=True)
        if start == "version 0":
            cli.ok(*pull, "--version", 0)
        for _ in range(3):  # one after the other, into what the one before has left
            killed += kill_a_pull(store, replica, dice, temporary)
        assert list(temporary.iterdir()) == []
        assert in_shared_memory() == shared
        assert cli.ok(*pull)["version"] == 1
        assert read_checkpoint(replica) == large[1]
        cli.ok("verify", replica)
        left = {path.name for path in (replica / ".weight_sync").iterdir()}
        assert left <= {
            "state.json",
            "lock",
            "syncline.json",
            "changes.jsonl",
            "journal",
            "previous",
        }
        assert not list(replica.rglob("*.tmp*"))
    assert killed >= 5, "the kills came too late to mean anything"


@pytest.mark.parametrize("content", [b"", b"1\n", str(2**22 + 1).encode(), b"\xff" * 100])
def test_br_04_a_lock_that_was_left(
    cli: Cli, store: Path, replica: Path, large, content: bytes
) -> None:
    """Only the operating system says who holds a lock, whatever stands in the file."""
    cli.ok("pull", "--from", store, "--into", replica, "--version", 0)
    (replica / ".weight_sync" / "lock").write_bytes(content)
    publisher_lock = store / ".syncline"
    for path in publisher_lock.glob("*lock*"):
        path.write_bytes(content)
    assert cli.ok("pull", "--from", store, "--into", replica)["applied"] == [1]
    assert cli.ok("publish", replica, "--to", store)["version"] == 2


# BR-05: an apply that stops half-way.


def test_br_05_killed_in_the_middle_of_an_apply(
    cli: Cli, store: Path, replica: Path, large, tmp_path: Path
) -> None:
    """At no moment is a mixture offered, and a retry gives what a clean apply gives."""
    dice = random.Random(5)
    pull = ["pull", "--from", store, "--into", replica]
    marker = replica / ".weight_sync" / "state.json"
    moments = {"whole": 0, "withdrawn": 0}
    for _ in range(12):
        cli.ok(*pull, "--version", 0)
        process = subprocess.Popen(
            [BINARY, *map(str, pull)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while marker.exists() and process.poll() is None:
            pass
        for _ in range(dice.randint(0, 4000)):  # some more of its work
            pass
        process.kill()
        process.wait()
        held = reference.read_marker(replica)
        if held is None:
            moments["withdrawn"] += 1
        else:
            moments["whole"] += 1
            assert read_checkpoint(replica) == large[held]
        report = cli.ok(*pull)
        assert report["version"] == 1
        assert read_checkpoint(replica) == large[1]
        assert cli.ok("verify", replica)["versions"] == [1]
    assert moments["withdrawn"], moments


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("damaged", range(5))
def test_br_05_a_bad_checksum_of_tensor_i(
    cli: Cli, store: Path, replica: Path, rng, encoding: str, damaged: int
) -> None:
    """For each tensor of a delta: nothing is patched, and the whole delta then gives the same as if
    it had come at once."""
    steps = [{f"w{n}": t for n, t in enumerate(list(random_tensors(rng, ("F32",)).values()))}]
    steps[0] = {name: tensor for name, tensor in steps[0].items() if tensor.nbytes}
    steps[0] |= {f"v{n}": Tensor("U8", (99,), rng.integers(0, 256, 99, np.uint8)) for n in range(3)}
    steps.append(changed(rng, steps[0]))
    reference.write_full(store, 0, steps[0])
    wrong = dict(steps[1])
    name = sorted(wrong)[damaged]
    data = wrong[name].data.copy()
    data[0] ^= 1
    wrong[name] = Tensor(wrong[name].dtype, wrong[name].shape, data)
    reference.write_delta(store, 1, steps[0], wrong, encoding)
    (shard,) = (store / "weight_v000001").glob("*.safetensors")
    sums = {n: reference.checksum("xxh3-128", t.data) for n, t in steps[1].items()}
    text = shard.read_bytes()
    bad = reference.checksum("xxh3-128", wrong[name].data)
    assert text.count(bad.encode()) == 1
    shard.write_bytes(text.replace(bad.encode(), sums[name].encode()))
    pull = ["pull", "--from", store, "--into", replica]
    cli.ok(*pull, "--version", 0)
    for _ in range(2):
        cli.fails(*pull, naming=[name], codes=[Exit.CHECKSUM_MISMATCH])
        assert reference.read_marker(replica) == 0
        assert read_checkpoint(replica) == steps[0]
    shutil.rmtree(store / "weight_v000001")
    reference.write_delta(store, 1, *steps, encoding)
    assert cli.ok(*pull)["applied"] == [1]
    assert read_checkpoint(replica) == steps[1]


# BR-06: old deltas are pruned.


@pytest.fixture
def chain(rng: np.random.Generator) -> list[Tensors]:
    """Versions 0 to 14."""
    steps = [random_tensors(rng, ("BF16", "F32"))]
    for _ in range(14):
        steps.append(changed(rng, steps[-1]))
    return steps


def test_br_06_a_chain_without_its_beginning(
    cli: Cli, store: Path, replica: Path, chain: list[Tensors]
) -> None:
    reference.write_full(store, 0, chain[0])
    for version in range(10, 15):
        reference.write_delta(store, version, *chain[version - 1 : version + 1])
    pull = ["pull", "--from", store, "--into", replica]
    cli.fails(*pull, naming=["1–9"], codes=[Exit.NOT_FOUND])
    assert not list(replica.glob("*.safetensors"))
    cli.ok(*pull, "--version", 0)
    before = tree(replica)
    cli.fails(*pull, naming=["1–9"], codes=[Exit.NOT_FOUND])
    cli.fails(*pull, "--version", 14, naming=["1–9"], codes=[Exit.NOT_FOUND])
    assert tree(replica) == before
    assert read_checkpoint(replica) == chain[0]


@pytest.mark.parametrize("holds_zero", [True, False])
def test_br_06_a_full_version_in_the_chain(
    cli: Cli, store: Path, replica: Path, chain: list[Tensors], holds_zero: bool
) -> None:
    reference.write_full(store, 0, chain[0])
    pull = ["pull", "--from", store, "--into", replica]
    if holds_zero:
        cli.ok(*pull)
    reference.write_full(store, 9, chain[9])
    for version in range(10, 15):
        reference.write_delta(store, version, *chain[version - 1 : version + 1])
    report = cli.ok(*pull)
    assert (report["seeded_from"], report["applied"]) == ("full:9", list(range(10, 15)))
    assert read_checkpoint(replica) == chain[14]


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_br_06_a_delta_on_other_content(
    cli: Cli, store: Path, replica: Path, chain: list[Tensors], rng, encoding: str
) -> None:
    """The number of the base is right, its bytes are not."""
    reference.write_full(store, 0, chain[0])
    pull = ["pull", "--from", store, "--into", replica]
    cli.ok(*pull)
    reference.write_delta(store, 1, changed(rng, chain[0], density=0.5), chain[1], encoding)
    cli.fails(*pull, naming=["version 1"], codes=[Exit.CHECKSUM_MISMATCH])
    assert read_checkpoint(replica) == chain[0]
    assert reference.read_marker(replica) == 0


def test_br_06_a_delta_on_another_number(
    cli: Cli, store: Path, replica: Path, chain: list[Tensors]
) -> None:
    reference.write_full(store, 0, chain[0])
    reference.write_delta(store, 1, *chain[0:2])
    reference.write_delta(store, 2, *chain[1:3])
    pull = ["pull", "--from", store, "--into", replica]
    cli.ok(*pull, "--version", 1)
    before = tree(replica)
    index = store / "weight_v000002" / "model.safetensors.index.json"
    value = json.loads(index.read_text())
    value["metadata"]["base_version"] = "000000"
    index.write_text(json.dumps(value))
    cli.fails(*pull, naming=["delta 2 builds on 0"], codes=[Exit.OUT_OF_ORDER])
    assert tree(replica) == before


# BR-09: tied tensors, as far as store and replica know of them: names and bytes.

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Tied(torch.nn.Module):
    """Embedding and head are one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(50, 8)
        self.lm_head = torch.nn.Linear(8, 50, bias=False)
        self.lm_head.weight = self.model.embed_tokens.weight


def values(replica: Path) -> dict[str, bytes]:
    return {name: tensor.data.tobytes() for name, tensor in read_checkpoint(replica).items()}


@pytest.mark.parametrize("names", ["parameters", "state_dict"])
def test_br_09_a_tied_model(package: ModuleType, store: Path, replica: Path, names: str) -> None:
    """By one name or by both: all that the store holds is the new value afterwards."""
    model = Tied()
    with package.Publisher(store) as publisher:
        for _ in range(3):
            with torch.no_grad():
                model.lm_head.weight[3] += 1
            tensors = (
                dict(model.named_parameters()) if names == "parameters" else model.state_dict()
            )
            publisher.publish(None, tensors)
            package.pull(store, replica)
            held = values(replica)
            new = model.lm_head.weight.detach().numpy().tobytes()
            expected = {EMBED} if names == "parameters" else {EMBED, HEAD}
            assert held == dict.fromkeys(expected, new)


def test_br_09_one_name_twice(package: ModuleType, store: Path, replica: Path) -> None:
    """Equal: fine. Different: an error that names it, and nothing is published."""
    one, other = np.zeros((5, 4), np.float32), np.ones((5, 4), np.float32)
    with package.Publisher(store) as publisher:
        assert publisher.publish(None, [(EMBED, one), (EMBED, one.copy())]).tensors == 1
        with pytest.raises(package.InvalidArgumentError, match=EMBED):
            publisher.publish(None, [(EMBED, one), (EMBED, other)])
        assert publisher.version == 0
    package.pull(store, replica)
    assert values(replica) == {EMBED: one.tobytes()}


def test_br_09_an_untied_model(package: ModuleType, store: Path, replica: Path) -> None:
    """Equal at first, which is no tie: an update of the embedding leaves the head alone."""
    model = {EMBED: np.zeros((5, 4), np.float32), HEAD: np.zeros((5, 4), np.float32)}
    with package.Publisher(store) as publisher:
        publisher.publish(None, model)
        model[EMBED] = model[EMBED] + 1
        assert publisher.publish(None, model).tensors_changed == 1
    package.pull(store, replica)
    assert values(replica) == {name: array.tobytes() for name, array in model.items()}
