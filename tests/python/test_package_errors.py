"""Errors: the classes follow the error table, and each failure gives the one that belongs to it."""

from __future__ import annotations

import ast
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import syncline
from directory_format import version_dir
from harness import Cli, tree
from safetensors_files import INDEX_NAME
from syncline import _core, errors

NATURAL = {
    "InvalidArgumentError": ValueError,
    "NotFoundError": FileNotFoundError,
    "AlreadyExistsError": FileExistsError,
    "IoError": OSError,
    "NoSpaceError": OSError,
    "PermissionDeniedError": PermissionError,
    "TimedOutError": TimeoutError,
    "UnavailableError": ConnectionError,
}


def test_classes_follow_the_table() -> None:
    table = _core.error_table()
    assert len(table) == 16
    for _, name, exit_code, class_name in table:
        kind = getattr(syncline, class_name)
        assert class_name in syncline.__all__
        assert issubclass(kind, (syncline.Error, NATURAL.get(class_name, syncline.Error)))
        assert (kind.code, kind.exit_code) == (name, exit_code)
        error = errors.from_code(name, "what is wrong")
        assert (type(error), str(error)) == (kind, "what is wrong")
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (kind, "what is wrong")
    classes = {kind.__name__ for kind in syncline.Error.__subclasses__()}
    assert classes == {class_name for *_, class_name in table}
    for class_name, natural in NATURAL.items():
        assert issubclass(getattr(syncline, class_name), natural)


def test_stub_follows_the_module() -> None:
    """_core.pyi has the same names and parameters as the module."""

    def parameters(function: ast.FunctionDef) -> list[str]:
        arguments = function.args
        return [argument.arg for argument in arguments.posonlyargs + arguments.args]

    def check(stub: ast.FunctionDef, native: Any) -> None:
        signature = native.__nb_signature__[0][0]
        (parsed,) = ast.parse(f"{signature}: ...").body
        assert isinstance(parsed, ast.FunctionDef)
        assert parameters(stub) == parameters(parsed), stub.name

    stub = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text())
    names = set()
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
            check(node, getattr(_core, node.name))
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
            native = getattr(_core, node.name)
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            for method in methods:
                if method.decorator_list:
                    assert isinstance(vars(native)[method.name], property)
                elif method.name != "__buffer__":
                    check(method, vars(native)[method.name])
            public = {name for name in vars(native) if not name.startswith("_")}
            assert public <= {method.name for method in methods}
    assert names == {name for name in dir(_core) if not name.startswith("__")}


@pytest.fixture
def chain(store: Path) -> Path:
    """A store of the versions 0 (full), 1 and 2."""
    with syncline.Publisher(store) as publisher:
        for value in range(3):
            publisher.publish(None, {"a": np.full(1000, value), "b": np.arange(value, value + 9)})
    return store


def break_index(version: Path) -> None:
    (version / INDEX_NAME).write_text("{")


def break_frame(version: Path) -> None:
    file = next(version.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-3] ^= 0xFF
    file.write_bytes(content)


def remove(version: Path) -> None:
    for file in version.iterdir():
        file.unlink()
    version.rmdir()


def unknown_encoding(version: Path) -> None:
    text = (version / INDEX_NAME).read_text()
    (version / INDEX_NAME).write_text(text.replace('"xor"', '"unheard-of"'))


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (break_index, syncline.CorruptError),
        (break_frame, (syncline.CorruptError, syncline.ChecksumMismatchError)),
        (remove, syncline.NotFoundError),
        (unknown_encoding, syncline.IncompatibleError),
    ],
)
def test_damaged_version(
    chain: Path, replica: Path, cli: Cli, damage: Callable[[Path], None], expected: Any
) -> None:
    """The package raises what the command says, and the replica stays at a whole version."""
    syncline.pull(chain, replica, version=0)
    damage(version_dir(chain, 1))
    with pytest.raises(expected) as caught:
        syncline.pull(chain, replica)
    result = cli("pull", "--from", chain, "--into", replica)
    assert result.rc == caught.value.exit_code
    assert str(caught.value) in result.stderr
    assert syncline.verify(replica).versions == [0]
    # A publisher cannot go on from there either, and says so.
    before = tree(chain)
    with pytest.raises(expected, match="cannot go on from version 2"):
        syncline.Publisher(chain)
    assert tree(chain) == before


