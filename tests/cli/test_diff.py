"""`syncline diff`: what it counts, against numpy, and what it predicts, against what is published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Cli, Exit, changed, random_tensors
from safetensors_files import DTYPE_BITS, Tensor, write_checkpoint
from test_memory import peak_anonymous

# Bits of the sign and the largest magnitude that is no NaN, of types whose step numpy can count here.
FLOATS = {
    "F16": (np.uint16, 0x8000, 0x7C00),
    "BF16": (np.uint16, 0x8000, 0x7F80),
    "F32": (np.uint32, 0x80000000, 0x7F800000),
    "F64": (np.uint64, 1 << 63, 0x7FF0000000000000),
    "F8_E4M3": (np.uint8, 0x80, 0x7E),
    "F8_E5M2": (np.uint8, 0x80, 0x7C),
}

ENCODINGS = ("xor", "overwrite", "compact", "compact-gap")


def expected_steps(old: Tensor, new: Tensor) -> dict[str, Any]:
    """Bins, sign changes and NaN of one tensor, element by element."""
    word, sign, largest = FLOATS[old.dtype]
    bins: dict[tuple[int, int], int] = {}
    signs = nans = 0
    for a, b in zip(old.data.view(word).tolist(), new.data.view(word).tolist(), strict=True):
        if a == b:
            continue
        if max(a & ~sign, b & ~sign) > largest:
            nans += 1
        elif (a ^ b) & sign:
            signs += 1
        else:
            high = 1
            while high < abs(a - b):
                high *= 2
            low = high // 2 + 1 if high > 1 else 1
            bins[low, high] = bins.get((low, high), 0) + 1
    return {
        "bins": [{"from": f, "to": t, "elements": n} for (f, t), n in sorted(bins.items())],
        "sign_changes": signs,
        "nan": nans,
    }


def elements_changed(old: Tensor, new: Tensor) -> int:
    width = max(1, DTYPE_BITS[old.dtype] // 8)
    return int((old.data != new.data).reshape(-1, width).any(axis=1).sum())


@pytest.fixture
def sides(rng: np.random.Generator, tmp_path: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every dtype, one more large tensor of small steps; written as a/ and b/."""
    old = random_tensors(rng)
    values = rng.integers(0, 0x7F00, 3_000_000, dtype=np.uint16)
    old["large"] = Tensor("BF16", (3000, 1000), values.view(np.uint8))
    new = changed(rng, {name: t for name, t in old.items() if name != "large"}, density=0.2)
    moved = values + (rng.random(values.size) < 0.01).astype(np.uint16)
    new["large"] = Tensor("BF16", (3000, 1000), moved.view(np.uint8))
    write_checkpoint(tmp_path / "a", old, shards=2)
    write_checkpoint(tmp_path / "b", new)
    return old, new


def test_counts(cli: Cli, tmp_path: Path, sides) -> None:
    old, new = sides
    report = cli.ok("diff", tmp_path / "a", tmp_path / "b")
    tensors = {tensor["name"]: tensor for tensor in report["tensors"]}
    assert tensors.keys() == old.keys()
    for name, tensor in tensors.items():
        assert (tensor["dtype"], tuple(tensor["shape"])) == (old[name].dtype, old[name].shape)
        assert tensor["elements_changed"] == elements_changed(old[name], new[name])
        if old[name].dtype in FLOATS:
            assert tensor["steps"] == expected_steps(old[name], new[name])
        if old[name].dtype in ("I32", "BOOL", "F4", "C64"):
            assert tensor["steps"] is None
    total = sum(tensor["elements_changed"] for tensor in tensors.values())
    assert report["elements_changed"] == total
    assert report["density"] == pytest.approx(total / report["elements"])
    assert tensors["large"]["steps"]["bins"] == [
        {"from": 1, "to": 1, "elements": tensors["large"]["elements_changed"]}
    ]
    text = cli("diff", tmp_path / "a", tmp_path / "b").stdout
    assert f"large  BF16 [3000, 1000]  {tensors['large']['elements_changed']} of 3000000" in text
    assert "bits a changed element" in text


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_predicted_sizes_are_those_of_a_delta(cli, store, tmp_path, sides, encoding) -> None:
    """Exactly so for xor; an overwrite frame of a large tensor is predicted part by part."""
    report = cli.ok("diff", tmp_path / "a", tmp_path / "b")
    options = ["--base", tmp_path / "a", "--encoding", encoding]
    cli.ok("publish", tmp_path / "b", "--to", store, *options)
    frames = {t["name"]: t["bytes"] for t in cli.ok("show", store, 1)["tensors"]}
    for tensor in report["tensors"]:
        predicted = tensor["encodings"][encoding]["bytes"]
        if encoding == "overwrite" and tensor["name"] == "large":
            assert predicted == pytest.approx(frames["large"], rel=0.02)
        else:
            assert predicted == frames.get(tensor["name"], 0)
    whole = report["encodings"][encoding]
    assert whole["bytes"] == sum(t["encodings"][encoding]["bytes"] for t in report["tensors"])
    bits = 8 * whole["bytes"] / report["elements_changed"]
    assert whole["bits_per_changed_element"] == pytest.approx(bits)


