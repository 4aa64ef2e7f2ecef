"""A process of miles' trainer, in each of its ways to bring weights to an engine.

miles' own code, out of its wheel (0.0.2): `SGLangEngine` with all its requests, and for the forms
"tensor" and "broadcast" the whole sequence of an update, `UpdateWeightFromTensor` and
`UpdateWeightFromDistributed`. That version ends an update by /post_process_weights. The sessions of
newer versions ("tensor-session", "broadcast-session") and "disk" follow the contract.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch.distributed as dist
from borrowed import Handle, Serializer, borrow, ray, ray_get
from training import Job, Model, Named, job, train

MEGATRON = "miles.backends.megatron_utils"
borrow(
    "miles_rl",
    absent=[
        *("megatron", "ray", "sglang", "sglang_router", "torch_memory_saver"),
        *("miles.backends.training_utils", "miles.ray.ray_actor", f"{MEGATRON}.lora_utils"),
        *(f"{MEGATRON}.megatron_to_hf", f"{MEGATRON}.misc_utils"),
        *("miles.utils.env_report", "miles.utils.http_utils", "miles.utils.types"),
    ],
    bare=[
        *("miles", "miles.backends", "miles.ray", MEGATRON),
        *("sglang", "sglang.srt", "sglang.srt.weight_sync"),
    ],
    own=["sglang.srt.weight_sync.tensor_bucket"],
    given=ray() | {"sglang.srt.utils": {"MultiprocessingSerializer": Serializer}},
)

from miles.backends.megatron_utils.update_weight import update_weight_from_tensor as by_tensor
from miles.backends.megatron_utils.update_weight.update_weight_from_distributed import broadcast
from miles.backends.sglang_utils.sglang_engine import SGLangEngine, _wait_server_healthy
from miles.utils.distributed_utils import get_gloo_group, init_gloo_group


class Engine(SGLangEngine):  # type: ignore[misc]
    """miles' client, and what newer versions of it send."""

    def __init__(self, job: Job) -> None:
        super().__init__(Namespace(rollout_external=True), rank=0)
        self.node_rank, self.server_host, self.server_port = 0, job.host, job.port
        if job.rank == 0:
            _wait_server_healthy(job.url, None, lambda: True)

    def begin_weight_update(self, selector: str) -> Any:
        return self._make_request("begin_weight_update", {"selector": selector})

    def end_weight_update(self) -> Any:
        return self._make_request("end_weight_update")

    def send(self, route: str, **fields: Any) -> Any:
        return self._make_request(route, fields)

    def init_weights_update_group(self, *arguments: Any, backend: str) -> Any:
        return super().init_weights_update_group(
            *arguments, backend=backend.replace("nccl", "gloo")
        )


def arguments(job: Job) -> Namespace:
    return Namespace(
        rollout_num_gpus_per_engine=job.world,
        actor_num_nodes=1,
        actor_num_gpus_per_node=job.world,
        pause_generation_mode=job.options.get("mode", "retract"),
    )


class ByTensor:
    """miles' colocated form: buckets in shared memory, gathered to the first rank of the engine."""

    def __init__(self, job: Job, model: Model, engine: Engine) -> None:
        def chunks(weights: object, weight_type: str) -> Iterator[Named]:
            return model.buckets()

        iterator = SimpleNamespace(get_hf_weight_chunks=chunks)
        by_tensor.HfWeightIteratorBase = SimpleNamespace(create=lambda **_: iterator)
        self.updater = by_tensor.UpdateWeightFromTensor(
            arguments(job), [], model.tensors, model_name="llama", quantization_config=None
        )
        self.updater.connect_rollout_engines([Handle(engine)], None)

    def update(self, version: int) -> None:
        self.updater.update_weights()


