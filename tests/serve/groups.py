"""A trainer's process group by the recipe of SGLang, slime and miles, with the engine's ranks as its other members."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from server import Reply, Server
from torch.distributed import distributed_c10d as c10d

Named = Sequence[tuple[str, torch.Tensor]]
INTERNALS: Any = c10d  # torch has no public way to a group beside the default one

RESULT_SECONDS = 60


def free_port(host: str = "127.0.0.1") -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as one:
        one.bind((host, 0))
        return int(one.getsockname()[1])


def bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def join(
    host: str, port: int, name: str, rank: int, size: int, seconds: float = RESULT_SECONDS
) -> Any:
    """This process as a member of the group."""
    timeout = timedelta(seconds=seconds)
    url = f"tcp://{bracketed(host)}:{port}"
    store, rank, size = next(iter(dist.rendezvous(url, rank, size, timeout=timeout)))
    store.set_timeout(timeout)
    store = dist.PrefixStore(name, store)
    group, _ = INTERNALS._new_process_group_helper(
        size, rank, [], dist.Backend("gloo"), store, group_name=name, timeout=timeout
    )
    INTERNALS._world.pg_group_ranks[group] = {i: i for i in range(size)}
    return group


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def described(tensors: Named) -> dict[str, Any]:
    return {
        "names": [name for name, _ in tensors],
        "dtypes": [dtype_name(tensor) for _, tensor in tensors],
        "shapes": [list(tensor.shape) for _, tensor in tensors],
    }


def flat(tensors: Named) -> torch.Tensor:
    """One bucket: the bytes of all, without gaps."""
    parts = [tensor.contiguous().reshape(-1).view(torch.uint8) for _, tensor in tensors]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.uint8)


class TrainerGroup:
    """Rank 0, in this process; the engines' ranks follow in their order."""

    def __init__(
        self,
        servers: Sequence[tuple[Server, int]],
        name: str = "weight_update_group",
        host: str = "127.0.0.1",
        **more: object,
    ) -> None:
        self.name = name
        self.servers = [server for server, _ in servers]
        self.port = free_port(host)
        self._threads = ThreadPoolExecutor(8)
        size = 1 + sum(ranks for _, ranks in servers)
        offset = 1
        asked = []
        for server, ranks in servers:
            body: dict[str, object] = {
                "master_address": host,
                "master_port": self.port,
                "rank_offset": offset,
                "world_size": size,
                "group_name": name,
                "backend": "gloo",
            } | more
            asked.append(self._threads.submit(server.post, "/init_weights_update_group", body))
            offset += ranks
        self.group = join(host, self.port, name, 0, size)
        for one in asked:
            reply = one.result(RESULT_SECONDS).ok()
            assert reply["message"] == "Succeeded to initialize custom process group."

    def broadcast(self, tensors: Named, flattened: bool = False) -> None:
        sent = [flat(tensors)] if flattened else [t.detach().contiguous() for _, t in tensors]
        works = [dist.broadcast(t, src=0, group=self.group, async_op=True) for t in sent]
        for work in works:
            work.wait()

    def post(self, body: dict[str, object]) -> list[Any]:
        """The request to each engine, not waited for."""
        path = "/update_weights_from_distributed"
        body = {"group_name": self.name, "flush_cache": False} | body
        return [self._threads.submit(server.post, path, body) for server in self.servers]

    def send(self, tensors: Named, flattened: bool = False, **more: object) -> list[Reply]:
        """One bucket: the request and, at the same time, the broadcast."""
        form = {"load_format": "flattened_bucket"} if flattened else {}
        asked = self.post(described(tensors) | form | more)
        self.broadcast(tensors, flattened)
        return [one.result(RESULT_SECONDS) for one in asked]

    def leave(self) -> None:
        """This process only."""
        dist.destroy_process_group(self.group)

    def close(self) -> None:
        """As trainers do: the engines first."""
        for server in self.servers:
            server.post("/destroy_weights_update_group", {"group_name": self.name})
        self.leave()
        self._threads.shutdown()


@contextmanager
def group(*servers: tuple[Server, int], **more: Any) -> Iterator[TrainerGroup]:
    made = TrainerGroup(servers, **more)
    try:
        yield made
    finally:
        made.close()
