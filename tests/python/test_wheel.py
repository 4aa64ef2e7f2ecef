"""`pip install .` in a fresh environment without network, and what a new user does then.

The environment gets nothing from the one that runs the tests, but for the build tools while it
builds, and numpy for what needs it: both by links. ccache makes the build fast, and a build folder
of its own makes it a whole one.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
import venv
from pathlib import Path

import pytest
import syncline

ROOT = Path(__file__).resolve().parents[2]
BUILD_TOOLS = ("scikit-build-core", "nanobind", "packaging", "pathspec")


def link(directory: Path, distributions: tuple[str, ...]) -> Path:
    """A folder for PYTHONPATH that holds these distributions of this environment and no others."""
    directory.mkdir()
    for name in distributions:
        files = importlib.metadata.distribution(name).files or []
        for top in {file.parts[0] for file in files if file.parts[0] != ".."}:
            found = Path(files[0].locate()).parents[len(files[0].parts) - 1] / top
            (directory / top).symlink_to(found)
    return directory


class Environment:
    """A fresh virtual environment with pip."""

    def __init__(self, directory: Path) -> None:
        venv.create(directory, with_pip=True)
        self.bin = directory / "bin"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = directory / "lib" / version / "site-packages"

    def run(self, *command: object, path: Path | None = None) -> str:
        """Runs a program of the environment, with PYTHONPATH = path, and returns what it prints."""
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PIP_", "VIRTUAL_ENV"))
        }
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        program, *arguments = map(str, command)
        done = subprocess.run(
            [self.bin / program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def python(self, code: str, *arguments: object, path: Path | None = None) -> str:
        return self.run("python", "-c", textwrap.dedent(code), *arguments, path=path)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    directory = tmp_path_factory.mktemp("wheel")
    result = Environment(directory / "venv")
    result.run(
        *("python", "-m", "pip", "install", "--disable-pip-version-check"),
        *("--no-index", "--no-deps", "--no-build-isolation"),
        *("-C", f"build-dir={directory / 'build'}", "-C", "cmake.define.SYNCLINE_WERROR=ON"),
        ROOT,
        path=link(directory / "tools", BUILD_TOOLS),
    )
    return result


@pytest.fixture(scope="module")
def numpy_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return link(tmp_path_factory.mktemp("numpy") / "packages", ("numpy",))


def test_what_is_installed(environment: Environment) -> None:
    names = {path.name for path in environment.packages.iterdir()}
    of_venv = ("pip", "setuptools", "_distutils", "distutils", "pkg_resources")
    ours = {name for name in names if not name.startswith(of_venv)}
    assert ours == {"syncline", f"syncline-{syncline.__version__}.dist-info"}
    files = {path.name for path in (environment.packages / "syncline").iterdir()}
    assert {"__init__.py", "py.typed", "_core.pyi"} <= files
    assert not {name for name in files if name.endswith((".cc", ".h", ".a"))}


def test_command(environment: Environment) -> None:
    assert environment.run("syncline", "--version") == syncline.__version__
    assert environment.run("syncline", "pull", "--help")


def test_versions_agree(environment: Environment) -> None:
    code = """
        import importlib.metadata, syncline
        print(syncline.__version__, importlib.metadata.version("syncline"))
    """
    assert environment.python(code) == f"{syncline.__version__} {syncline.__version__}"


def test_publish_and_pull(environment: Environment, numpy_only: Path, tmp_path: Path) -> None:
    code = """
        import sys
        from pathlib import Path

        import numpy as np
        import syncline

        store, replica = Path(sys.argv[1], "store"), Path(sys.argv[1], "replica")
        publisher = syncline.Publisher(store)
        for step in range(3):
            tensors = {"w": np.full((3, 4), step, np.float32), "b": np.zeros((), np.int8)}
            publisher.publish(step, tensors)
        report = syncline.pull(store, replica)
        syncline.verify(replica)
        held = syncline.open_checkpoint(replica)["w"].numpy()
        assert not {"torch", "ml_dtypes"} & set(sys.modules)
        print(report.version, held.shape, held.min())
    """
    assert environment.python(code, tmp_path, path=numpy_only) == "2 (3, 4) 2.0"
    log = environment.run("syncline", "log", tmp_path / "store")
    assert len(log.splitlines()) == 4


def test_receivers_need_no_numpy(
    environment: Environment, numpy_only: Path, tmp_path: Path
) -> None:
    """numpy is imported when a tensor of it comes or is asked for, not before."""
    code = """
        import sys
        from pathlib import Path

        import syncline

        folder = Path(sys.argv[1])
        (folder / "model").mkdir()
        header = b'{"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}'
        content = len(header).to_bytes(8, "little") + header + b"abcd"
        (folder / "model" / "model.safetensors").write_bytes(content)
        with syncline.Publisher(folder / "store") as publisher:
            publisher.publish(None, syncline.open_checkpoint(folder / "model"))
        syncline.pull(folder / "store", folder / "replica")
        view = syncline.open_checkpoint(folder / "replica")["w"]
        try:
            syncline.Publisher(folder / "store").publish(None, {"w": [1.0, 2.0]})
        except syncline.InvalidArgumentError:
            pass
        assert "numpy" not in sys.modules
        print(view.dtype, view.shape, view.tobytes().decode())
    """
    assert environment.python(code, tmp_path) == "BF16 (2,) abcd"
