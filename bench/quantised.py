"""Makes quantised step pairs of those of bench/pairs.py: fp8 e4m3 weights with block scales.

Every matrix becomes F8_E4M3 with one F32 scale for each 128 x 128 block, named as in the
checkpoints that engines take: `<name>` and `<name>_scale_inv`, weight = fp8 value * scale. A scale
is the block's largest magnitude by 448, so a step that moves the largest weight moves the whole
block. Vectors stay as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "reference"))
from safetensors_files import Tensor, Tensors, map_checkpoint, write_checkpoint

BLOCK = 128
LARGEST = 448.0  # of e4m3


def quantise(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The e4m3 values of a matrix of float32 and the scales of its blocks; edges may be short."""
    rows, columns = weights.shape
    tall, wide = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = np.zeros((tall * BLOCK, wide * BLOCK), np.float32)
    padded[:rows, :columns] = weights
    blocks = padded.reshape(tall, BLOCK, wide, BLOCK)
    scales = np.abs(blocks).max(axis=(1, 3)) / np.float32(LARGEST)
    scales[scales == 0] = 1
    values = (blocks / scales[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    clipped = np.clip(values, -LARGEST, LARGEST)
    return clipped.astype(ml_dtypes.float8_e4m3fn), scales


def quantised(tensors: Tensors) -> Tensors:
    """The whole checkpoint; vectors unchanged."""
    made = {}
    for name, tensor in tensors.items():
        if len(tensor.shape) != 2:
            made[name] = Tensor(tensor.dtype, tensor.shape, tensor.data.copy())
            continue
        weights = tensor.data.view(ml_dtypes.bfloat16).reshape(tensor.shape)
        values, scales = quantise(weights.astype(np.float32))
        made[name] = Tensor("F8_E4M3", tensor.shape, values.reshape(-1).view(np.uint8))
        made[f"{name}_scale_inv"] = Tensor("F32", scales.shape, scales.reshape(-1).view(np.uint8))
    return made


def make_pair(pair: Path, directory: Path) -> tuple[Tensors, Tensors]:
    """Writes `directory`/old and `directory`/new of the same sides of `pair`; returns both."""
    sides = []
    for side in ("old", "new"):
        sides.append(quantised(map_checkpoint(pair / side)))
        write_checkpoint(directory / side, sides[-1])
    return sides[0], sides[1]
