"""The cases BR-10 to BR-20 of the acceptance list: files that loaders of other systems read wrongly.

Each is driven through the command on checkpoints, stores and replicas. The single rules of the file
format, with the reference library as the judge, are in tests/checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import resource
import struct
import subprocess
from pathlib import Path
from types import ModuleType

import directory_format as reference
import numpy as np
import pytest
from corpus import HEADER_LIMIT, Case, cases, entry, file_of
from directory_format import DTYPE_BITS, INDEX_NAME, Tensor, read_checkpoint, write_checkpoint
from harness import (
    BINARY,
    FEW_DTYPES,
    Cli,
    Exit,
    changed,
    random_tensor,
    random_tensors,
    tensor_table,
    training_steps,
    tree,
)
from safetensors import SafetensorError, deserialize, safe_open
from safetensors_files import SINGLE_NAME, read_header, write_safetensors
from scene import CORRUPT, CUTS, SHARD, cuts_of, resize
from test_corpus import REFUSALS, table_of_reference

Tensors = dict[str, Tensor]

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
CASES = {case.name: case for case in cases()}


@pytest.fixture
def tensors(rng) -> Tensors:
    return random_tensors(rng, ("BF16", "F32"))


@pytest.fixture
def directory(tmp_path: Path, tensors: Tensors) -> Path:
    """A checkpoint of two shards and an index."""
    write_checkpoint(tmp_path / "model", tensors, shards=2)
    return tmp_path / "model"


def table(tensors: Tensors) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}


def edit_index(directory: Path, **values: object) -> None:
    path = directory / INDEX_NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# ---- BR-10: files that are cut, or have a byte too many.


def numbers_of(message: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", message)}


@pytest.mark.parametrize("cut", CUTS)
def test_br_10_checkpoint_names_both_sizes(cli: Cli, directory, cut) -> None:
    """The file, where it ends, and where it should: of what the file says of itself."""
    path = directory / SHARDS[1]
    whole = path.stat().st_size
    header = struct.unpack("<Q", path.read_bytes()[:8])[0]
    ends = sorted(span.offset + span.nbytes for span in read_header(path)[1].values())
    size = cuts_of(path)[cut]
    resize(path, size)
    if size < 8:
        expected = {8}
    elif size < 8 + header:
        expected = {8 + header}
    elif size > whole:
        expected = {whole}
    else:
        expected = {end for end in ends if end > size}
    for command in (("show",), ("verify",), ("diff", directory)):
        message = cli.fails(*command, directory, naming=[SHARDS[1]], codes=CORRUPT)
        found = numbers_of(message.replace(str(path), ""))
        assert size in found, message
        assert found & expected, f"expected one of {expected}: {message}"


@pytest.mark.parametrize("cut", CUTS)
def test_br_10_delta(xor_scene, cut) -> None:
    size = cuts_of(xor_scene.shard)[cut]
    resize(xor_scene.shard, size)
    xor_scene.refuses(naming=[SHARD, str(size)], codes=CORRUPT)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("fresh", [True, False])
def test_br_10_full_version(cli, store, replica, rng, cut, fresh) -> None:
    """A full version that is cut never takes the place of what is there."""
    steps = [random_tensors(rng, ("BF16", "F32"))]
    steps.append(changed(rng, steps[0]))
    if not fresh:
        reference.write_full(store, 0, steps[0])
        reference.pull(store, replica)
    shard = reference.write_full(store, 1, steps[1], shards=2) / "model-00002-of-00002.safetensors"
    size = cuts_of(shard)[cut]
    resize(shard, size)
    cli.fails(
        "pull",
        "--from",
        store,
        "--into",
        replica,
        naming=[shard.name, str(size)],
        codes=CORRUPT,
    )
    if fresh:
        assert reference.read_marker(replica) is None
        assert not list(replica.glob("*.safetensors*"))
    else:
        assert reference.read_marker(replica) == 0
        assert read_checkpoint(replica) == steps[0]
    reference.write_full(store, 1, steps[1], shards=2)
    cli.ok("pull", "--from", store, "--into", replica)
    assert read_checkpoint(replica) == steps[1]


@pytest.mark.parametrize("cut", CUTS)
def test_br_10_verify_of_a_store(cli, xor_scene, cut) -> None:
    resize(xor_scene.shard, cuts_of(xor_scene.shard)[cut])
    cli.fails("verify", xor_scene.store, naming=[SHARD], codes=CORRUPT)


@pytest.mark.parametrize("cut", CUTS)
def test_br_10_publish(cli: Cli, store: Path, tensors, tmp_path: Path, cut) -> None:
    """A checkpoint that is cut becomes no version."""
    for name in ("first", "second"):
        write_checkpoint(tmp_path / name, tensors)
    cli.ok("publish", tmp_path / "first", "--to", store)
    path = tmp_path / "second" / SINGLE_NAME
    size = cuts_of(path)[cut]
    resize(path, size)
    naming = [path.name, str(size)]
    cli.fails("publish", tmp_path / "second", "--to", store, naming=naming, codes=CORRUPT)
    assert [path.name for path in store.glob("weight_v*")] == ["weight_v000000"]


@pytest.mark.parametrize("cut", CUTS)
def test_br_10_seed(cli: Cli, store, replica, tensors, directory, rng, cut) -> None:
    """A checkpoint that is cut seeds no replica."""
    reference.write_delta(store, 1, tensors, changed(rng, tensors))
    size = cuts_of(directory / SHARDS[0])[cut]
    resize(directory / SHARDS[0], size)
    options = ["--from", store, "--into", replica, "--seed", directory]
    cli.fails("pull", *options, naming=[SHARDS[0], str(size)], codes=CORRUPT)
    assert reference.read_marker(replica) is None


def test_br_10_shard_is_named(cli, directory) -> None:
    """One of several files is cut."""
    path = directory / SHARDS[1]
    os.truncate(path, path.stat().st_size - 1)
    cli.fails("show", directory, naming=[SHARDS[1]], codes=(Exit.CORRUPT,))
    cli.fails("verify", directory, naming=[SHARDS[1]], codes=(Exit.CORRUPT,))


# ---- BR-11 and BR-20: which files count, and links.


class TestBr11:
    """BR-11: the index says which files count; nothing is guessed."""

    @pytest.mark.parametrize("missing", [SHARDS[:1], SHARDS[1:], SHARDS])
    def test_br_11_missing_shards_are_listed(self, cli: Cli, directory, missing) -> None:
        for name in missing:
            (directory / name).unlink()
        codes = (Exit.NOT_FOUND, Exit.CORRUPT)
        cli.fails("show", directory, naming=missing, codes=codes)
        cli.fails("verify", directory, naming=missing[:1], codes=codes)

    def test_br_11_files_beside_the_index_are_ignored(self, cli, directory, tensors, rng) -> None:
        """A second split, other formats, broken and temporary files, all beside a good index."""
        before = cli.ok("show", directory)
        write_safetensors(directory / "consolidated.safetensors", changed(rng, tensors))
        for number in range(1, 4):
            path = directory / f"model-{number:05d}-of-00003.safetensors"
            write_safetensors(path, changed(rng, tensors))
        (directory / "broken.safetensors").write_bytes(b"\xff" * 40)
        (directory / "model.safetensors").write_bytes(b"")
        (directory / ".model-00001-of-00002.safetensors.swp").write_bytes(b"b0VIM 9.0")
        (directory / "._model.safetensors").write_bytes(b"\0\5\x16\7")
        (directory / "pytorch_model.bin").write_bytes(b"PK")
        (directory / "tokenizer.json").write_text("{}")
        assert tensor_table(cli.ok("show", directory)) == tensor_table(before) == table(tensors)
        assert cli.ok("verify", directory)["kind"] == "checkpoint"

    def test_br_11_ignored_files_are_not_seeded_into_tensors(
        self, cli, directory, store, replica, tensors, rng
    ) -> None:
        write_safetensors(directory / "consolidated.safetensors", changed(rng, tensors))
        new = changed(rng, tensors)
        reference.write_delta(store, 1, tensors, new)
        cli.ok("pull", "--from", store, "--into", replica, "--seed", directory)
        assert read_checkpoint(replica) == new

    def test_br_11_one_file_without_index(self, cli, tmp_path, tensors) -> None:
        write_checkpoint(tmp_path / "model", tensors)
        assert tensor_table(cli.ok("show", tmp_path / "model")) == table(tensors)
        (tmp_path / "model" / "config.json").write_text("{}")
        assert tensor_table(cli.ok("show", tmp_path / "model")) == table(tensors)

    def test_br_11_shards_without_index(self, cli, directory, tensors) -> None:
        """All files together, where no name is held twice."""
        (directory / INDEX_NAME).unlink()
        assert tensor_table(cli.ok("show", directory)) == table(tensors)

    def test_br_11_name_twice_without_index(self, cli, directory, tensors) -> None:
        (directory / INDEX_NAME).unlink()
        name = next(iter(tensors))
        write_safetensors(directory / "model-extra.safetensors", {name: tensors[name]})
        cli.fails("show", directory, naming=[name, "model-extra.safetensors"])

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "null", "{}", '{"metadata": {}}', '{"weight_map": []}', "\xff"]
    )
    @pytest.mark.parametrize("single", [True, False])
    def test_br_11_bad_index_is_no_reason_to_guess(
        self, cli, tmp_path, tensors, text, single
    ) -> None:
        directory = tmp_path / "model"
        write_checkpoint(directory, tensors, shards=1 if single else 2)
        (directory / INDEX_NAME).write_text(text, "latin-1")
        cli.fails("show", directory, naming=[INDEX_NAME], codes=(Exit.CORRUPT,))

    def test_br_11_tensor_not_in_its_shard(self, cli, directory) -> None:
        weight_map = json.loads((directory / INDEX_NAME).read_text())["weight_map"]
        name = next(name for name, file in weight_map.items() if file == SHARDS[0])
        edit_index(directory, weight_map=weight_map | {name: SHARDS[1]})
        cli.fails("show", directory, naming=[name, SHARDS[1]])

    def test_br_11_tensor_in_no_shard(self, cli, directory) -> None:
        weight_map = json.loads((directory / INDEX_NAME).read_text())["weight_map"]
        edit_index(directory, weight_map=weight_map | {"model.norm.weight": SHARDS[0]})
        cli.fails("show", directory, naming=["model.norm.weight", SHARDS[0]])

    def test_br_11_index_without_metadata(self, cli, directory, tensors) -> None:
        path = directory / INDEX_NAME
        weight_map = json.loads(path.read_text())["weight_map"]
        path.write_text(json.dumps({"weight_map": weight_map}))
        assert tensor_table(cli.ok("show", directory)) == table(tensors)

    def test_br_11_nothing_there(self, cli, tmp_path) -> None:
        (tmp_path / "empty").mkdir()
        for path in (tmp_path / "empty", tmp_path / "nowhere", tmp_path / "no.safetensors"):
            cli.fails("show", path, naming=[str(path)], codes=(Exit.NOT_FOUND,))


class TestBr20:
    """BR-20: a checkpoint of links, as a hub's cache lays it out."""

    @pytest.fixture
    def cache(self, tmp_path: Path, tensors: Tensors) -> Path:
        """models--x with blobs/, refs/ and snapshots/; the tensors in two shards."""
        cache = tmp_path / "models--x"
        snapshot = cache / "snapshots" / "0123abcd"
        write_checkpoint(snapshot, tensors, shards=2)
        (snapshot / "config.json").write_text('{"model_type": "llama"}')
        (cache / "refs").mkdir()
        (cache / "refs" / "main").write_text("0123abcd")
        (cache / "blobs").mkdir()
        for number, path in enumerate(sorted(snapshot.iterdir())):
            blob = cache / "blobs" / f"{number:040x}"
            path.rename(blob)
            path.symlink_to(Path("..", "..", "blobs", blob.name))
        return cache

    @pytest.fixture
    def snapshot(self, cache: Path) -> Path:
        return cache / "snapshots" / "0123abcd"

    def test_br_20_snapshot_loads_like_plain_files(self, cli, snapshot, directory) -> None:
        plain = tensor_table(cli.ok("show", directory))
        assert tensor_table(cli.ok("show", snapshot)) == plain
        assert cli.ok("verify", snapshot)["kind"] == "checkpoint"

    def test_br_20_one_file(self, cli, snapshot, tensors) -> None:
        shown = tensor_table(cli.ok("show", snapshot / SHARDS[0]))
        assert shown.items() < table(tensors).items()

    def test_br_20_link_to_the_snapshot(self, cli, snapshot, tmp_path, tensors) -> None:
        (tmp_path / "model-link").symlink_to(snapshot)
        assert tensor_table(cli.ok("show", tmp_path / "model-link")) == table(tensors)

    def test_br_20_dangling_link(self, cli, cache, snapshot) -> None:
        os.unlink(cache / "blobs" / os.readlink(snapshot / SHARDS[1]).rsplit("/")[-1])
        codes = (Exit.NOT_FOUND, Exit.CORRUPT)
        cli.fails("show", snapshot, naming=[SHARDS[1]], codes=codes)

    def test_br_20_dangling_link_without_index(self, cli, cache, snapshot) -> None:
        (snapshot / INDEX_NAME).unlink()
        os.unlink(cache / "blobs" / os.readlink(snapshot / SHARDS[1]).rsplit("/")[-1])
        codes = (Exit.NOT_FOUND, Exit.CORRUPT)
        cli.fails("show", snapshot, naming=[SHARDS[1]], codes=codes)

    @pytest.mark.parametrize("encoding", reference.ENCODINGS)
    def test_br_20_seed_leaves_the_blobs_alone(
        self, cli, cache, snapshot, store, replica, tensors, rng, encoding
    ) -> None:
        new = changed(rng, tensors)
        reference.write_delta(store, 1, tensors, new, encoding)
        before = tree(cache)
        cli.ok("pull", "--from", store, "--into", replica, "--seed", snapshot)
        assert read_checkpoint(replica) == new
        assert tree(cache) == before
        for path in replica.rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or path.stat().st_nlink == 1
        assert (replica / "config.json").read_text() == '{"model_type": "llama"}'

    def test_br_20_publish_from_links(self, cli, cache, snapshot, store, replica, tensors) -> None:
        """A full version made of links holds files of its own."""
        before = tree(cache)
        cli.ok("publish", snapshot, "--to", store)
        for path in store.rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or path.stat().st_nlink == 1
        assert tree(cache) == before
        reference.pull(store, replica)
        assert read_checkpoint(replica) == tensors

    def test_br_20_full_version_of_links(
        self, cli, cache, snapshot, store, replica, tensors
    ) -> None:
        """Another publisher has linked its full version to a cache; the replica must not be."""
        store.mkdir()
        version = reference.version_dir(store, 0)
        version.symlink_to(snapshot)
        before = tree(cache)
        cli.ok("pull", "--from", store, "--into", replica)
        assert read_checkpoint(replica) == tensors
        assert not any(path.is_symlink() for path in replica.rglob("*"))
        assert tree(cache) == before


