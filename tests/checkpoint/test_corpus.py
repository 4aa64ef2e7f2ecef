"""Our reader's verdict on every file of the corpus equals the reference library's."""

from __future__ import annotations

import struct
from pathlib import Path
from types import ModuleType

import directory_format as reference
import numpy as np
import pytest
from corpus import HEADER_LIMIT, Case, cases, entry, file_of
from directory_format import Tensor, read_checkpoint, write_checkpoint
from harness import Exit, changed, random_tensor, tensor_table
from safetensors import SafetensorError, deserialize, safe_open
from safetensors_files import read_header

CASES = cases()
REFUSALS = (Exit.CORRUPT, Exit.INCOMPATIBLE, Exit.LIMIT_EXCEEDED)

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def table_of_reference(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """name → (dtype, shape) as the reference library reads a file."""
    with safe_open(path, framework="np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices.items()}


@pytest.fixture
def path(case: Case, tmp_path: Path) -> Path:
    """The case as a file."""
    path = tmp_path / f"{case.name}.safetensors"
    path.write_bytes(case.content)
    return path


def test_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)


@each_case
def test_reference_finds_what_we_expect(case: Case, path: Path) -> None:
    """Guards the corpus: each bad file is bad, and none is listed as laxer than the judge is."""
    if case.good:
        deserialize(case.content)
        table_of_reference(path)
        return
    with pytest.raises(SafetensorError):
        deserialize(case.content)
    with pytest.raises(SafetensorError):
        table_of_reference(path)


@each_case
def test_our_verdict(cli, case: Case, path: Path) -> None:
    if case.must_load:
        assert tensor_table(cli.ok("show", path)) == table_of_reference(path)
    else:
        cli.fails("show", path, naming=[path.name, *case.mentions], codes=REFUSALS)


@each_case
def test_our_bytes(package: ModuleType, case: Case, path: Path) -> None:
    """The Python package gives the same verdict, and the same bytes."""
    if not case.must_load:
        with pytest.raises(package.Error) as caught:
            package.open_checkpoint(path)
        assert path.name in str(caught.value)
        assert caught.value.exit_code in REFUSALS
        return
    checkpoint = package.open_checkpoint(path)
    expected = dict(deserialize(case.content))
    assert set(checkpoint.names()) == expected.keys()
    for name, tensor in expected.items():
        view = checkpoint[name]
        assert (view.dtype, list(view.shape)) == (tensor["dtype"], tensor["shape"])
        assert view.nbytes == len(tensor["data"])
        assert view.tobytes() == bytes(memoryview(view)) == bytes(tensor["data"])


def test_br_15_duplicate_names(cli, tmp_path) -> None:
    """The message says what is wrong, where the reference speaks of an invalid offset."""
    case = next(case for case in CASES if case.name == "twice-tensor-other-bytes")
    path = tmp_path / "twice.safetensors"
    path.write_bytes(case.content)
    message = cli.fails("show", path, naming=[path.name, "w"], codes=REFUSALS)
    assert "duplicate" in message


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
