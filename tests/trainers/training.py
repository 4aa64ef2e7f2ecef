"""What the trainer processes share: a model spread over their ranks, its steps, and their rhythm.

A trainer is started by `Trainers` of running.py. It waits for a line before each update, so that
the test decides how much is generated in between, and says when the update is done.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests
import torch
import torch.distributed as dist
import torch.multiprocessing
from quantise import Fp8, Int4, is_projection
from safetensors.torch import load_file, save_file
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

Named = list[tuple[str, torch.Tensor]]


@dataclasses.dataclass(frozen=True)
class Job:
    """What a trainer is to do. `options` are its own."""

    url: str
    model: Path
    out: Path
    rank: int
    world: int
    updates: int
    options: dict[str, Any]

    @property
    def host(self) -> str:
        return self.url.split("//")[1].rsplit(":", 1)[0]

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])


def job() -> Job:
    """Reads the command line, and joins the other ranks of the trainer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", help="the fields of a Job, as JSON")
    fields = json.loads(parser.parse_args().job)
    given = Job(**fields | {"model": Path(fields["model"]), "out": Path(fields["out"])})
    torch.set_num_threads(1)
    # The engine is no child of the trainer: it maps the tensors by name.
    strategy: Any = torch.multiprocessing
    strategy.set_sharing_strategy("file_system")
    meeting = f"file://{given.out}/meeting"
    dist.init_process_group("gloo", init_method=meeting, rank=given.rank, world_size=given.world)
    return given


class Model:
    """The weights of a checkpoint: each rank trains its rows of every tensor by AdamW in fp32."""

    def __init__(self, job: Job) -> None:
        self._rank, self._world = job.rank, job.world
        self._noise = torch.Generator().manual_seed(job.rank)
        self._whole = {
            name: tensor
            for file in sorted(job.model.glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }
        self._rows = {
            name: torch.nn.Parameter(tensor.tensor_split(job.world)[job.rank].float())
            for name, tensor in self._whole.items()
            if tensor.is_floating_point()
        }
        self._source = job.model
        self._optimizer = torch.optim.AdamW(self._rows.values(), lr=2e-3)

    def step(self) -> None:
        """One step of the optimiser, after which all ranks know the whole weights."""
        self._optimizer.zero_grad()
        loss = torch.zeros(())
        for rows in self._rows.values():
            loss = loss + (rows * torch.randn(rows.shape, generator=self._noise)).sum()
        torch.autograd.backward(loss)
        self._optimizer.step()
        for name, rows in self._rows.items():
            whole = self._whole[name]
            parts = [torch.empty_like(part) for part in whole.tensor_split(self._world)]
            mine = rows.detach().to(whole.dtype)
            for owner, part in enumerate(parts):
                if owner == self._rank:
                    part.copy_(mine)
                dist.broadcast(part.view(torch.uint8), owner)
            self._whole[name] = torch.cat(parts)

    def tensors(self) -> dict[str, torch.Tensor]:
        """What an engine is to serve: packed, and not to be changed."""
        return dict(self._whole)

    def named(self) -> Named:
        """All tensors, in layouts that trainers make: transposed, strided, at an offset. Copies."""
        return [(name, _laid_out(n, t)) for n, (name, t) in enumerate(self.tensors().items())]

    def buckets(self, size: int = 4) -> Iterator[Named]:
        """The same, some at a time."""
        named = self.named()
        for begin in range(0, len(named), size):
            yield named[begin : begin + size]

    def save(self, directory: Path) -> None:
        """A checkpoint."""
        directory.mkdir(parents=True)
        tensors = {name: tensor.contiguous() for name, tensor in self.tensors().items()}
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        for path in self._source.glob("*.json"):
            if not path.name.endswith(".index.json"):
                shutil.copy(path, directory)


class Quantised(Model):
    """Trained in bf16, served as `form` has it."""

    def __init__(self, job: Job, form: Fp8 | Int4) -> None:
        super().__init__(job)
        self._form = form

    def tensors(self) -> dict[str, torch.Tensor]:
        made: dict[str, torch.Tensor] = {}
        for name, tensor in super().tensors().items():
            if is_projection(name):
                module = name.removesuffix("weight")
                parts = self._form.quantise(tensor)
                made |= {module + kind: part for kind, part in parts.items()}
            else:
                made[name] = tensor
        return made


def _laid_out(number: int, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() < 2:
        return torch.cat([tensor.new_zeros(3), tensor.flatten()])[3:].view(tensor.shape)
    if number % 3 == 0:
        return tensor.t().contiguous().t()
    if number % 3 == 1:
        return tensor.repeat_interleave(2, 0)[::2]
    return tensor.clone()


class Client:
    """The HTTP calls that slime, NeMo-RL and others make alike: no time-out, and no second try."""

    def __init__(self, job: Job) -> None:
        self._url = job.url

    def post(self, route: str, **fields: Any) -> Any:
        reply = requests.post(f"{self._url}/{route}", json=fields)
        assert reply.status_code == 200, f"{route}: {reply.status_code}: {reply.text}"
        return reply.json() if reply.content else None

    def get(self, route: str) -> Any:
        reply = requests.get(f"{self._url}/{route}")
        reply.raise_for_status()
        return reply.json()

    def flush_cache(self) -> None:
        """Asks until it is granted, as all of them do; they wait for a second in between."""
        for _ in range(600):
            if requests.get(f"{self._url}/flush_cache").status_code == 200:
                return
            time.sleep(0.1)
        raise TimeoutError("the cache is not flushed")


def join_group(port: int, world: int, name: str) -> dist.ProcessGroup:
    """As rank 0 of a group with an engine: the recipe that trainers share ."""
    store, rank, size = next(iter(rendezvous(f"tcp://127.0.0.1:{port}", 0, world)))
    group: dist.ProcessGroup
    group, _ = c10d._new_process_group_helper(
        size,
        rank,
        [],
        c10d.Backend("gloo"),
        c10d.PrefixStore(name, store),
        group_name=c10d.GroupName(name),
        timeout=c10d.default_pg_timeout,
    )
    c10d._world.pg_group_ranks[group] = {member: member for member in range(world)}
    return group


def start(main: Callable[[], None]) -> None:
    """Runs `main`; a failure ends the process at once, whatever other threads wait for.

    SIGABRT shows what all threads are doing.
    """
    faulthandler.enable()
    try:
        main()
    except Exception:  # noqa: BLE001
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)


def train(job: Job, model: Model, update: Callable[[int], None], labelled: bool = True) -> None:
    """Steps, each with its update when the test says so; `update` is called on every rank."""
    dist.barrier()
    if job.rank == 0:
        print("connected", flush=True)
    for version in range(1, job.updates + 1):
        if job.rank == 0:
            assert sys.stdin.readline() == "update\n", "the test has gone"
        dist.barrier()
        model.step()
        update(version)
        if labelled and job.rank == 0:
            # As miles does in its own tests.
            info = requests.get(f"{job.url}/model_info").json()
            assert str(info["weight_version"]) == str(version), info
        dist.barrier()
        if job.rank == 0:
            if version == job.updates:
                model.save(job.out / "weights")
            print(f"updated {version}", flush=True)
    dist.barrier()
