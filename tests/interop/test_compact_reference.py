"""What our publisher writes in the encoding `compact`, the reader made of its description reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import compact
import numpy as np
import pytest
from compact import CompactFile, FormatError
from directory_format import version_dir
from safetensors_files import Tensor
from test_publisher import NATIVE_DTYPES, to_numpy

ENCODINGS = ("compact", "compact-gap")
SHAPES = [(), (0,), (1,), (13,), (3, 5, 7), (4095,), (4096,), (4099,), (2, 4500)]
FLOATS = ("BF16", "F16", "F32", "F8_E4M3", "F8_E5M2", "C64", "F64")


def weights(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers like those of a model, or any bytes of what is no float."""
    kind = NATIVE_DTYPES[dtype][0]
    if dtype in FLOATS:
        values = (0.03 * rng.standard_normal(shape)).astype(kind)
        return Tensor(dtype, shape, np.frombuffer(values.tobytes(), np.uint8))
    size = np.dtype(kind).itemsize * int(np.prod(shape))
    high = 2 if dtype == "BOOL" else 256
    return Tensor(dtype, shape, rng.integers(0, high, size, dtype=np.uint8))


def stepped(rng: np.random.Generator, tensor: Tensor, density: float) -> Tensor:
    """Some units one or a few places further."""
    width = compact.width_of(tensor.dtype)
    units = tensor.data.view(f"<u{width}").copy()
    if tensor.dtype == "BOOL":
        units ^= (rng.random(units.size) < density).astype(np.uint8)
    else:
        amount = rng.geometric(0.6, units.size) * rng.choice([-1, 1], units.size)
        amount[rng.random(units.size) >= density] = 0
        units += amount.astype(units.dtype)
    return Tensor(tensor.dtype, tensor.shape, units.view(np.uint8))


def replaced(rng: np.random.Generator, tensor: Tensor) -> Tensor:
    """Any bytes: infinities, numbers that are none, zeros of both signs."""
    high = 2 if tensor.dtype == "BOOL" else 256
    data = rng.integers(0, high, tensor.data.size, dtype=np.uint8)
    return Tensor(tensor.dtype, tensor.shape, data)


def steps_of(rng: np.random.Generator, dtypes: tuple[str, ...]) -> list[dict[str, Tensor]]:
    """Version 0; few changes, none, new values for some tensors, many changes, all new."""
    steps = [
        {f"{dtype}.{i}": weights(rng, dtype, s) for dtype in dtypes for i, s in enumerate(SHAPES)}
    ]
    steps.append({name: stepped(rng, tensor, 0.01) for name, tensor in steps[-1].items()})
    steps.append(dict(steps[-1]))
    steps.append(
        {
            name: replaced(rng, tensor) if name.endswith(("3", "8")) else stepped(rng, tensor, 0.05)
            for name, tensor in steps[-1].items()
        }
    )
    steps.append({name: stepped(rng, tensor, 0.6) for name, tensor in steps[-1].items()})
    steps.append({name: replaced(rng, tensor) for name, tensor in steps[-1].items()})
    steps.append({name: stepped(rng, tensor, 0.001) for name, tensor in steps[-1].items()})
    return steps


def publish(
    package: ModuleType, store: Path, encoding: str, steps: list[dict[str, Tensor]]
) -> None:
    with package.Publisher(store, encoding=encoding, full_copy_ratio=0) as publisher:
        for number, tensors in enumerate(steps):
            publisher.publish(number, {name: to_numpy(t) for name, t in tensors.items()})


def files_of(store: Path, version: int) -> Iterator[CompactFile]:
    directory = version_dir(store, version)
    for file in (compact.read_index(directory) or {}).values():
        yield compact.read_file((directory / file).read_bytes())


def check_manifest(store: Path, version: int) -> None:
    """The tables say what the manifest sums up."""
    manifest = json.loads((version_dir(store, version) / "syncline.manifest.json").read_bytes())
    changed = sum(t.changed for f in files_of(store, version) for c in f.cells for t in c.tensors)
    assert manifest["elements_changed"] == changed
    assert manifest["tensors"] is None


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "dtypes",
    [("BF16", "F8_E4M3"), ("F16", "F8_E5M2", "BOOL"), ("F32", "I8"), ("F64", "C64", "I64")],
)
def test_chain(package: ModuleType, store, rng, encoding, dtypes) -> None:
    steps = steps_of(rng, dtypes)
    publish(package, store, encoding, steps)
    versions = 0
    for version, tensors in compact.replay(store):
        assert tensors == steps[version]
        if version > 0:
            check_manifest(store, version)
        versions += 1
    assert versions == len(steps)


def test_every_form_is_written(package: ModuleType, store, tmp_path, rng) -> None:
    """What the chains are made of: else they would prove less than they seem to."""
    steps = steps_of(rng, ("BF16", "I8"))
    forms: dict[str, set[int]] = {}
    for encoding in ENCODINGS:
        publish(package, tmp_path / encoding, encoding, steps)
        cells = [
            (file, cell)
            for version in range(1, len(steps))
            for file in files_of(tmp_path / encoding, version)
            for cell in file.cells
        ]
        frames = [(file, frame) for file, cell in cells for frame in cell.frames if frame.data]
        forms[encoding] = {file.models[frame.model].classes for file, frame in frames}
        assert any(len(cell.tensors) > 1 for _, cell in cells)
        assert any(frame.data[0] > 0 for _, frame in frames), "no dense part"
        assert any(frame.data[0] == 0 for _, frame in frames), "no frame of changes alone"
    assert forms == {"compact": {1, compact.CLASSES}, "compact-gap": {1}}


def test_a_tensor_of_several_frames(package: ModuleType, store, rng) -> None:
    """Changes in the first and in the last of three frames."""
    frame = 1 << 21
    old = {"a": weights(rng, "BF16", (2 * frame + 77,)), "b": weights(rng, "BF16", (9,))}
    data = old["a"].data.copy()
    data[: 2 * frame : 2 * 4001] ^= 1
    data[4 * frame :: 20] ^= 1
    new = old | {"a": Tensor("BF16", old["a"].shape, data)}
    publish(package, store, "compact", [old, new])
    (file,) = files_of(store, 1)
    (cell,) = file.cells
    assert [bool(part.data) for part in cell.frames] == [True, False, True]
    assert file.frame_units == frame
    assert compact.apply_file(file, old, digests=False) == {"a": new["a"]}


def test_a_wrong_byte_is_noticed(package: ModuleType, store, rng) -> None:
    steps = [{"a": weights(rng, "BF16", (300,)), "b": weights(rng, "BF16", (5,))}]
    steps.append({name: stepped(rng, tensor, 0.2) for name, tensor in steps[0].items()})
    publish(package, store, "compact", steps)
    (path,) = version_dir(store, 1).glob("*.syncline")
    data = path.read_bytes()
    assert compact.apply_file(compact.read_file(data), steps[0]) == steps[1]
    for at in range(0, len(data), 7):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        with pytest.raises(FormatError):
            compact.apply_file(compact.read_file(damaged), steps[0])
        with pytest.raises(FormatError):
            compact.apply_file(compact.read_file(data[:at]), steps[0])
    with pytest.raises(FormatError):  # over other old values
        compact.apply_file(compact.read_file(data), steps[1])
