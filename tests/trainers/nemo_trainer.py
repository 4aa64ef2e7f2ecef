"""A process of NeMo-RL's trainer.

There is no wheel of NeMo-RL: the calls follow the contract. Buckets are made by SGLang's own class,
one for each dtype. Released versions do not pause: their rollouts have ended. Newer ones open a
session in a pause ("session").
"""

from __future__ import annotations

from typing import Any

import requests
import torch.distributed as dist
from quantise import Fp8
from sglang_buckets import Bucket
from training import Client, Job, Model, Named, Quantised, job, start, train


class Refit:
    """Brings a model's weights to an engine."""

    def __init__(self, job: Job, model: Model) -> None:
        self.job, self.model, self.client = job, model, Client(job)
        self.session = bool(job.options.get("session"))

    def update(self, version: int) -> None:
        first = self.job.rank == 0
        if first:
            if self.session:
                self.client.post("pause_generation", mode="retract")
            self.client.flush_cache()
            if self.session:
                self.client.post("begin_weight_update")
        dist.barrier()
        for named in self.model.buckets(8):
            for part in _by_dtype(named):
                self._send(part, str(version))
        if first:
            if self.session:
                self.client.post("end_weight_update")
            self.client.flush_cache()
            if self.session:
                self.client.post("continue_generation")
            requests.get(f"{self.job.url}/health_generate").raise_for_status()

    def _send(self, named: Named, version: str) -> None:
        bucket = Bucket(named)
        payloads: list[Any] | None = [None] * self.job.world if self.job.rank == 0 else None
        dist.gather_object(bucket.payload, payloads)
        if self.job.rank == 0:
            told = self.client.post(
                "update_weights_from_tensor",
                serialized_named_tensors=payloads,
                load_format="flattened_bucket",
                flush_cache=False,
                weight_version=version,
            )
            assert told.get("success", True), told
        dist.barrier()
        bucket.overwrite()


def _by_dtype(named: Named) -> list[Named]:
    parts: dict[Any, Named] = {}
    for name, tensor in named:
        parts.setdefault(tensor.dtype, []).append((name, tensor))
    return list(parts.values())


def main() -> None:
    given = job()
    model = Quantised(given, Fp8()) if given.options.get("quantised") else Model(given)
    train(given, model, Refit(given, model).update)


if __name__ == "__main__":
    start(main)