class ByTensorInSession(ByTensor):
    """The same buckets, by miles' own code, in the session of newer versions."""

    def __init__(self, job: Job, model: Model, engine: Engine) -> None:
        super().__init__(job, model, engine)
        self._model, self._engine, self._mode = model, engine, arguments(job).pause_generation_mode
        send = engine.send
        engine.update_weights_from_tensor = lambda **fields: send(
            "update_weights_from_tensor", flush_cache=False, selector="all", **fields
        )

    def update(self, version: int) -> None:
        first = dist.get_rank() == 0
        self.updater.weight_version = version
        if first:
            self._engine.pause_generation(self._mode)
            if self._mode != "in_place":
                self._engine.flush_cache()
            self._engine.begin_weight_update("all")
        dist.barrier()
        for bucket in self._model.buckets():
            calls, buffers = self.updater._send_base_params(bucket)
            ray_get(calls)
            dist.barrier()
            for buffer in buffers:  # the engine has read them
                buffer["flattened_tensor"].fill_(255)
        if first:
            self._engine.end_weight_update()
            self._engine.continue_generation()


class ByBroadcast(broadcast.UpdateWeightFromDistributed):  # type: ignore[misc]
    """miles' form for engines elsewhere: a process group in which the trainer broadcasts."""

    def __init__(self, job: Job, model: Model, engine: Engine) -> None:
        super().__init__(
            arguments(job), [], model.tensors, model_name="llama", quantization_config=None
        )
        self._buckets, self._engine = model.buckets, engine
        join = broadcast.init_process_group
        broadcast.init_process_group = lambda **fields: join(**fields | {"backend": "gloo"})
        lock = SimpleNamespace(acquire=lambda: True, release=lambda: None)
        engine.destroy_weights_update_group("miles-pp_0")
        self.connect_rollout_engines([Handle(engine)], Handle(lock))

    @property
    def _is_source(self) -> bool:
        return bool(dist.get_rank() == 0)

    def _gather_and_update_non_expert_weights(self, send: Any, bar: Any = None) -> None:
        for bucket in self._buckets():
            if self._is_source:
                send([(name, tensor.contiguous()) for name, tensor in bucket], bar)

    def _gather_and_update_expert_weights(self, send: Any, bar: Any = None) -> None:
        pass

    def update(self, version: int) -> None:
        self.update_weights()


class ByBroadcastInSession(ByBroadcast):
    """The same groups and broadcasts, in the session of newer versions, whose end has the label."""

    def _pause_and_prepare_engines(self) -> None:
        if self._is_source:
            super()._pause_and_prepare_engines()
            self._engine.begin_weight_update("all")

    def _finalize_and_resume_engines(self, post_load_weights: bool = False) -> None:
        if self._is_source:
            self._engine.send(
                "update_weight_version",
                new_version=str(self.weight_version),
                abort_all_requests=False,
            )
            self._engine.end_weight_update()
            self._engine.continue_generation()


class ByDisk:
    """miles' deltas on disk. Every rank publishes its part of the tensors."""

    def __init__(self, job: Job, model: Model, engine: Engine) -> None:
        from syncline import Publisher

        self._model, self._engine, self._mode = model, engine, arguments(job).pause_generation_mode
        self._rank, self._world = job.rank, job.world
        self._store, self._replica = job.out / "store", job.out / "replica"
        self._publisher = Publisher(
            self._store, base=job.model, rank=job.rank, world=job.world, threads=1
        )
        if job.rank == 0:
            self._pull(0)

    def _pull(self, version: int) -> None:
        self._engine.send(
            "pull_weights",
            local_checkpoint_dir=str(self._replica),
            source_dir=str(self._store),
            target_version=version,
        )

    def update(self, version: int) -> None:
        self._publisher.publish(version, self._model.named()[self._rank :: self._world])
        if self._rank != 0:
            return
        self._pull(version)
        self._engine.pause_generation(self._mode)
        self._engine.flush_cache()
        self._engine.send(
            "update_weights_from_disk", model_path=str(self._replica), weight_version=str(version)
        )
        self._engine.continue_generation()


FORMS: dict[str, Callable[[Job, Model, Engine], Any]] = {
    "tensor": ByTensor,
    "tensor-session": ByTensorInSession,
    "disk": ByDisk,
    "broadcast": ByBroadcast,
    "broadcast-session": ByBroadcastInSession,
}


def main() -> None:
    given = job()
    init_gloo_group()
    assert get_gloo_group() is not None
    model, engine = Model(given), Engine(given)
    form = FORMS[given.options["form"]](given, model, engine)
    train(given, model, form.update)


if __name__ == "__main__":
    main()
