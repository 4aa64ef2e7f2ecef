"""Updates that cannot be: a 400 that names the fault, and the old weights go on serving."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

PARAMS = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
PROMPT = [4, 75, 282, 9, 14]


class Served:
    """What the engine serves, to be compared before and after."""

    def __init__(self, engine: Any) -> None:
        info = engine.model_info()
        self.path, self.version = info["model_path"], info["weight_version"]
        reply = engine.generate(input_ids=PROMPT, sampling_params=PARAMS)
        self.tokens = reply["output_ids"]
        self.weights = [engine.export_weight(n)[2] for n in engine.weight_names()[:20]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Served) and vars(self) == vars(other)


@pytest.fixture(scope="module")
def small_engine(start_engine: Any, small_llama: Path) -> Any:
    return start_engine(small_llama, options={"weight_version": "first"})


@pytest.fixture
def broken(small_llama: Path, tmp_path: Path) -> Path:
    """A copy of the served checkpoint, to be broken."""
    return Path(shutil.copytree(small_llama, tmp_path / "broken"))


def refused(engine: Any, package: Any, path: Path, *naming: str, **fields: Any) -> None:
    before = Served(engine)
    with pytest.raises(package.Error) as error:
        engine.update_weights_from_disk(path, weight_version="second", **fields)
    for text in naming:
        assert text in str(error.value)
    assert Served(engine) == before


def test_missing_path(small_engine: Any, package: Any, tmp_path: Path) -> None:
    refused(small_engine, package, tmp_path / "nowhere", "nowhere")


def test_broken_shard(small_engine: Any, package: Any, broken: Path) -> None:
    file = broken / "model.safetensors"
    data = file.read_bytes()
    for size in (0, 4, 8, 100, len(data) - 1):
        file.write_bytes(data[:size])
        refused(small_engine, package, broken, "model.safetensors")
    file.write_bytes(data + b"x")
    refused(small_engine, package, broken, "model.safetensors")


def test_wrong_shape(small_engine: Any, package: Any, broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    name = "model.layers.0.mlp.down_proj.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][:, :-1])
    save_file(tensors, broken / "model.safetensors")
    refused(small_engine, package, broken, name, "[48, 87]", "expected [48, 88]")


def test_wrong_dtype(small_engine: Any, package: Any, broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    name = "model.norm.weight"
    tensors[name] = tensors[name].astype(np.float64)
    save_file(tensors, broken / "model.safetensors")
    refused(small_engine, package, broken, name, "F64")


def test_missing_tensor(small_engine: Any, package: Any, broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.weight"]
    save_file(tensors, broken / "model.safetensors")
    refused(small_engine, package, broken, "model.layers.1.self_attn.k_proj.weight")


def test_fused_name_is_refused_with_the_names_to_send(
    small_engine: Any, package: Any, broken: Path
) -> None:
    tensors = load_file(broken / "model.safetensors")
    name = "model.layers.0.self_attn.qkv_proj.weight"
    tensors[name] = np.zeros((4, 4), np.float32)
    save_file(tensors, broken / "model.safetensors")
    refused(small_engine, package, broken, name, "q_proj")


def test_another_model(small_engine: Any, package: Any, broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    config["rms_norm_eps"] = 1e-2
    (broken / "config.json").write_text(json.dumps(config))
    refused(small_engine, package, broken, "config.json")


def test_unknown_version(small_engine: Any, package: Any, tmp_path: Path) -> None:
    before = Served(small_engine)
    (tmp_path / "store").mkdir()
    with pytest.raises(package.Error) as error:
        small_engine.pull_weights(tmp_path / "store", tmp_path / "replica", 7)
    assert "7" in str(error.value)
    assert Served(small_engine) == before


def test_replica_that_is_not_whole(small_engine: Any, package: Any, broken: Path) -> None:
    (broken / ".weight_sync").mkdir()
    refused(small_engine, package, broken, "marker")


def test_flush_over_requests_paused_in_place(small_engine: Any, package: Any, broken: Path) -> None:
    import threading

    events: list[Any] = []
    started = threading.Event()

    def run() -> None:
        for event in small_engine.stream(
            input_ids=PROMPT, sampling_params={"max_new_tokens": 400, "ignore_eos": True}
        ):
            events.append(event)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(60)
    small_engine.pause("in_place")
    with pytest.raises(package.InvalidArgumentError, match="flush_cache"):
        small_engine.update_weights_from_disk(broken, weight_version="second")
    with pytest.raises(package.InvalidArgumentError):
        small_engine.flush_cache()
    assert small_engine.weight_version == "first"
    small_engine.resume()
    thread.join(60)
    assert events[-1]["meta_info"]["completion_tokens"] == 400


def test_it_still_takes_a_good_checkpoint(small_engine: Any, broken: Path) -> None:
    tensors = load_file(broken / "model.safetensors")
    changed = {name: value * np.float32(0.5) for name, value in tensors.items()}
    save_file(changed, broken / "model.safetensors")
    small_engine.update_weights_from_disk(broken, weight_version="second")
    assert small_engine.weight_version == "second"
    assert small_engine.model_info()["model_path"] == str(broken)
    for name in small_engine.weight_names():
        assert small_engine.export_weight(name)[2] == changed[name].tobytes()
