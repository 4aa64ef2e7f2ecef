"""A process of slime's trainer, in each of its ways to bring weights to an engine.

There is no wheel of slime: the calls follow the contract. Buckets are made by SGLang's own class.
"""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests
import torch
import torch.distributed as dist
from directory_format import read_checkpoint, version_dir, write_delta
from quantise import Int4
from sglang_buckets import Bucket
from training import Client, Job, Model, Named, Quantised, job, join_group, start, train


class Frame:
    """What all forms but those on disk have in common: pause, flush, `send`, continue."""

    def __init__(self, job: Job, model: Model, client: Client) -> None:
        self.job, self.model, self.client = job, model, client

    def update(self, version: int) -> None:
        quantised = isinstance(self.model, Quantised)
        if self.job.rank == 0:
            self.client.post("pause_generation")
            self.client.flush_cache()
            if quantised:
                self.client.post(
                    "post_process_weights",
                    restore_weights_before_load=True,
                    post_process_quantization=False,
                )
        dist.barrier()
        self.send(str(version))
        dist.barrier()
        if self.job.rank == 0:
            if quantised:
                self.client.post(
                    "post_process_weights",
                    restore_weights_before_load=False,
                    post_process_quantization=True,
                )
            self.client.post("continue_generation")

    def send(self, version: str) -> None:
        raise NotImplementedError


class ByTensor(Frame):
    """Each rank sends all tensors to its engine rank, but experts only to the one that has them."""

    def send(self, version: str) -> None:
        named = self.model.named()
        dense = [pair for pair in named if ".experts." not in pair[0]]
        for begin in range(0, len(dense), 4):
            self._send_bucket(dense[begin : begin + 4], version)
        # Layer by layer and expert by expert: whoever does not hold it sends an empty bucket.
        experts = sorted({_expert_of(name) for name, _ in named if ".experts." in name})
        count = 1 + max((expert for _, expert in experts), default=0)
        for layer, expert in experts:
            holder = expert * self.job.world // count
            mine = holder == self.job.rank
            part = [p for p in named if ".experts." in p[0] and _expert_of(p[0]) == (layer, expert)]
            self._send_bucket(part if mine else [], version)

    def _send_bucket(self, named: Named, version: str) -> None:
        bucket = Bucket(named)
        payloads: list[Any] | None = [None] * self.job.world if self.job.rank == 0 else None
        dist.gather_object(bucket.payload, payloads)
        if self.job.rank == 0:
            self.client.post(
                "update_weights_from_tensor",
                serialized_named_tensors=payloads,
                load_format="flattened_bucket",
                flush_cache=False,
                weight_version=version,
            )
        dist.barrier()
        bucket.overwrite()


def _expert_of(name: str) -> tuple[str, int]:
    layer, rest = name.split(".experts.")
    return layer, int(rest.split(".")[0])


class ByBroadcast(Frame):
    """A group of the trainer's first rank and the engine; a broadcast for each tensor or bucket."""

    def __init__(self, job: Job, model: Model, client: Client) -> None:
        super().__init__(job, model, client)
        self._name = "slime-pp_0"
        if job.rank == 0:
            requests.post(
                f"{job.url}/destroy_weights_update_group", json={"group_name": self._name}
            )
            self._group = self._connect()

    def _connect(self) -> dist.ProcessGroup:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        fields = {
            "master_address": "127.0.0.1",
            "master_port": port,
            "rank_offset": 1,
            "world_size": self.job.world + 1,
            "group_name": self._name,
            "backend": "gloo",
        }
        with ThreadPoolExecutor(1) as calls:
            joined = calls.submit(self.client.post, "init_weights_update_group", **fields)
            group = join_group(port, self.job.world + 1, self._name)
            joined.result()
        return group

    def send(self, version: str) -> None:
        if self.job.rank != 0:
            return
        flat = bool(self.job.options.get("flat"))
        with ThreadPoolExecutor(1) as calls:
            for named in self.model.buckets():
                received = calls.submit(self._announce, named, version, flat)
                parts = [tensor.contiguous().view(torch.uint8).flatten() for _, tensor in named]
                for tensor in [torch.cat(parts)] if flat else parts:
                    dist.broadcast(tensor, 0, group=self._group)
                received.result()

    def _announce(self, named: Named, version: str, flat: bool) -> Any:
        return self.client.post(
            "update_weights_from_distributed",
            names=[name for name, _ in named],
            dtypes=[str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            shapes=[list(tensor.shape) for _, tensor in named],
            group_name=self._name,
            flush_cache=False,
            weight_version=version,
            load_format="flattened_bucket" if flat else None,
        )


class ByDisk:
    """Full versions, each a checkpoint; the engine reads it where it is, or pulls it first."""

    def __init__(self, job: Job, model: Model, client: Client) -> None:
        self.job, self.model, self.client = job, model, client
        self.store, self.replica = job.out / "store", job.out / "replica"

    def update(self, version: int) -> None:
        if self.job.rank != 0:
            return
        path = self.publish(version)
        if self.job.options.get("pull"):
            path = self.replica
            self.client.post(
                "pull_weights",
                local_checkpoint_dir=str(path),
                source_dir=str(self.store),
                target_version=version,
            )
        self.client.post("pause_generation")
        self.client.flush_cache()
        self.client.post(
            "update_weights_from_disk", model_path=str(path), weight_version=str(version)
        )
        told = self.client.get("get_weight_version")
        assert told["weight_version"] == str(version), told
        self.client.post("continue_generation")

    def publish(self, version: int) -> Path:
        path = version_dir(self.store, version)
        self.model.save(path)
        return path


class ByDeltas(ByDisk):
    """Deltas, written by the tests' own publisher in the format that slime reads."""

    def __init__(self, job: Job, model: Model, client: Client) -> None:
        super().__init__(job, model, client)
        self._last = read_checkpoint(job.model)

    def publish(self, version: int) -> Path:
        whole = self.job.out / "whole"
        self.model.save(whole)
        new = read_checkpoint(whole)
        shutil.rmtree(whole)
        encoding = "xor" if version % 2 else "overwrite"
        write_delta(self.store, version, self._last, new, encoding, shards=2)
        self._last = new
        return self.replica


FORMS: dict[str, Callable[[Job, Model, Client], Any]] = {
    "tensor": ByTensor,
    "broadcast": ByBroadcast,
    "disk": ByDisk,
    "deltas": ByDeltas,
}


def main() -> None:
    given = job()
    model = Quantised(given, Int4(32)) if given.options.get("quantised") else Model(given)
    form = FORMS[given.options["form"]](given, model, Client(given))
    train(given, model, form.update)


if __name__ == "__main__":
    start(main)