# ---- BR-14: lengths of headers.


LENGTHS = {
    "2-to-63": 2**63,
    "2-to-64-less-8": 2**64 - 8,
    "over-the-limit": HEADER_LIMIT + 1,
    "at-the-limit": HEADER_LIMIT,
    "longer-than-the-file": 90_000_000,
}


@pytest.mark.parametrize("length", LENGTHS)
def test_br_14_no_memory_by_the_length_field(tmp_path: Path, length: str) -> None:
    """Refused where there is less memory than the header claims to need."""
    path = tmp_path / "long.safetensors"
    path.write_bytes(file_of("{}", length=LENGTHS[length]))
    with pytest.raises(SafetensorError):
        table_of_reference(path)

    def little_memory() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (48 << 20, 48 << 20))

    command = [BINARY, "show", path, "--threads", "1"]
    done = subprocess.run(
        command, preexec_fn=little_memory, capture_output=True, text=True, check=False
    )
    assert done.returncode == Exit.CORRUPT, done.stderr
    assert path.name in done.stderr
    assert str(LENGTHS[length]) in done.stderr or "truncated" in done.stderr


@pytest.mark.parametrize("excess", [0, 1])
def test_br_14_header_at_the_limit(cli, tmp_path, excess) -> None:
    """A header of 100,000,000 bytes is the largest."""
    path = tmp_path / "large.safetensors"
    header = b"{}".ljust(HEADER_LIMIT + excess)
    path.write_bytes(file_of(header))
    if excess:
        with pytest.raises(SafetensorError):
            table_of_reference(path)
        cli.fails("show", path, naming=[path.name], codes=REFUSALS)
    else:
        assert table_of_reference(path) == {}
        assert tensor_table(cli.ok("show", path)) == {}


