"""A process of AReaL's trainer, in both of its ways to bring weights to an engine.

AReaL's own code, out of its wheel (1.0.4): `RemoteInfEngine` with `SGLangBackend` makes and sends all
requests, with its time-outs and tries. The order of an update is that of its FSDP engine.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from borrowed import borrow, ray, without_effect
from training import Job, Model, job, train


class Names:
    """AReaL's registry of names, in this process: by it rank 0 says that a checkpoint is there."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._changed = threading.Condition()

    def add(self, name: str, value: str) -> None:
        with self._changed:
            self._known[name] = value
            self._changed.notify_all()

    def wait(self, name: str, timeout: float) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: name in self._known, timeout)
            return self._known[name]


names = Names()
calls = ThreadPoolExecutor(4)
borrow(
    "areal",
    absent=[
        *("areal", "hydra", "httpx", "omegaconf", "orjson", "pybase64"),
        *("ray", "tenacity", "torchdata", "uvloop"),
    ],
    bare=["areal", "areal.engine", "areal.infra.utils"],
    own=[
        "areal.api.io_struct",
        "areal.engine.sglang_remote",
        "areal.infra.remote_inf_engine",
        "areal.infra.utils.http",
        "areal.utils.network",
    ],
    given=ray()
    | {
        "areal.infra.platforms": {
            "current_platform": SimpleNamespace(communication_backend="gloo")
        },
        "areal.infra.utils.concurrent": {"get_executor": lambda: calls},
        "areal.utils": {
            "logging": logging,
            "name_resolve": names,
            "names": SimpleNamespace(
                update_weights_from_disk=lambda *parts: "/".join(map(str, parts))
            ),
        },
        "areal.utils.perf_tracer": {"trace_perf": without_effect},
        "uvloop": {"run": asyncio.run},
    },
)

import areal.infra.remote_inf_engine as remote
from areal.api.io_struct import WeightUpdateMeta
from areal.engine.sglang_remote import SGLangBackend


class ByDisk:
    """The engine is told before the checkpoint is written; the request waits for a name."""

    def __init__(self, job: Job, model: Model, engine: Any) -> None:
        self.job, self.model, self.engine = job, model, engine
        path = str(job.out / "weight_update")
        self.meta = WeightUpdateMeta(type="disk", path=path, clear_checkpoint_after_load=True)

    def update(self, version: int) -> None:
        meta = self.meta.with_version(version)
        if self.job.rank != 0:
            return
        self.engine.set_version(version)
        self.engine.pause_generation()
        loaded = self.engine.update_weights_from_disk(meta)
        self.model.save(self.job.out / f"weight_update_v{version}")
        names.add(f"rl/one/{version}", str(time.time()))
        loaded.result()
        self.engine.continue_generation()


FORMS = {"disk": ByDisk}


def main() -> None:
    given = job()
    config = SimpleNamespace(
        experiment_name="rl",
        trial_name="one",
        pause_grace_period=0.05,
        request_retries=3,
        request_timeout=3600,
    )
    engine = remote.RemoteInfEngine(config, SGLangBackend())
    engine.logger = logging.getLogger("trainer")
    engine.addresses = [f"{given.host}:{given.port}"]
    model = Model(given)
    form = FORMS[given.options["form"]](given, model, engine)
    train(given, model, form.update, labelled=False)


if __name__ == "__main__":
    main()
