"""Flattened buckets by SGLang's own class, out of its wheel."""

from __future__ import annotations

import torch
from borrowed import Serializer, borrow
from training import Named

borrow(
    "sglang",
    absent=["sglang"],
    bare=["sglang", "sglang.srt", "sglang.srt.weight_sync"],
    own=["sglang.srt.weight_sync.tensor_bucket"],
    given={},
)

from sglang.srt.weight_sync.tensor_bucket import FlattenedTensorBucket


class Bucket:
    """A bucket of one rank, perhaps an empty one. `payload` is for the engine."""

    def __init__(self, named: Named) -> None:
        self._flat, metadata = torch.empty(0, dtype=torch.uint8), []
        if named:
            made = FlattenedTensorBucket(named_tensors=named)
            self._flat, metadata = made.get_flattened_tensor(), made.get_metadata()
        self.payload: str = Serializer.serialize(
            {"flattened_tensor": self._flat, "metadata": metadata}, output_str=True
        )

    def overwrite(self) -> None:
        """After the reply the memory is the trainer's again: the engine must have read it."""
        self._flat.fill_(255)
