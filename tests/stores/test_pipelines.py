"""A diffusers pipeline, a tree of components: published, pulled, healed, read by safetensors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bucket import Bucket
from harness import Cli, Exit, tensor_table, tree
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from store_server import StoreServer

Component = dict[str, np.ndarray]
Pipeline = dict[str, Component]

STEM = "diffusion_pytorch_model"
INDEX = f"{STEM}.safetensors.index.json"
COMPANIONS = {
    "model_index.json": json.dumps(
        {
            "_class_name": "TinyPipeline",
            "scheduler": ["diffusers", "EulerDiscreteScheduler"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", "CLIPTokenizer"],
            "transformer": ["diffusers", "SD3Transformer2DModel"],
            "vae": ["diffusers", "AutoencoderKL"],
        }
    ),
    "scheduler/scheduler_config.json": '{"num_train_timesteps": 1000}',
    "text_encoder/config.json": '{"hidden_size": 8}',
    "tokenizer/vocab.json": '{"a": 0}',
    "tokenizer/merges.txt": "#version: 0.2\n",
    "transformer/config.json": '{"num_layers": 2}',
    "vae/config.json": '{"latent_channels": 4}',
}


def random_pipeline(rng: np.random.Generator) -> Pipeline:
    """With what is easily lost: running statistics, a counter, an empty tensor, names alike."""

    def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    return {
        "transformer": {
            "blocks.0.proj.weight": normal(48, 33),
            "blocks.1.proj.weight": normal(48, 33, dtype="float16"),
            "norm.weight": normal(33),
        },
        "vae": {
            "bn.num_batches_tracked": np.array(3, dtype=np.int64),
            "bn.running_mean": normal(128),
            "bn.running_var": normal(128) ** 2,
            "decoder.conv.weight": normal(8, 4, 3, 3),
            "norm.weight": normal(8),
        },
        "text_encoder": {"embed.weight": normal(20, 8), "empty": normal(2, 0)},
    }


def stepped(rng: np.random.Generator, pipeline: Pipeline) -> Pipeline:
    """The next training step: a part of each floating tensor moves, the counter counts."""
    moved: Pipeline = {}
    for folder, tensors in pipeline.items():
        moved[folder] = {}
        for name, tensor in tensors.items():
            if tensor.dtype == np.int64:
                moved[folder][name] = np.asarray(tensor + 1)
                continue
            mask = rng.random(tensor.shape) < 0.1
            moved[folder][name] = np.where(mask, tensor * 2 + 1, tensor).astype(tensor.dtype)
    return moved


def write_pipeline(path: Path, pipeline: Pipeline) -> None:
    """As diffusers' save_pretrained leaves it; the transformer in two shards."""
    shutil.rmtree(path, ignore_errors=True)
    for name, text in COMPANIONS.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    save_file(pipeline["vae"], path / "vae" / f"{STEM}.safetensors")
    save_file(pipeline["text_encoder"], path / "text_encoder" / "model.safetensors")
    weight_map: dict[str, str] = {}
    for number, names in enumerate(
        (["blocks.0.proj.weight"], ["blocks.1.proj.weight", "norm.weight"])
    ):
        shard = f"{STEM}-{number + 1:05}-of-00002.safetensors"
        save_file(
            {name: pipeline["transformer"][name] for name in names}, path / "transformer" / shard
        )
        weight_map |= dict.fromkeys(names, shard)
    index = {"metadata": {"total_size": 9702}, "weight_map": weight_map}
    (path / "transformer" / INDEX).write_text(json.dumps(index))


def read_pipeline(path: Path) -> Pipeline:
    """What diffusers would load: each component by the one name that its class looks for."""
    pipeline: Pipeline = {}
    for folder, stem in (("transformer", STEM), ("vae", STEM), ("text_encoder", "model")):
        single = path / folder / f"{stem}.safetensors"
        index = path / folder / f"{stem}.safetensors.index.json"
        assert single.exists() != index.exists(), sorted((path / folder).iterdir())
        if single.exists():
            pipeline[folder] = load_file(single)
            with safe_open(single, "np") as opened:
                assert opened.metadata() == {"format": "pt"} or opened.metadata() is None
            continue
        weight_map: dict[str, str] = json.loads(index.read_text())["weight_map"]
        shards = {name: load_file(path / folder / name) for name in set(weight_map.values())}
        pipeline[folder] = {name: shards[shard][name] for name, shard in weight_map.items()}
        assert sum(map(len, shards.values())) == len(weight_map)
    return pipeline


def same(actual: Mapping[str, Component], expected: Mapping[str, Component]) -> None:
    assert actual.keys() == expected.keys()
    for folder, tensors in expected.items():
        assert actual[folder].keys() == tensors.keys(), folder
        for name, tensor in tensors.items():
            got = actual[folder][name]
            assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape), f"{folder}/{name}"
            assert got.tobytes() == tensor.tobytes(), f"{folder}/{name}"


