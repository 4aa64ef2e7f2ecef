"""Payloads of /update_weights_from_tensor as Python trainers make them, by torch and by hand."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing
from safetensors.torch import save
from trainer_classes import define, module, tensor_bucket

OLD_HOME = "sglang.srt.model_executor.model_runner"
NEW_HOME = "sglang.srt.model_executor.model_runner_components.weight_updater"
SHARING: Any = torch.multiprocessing  # torch gives its functions no types

Named = Sequence[tuple[str, torch.Tensor]]


def dumps(content: object) -> bytes:
    """As SGLang's MultiprocessingSerializer and verl pickle."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(content)
    return buffer.getvalue()


def encode(content: object) -> str:
    """One element of serialized_named_tensors: each pickle is for one receiver."""
    return base64.b64encode(dumps(content)).decode()


def safetensors(named: Named) -> str:
    tensors = {name: tensor.contiguous() for name, tensor in named}
    return base64.b64encode(save(tensors)).decode()


@contextmanager
def sharing(strategy: str) -> Iterator[None]:
    """How torch hands memory to other processes for as long as the block runs."""
    before = SHARING.get_sharing_strategy()
    SHARING.set_sharing_strategy(strategy)
    yield
    SHARING.set_sharing_strategy(before)


def sglang_bucket(named: Named) -> str:
    """A bucket by SGLang's own class."""
    with tensor_bucket() as theirs:
        bucket = theirs.FlattenedTensorBucket(named_tensors=list(named))
        content = {
            "flattened_tensor": bucket.get_flattened_tensor(),
            "metadata": bucket.get_metadata(),
        }
        return encode(content)


def old_bucket(named: Named) -> str:
    """The first generation: one dtype for all, and places counted in elements."""
    with module(OLD_HOME) as home:
        fields = ("name", "shape", "dtype", "start_idx", "end_idx", "numel")
        kind = define(home, "FlattenedTensorMetadata", *fields)
        metadata = []
        end = 0
        for name, tensor in named:
            start, end = end, end + tensor.numel()
            metadata.append(kind(name, tensor.shape, tensor.dtype, start, end, tensor.numel()))
        flat = torch.cat([tensor.flatten() for _, tensor in named])
        return encode({"flattened_tensor": flat, "metadata": metadata})


def empty_bucket() -> str:
    return encode({"flattened_tensor": torch.empty(0, dtype=torch.uint8), "metadata": []})


def verl(ranks: Sequence[Named], home: str = NEW_HOME) -> str:
    """One payload for all ranks: each takes the inner bytes that are its own."""
    with module(home) as place:
        local = define(place, "LocalSerializedTensor", "values")
        return encode(
            [
                (entries[0][0], local([dumps(tensor) for _, tensor in entries]))
                for entries in zip(*ranks, strict=True)
            ]
        )


def chunks(named: Named, size: int) -> Iterable[Named]:
    return (named[begin : begin + size] for begin in range(0, len(named), size))
