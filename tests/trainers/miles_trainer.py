"""A process of miles' trainer, in each of its ways to bring weights to an engine.

miles' own code, out of its wheel (0.0.2): `SGLangEngine` with all its requests; for the forms
"tensor" and "broadcast" the whole sequence of an update, `UpdateWeightFromTensor` and
`UpdateWeightFromDistributed`; for "writes" the plan and the writes of `UpdateWeightP2P`. That
version ends an update by /post_process_weights. The sessions of newer versions ("tensor-session",
"broadcast-session", "writes") and "disk" follow the contract.
"""

from __future__ import annotations

import dataclasses
import functools
from argparse import Namespace
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from borrowed import Handle, Serializer, borrow, ray, ray_get
from mooncake.engine import TransferEngine
from shards import of_rank
from training import Job, Model, Named, job, join_group, start, train


@dataclasses.dataclass
class ServerArgs:
    """What miles keeps of an engine's settings."""

    tp_size: int


@functools.cache
def own_groups() -> list[Any]:
    """Of one rank each; made by all ranks together."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())]


def parallel_state() -> Any:
    """Megatron's, of a trainer whose ranks are one tensor-parallel group."""
    alone, rank = SimpleNamespace(rank=0, size=1), dist.get_rank()
    return SimpleNamespace(
        pp=SimpleNamespace(rank=0, size=1, group=own_groups()[rank]),
        ep=alone,
        intra_dp_cp=alone,
        tp=SimpleNamespace(rank=rank, size=dist.get_world_size()),
    )


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
    given=ray()
    | {
        "miles.backends.training_utils.parallel": {"get_parallel_state": parallel_state},
        "sglang.srt.server_args": {"ServerArgs": ServerArgs},
        "sglang.srt.utils": {"MultiprocessingSerializer": Serializer},
    },
)

from miles.backends.megatron_utils.update_weight import update_weight_from_tensor as by_tensor
from miles.backends.megatron_utils.update_weight.update_weight_from_distributed import (
    broadcast,
    p2p,
)
from miles.backends.sglang_utils.sglang_engine import SGLangEngine, _wait_server_healthy
from miles.utils.distributed_utils import init_gloo_group


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
        assert backend == "nccl"
        return super().init_weights_update_group(*arguments, backend="gloo")


def arguments(job: Job) -> Namespace:
    return Namespace(
        rollout_num_gpus_per_engine=job.world,
        actor_num_nodes=1,
        actor_num_gpus_per_node=job.world,
        pause_generation_mode=job.options.get("mode", "retract"),
        rollout_num_gpus=job.world,
        sglang_pp_size=1,
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
        # miles' own takes torch 2.13 for older than 2.6, by comparing texts.
        broadcast.init_process_group = lambda init_method, world_size, group_name, **_: join_group(
            int(init_method.rsplit(":", 1)[1]), world_size, group_name
        )
        lock = SimpleNamespace(acquire=lambda: True, release=lambda: None)
        if job.rank == 0:
            engine.destroy_weights_update_group("miles-pp_0")  # there is none: 400, and no matter
        self.connect_rollout_engines([Handle(engine)], Handle(lock))

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


class ByWrites(p2p.UpdateWeightP2P):  # type: ignore[misc]
    """miles' P2P form: each rank writes into the parameters of a rank of the engine.

    Which rank writes where, what it asks the engine, and the writes are miles' own code. It fills a
    replica of SGLang's model on the CPU; here the parameters are put together by the tests.
    """

    def __init__(self, job: Job, model: Model, engine: Engine) -> None:
        super().__init__(
            arguments(job), [], model.tensors, model_name="llama", quantization_config=None
        )
        self._job, self._tensors, self._engine = job, model.tensors, engine
        self.rollout_engines = [Handle(engine)]
        assert self._is_source
        (target,) = self.transfer_plan.plan_p2p()
        assert (target.engine_ind, target.engine_rank) == (0, job.rank)
        known, sessions, _ = p2p.query_remote_weight_infos(self.rollout_engines, [target])
        session = sessions[0, job.rank]
        places, parallel = known[session]
        assert (parallel["tp_rank"], parallel["tp_size"]) == (job.rank, job.world)
        self._remote = p2p.RemoteWeightInfo(session, places)
        self._replica = {name: t.clone() for name, t in self._parameters().items()}
        assert {n: t.numel() for n, t in self._replica.items()} == {
            n: p[1] for n, p in places.items()
        }
        self._transfer_engine = TransferEngine()
        assert self._transfer_engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self._weight_memory_registry = p2p.register_cpu_memory(self._replica, self._transfer_engine)

    def _parameters(self) -> dict[str, torch.Tensor]:
        """As the engine's rank holds them: fused, divided, the vocabulary's last rows padded."""
        weights, rank, ranks = self._tensors(), self._job.rank, self._job.world
        made = of_rank(weights, rank, ranks)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            width = weights[name].shape[1]
            rows = self._remote.weights_info[name][1] // width
            own = weights[name][rank * rows : (rank + 1) * rows]
            made[name] = torch.cat([own, own.new_zeros(rows - len(own), width)])
        return made

    def update(self, version: int) -> None:
        first = self._job.rank == 0
        if first:
            self._engine.pause_generation(self.args.pause_generation_mode)
            self._engine.flush_cache()
            self._engine.begin_weight_update("all")
        dist.barrier()
        for name, tensor in self._parameters().items():
            self._replica[name].copy_(tensor)
        names = list(self._replica)
        self.transfer_manager.submit(self._do_p2p_write_one_session, self._remote, names)
        self.transfer_manager.wait_transfers()
        dist.barrier()
        if first:
            self._engine.send(
                "update_weight_version", new_version=str(version), abort_all_requests=False
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
    "writes": ByWrites,
}


def main() -> None:
    given = job()
    init_gloo_group()
    own_groups()
    model, engine = Model(given), Engine(given)
    form = FORMS[given.options["form"]](given, model, engine)
    train(given, model, form.update)


if __name__ == "__main__":
    start(main)
