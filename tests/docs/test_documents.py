"""What stands in the documents is true: commands run, links lead somewhere, the table of exit codes is the one of the code."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from harness import BINARY, TESTS
from safetensors_files import Tensor, write_checkpoint

ROOT = TESTS.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path, language: str) -> list[str]:
    """Fenced code blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    """A directory with the checkpoints that the documents speak of."""
    rng = np.random.default_rng(1)
    data = rng.integers(0, 256, 20_000, dtype=np.uint8)
    for step in range(3):
        tensors = {"model.embed_tokens.weight": Tensor("BF16", (100, 100), data.copy())}
        (tmp_path / f"out/step-{step}").mkdir(parents=True)
        write_checkpoint(tmp_path / f"out/step-{step}", tensors)
        data[rng.integers(0, data.size, 20)] ^= 1
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


def test_readme_python(sandbox: Path, package, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks(ROOT / "README.md", "python")

    class Model:
        @staticmethod
        def state_dict() -> dict[str, np.ndarray]:
            return {"w": np.zeros((2, 3), np.float32)}

    monkeypatch.chdir(sandbox)
    exec(code, {"model": Model})  # noqa: S102
    assert package.log("weights")[0].version == 0


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