def test_br_14_writer_keeps_the_readers_limit(package: ModuleType, store) -> None:
    """Names that together need a longer header are split over files, or refused."""
    tensors = {letter * (HEADER_LIMIT // 2): np.zeros(1, np.uint8) for letter in "ab"}
    try:
        package.Publisher(store).publish(0, tensors)
    except package.Error:
        assert not reference.version_dir(store, 0).exists()
        return
    files = list(reference.version_dir(store, 0).glob("*.safetensors"))
    assert set().union(*(table_of_reference(file) for file in files)) == tensors.keys()


# ---- BR-15: headers that two readers would understand in two ways.


def test_br_15_duplicate_names(cli, tmp_path) -> None:
    """The message says what is wrong, where the reference speaks of an invalid offset."""
    case = CASES["twice-tensor-other-bytes"]
    path = tmp_path / "twice.safetensors"
    path.write_bytes(case.content)
    message = cli.fails("show", path, naming=[path.name, "w"], codes=REFUSALS)
    assert "duplicate" in message


# What the case lists, and the files of the corpus that are it.
LISTED = {
    "the same name twice": ["twice-tensor-same-bytes", "twice-tensor-other-bytes"],
    "overlapping ranges": ["layout-overlap", "layout-same-bytes", "layout-empty-inside"],
    "gaps": ["layout-gap", "layout-gap-in-front", "layout-empty-beyond"],
    "ranges beyond the end": ["layout-beyond-the-file", "layout-far-beyond-the-file"],
    "begin > end": ["layout-begin-beyond-end"],
    "bytes that do not fit": [
        "layout-shape-too-large",
        "layout-shape-too-small",
        "layout-scalar-too-small",
        "layout-empty-with-bytes",
        "layout-dtype-too-wide",
    ],
    "products that overflow": [
        "overflow-product",
        "overflow-product-wraps-to-two",
        "overflow-bits",
        "overflow-bits-wrap-to-two-bytes",
    ],
    "negative numbers": ["shape-negative", "offsets-negative", "shape-minus-zero"],
    "fractional numbers": ["shape-fraction", "offsets-fraction", "shape-exponent"],
    "first byte not {": ["json-begins-with-32", "json-byte-order-mark", "json-array"],
    "invalid UTF-8": ["json-utf8-in-name", "json-utf8-in-ignored-field", "json-utf8-overlong"],
}
BAD = [name for names in LISTED.values() for name in names]


@pytest.mark.parametrize("name", BAD)
def test_br_15_refused_everywhere(cli: Cli, store: Path, replica: Path, tmp_path, name) -> None:
    """Also where the reference library lets it pass: a checkpoint, a version, a seed."""
    case: Case = CASES[name]
    assert not case.must_load
    if not case.stricter:
        with pytest.raises(SafetensorError):
            deserialize(case.content)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / SINGLE_NAME).write_bytes(case.content)
    naming = [SINGLE_NAME, *case.mentions]
    cli.fails("verify", checkpoint, naming=naming, codes=REFUSALS)
    cli.fails("publish", checkpoint, "--to", store, naming=naming, codes=REFUSALS)
    assert not list(store.glob("weight_v*"))
    version = reference.version_dir(store, 0)
    version.mkdir(parents=True)
    (version / SINGLE_NAME).write_bytes(case.content)
    cli.fails("pull", "--from", store, "--into", replica, naming=naming, codes=REFUSALS)
    assert reference.read_marker(replica) is None


@pytest.mark.parametrize("name", ["json-trailing-spaces", "json-trailing-newline", "size-whole"])
def test_br_15_trailing_spaces_are_legal(cli: Cli, store, replica, tmp_path, name) -> None:
    content = CASES[name].content
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / SINGLE_NAME).write_bytes(content)
    cli.ok("publish", tmp_path / "model", "--to", store)
    cli.ok("pull", "--from", store, "--into", replica)
    expected = {name: bytes(tensor["data"]) for name, tensor in deserialize(content)}
    assert {n: t.data.tobytes() for n, t in read_checkpoint(replica).items()} == expected


