"""Classes that trainers pickle by the names of SGLang's modules, without SGLang installed."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

WHEELS = Path(__file__).resolve().parents[1] / "build" / "cache" / "wheels"


@contextmanager
def module(name: str) -> Iterator[ModuleType]:
    """An empty module under this name, with its packages, for as long as the block runs."""
    parts = name.split(".")
    paths = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    made = [path for path in paths if path not in sys.modules]
    sys.modules.update({path: ModuleType(path) for path in made})
    try:
        yield sys.modules[name]
    finally:
        for path in made:
            del sys.modules[path]


def define(home: ModuleType, name: str, *fields: str) -> Any:
    """A class that is pickled as `name` of that module."""
    made = dataclasses.make_dataclass(name, fields)
    made.__module__ = home.__name__
    setattr(home, name, made)
    return made


@contextmanager
def tensor_bucket() -> Iterator[ModuleType]:
    """SGLang's own tensor_bucket, out of its wheel, without importing the rest of it."""
    wheels = sorted(WHEELS.glob("sglang-*.whl"))
    if not wheels:
        pytest.fail(f"no wheel of sglang in {WHEELS}: run tools/setup")
    package = "sglang.srt.weight_sync"
    with module(package) as home:
        home.__path__ = [f"{wheels[0]}/{package.replace('.', '/')}"]
        theirs = importlib.import_module(f"{package}.tensor_bucket")
        try:
            yield theirs
        finally:
            del sys.modules[theirs.__name__]