def is_pipeline(path: Path, expected: Pipeline) -> None:
    same(read_pipeline(path), expected)
    for name, text in COMPANIONS.items():
        assert (path / name).read_text() == text, name
    found = {folder.name for folder in path.iterdir() if folder.is_dir()} - {".weight_sync"}
    assert found == {"scheduler", "text_encoder", "tokenizer", "transformer", "vae"}


@contextmanager
def unchanged(path: Path) -> Iterator[None]:
    before = tree(path)
    yield
    assert tree(path) == before


@pytest.fixture
def steps(rng: np.random.Generator) -> list[Pipeline]:
    steps = [random_pipeline(rng)]
    for _ in range(2):
        steps.append(stepped(rng, steps[-1]))
    return steps


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    """Where the trainer leaves its checkpoints."""
    return tmp_path / "trainer"


def publish_all(cli: Cli, trainer: Path, to: object, steps: list[Pipeline]) -> None:
    """A full version, a delta, a delta with a full copy."""
    kinds: list[dict[str, Any]] = []
    for step, ratio in zip(steps, (0, 0, 1e-9), strict=True):
        write_pipeline(trainer, step)
        kinds.append(cli.ok("publish", trainer, "--to", to, "--full-copy-ratio", ratio))
    assert [(one["kind"], one["full_copy"]) for one in kinds] == [
        ("full", False),
        ("delta", False),
        ("delta", True),
    ]


@pytest.fixture
def published(cli: Cli, store: Path, trainer: Path, steps: list[Pipeline]) -> list[Pipeline]:
    publish_all(cli, trainer, store, steps)
    return steps


def test_show_names_tensors_by_component(cli: Cli, trainer: Path, steps: list[Pipeline]) -> None:
    write_pipeline(trainer, steps[0])
    shown = tensor_table(cli.ok("show", trainer))
    assert shown.keys() == {f"{f}/{name}" for f, tensors in steps[0].items() for name in tensors}
    assert shown["vae/bn.num_batches_tracked"] == ("I64", ())
    assert cli.ok("verify", trainer)["kind"] == "checkpoint"


def test_full_versions_and_copies_are_pipelines(
    cli: Cli, store: Path, published: list[Pipeline]
) -> None:
    is_pipeline(store / "weight_v000000", published[0])
    is_pipeline(store / "weight_v000002" / "full", published[2])
    manifest = json.loads((store / "weight_v000000" / "syncline.manifest.json").read_text())
    assert COMPANIONS.keys() <= manifest["files"].keys()
    assert f"transformer/{INDEX}" not in manifest["files"]
    delta = json.loads((store / "weight_v000001" / "model.safetensors.index.json").read_text())
    assert "vae/bn.running_mean" in delta["weight_map"]
    assert cli.ok("verify", store)["versions"] == [0, 1, 2]
    assert [version["fault"] for version in cli.ok("log", store)["versions"]] == [None] * 3


def test_replicas_from_different_versions_meet(
    cli: Cli, store: Path, tmp_path: Path, published: list[Pipeline]
) -> None:
    early, late = tmp_path / "early", tmp_path / "late"
    cli.ok("pull", "--from", store, "--into", early, "--version", 0)
    is_pipeline(early, published[0])
    cli.ok("pull", "--from", store, "--into", late, "--version", 1)
    is_pipeline(late, published[1])
    fresh = tmp_path / "fresh"
    for replica in (early, late, fresh):
        cli.ok("pull", "--from", store, "--into", replica)
        is_pipeline(replica, published[2])
        assert cli.ok("verify", replica)["versions"] == [2]
    cli.ok("undo", late)
    is_pipeline(late, published[1])


def test_a_snapshot_of_links_is_a_seed_and_is_not_written_through(
    cli: Cli, store: Path, replica: Path, tmp_path: Path, steps: list[Pipeline]
) -> None:
    """BR-20, of a pipeline; version 0 is the snapshot, which is not in the store."""
    cache = tmp_path / "models--tiny"
    snapshot = cache / "snapshots" / "0123abcd"
    write_pipeline(snapshot, steps[0])
    blobs = cache / "blobs"
    blobs.mkdir()
    for number, path in enumerate(sorted(p for p in snapshot.rglob("*") if p.is_file())):
        blob = blobs / f"{number:040x}"
        path.rename(blob)
        up = Path(*[".."] * len(path.relative_to(cache).parent.parts))
        path.symlink_to(up / "blobs" / blob.name)
    with unchanged(cache):
        assert len(cli.ok("show", snapshot)["tensors"]) == 10
        trainer = tmp_path / "trainer"
        for step in steps[1:]:
            write_pipeline(trainer, step)
            options = ("--base", snapshot, "--full-copy-ratio", 0)
            assert cli.ok("publish", trainer, "--to", store, *options)["kind"] == "delta"
        pull = ("pull", "--from", store, "--into", replica, "--seed", snapshot)
        cli.ok(*pull, "--version", 1)
        is_pipeline(replica, steps[1])
        assert (replica / "transformer" / INDEX).exists()
        cli.ok(*pull)
        is_pipeline(replica, steps[2])
        cli.ok("publish", snapshot, "--to", tmp_path / "other")
        is_pipeline(tmp_path / "other" / "weight_v000000", steps[0])
    for path in [*replica.rglob("*"), *(tmp_path / "other").rglob("*")]:
        assert not path.is_symlink()
        assert path.is_dir() or path.stat().st_nlink == 1