def test_br_15_shard_is_named(cli, directory) -> None:
    (directory / SHARDS[0]).write_bytes(file_of({"w": entry(begin=1, end=3)}, b"abc"))
    cli.fails("show", directory, naming=[SHARDS[0]], codes=(Exit.CORRUPT,))


def test_br_15_delta(xor_scene) -> None:
    """BR-15 in a delta's shard."""
    content = xor_scene.shard.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = content[8 : 8 + length].decode().rstrip()
    name, entry = next(
        (name, entry) for name, entry in json.loads(header).items() if name != "__metadata__"
    )
    twice = f"{header[:-1]},{json.dumps(name)}:{json.dumps(entry)}}}".encode()
    xor_scene.shard.write_bytes(struct.pack("<Q", len(twice)) + twice + content[8 + length :])
    xor_scene.refuses(naming=[SHARD, name], codes=CORRUPT)


# ---- BR-17: data at any address.


def unaligned_file(path: Path, tensors: dict[str, Tensor], remainder: int) -> None:
    """One file whose header's length is `remainder` mod 8; the tensors lie in the order given."""
    header, offset = {}, 0
    for name, tensor in tensors.items():
        header[name] = entry(tensor.dtype, tensor.shape, offset, offset + tensor.nbytes)
        offset += tensor.nbytes
    content = file_of(header)[8:]
    content += b" " * ((remainder - len(content)) % 8)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(file_of(content, b"".join(t.data.tobytes() for t in tensors.values())))
    table_of_reference(path)


