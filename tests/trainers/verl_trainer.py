"""A process of verl's trainer.

verl's own code, out of its wheel (0.9.1): `ServerAdapter.update_weights`, which makes buckets and
sends each through SGLang's `update_weights` (from its wheel) and verl's `AsyncHttpServerAdapter`
with its time-out and tries. verl pauses and continues generation by calls into SGLang's process; here
they are the same calls over HTTP.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import requests
import torch
import torch.distributed as dist
from borrowed import Serializer, ServerArgs, borrow, ray
from torch.distributed.device_mesh import init_device_mesh
from training import Job, Model, job, start, train

ROLLOUT = "verl.workers.rollout"
WEIGHT_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater"


@dataclasses.dataclass
class LocalSerializedTensor:
    values: list[bytes]


LocalSerializedTensor.__module__ = WEIGHT_UPDATER  # by which it is pickled


@dataclasses.dataclass
class UpdateWeightsFromTensorReqInput:
    """SGLang's, as far as verl sends it, with its defaults."""

    serialized_named_tensors: list[bytes]
    load_format: str | None = None
    flush_cache: bool = True


borrow(
    "verl",
    "sglang",
    absent=["fastapi", "omegaconf", "ray", "sglang", "uvicorn", "verl"],
    bare=[
        *("verl", "verl.workers", ROLLOUT, f"{ROLLOUT}.sglang_rollout"),
        *("sglang", "sglang.srt", "sglang.srt.weight_sync"),
    ],
    own=[
        "sglang.srt.weight_sync.utils",
        f"{ROLLOUT}.utils",
        f"{ROLLOUT}.sglang_rollout.http_server_engine",
        f"{ROLLOUT}.sglang_rollout.sglang_rollout",
        f"{ROLLOUT}.sglang_rollout.utils",
    ],
    given=ray()
    | {
        "sglang.srt.managers.io_struct": {
            "UpdateWeightsFromTensorReqInput": UpdateWeightsFromTensorReqInput
        },
        "sglang.srt.server_args": {"ServerArgs": ServerArgs},
        "sglang.srt.utils": {"MultiprocessingSerializer": Serializer},
        "verl.utils.device": {"get_device_id": lambda: "cpu"},
        WEIGHT_UPDATER: {"LocalSerializedTensor": LocalSerializedTensor},
    },
)

from verl.workers.rollout.sglang_rollout import sglang_rollout
from verl.workers.rollout.sglang_rollout.http_server_engine import AsyncHttpServerAdapter

BUCKET = 20_000  # bytes; verl's setting counts megabytes
make_buckets = sglang_rollout.get_named_tensor_buckets
sglang_rollout.get_named_tensor_buckets = lambda weights, _, **fields: make_buckets(
    weights, BUCKET, **fields
)


class Adapter(sglang_rollout.ServerAdapter):  # type: ignore[misc]
    """verl's adapter for an engine that runs already."""

    def __init__(self, job: Job) -> None:
        self.config = _Config(quantization=None)
        self.config.checkpoint_engine = SimpleNamespace(update_weights_bucket_megabytes=1)
        self.model_config = SimpleNamespace(hf_config=SimpleNamespace(model_type="llama"))
        self.device_mesh = init_device_mesh(
            "cpu", (1, job.world, 1), mesh_dim_names=("dp", "infer_tp", "infer_pp")
        )
        self._pd_role = None
        self._engine = None
        if job.rank == 0:
            address = job.options.get("port", job.port)
            self._engine = AsyncHttpServerAdapter(
                host=job.host, port=address, launch_server=False, retry_delay=0.01
            )

    async def _init_server_adapter(self) -> None:
        """There is no ray to ask for the engine."""


class _Config(dict[str, Any]):
    checkpoint_engine: Any


def main() -> None:
    given = job()
    model, adapter = Model(given), Adapter(given)

    async def weights() -> AsyncIterator[tuple[str, torch.Tensor]]:
        # A payload that is sent a second time needs the tensors of all ranks. verl's ranks but
        # the first let go of views when the first has their handles, but not of whole tensors.
        held = model.named() if "port" not in given.options else list(model.tensors().items())
        for name, tensor in held:
            yield name, tensor

    def update(version: int) -> None:
        if given.rank == 0:
            requests.post(f"{given.url}/pause_generation", json={}).raise_for_status()
        dist.barrier()
        asyncio.run(adapter.update_weights(weights()))
        dist.barrier()
        if given.rank == 0:
            requests.post(f"{given.url}/continue_generation", json={}).raise_for_status()

    train(given, model, update, labelled=False)


if __name__ == "__main__":
    start(main)
