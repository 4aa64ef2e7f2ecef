"""Client code of real trainers, out of their wheels, in a process of its own.

What a project imports and a test machine lacks (ray, megatron, SGLang's engine) is a stand-in: any
name of such a module is a class that takes any arguments, so that base classes, decorators and
annotations work. What the client code really calls of it is given by name.
"""

from __future__ import annotations

import base64
import importlib.machinery
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

WHEELS = Path(__file__).resolve().parents[2] / "build" / "cache" / "wheels"


class _Anything(type):
    """Classes of which every attribute, item and union is another one."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _made(name)

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    __ror__ = __or__

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


def _made(name: str) -> Any:
    def call(self: object, *arguments: Any, **named: Any) -> Any:
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else None

    def new(cls: Any, *arguments: Any, **named: Any) -> Any:
        # A decorator without arguments leaves what it decorates as it is.
        plain = len(arguments) == 1 and not named and callable(arguments[0])
        return arguments[0] if plain and cls is made else object.__new__(cls)

    body = {"__new__": new, "__init__": lambda self, *_, **__: None, "__call__": call}
    made = _Anything(name, (), body)
    return made


class StandIn(ModuleType):
    """A module that has every name. Sub-modules are stand-ins too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _made(name)
        setattr(self, name, value)
        return value


class _Finder:
    """Answers imports of packages that are absent, given, or wanted without their __init__."""

    def __init__(
        self,
        wheels: Sequence[str],
        absent: Sequence[str],
        bare: Sequence[str],
        own: Sequence[str],
        given: dict[str, Any],
    ) -> None:
        self._wheels = wheels
        self._absent, self._bare, self._own, self._given = absent, bare, own, given

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        def within(packages: Sequence[str]) -> bool:
            return any(name == package or name.startswith(package + ".") for package in packages)

        if name in self._own:
            return None
        if name in self._given or name in self._bare or within(self._absent):
            loader: Any = self
            return importlib.machinery.ModuleSpec(name, loader, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        name = spec.name
        module = ModuleType(name) if name in self._bare else StandIn(name)
        folder = name.replace(".", "/")
        module.__path__ = [f"{wheel}/{folder}" for wheel in self._wheels]
        for key, value in self._given.get(name, {}).items():
            setattr(module, key, value)
        return module

    def exec_module(self, module: ModuleType) -> None:
        return None


def borrow(
    *names: str,
    absent: Sequence[str],
    bare: Sequence[str],
    own: Sequence[str],
    given: dict[str, Any],
) -> None:
    """Makes the wheels of these names importable for the rest of this process.

    `absent`: packages whose every module is a stand-in, unless it is named below.
    `bare`: packages whose __init__ is not run.
    `own`: modules in absent packages that are the wheel's nevertheless.
    `given`: names that stand-ins of modules have.
    """
    wheels = [str(path) for name in names for path in WHEELS.glob(f"{name}-*.whl")]
    assert len(wheels) == len(names), f"{WHEELS} holds {wheels} of {names}: run tools/setup"
    sys.path.extend(wheels)
    # Before others, so that a bare package is not looked for in its wheel.
    sys.meta_path.insert(0, _Finder(wheels, absent, bare, own, given))


def without_effect(*arguments: object, **named: object) -> Callable[[Any], Any]:
    """A decorator with arguments that leaves what it decorates as it is."""
    return lambda decorated: decorated


class Serializer:
    """SGLang's MultiprocessingSerializer: its module imports the whole engine."""

    @staticmethod
    def serialize(content: object, output_str: bool = False) -> Any:
        buffer = io.BytesIO()
        ForkingPickler(buffer).dump(content)
        data = buffer.getvalue()
        return base64.b64encode(data).decode() if output_str else data


class ServerArgs(SimpleNamespace):
    """What client code reads of SGLang's ServerArgs."""

    node_rank = 0
    is_embedding = False
    api_key = None


_calls = ThreadPoolExecutor(8)


class Handle:
    """A ray actor's handle: `handle.method.remote(…)` runs on a thread."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Any] = getattr(self._actor, name)
        return SimpleNamespace(remote=lambda *a, **named: _calls.submit(method, *a, **named))


def ray_get(references: Any) -> Any:
    if isinstance(references, Future):
        return references.result()
    return [reference.result() for reference in references]


def ray(**names: Any) -> dict[str, Any]:
    """Modules of a ray whose actors live in this process, for `given`."""
    services = SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1")
    private = SimpleNamespace(services=services)
    return {"ray": {"get": ray_get, "_private": private, **names}}