@pytest.fixture
def odd_tensors(rng: np.random.Generator) -> dict[str, Tensor]:
    """Three bytes in front of everything that wants to be aligned."""
    return {
        "odd": random_tensor(rng, "U8", (3,)),
        "bf16": random_tensor(rng, "BF16", (257,)),
        "f32": random_tensor(rng, "F32", (129,)),
        "f64": random_tensor(rng, "F64", (65,)),
        "c64": random_tensor(rng, "C64", (33,)),
    }


@pytest.mark.parametrize("encoding", reference.ENCODINGS)
@pytest.mark.parametrize("remainder", range(8))
def test_br_17_deltas_on_unaligned_files(
    cli, store, replica, rng, tmp_path, odd_tensors, remainder, encoding
) -> None:
    """Diff and patch of an unaligned file, against the reference's reading of both."""
    first = tmp_path / "first"
    unaligned_file(first / "model.safetensors", odd_tensors, remainder)
    assert read_checkpoint(first) == odd_tensors
    new = changed(rng, odd_tensors)
    unaligned_file(tmp_path / "second" / "model.safetensors", new, (remainder + 3) % 8)
    options = ["--base", first, "--encoding", encoding]
    cli.ok("publish", tmp_path / "second", "--to", store, *options)
    cli.ok("pull", "--from", store, "--into", replica, "--seed", first)
    assert read_checkpoint(replica) == new
    assert read_checkpoint(first) == odd_tensors