@pytest.mark.parametrize("encoding", ["compact", "compact-gap"])
def test_predicted_sizes_are_about_those_of_compact_frames(
    cli, store, tmp_path, sides, encoding
) -> None:
    """A cell's frames count for its first tensor, so small tensors are compared by their sum."""
    report = cli.ok("diff", tmp_path / "a", tmp_path / "b")
    options = ["--base", tmp_path / "a", "--encoding", encoding]
    cli.ok("publish", tmp_path / "b", "--to", store, *options)
    frames = {t["name"]: t["bytes"] for t in cli.ok("show", store, 1)["tensors"]}
    predicted = {t["name"]: t["encodings"][encoding] for t in report["tensors"]}
    assert all(p["predicted"] for p in predicted.values())
    assert predicted["large"]["bytes"] == pytest.approx(frames.pop("large"), rel=0.01)
    small = sum(p["bytes"] for name, p in predicted.items() if name != "large")
    assert small == pytest.approx(sum(frames.values()), rel=0.02)
    assert {name for name, p in predicted.items() if p["bytes"] > 0} == frames.keys() | {"large"}
    whole = report["encodings"][encoding]
    assert whole["bytes"] == sum(p["bytes"] for p in predicted.values())
    line = next(t for t in cli("diff", tmp_path / "a", tmp_path / "b").stdout.splitlines()
                if t.startswith(f"  {encoding} "))  # fmt: skip
    assert line.endswith("bits a changed element, predicted")


def test_compact_follows_the_exponent(cli: Cli, rng, tmp_path: Path) -> None:
    """Where small numbers move and large ones do not, the old values say which: gaps cannot."""
    values = rng.choice(np.array([0x3000, 0x3F00], np.uint16), 1_500_000)
    values += rng.integers(0, 0x80, values.size, dtype=np.uint16)
    moved = values + ((values < 0x3080) & (rng.random(values.size) < 0.5)).astype(np.uint16)
    for side, data in (("a", values), ("b", moved)):
        tensor = Tensor("BF16", (values.size,), data.view(np.uint8))
        write_checkpoint(tmp_path / side, {"weight": tensor})
    sizes = cli.ok("diff", tmp_path / "a", tmp_path / "b")["encodings"]
    # Bits: a sign for each change; whether it changes, for each small number 1, for any number 0.81.
    sign, small, either = values.size / 4, values.size / 2, 0.8113 * values.size
    assert sizes["compact"]["bytes"] == pytest.approx((sign + small) / 8, rel=0.02)
    assert sizes["compact-gap"]["bytes"] == pytest.approx((sign + either) / 8, rel=0.02)


def test_same(cli: Cli, tmp_path: Path, sides) -> None:
    report = cli.ok("diff", tmp_path / "a", tmp_path / "a")
    assert report["elements_changed"] == report["tensors_changed"] == 0
    nothing = {"bytes": 0, "bits_per_changed_element": 0}
    assert report["encodings"] == {
        name: nothing | {"predicted": name.startswith("compact")} for name in ENCODINGS
    }


def test_tensors_of_one_side(cli: Cli, rng, tmp_path: Path) -> None:
    tensors = random_tensors(rng, ("BF16",))
    names = list(tensors)
    other = dict(tensors)
    del other[names[0]]
    other["new"] = tensors[names[0]]
    shape = tensors[names[-1]].shape
    other[names[-1]] = Tensor("F16", shape, tensors[names[-1]].data)
    write_checkpoint(tmp_path / "a", tensors)
    write_checkpoint(tmp_path / "b", other)
    report = cli.ok("diff", tmp_path / "a", tmp_path / "b")
    assert (report["only_in_a"], report["only_in_b"]) == ([names[0]], ["new"])
    (unlike,) = report["not_comparable"]
    assert unlike == {"name": names[-1], "a": f"BF16 {list(shape)}", "b": f"F16 {list(shape)}"}
    assert len(report["tensors"]) == len(tensors) - 2
    text = cli("diff", tmp_path / "a", tmp_path / "b").stdout
    for line in (f"only in A: {names[0]}", "only in B: new", f"not comparable: {names[-1]}"):
        assert line in text


def test_versions_of_a_store_and_replicas(cli, store, replica, tmp_path, sides) -> None:
    cli.ok("publish", tmp_path / "a", "--to", store)
    cli.ok("publish", tmp_path / "b", "--to", store)
    cli.ok("pull", "--from", store, "--into", replica)
    plain = cli.ok("diff", tmp_path / "a", tmp_path / "b")
    assert cli.ok("diff", f"{store}@0", replica) == plain
    cli.fails("diff", f"{store}@1", replica, naming=["delta"], codes=(Exit.INCOMPATIBLE,))
    cli.fails("diff", f"{store}@7", replica, naming=["version 7"], codes=(Exit.NOT_FOUND,))
    cli.fails("diff", f"{store}@x", replica, naming=[f"{store}@x"], codes=(Exit.NOT_FOUND,))


def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    size = 24 << 20
    for side in ("a", "b"):
        tensors = {f"{i}": np.frombuffer(rng.bytes(size), np.uint8) for i in range(4)}
        shaped = {name: Tensor("BF16", (size // 2,), data) for name, data in tensors.items()}
        write_checkpoint(tmp_path / side, shaped)
    peak = peak_anonymous("diff", tmp_path / "a", tmp_path / "b")
    assert 1 << 20 < peak < 80 << 20, f"{peak >> 20} MiB"
