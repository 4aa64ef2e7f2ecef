"""Cases of the acceptance list about what an engine of two ranks does with updates: BR-22, BR-23, BR-41, BR-42."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import make
from safetensors.numpy import load_file, save_file

PROMPT = [5, 17, 33, 41, 2, 99]


def make_sharded(path: Path, **fields: Any) -> Path:
    """A Llama with random fp32 weights, in several files."""
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    make(path, "Llama", heads | {"intermediate_size": 96} | fields, shard="120KB")
    return path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sharded(tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def two_ranks(start_engine: Callable[..., Any], served: Path) -> Any:
    return start_engine(served, options={"tp": 2, "max_total_tokens": 512})


class Served:
    """What the engine serves, to be compared: all weights, and greedy text."""

    def __init__(self, engine: Any) -> None:
        self.digests = engine.weights_digest()["digests"]
        sampling = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
        reply = engine.generate(input_ids=PROMPT, sampling_params=sampling)
        self.tokens = reply["output_ids"]
        self.version = engine.weight_version
        self.path = engine.model_info()["model_path"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Served) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def refused(engine: Any, package: Any, path: Path, *texts: str) -> None:
    """An update that fails and says so changes nothing."""
    before = Served(engine)
    with pytest.raises(package.Error) as caught:
        engine.update_weights_from_disk(path, weight_version="wrong")
    for text in texts:
        assert text in str(caught.value)
    assert Served(engine) == before


def last_shard(path: Path) -> Path:
    return max(path.glob("model-*.safetensors"))


def change(path: Path, name: str, array: np.ndarray[Any, Any] | None) -> None:
    """Replaces a tensor, or takes it away."""
    index_path = path / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    file = path / index["weight_map"][name]
    tensors = load_file(file)
    if array is None:
        del tensors[name], index["weight_map"][name]
        index_path.write_text(json.dumps(index))
    else:
        tensors[name] = array
    save_file(tensors, file, metadata={"format": "pt"})


def test_br23_a_larger_model(two_ranks: Any, package: Any, tmp_path: Path) -> None:
    refused(two_ranks, package, make_sharded(tmp_path / "m", hidden_size=60), "another model")


def test_br23_another_shape_in_the_last_shard(
    two_ranks: Any, package: Any, served: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(served, tmp_path / "m"))
    name = max(load_file(last_shard(path)))
    shape = load_file(last_shard(path))[name].shape
    other = (*shape[:-1], shape[-1] + 2)
    change(path, name, np.zeros(other, np.float32))
    refused(
        two_ranks, package, path, name, str(list(shape)), str(list(other)), last_shard(path).name
    )


def test_br23_padded_rows_of_the_vocabulary(
    two_ranks: Any, package: Any, served: Path, tmp_path: Path
) -> None:
    """The engine pads its own copy; a checkpoint that was padded is not the model's."""
    path = Path(shutil.copytree(served, tmp_path / "m"))
    change(path, "model.embed_tokens.weight", np.zeros((256, 48), np.float32))
    refused(two_ranks, package, path, "model.embed_tokens.weight", "[256, 48]", "[211, 48]")


def test_br23_the_next_good_update_works(two_ranks: Any, served: Path, tmp_path: Path) -> None:
    before = Served(two_ranks)
    path = Path(shutil.copytree(served, tmp_path / "m"))
    name = "model.norm.weight"
    change(path, name, np.full(48, 2.0, np.float32))
    two_ranks.update_weights_from_disk(path, weight_version="good")
    after = Served(two_ranks)
    assert {n for n in after.digests if after.digests[n] != before.digests[n]} == {name}
    assert (after.version, after.path) == ("good", str(path))
    two_ranks.update_weights_from_disk(served, weight_version=before.version)


def test_br22_names_are_claimed_or_named(
    two_ranks: Any, package: Any, served: Path, tmp_path: Path
) -> None:
    missing = Path(shutil.copytree(served, tmp_path / "missing"))
    change(missing, "model.layers.1.mlp.up_proj.weight", None)
    refused(two_ranks, package, missing, "model.layers.1.mlp.up_proj.weight")
    extra = Path(shutil.copytree(served, tmp_path / "extra"))
    save_file(
        {"model.layers.1.mlp.up_proj.base_layer.weight": np.zeros(2)}, extra / "extra.safetensors"
    )
    index_path = extra / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    index["weight_map"]["model.layers.1.mlp.up_proj.base_layer.weight"] = "extra.safetensors"
    index_path.write_text(json.dumps(index))
    refused(two_ranks, package, extra, "base_layer")
    reply = two_ranks.update_weights_from_disk(served)
    assert reply["tensors"] == len(two_ranks.weight_names())
    assert reply["skipped_tensors"] == 0


def processes(engine: Any) -> list[int]:
    """The engine's own, of all ranks."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text().split("\0")
        except OSError:
            continue
        if "syncline-engine" in command[0] and engine.model_info()["served_model_name"] in command:
            pids.append(int(path.parent.name))
    return sorted(pids)


def resources(pids: list[int]) -> dict[int, tuple[int, int, int]]:
    """Of each process: open descriptors, mappings, resident KiB."""
    found = {}
    for pid in pids:
        proc = Path(f"/proc/{pid}")
        status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())
        maps = len((proc / "maps").read_text().splitlines())
        found[pid] = (len(list((proc / "fd").iterdir())), maps, int(status["VmRSS"].split()[0]))
    return found


def test_br41_a_hundred_updates_take_no_more_than_two(
    two_ranks: Any, served: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(served, tmp_path / "m"))
    change(other, "model.norm.weight", np.full(48, 2.0, np.float32))
    pids = processes(two_ranks)
    assert len(pids) == 2
    before: dict[int, tuple[int, int, int]] = {}
    for number in range(100):
        if number == 10:  # allocators have settled
            before = resources(pids)
        two_ranks.update_weights_from_disk(other if number % 2 == 0 else served)
    for pid, (descriptors, mappings, resident) in resources(pids).items():
        assert descriptors <= before[pid][0] + 1  # a connection of HTTP may be open
        assert mappings <= before[pid][1] + 8
        assert resident <= before[pid][2] + 4096


def test_br42_a_receiver_that_is_behind_installs_once(
    two_ranks: Any, package: Any, served: Path, tmp_path: Path
) -> None:
    tensors = {}
    for file in served.glob("model-*.safetensors"):
        tensors |= load_file(file)
    store, replica = tmp_path / "store", tmp_path / "replica"
    rng = np.random.default_rng(1)
    with package.Publisher(store, base=served) as publisher:
        for version in range(1, 7):
            for name in tensors:
                tensors[name] = tensors[name] + rng.normal(0, 0.01, tensors[name].shape).astype(
                    np.float32
                )
            publisher.publish(version, tensors)
    two_ranks.update(store, replica, 1)

    def updates() -> float:
        lines = str(two_ranks.get("/metrics")).splitlines()
        return next(
            float(x.split()[1]) for x in lines if x.startswith("syncline_weight_updates_total")
        )

    before = updates()
    two_ranks.update(store, replica, 6)
    assert updates() == before + 1
    assert two_ranks.weights_digest(6)["equal"] is True