@pytest.mark.parametrize("remainder", range(8))
def test_br_17_unaligned_values(package: ModuleType, tmp_path, odd_tensors, remainder) -> None:
    path = tmp_path / "file" / "model.safetensors"
    unaligned_file(path, odd_tensors, remainder)
    checkpoint = package.open_checkpoint(path)
    for name, dtype in {"f32": np.float32, "f64": np.float64, "c64": np.complex64}.items():
        expected = odd_tensors[name].data.view(dtype)
        assert checkpoint[name].numpy().dtype == dtype
        np.testing.assert_array_equal(checkpoint[name].numpy(), expected)


def test_br_17_our_files_are_padded(cli, package: ModuleType, store, tmp_path, odd_tensors) -> None:
    """Files that we write begin their data at a multiple of 8, and widest tensors come first."""
    publisher = package.Publisher(store)
    for version in range(2):
        values = {
            name: odd_tensors[name].data.view(dtype) + dtype(version)
            for name, dtype in {"odd": np.uint8, "f32": np.float32, "f64": np.float64}.items()
        }
        publisher.publish(version, values)
    files = list(store.glob("*/*.safetensors"))
    assert len({path.parent for path in files}) == 2
    for path in files:
        (length,) = struct.unpack("<Q", path.read_bytes()[:8])
        assert length % 8 == 0
    spans = read_header(next(iter(reference.version_dir(store, 0).glob("*.safetensors"))))[1]
    assert spans["f64"].offset < spans["f32"].offset < spans["odd"].offset


