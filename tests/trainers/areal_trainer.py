"""A process of AReaL's trainer, in both of its ways to bring weights to an engine.

AReaL's own code, out of its wheel (1.0.4): `RemoteInfEngine` with `SGLangBackend` makes and sends
all requests, with its time-outs and tries. The order of an update is that of its FSDP engine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from borrowed import borrow, ray, without_effect
from training import Job, Model, job, start, train


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
    bare=["areal", "areal.engine", "areal.engine.core", "areal.infra.utils"],
    own=[
        "areal.api.io_struct",
        "areal.engine.core.distributed",
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
from areal.api.io_struct import ParamSpec, WeightUpdateMeta
from areal.engine.core.distributed import init_custom_process_group
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


class ByBroadcast:
    """A group of the trainer's first rank and the engine, or one for each stage of a pipeline.

    AReaL makes groups by stage, and says which stage, where it counts several. An engine without a
    pipeline that is told of two is in both groups, and receives everything from each.
    """

    def __init__(self, job: Job, model: Model, engine: Any) -> None:
        self.job, self.model, self.engine = job, model, engine
        stages = int(job.options.get("stages", 1))
        parallel = SimpleNamespace(tp_size=job.world, pp_size=stages, world_size=job.world * stages)
        names = ["update_weight_group"]
        if stages > 1:
            names = [f"update_weight_group_{stage}" for stage in range(stages)]
        self.groups = []
        for name in names if job.rank == 0 else []:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            meta = WeightUpdateMeta(
                type="xccl",
                gen_allocation=SimpleNamespace(parallel=parallel),
                nccl_master_address="127.0.0.1",
                nccl_master_port=port,
                nccl_group_name=name,
            )
            joined = engine.init_weights_update_group(meta)
            group = init_custom_process_group(
                backend="gloo",
                world_size=job.world + 1,
                init_method=f"tcp://127.0.0.1:{port}",
                rank=0,
                group_name=name,
            )
            joined.result()
            self.groups.append((meta, group))

    def update(self, version: int) -> None:
        if self.job.rank != 0:
            return
        self.engine.pause_generation()
        for bucket in self.model.buckets():
            named = [(name, tensor.contiguous()) for name, tensor in bucket]
            specs = [
                ParamSpec(name=name, shape=tuple(t.shape), dtype=str(t.dtype).split("torch.")[1])
                for name, t in named
            ]
            for meta, group in self.groups:
                received = self.engine.update_weights_from_distributed(meta, specs)
                for _, tensor in named:
                    dist.broadcast(tensor, src=0, group=group)
                received.result()
        self.engine.continue_generation()


FORMS: dict[str, Callable[[Job, Model, Any], Any]] = {"disk": ByDisk, "broadcast": ByBroadcast}


def main() -> None:
    given = job()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # as AReaL does before it makes a store
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
    start(main)
