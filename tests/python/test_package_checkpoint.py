"""`open_checkpoint`: tensors where they lie on disk."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import syncline
from harness import random_tensors
from safetensors_files import tensor_spans, write_checkpoint
from test_package_inputs import NUMPY_TYPES


def mapped(path: Path) -> bool:
    """Does this process have the file mapped?"""
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("shards", [1, 3])
def test_all_types(tmp_path: Path, rng: np.random.Generator, shards: int) -> None:
    tensors = random_tensors(rng)
    write_checkpoint(tmp_path / "checkpoint", tensors, shards=shards)
    opened = syncline.open_checkpoint(tmp_path / "checkpoint")
    assert isinstance(opened, Mapping)
    assert isinstance(opened, syncline.Checkpoint)
    assert opened.names() == list(opened) == sorted(tensors)
    assert len(opened) == len(tensors)
    assert opened.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    for name, view in opened.items():
        tensor = tensors[name]
        assert isinstance(view, syncline.TensorView)
        assert (view.name, view.dtype, view.shape) == (name, tensor.dtype, tensor.shape)
        assert view.nbytes == tensor.nbytes
        assert view.tobytes() == bytes(view) == tensor.data.tobytes()
        array = view.numpy()
        assert array.tobytes() == tensor.data.tobytes()
        assert not array.flags.writeable
        if tensor.dtype in NUMPY_TYPES:
            assert (array.dtype, array.shape) == (NUMPY_TYPES[tensor.dtype], tensor.shape)
        else:
            assert (array.dtype, array.shape) == (np.uint8, (tensor.nbytes,))


def test_single_file(tmp_path: Path, rng: np.random.Generator) -> None:
    tensors = random_tensors(rng, ["BF16"])
    write_checkpoint(tmp_path, tensors)
    (file,) = tmp_path.glob("*.safetensors")
    assert syncline.open_checkpoint(str(file)).names() == sorted(tensors)


def test_mapping(tmp_path: Path, rng: np.random.Generator) -> None:
    write_checkpoint(tmp_path, random_tensors(rng, ["BF16"]))
    opened = syncline.open_checkpoint(tmp_path)
    name = opened.names()[0]
    assert name in opened
    assert "nothing" not in opened
    assert opened.get("nothing") is None
    with pytest.raises(KeyError, match="nothing"):
        opened["nothing"]
    assert repr(opened) == f"Checkpoint('{tmp_path}', {len(opened)} tensors)"
    assert repr(opened[name]) == f"TensorView('{name}', BF16, [])"
    opened.names().clear()
    assert len(opened.names()) == len(opened)


def test_the_mapping_is_shared_and_read_only(tmp_path: Path) -> None:
    """A byte that is changed in the file shows in the array, and the array cannot be written."""
    data = np.arange(5000, dtype=np.float32)
    with syncline.Publisher(tmp_path / "store") as publisher:
        publisher.publish(None, {"w": data})
    syncline.pull(tmp_path / "store", tmp_path / "replica")
    span = tensor_spans(tmp_path / "replica")["w"]
    (file,) = (tmp_path / "replica").glob("*.safetensors")
    view = syncline.open_checkpoint(tmp_path / "replica")["w"]
    array, memory = view.numpy(), memoryview(view)
    assert np.shares_memory(array, np.frombuffer(memory, np.uint8))
    assert array[1000] == 1000
    with file.open("r+b") as writer:
        writer.seek(span.offset + 4000)
        writer.write(np.float32(-1).tobytes())
    assert array[1000] == -1
    assert memory[4000:4004] == np.float32(-1).tobytes()

    assert (memory.readonly, memory.format, memory.shape) == (True, "B", (20000,))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.setflags(write=True)
    with pytest.raises(TypeError):
        memory[0] = 1
    with pytest.raises(AttributeError):
        view.dtype = "F32"


@pytest.mark.parametrize("last", ["view", "array", "memory", "slice"])
def test_the_mapping_lives_as_long_as_what_is_made_of_it(tmp_path: Path, last: str) -> None:
    with syncline.Publisher(tmp_path / "store") as publisher:
        publisher.publish(None, {"w": np.arange(5000), "v": np.zeros(3)})
    directory = tmp_path / "store" / "weight_v000000"
    opened = syncline.open_checkpoint(directory)
    view = opened["w"]
    kept: dict[str, object] = {
        "view": view,
        "array": view.numpy(),
        "memory": memoryview(view),
        "slice": view.numpy()[100:200],
    }
    only = kept.pop(last)
    del opened, view, kept
    gc.collect()
    assert mapped(directory)
    for file in directory.iterdir():
        file.unlink()
    numbers = only.numpy() if isinstance(only, syncline.TensorView) else np.asarray(only)
    assert numbers.any()
    del only, numbers
    gc.collect()
    assert not mapped(directory)


def test_without_ml_dtypes(tmp_path: Path, rng: np.random.Generator) -> None:
    """Types that numpy has not come as flat bytes."""
    write_checkpoint(tmp_path, random_tensors(rng, ["BF16", "F8_E4M3", "F32"]))
    code = """
        import sys
        sys.modules["ml_dtypes"] = None
        import numpy as np, syncline
        for name, view in syncline.open_checkpoint(sys.argv[1]).items():
            array = view.numpy()
            if view.dtype == "F32":
                assert (array.dtype, array.shape) == (np.float32, view.shape)
            else:
                assert (array.dtype, array.shape) == (np.uint8, (view.nbytes,))
            assert array.tobytes() == view.tobytes()
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_values(tmp_path: Path) -> None:
    weights = np.array([[1.5, -2.0], [0.25, 3.0]], ml_dtypes.bfloat16)
    with syncline.Publisher(tmp_path / "store") as publisher:
        publisher.publish(None, {"w": weights})
    array = syncline.open_checkpoint(tmp_path / "store" / "weight_v000000")["w"].numpy()
    assert array.astype(np.float32).tolist() == [[1.5, -2.0], [0.25, 3.0]]