@pytest.mark.parametrize(
    "damage",
    [
        ("vae", f"{STEM}.safetensors", 2),  # the length of the header
        ("vae", f"{STEM}.safetensors", 30),  # its text
        ("vae", f"{STEM}.safetensors", -5),  # data
        ("transformer", f"{STEM}.safetensors", None),  # gone
        ("text_encoder", "", None),  # gone with its folder
    ],
    ids=lambda damage: "-".join(map(str, damage)),
)
def test_damage_is_healed(
    cli: Cli,
    store: Path,
    replica: Path,
    published: list[Pipeline],
    damage: tuple[str, str, int | None],
) -> None:
    cli.ok("pull", "--from", store, "--into", replica, "--version", 1)
    folder, name, offset = damage
    path = replica / folder / name
    if not name:
        shutil.rmtree(path)
    elif offset is None:
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)
    cli.fails("verify", replica, naming=[folder], codes=(Exit.CORRUPT, Exit.CHECKSUM_MISMATCH))
    cli.ok("verify", replica, "--repair")
    is_pipeline(replica, published[1])


def test_two_names_for_one_component(
    cli: Cli, trainer: Path, store: Path, steps: list[Pipeline]
) -> None:
    write_pipeline(trainer, steps[0])
    shutil.copy(trainer / "vae" / f"{STEM}.safetensors", trainer / "vae" / "model.safetensors")
    names = ["vae", "model.safetensors", f"{STEM}.safetensors"]
    for command in (("show", trainer), ("publish", trainer, "--to", store)):
        cli.fails(*command, naming=names, codes=(Exit.CORRUPT,))


def test_variants_are_no_weights_of_ours(
    cli: Cli, trainer: Path, store: Path, steps: list[Pipeline]
) -> None:
    write_pipeline(trainer, steps[0])
    half = {name: tensor.astype("float16") for name, tensor in steps[0]["vae"].items()}
    save_file(half, trainer / "vae" / f"{STEM}.fp16.safetensors")
    (trainer / "transformer" / f"{STEM}.safetensors.index.fp16.json").write_text("{}")
    (trainer / "vae" / f"{STEM}.bin").write_bytes(b"pickle")
    cli.ok("publish", trainer, "--to", store)
    version = store / "weight_v000000"
    is_pipeline(version, steps[0])
    assert {path.name for path in (version / "vae").iterdir()} == {
        "config.json",
        f"{STEM}.safetensors",
    }
    assert not list(version.rglob("*fp16*"))


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/../../x"])
def test_br_48_an_index_does_not_lead_out(
    cli: Cli, trainer: Path, steps: list[Pipeline], name: str
) -> None:
    write_pipeline(trainer, steps[0])
    save_file(steps[0]["vae"], trainer.parent / "secret.safetensors")
    index = {"metadata": {}, "weight_map": {"norm.weight": name}}
    (trainer / "transformer" / INDEX).write_text(json.dumps(index))
    cli.fails("show", trainer, naming=["transformer", name], codes=(Exit.CORRUPT,))


def test_bucket(
    cli: Cli, bucket: Bucket, trainer: Path, replica: Path, steps: list[Pipeline]
) -> None:
    publish_all(cli, trainer, bucket.url, steps)
    assert f"weight_v000000/vae/{STEM}.safetensors" in bucket.list()
    cli.ok("pull", "--from", bucket.url, "--into", replica, "--version", 1)
    is_pipeline(replica, steps[1])
    shutil.rmtree(replica / "vae")
    cli.ok("verify", replica, "--repair")
    is_pipeline(replica, steps[1])
    assert cli.ok("verify", bucket.url)["versions"] == [0, 1, 2]
    assert cli.ok("gc", bucket.url, "--keep", 1, "--grace", 0)["kept"] == [2]
    cli.ok("pull", "--from", bucket.url, "--into", replica)
    is_pipeline(replica, steps[2])


def test_web_server(
    cli: Cli, server: StoreServer, replica: Path, published: list[Pipeline]
) -> None:
    """Its folders cannot be listed."""
    cli.ok("pull", "--from", server.url, "--into", replica, "--version", 1)
    is_pipeline(replica, published[1])
    shutil.rmtree(replica / "vae")
    cli.ok("verify", replica, "--repair")
    is_pipeline(replica, published[1])