# ---- BR-18: scalars, empty tensors, files without any.


def test_br_18_shards_without_tensors(cli, rng, tmp_path) -> None:
    """One of two shards holds nothing, with an index and without."""
    tensors = {
        "scalar": random_tensor(rng, "F32", ()),
        "none": random_tensor(rng, "BF16", (0,)),
        "no-columns": random_tensor(rng, "BF16", (2, 0)),
    }
    expected = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors.items()}
    for indexed in (True, False):
        directory = tmp_path / str(indexed)
        write_checkpoint(directory, tensors, indexed=indexed)
        (directory / "model-00002-of-00002.safetensors").write_bytes(file_of("{}"))
        assert tensor_table(cli.ok("show", directory)) == expected


SMALL = {"scalar": (), "none": (0,), "no-columns": (2, 0), "no-rows": (0, 3), "one": (1,)}


@pytest.mark.parametrize("encoding", reference.ENCODINGS)
@pytest.mark.parametrize("dtype", ["F32", "BF16", "U8"])
def test_br_18_small_shapes(cli: Cli, store, replica, rng, tmp_path, dtype, encoding) -> None:
    """Loaded, hashed, compared, published and applied; a delta of the scalar alone arrives."""
    old = {name: random_tensor(rng, dtype, shape) for name, shape in SMALL.items()}
    new = changed(rng, old, keep=lambda name: name != "scalar")
    for name, tensors in (("old", old), ("new", new)):
        write_checkpoint(tmp_path / name, tensors, shards=2)
        shown = tensor_table(cli.ok("show", tmp_path / name))
        assert shown == {n: (dtype, shape) for n, shape in SMALL.items()}
        assert cli.ok("verify", tmp_path / name)["tensors"] == len(SMALL)
    compared = cli.ok("diff", tmp_path / "old", tmp_path / "new")
    assert {t["name"]: (t["elements"], t["elements_changed"]) for t in compared["tensors"]} == {
        "scalar": (1, 1),
        "none": (0, 0),
        "no-columns": (0, 0),
        "no-rows": (0, 0),
        "one": (1, 0),
    }
    cli.ok("publish", tmp_path / "old", "--to", store)
    options = ("--encoding", encoding, "--full-copy-ratio", 0)
    report = cli.ok("publish", tmp_path / "new", "--to", store, *options)
    assert (report["kind"], report["tensors_changed"], report["elements_changed"]) == (
        "delta",
        1,
        1,
    )
    pulled = cli.ok("pull", "--from", store, "--into", replica)
    assert pulled["tensors_changed"] == 1
    assert read_checkpoint(replica) == new
    reference.pull(store, replica.with_name("other"))
    assert read_checkpoint(replica.with_name("other")) == new


