"""A producer in the protocol of checkpoint-engine, for what its own ParameterServer does not do."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
import zmq
from server import PATIENCE
from torch.multiprocessing import reductions
from typing_extensions import Self

ALIGNMENT = 256
COUNTER = itertools.count()
REDUCTIONS: Any = reductions  # torch gives its functions no types


class Producer:
    """Serves one rank of an engine. `bucket`: bytes of each half of the buffer."""

    def __init__(self, bucket: int = 1 << 16) -> None:
        self.bucket = bucket
        self.buffer = torch.empty(2 * bucket, dtype=torch.uint8)
        self.endpoint = f"ipc://@syncline-test-{os.getpid()}-{next(COUNTER)}.sock"
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.REQ)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE * 1000))
        self._socket.setsockopt(zmq.SNDTIMEO, int(PATIENCE * 1000))
        self._socket.bind(self.endpoint)

    def say(self, content: object) -> None:
        """Without waiting for the answer, which may be none."""
        self._socket.send(pickle.dumps(content, -1))

    def ask(self, content: object) -> str:
        self.say(content)
        return self._socket.recv().decode()

    def show_buffer(self) -> str:
        self._socket.send(bytes(ForkingPickler.dumps(REDUCTIONS.reduce_tensor(self.buffer))))
        return self._socket.recv().decode()

    def place(self, tensors: Sequence[tuple[str, torch.Tensor]], half: int) -> list[dict[str, Any]]:
        """Writes them to a half of the buffer, the other half gets rubbish."""
        entries: list[dict[str, Any]] = []
        other = (1 - half) * self.bucket
        self.buffer[other : other + self.bucket] = 0x5A
        at = half * self.bucket
        for name, tensor in tensors:
            data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            assert at + data.numel() <= (half + 1) * self.bucket, name
            self.buffer[at : at + data.numel()] = data
            entries.append(
                {"name": name, "shape": tensor.shape, "dtype": tensor.dtype, "offset": at}
            )
            at += (data.numel() + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return entries

    def send(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> list[str]:
        """All of them, one after the other, in the two halves; the answers that were not empty."""
        answers = [self.show_buffer()]
        for i, one in enumerate(tensors):
            answers.append(self.ask(self.place([one], i % 2)))
        return [answer for answer in answers if answer]

    def end(self) -> list[str]:
        return [answer for answer in (self.ask(None), self.ask(None)) if answer]

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