def test_each_failure_has_its_class(chain: Path, replica: Path, tmp_path: Path) -> None:
    with pytest.raises(syncline.NotFoundError, match="nowhere"):
        syncline.pull(tmp_path / "nowhere", replica)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        syncline.log(tmp_path / "nowhere")
    with pytest.raises(syncline.NotFoundError, match="nowhere"):
        syncline.verify(tmp_path / "nowhere")
    with pytest.raises(syncline.NotFoundError, match="nowhere"):
        syncline.open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(syncline.NotFoundError, match="version 9"):
        syncline.pull(chain, replica, version=9)
    with pytest.raises(syncline.NotFoundError, match="version 9"):
        syncline.verify(chain, version=9)
    assert not replica.exists()
    with pytest.raises(syncline.AlreadyExistsError, match="no replica"):
        syncline.pull(chain, version_dir(chain, 0))
    syncline.pull(chain, replica)
    shutil.rmtree(replica / ".weight_sync" / "journal")  # without it nothing can be taken back
    with pytest.raises(syncline.OutOfOrderError, match="at version 2"):
        syncline.pull(chain, replica, version=1)
    with pytest.raises(syncline.OutOfOrderError, match="expected 1"):
        syncline.verify(replica, version=1)
    break_frame(replica)
    with pytest.raises(syncline.ChecksumMismatchError, match="version 2: b"):
        syncline.verify(replica)
    (tmp_path / "file").write_text("no directory")
    with pytest.raises((syncline.NotFoundError, syncline.AlreadyExistsError)):
        syncline.Publisher(tmp_path / "file")
    with pytest.raises(syncline.InvalidArgumentError, match="not a directory"):
        syncline.Publisher(tmp_path / "new", files=tmp_path / "file")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda path: syncline.Publisher(path, encoding="rot13"),
            "rot13.*expected xor, overwrite, compact",
        ),
        (lambda path: syncline.Publisher(path, threads=0), "threads=0"),
        (lambda path: syncline.Publisher(""), "store: ''"),
        (lambda path: syncline.Publisher(path, base=""), "base: ''"),
        (lambda path: syncline.Publisher(path, files="a\0b"), "files: "),
        (lambda path: syncline.pull(path, ""), "into: ''"),
        (lambda path: syncline.pull(path, path, seed=""), "seed: ''"),
        (lambda path: syncline.pull(path, path, version=-1), "version -1"),
        (lambda path: syncline.pull(path, path, version=2**64), "version 18446744073709551616"),
        (lambda path: syncline.pull(path, path, threads=100_000), "threads=100000"),
        (lambda path: syncline.pull(path, path, verify="fast"), "fast.*hash, chained or full"),
        (lambda path: syncline.verify("a\0b"), "path: "),
        (lambda path: syncline.log(""), "store: ''"),
        (lambda path: syncline.open_checkpoint(""), "path: ''"),
    ],
)
def test_arguments_that_make_no_sense(
    tmp_path: Path, call: Callable[[Path], object], message: str
) -> None:
    with pytest.raises(syncline.InvalidArgumentError, match=message):
        call(tmp_path / "path")
    with pytest.raises(ValueError, match=message):
        call(tmp_path / "path")
    assert not list(tmp_path.iterdir())


def test_arguments_of_another_type(tmp_path: Path) -> None:
    for call in (
        lambda: syncline.pull(3, tmp_path),
        lambda: syncline.pull(tmp_path, tmp_path, version="1"),
        lambda: syncline.pull(tmp_path, tmp_path, verify=True),
        lambda: syncline.Publisher(tmp_path, threads="2"),
        lambda: syncline.Publisher(tmp_path, encoding=1),
    ):
        with pytest.raises(TypeError):
            call()


def test_digests_are_needed_to_verify_by_them(chain: Path, replica: Path) -> None:
    syncline.pull(chain, replica, version=1, verify="hash")
    for verify in ("chained", "full"):
        with pytest.raises(syncline.IncompatibleError, match=f"version 2: .* no digest.*{verify}"):
            syncline.pull(chain, replica, verify=verify)
        assert syncline.verify(replica).versions == [1]


def test_a_damaged_version_is_listed(chain: Path) -> None:
    break_index(version_dir(chain, 1))
    rows = syncline.log(chain)
    assert [row.kind for row in rows] == ["full", "broken", "delta"]
    assert rows[1].fault is not None
    assert INDEX_NAME in rows[1].fault
    assert (rows[0].fault, rows[2].fault) == (None, None)


def test_reports_are_frozen(chain: Path, replica: Path) -> None:
    for report in (syncline.pull(chain, replica), syncline.verify(replica), *syncline.log(chain)):
        with pytest.raises(AttributeError):
            report.version = 5