def test_br_18_checkpoint_without_any_tensor(cli: Cli, store, replica, tmp_path) -> None:
    write_checkpoint(tmp_path / "empty", {})
    for _ in range(2):
        cli.ok("publish", tmp_path / "empty", "--to", store)
    cli.ok("pull", "--from", store, "--into", replica)
    reference.pull(store, replica.with_name("other"))
    assert read_checkpoint(replica) == read_checkpoint(replica.with_name("other")) == {}
    assert cli.ok("verify", store)["versions"] == [0, 1]


def test_br_18_no_change_but_a_scalar(cli: Cli, store, replica, rng, tmp_path) -> None:
    """Among tensors of every shape."""
    old = random_tensors(rng, FEW_DTYPES)
    scalar = next(name for name, tensor in old.items() if tensor.shape == ())
    new = changed(rng, old, keep=lambda name: name != scalar)
    for name, tensors in (("old", old), ("new", new)):
        write_checkpoint(tmp_path / name, tensors)
        report = cli.ok("publish", tmp_path / name, "--to", store)
    assert report["tensors_changed"] == 1
    reference.pull(store, replica)
    assert read_checkpoint(replica) == new


# ---- BR-19: every dtype.


@pytest.mark.parametrize("encoding", reference.ENCODINGS)
def test_br_19_every_dtype(cli: Cli, store, replica, rng, tmp_path, encoding) -> None:
    """Ours to the reference's receiver and the reference's to ours, byte for byte."""
    steps = training_steps(rng, 1, dtypes=tuple(DTYPE_BITS))
    for number, tensors in enumerate(steps):
        write_checkpoint(tmp_path / str(number), tensors, shards=3)
        cli.ok("publish", tmp_path / str(number), "--to", store, "--encoding", encoding)
    compared = cli.ok("diff", tmp_path / "0", tmp_path / "1")
    assert {tensor["dtype"] for tensor in compared["tensors"]} == set(DTYPE_BITS)
    reference.pull(store, replica)
    assert read_checkpoint(replica) == steps[1]

    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    reference.write_full(theirs, 0, steps[0], shards=4)
    reference.write_delta(theirs, 1, *steps, encoding, shards=2)
    cli.ok("pull", "--from", theirs, "--into", ours)
    assert read_checkpoint(ours) == steps[1]
    assert (cli.ok("verify", ours)["kind"], reference.read_marker(ours)) == ("replica", 1)


def test_br_19_table_is_that_of_the_reference_library(tmp_path: Path) -> None:
    """Each dtype that our tests know loads there, so the list has no invented ones."""
    for dtype in DTYPE_BITS:
        path = tmp_path / f"{dtype}.safetensors"
        path.write_bytes(CASES[f"dtype-{dtype}"].content)
        with safe_open(path, framework="np") as file:
            assert file.get_slice("w").get_dtype() == dtype


@pytest.mark.parametrize(
    "name", ["dtype-F4-3-in-1", "dtype-F4-3-in-2", "dtype-F4-3x3-in-4", "dtype-F4-3x3-in-5"]
)
def test_br_19_odd_number_of_four_bit_elements(cli: Cli, tmp_path: Path, name) -> None:
    path = tmp_path / "odd.safetensors"
    path.write_bytes(CASES[name].content)
    cli.fails("verify", path, naming=[path.name, "w"], codes=REFUSALS)


@pytest.mark.parametrize("dtype", ["F128", "F8_E4M3FN", "U9"])
def test_br_19_unknown_dtype_is_named(cli: Cli, store, replica, tmp_path, dtype) -> None:
    version = reference.version_dir(store, 0)
    version.mkdir(parents=True)
    (version / SINGLE_NAME).write_bytes(CASES[f"dtype-unknown-{dtype}"].content)
    codes = (Exit.INCOMPATIBLE,)
    for command in (("show", version), ("pull", "--from", store, "--into", replica)):
        cli.fails(*command, naming=[SINGLE_NAME, dtype, "w"], codes=codes)
