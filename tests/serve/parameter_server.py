"""A producer for one rank of an engine: checkpoint-engine's own ParameterServer, on a CPU.

    RANK=… WORLD_SIZE=… MASTER_ADDR=… MASTER_PORT=… python parameter_server.py URL UUID CHECKPOINT…

Updates the engine at URL with each checkpoint in turn, and prints a line for each. From the wheel of
checkpoint-engine, as it is: registering, buckets, the two halves of the buffer, broadcast between the
producers, the socket and its messages. Ours, because a CPU is none of its devices: the device's
functions, the UUID, and a pickler that sends the buffer as shared memory, not as bytes. And the
request, which is SGLang's updater's.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import urllib.request
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.multiprocessing
import zmq
from safetensors.torch import load_file

SHARING: Any = torch.multiprocessing  # torch gives its functions no types
WHEELS = Path(__file__).resolve().parents[2] / "build" / "cache" / "wheels"


class Device:
    """What torch.cuda is elsewhere."""

    synchronize = ipc_collect = empty_cache = set_device = staticmethod(lambda *_: None)
    memory_allocated = memory_reserved = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: int(os.environ["WORLD_SIZE"]))
    mem_get_info = staticmethod(lambda: (1 << 30, 1 << 30))


class DeviceManager:
    device_type = "cpu"
    device_module = Device
    backend = "gloo"

    def rdma_device(self, _: int) -> str:
        raise ImportError("no RDMA")


def load_parameter_server(uuid: str) -> Any:
    """The class, out of the wheel, without the packages that only other parts of it need."""
    (wheel,) = WHEELS.glob("checkpoint_engine-*.whl")
    home = ModuleType("checkpoint_engine")
    home.__path__ = [f"{wheel}/checkpoint_engine"]
    loguru: Any = ModuleType("loguru")
    loguru.logger = logging.getLogger("checkpoint_engine")
    sys.modules |= {"checkpoint_engine": home, "loguru": loguru}
    from checkpoint_engine import p2p_store, pin_memory, ps  # type: ignore[import-not-found]

    ps.DeviceManager = DeviceManager
    ps._get_physical_gpu_id = lambda *_: uuid
    ps.get_ip = lambda: "127.0.0.1"
    p2p_store.P2PStore.__init__ = DeviceManager.rdma_device
    pin_memory.torch = ModuleType("torch of pin_memory")
    vars(pin_memory.torch).update(vars(torch))
    pin_memory.torch.empty = partial(unpinned, torch.empty)
    return ps.ParameterServer


def unpinned(empty: Any, *size: int, pin_memory: bool = False, **more: Any) -> torch.Tensor:
    made: torch.Tensor = empty(*size, **more)
    return made


def send_shared(self: zmq.Socket[bytes], content: object) -> None:
    self.send(bytes(ForkingPickler.dumps(content)))


def post(url: str, version: str, world: int, handles: list[tuple[str, str]]) -> None:
    body = {"zmq_handles": dict(handles[:world]), "flush_cache": True, "weight_version": version}
    data = json.dumps(body).encode()
    if int(os.environ["RANK"]) == 0:
        with urllib.request.urlopen(f"{url}/update_weights_from_ipc", data) as reply:
            print(reply.read().decode(), flush=True)


def main() -> None:
    url, uuid, *checkpoints = sys.argv[1:]
    SHARING.set_sharing_strategy("file_system")
    zmq.Socket.send_pyobj = send_shared  # type: ignore[method-assign,assignment]
    server = load_parameter_server(uuid)()
    world, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    for version, path in enumerate(checkpoints, 1):
        tensors = sorted(load_file(Path(path) / "model.safetensors").items())
        name = f"step-{version}"
        server.register_checkpoint(name, named_tensors=dict(tensors[rank::world]))
        server.init_process_group()
        server.gather_metas(name)
        server.update(name, partial(post, url, str(version), world))
        server.unregister_checkpoint(name)


if __name__ == "__main__":
    main()
