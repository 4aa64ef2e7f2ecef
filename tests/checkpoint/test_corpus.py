"""Our reader's verdict on every file of the corpus equals the reference library's."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
from corpus import Case, cases
from harness import Exit, tensor_table
from safetensors import SafetensorError, deserialize, safe_open

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
