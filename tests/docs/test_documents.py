"""What stands in the documents is true: commands run, links lead somewhere, the table of exit codes is the one of the code."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_llama
from harness import BINARY, TESTS

ROOT = TESTS.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    """Fenced code blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A directory with the checkpoints that the documents speak of: three steps of a tiny model."""
    rng = np.random.default_rng(1)
    tensors = tiny_llama.weights(1)
    for step in range(3):
        tiny_llama.write(tmp_path / f"out/step-{step}", tensors)
        data = tensors["model.embed_tokens.weight"].data.copy()
        data[rng.integers(0, data.size, 20)] ^= 1
        tensors["model.embed_tokens.weight"] = replace(
            tensors["model.embed_tokens.weight"], data=data
        )
    return tmp_path


def run(script: str, sandbox: Path) -> None:
    path = f"{BINARY.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=sandbox,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"


def test_readme_commands(sandbox: Path) -> None:
    """All commands of the README, in order."""
    scripts = blocks(ROOT / "README.md", "sh")
    assert len(scripts) >= 5
    for script in scripts:
        run(script, sandbox)


def test_readme_python(sandbox: Path, package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """All Python of the README, in order; the trainer's model is the next step."""
    model = package.open_checkpoint(sandbox / "out/step-1")

    class Model:
        @staticmethod
        def state_dict() -> dict[str, np.ndarray]:
            return {name: model[name].numpy() for name in model}

    monkeypatch.chdir(sandbox)
    run("syncline publish out/step-0 --to weights", sandbox)
    run("syncline publish out/step-2 --to weights", sandbox)
    scope: dict[str, Any] = {"model": Model}
    for code in blocks(ROOT / "README.md", "python"):
        exec(code, scope)  # noqa: S102
    assert [version.version for version in package.log("weights")] == [0, 1, 2]
    assert scope["reply"]["meta_info"]["weight_version"] == "2"


@pytest.mark.parametrize("path", DOCUMENTS[1:], ids=lambda p: str(p.relative_to(ROOT)))
def test_guide_commands(path: Path, sandbox: Path) -> None:
    """Commands of the other documents, on a store that holds two deltas on out/step-0."""
    run("syncline publish out/step-1 --to weights --base out/step-0", sandbox)
    run("syncline publish out/step-2 --to weights", sandbox)
    for script in blocks(path, "sh"):
        run(script, sandbox)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets(path: Path) -> None:
    """`make x` in a document names a target that there is."""
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", path.read_text(), re.MULTILINE))
    assert named <= targets


def test_exit_codes() -> None:
    """The guide's table is the table of the code."""
    guide = (ROOT / "docs/guide/command-line.md").read_text()
    said = {
        name: int(code) for code, name in re.findall(r"^\| (\d+) \| (\w+) \|", guide, re.MULTILINE)
    }
    source = (ROOT / "src/base/error.cc").read_text()
    real = {n: int(code) for n, code in re.findall(r'\{Code::\w+, "(\w+)", (\d+)', source)}
    assert len(real) == 16
    assert said == real
