"""Makes quantised checkpoints of bf16 ones, and bf16 ones of those: the reference for what an engine serves.

Two formats of Hugging Face checkpoints, of every projection of every layer:

* block-wise fp8 (DeepSeek's): `weight` in e4m3 and `weight_scale_inv`, an fp32 factor for each block
  of 128 x 128;
* pack-quantized integers of compressed-tensors, 4 bits, symmetric: `weight_packed` with eight columns
  in an int32, the first in the lowest bits, value + 8; `weight_scale`, for each group of columns, in
  the type of the model; `weight_shape`.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 128
LARGEST = 448.0  # of e4m3
COLUMNS_IN_WORD = 8


@dataclass(frozen=True)
class Fp8:
    """`powers`: scales are powers of two, as `scale_fmt` then says."""

    powers: bool = False

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
        }
        return config | ({"scale_fmt": "ue8m0"} if self.powers else {})

    def quantise(self, weight: Tensor) -> dict[str, Tensor]:
        import torch

        blocks = to_blocks(weight.float())
        scales = blocks.abs().amax(dim=(1, 3)).clamp(min=1e-10) / LARGEST
        if self.powers:
            scales = ceil_power(scales)
        scaled = (blocks / scales[:, None, :, None]).clamp(-LARGEST, LARGEST)
        values = from_blocks(scaled, weight.shape).to(torch.float8_e4m3fn)
        return {"weight": values, "weight_scale_inv": scales}


@dataclass(frozen=True)
class Int4:
    """`group`: columns that share a scale; 0: all of a row."""

    group: int = 64

    def config(self) -> dict[str, Any]:
        weights = {
            "num_bits": 4,
            "type": "int",
            "symmetric": True,
            "strategy": "group" if self.group else "channel",
            "group_size": self.group or None,
            "dynamic": False,
            "actorder": None,
            "observer": "minmax",
        }
        return {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": weights,
                    "input_activations": None,
                    "output_activations": None,
                }
            },
            "ignore": ["lm_head", r"re:.*mlp\.gate$"],
        }

    def quantise(self, weight: Tensor) -> dict[str, Tensor]:
        import torch

        rows, columns = weight.shape
        groups = weight.float().reshape(rows, -1, self.group or columns)
        scales = (groups.abs().amax(dim=2).clamp(min=1e-8) / 7.5).to(weight.dtype)
        values = (groups / scales.float()[:, :, None]).round().clamp(-8, 7).to(torch.int64) + 8
        nibbles = values.reshape(rows, columns // COLUMNS_IN_WORD, COLUMNS_IN_WORD)
        words = (nibbles << (4 * torch.arange(COLUMNS_IN_WORD))).sum(dim=2)
        words = torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)
        shape = torch.tensor([rows, columns], dtype=torch.int32)
        return {"weight_packed": words, "weight_scale": scales, "weight_shape": shape}


def to_blocks(weight: Tensor) -> Tensor:
    """[rows, columns] as [blocks, 128, blocks, 128]; short blocks are filled with zeros."""
    import torch

    rows, columns = weight.shape
    tall, wide = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = torch.zeros(tall * BLOCK, wide * BLOCK)
    padded[:rows, :columns] = weight
    return padded.reshape(tall, BLOCK, wide, BLOCK)


def from_blocks(blocks: Tensor, shape: Any) -> Tensor:
    tall, _, wide, _ = blocks.shape
    return blocks.reshape(tall * BLOCK, wide * BLOCK)[: shape[0], : shape[1]].contiguous()


def ceil_power(values: Tensor) -> Tensor:
    """The smallest power of two that is not below, exactly."""
    import torch

    mantissa, exponent = torch.frexp(values)
    return torch.ldexp(torch.ones_like(values), exponent - (mantissa == 0.5).int())


def fp8_values(weight: Tensor, scales: Tensor) -> Tensor:
    """Of a block-wise fp8 matrix, rounded once to bf16."""
    import torch

    blocks = to_blocks(weight.float()) * scales[:, None, :, None]
    return from_blocks(blocks, weight.shape).to(torch.bfloat16)


def requantised(weight: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """With scales that are powers of two, as engines make them for UE8M0: blocks whose scale is one stay."""
    import torch

    blocks = to_blocks(fp8_values(weight, scales).float())
    powers = ceil_power(blocks.abs().amax(dim=(1, 3)).clamp(min=1e-4) / LARGEST)
    new = (blocks / powers[:, None, :, None]).clamp(-LARGEST, LARGEST)
    mantissa, _ = torch.frexp(scales)
    keep = mantissa == 0.5
    old = to_blocks(weight.float())
    chosen = torch.where(keep[:, None, :, None], old, new)
    return (
        from_blocks(chosen, weight.shape).to(torch.float8_e4m3fn),
        torch.where(keep, scales, powers),
    )


def int4_values(words: Tensor, scales: Tensor) -> Tensor:
    """Of a packed matrix, rounded once to bf16."""
    import torch

    rows = words.shape[0]
    nibbles = (words.long()[:, :, None] >> (4 * torch.arange(COLUMNS_IN_WORD))) & 15
    groups = (nibbles - 8).float().reshape(rows, scales.shape[1], -1)
    return (groups * scales.float()[:, :, None]).reshape(rows, -1).to(torch.bfloat16)


def read(directory: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def write(
    source: Path, into: Path, tensors: dict[str, Tensor], quantisation: dict[str, Any] | None
) -> Path:
    """A checkpoint like `source`, with these tensors; renamed into place when it is complete."""
    from safetensors.torch import save_file

    scratch = into.with_name(f".{into.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(source, scratch, ignore=shutil.ignore_patterns("*.safetensors*"))
    config = json.loads((scratch / "config.json").read_text())
    config.pop("quantization_config", None)
    if quantisation is not None:
        config["quantization_config"] = quantisation
    (scratch / "config.json").write_text(json.dumps(config, indent=2))
    save_file(tensors, scratch / "model.safetensors", metadata={"format": "pt"})
    scratch.rename(into)
    return into


def is_projection(name: str) -> bool:
    return name.startswith("model.layers.") and name.endswith(
        ("_proj.weight", "_proj_with_mqa.weight")
    )


def quantise(source: Path, into: Path, scheme: Fp8 | Int4) -> Path:
    """A quantised checkpoint at `into`, which must not be there yet."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in read(source).items():
        if not is_projection(name):
            tensors[name] = tensor
            continue
        module = name.removesuffix("weight")
        tensors |= {module + kind: part for kind, part in scheme.quantise(tensor).items()}
    return write(source, into, tensors, scheme.config())


def kept(source: Path, name: str, scheme: Fp8 | Int4) -> Path:
    """The quantised checkpoint beside `source`, made once."""
    path = source.with_name(f"{source.name}-{name}")
    if not (path / "config.json").exists():
        quantise(source, path, scheme)
    return path


def quantised_twins(checkpoint: Path) -> dict[str, Path]:
    """The checkpoint in fp8 and int4 (groups of 64), beside it, made once."""
    return {
        name: kept(checkpoint, name, form) for name, form in (("fp8", Fp8()), ("int4", Int4(64)))
    }


def dequantise(source: Path, into: Path, *, ue8m0: bool = False) -> Path:
    """The values of a quantised checkpoint, in the type that the rest of it has.

    `ue8m0`: those of an engine that keeps scales as powers of two.
    """
    stored = read(source)
    dtype = stored["model.embed_tokens.weight"].dtype
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if name.endswith(("_proj.weight_packed", "_mqa.weight_packed")):
            module = name.removesuffix("weight_packed")
            values = int4_values(tensor, stored[module + "weight_scale"])
            tensors[module + "weight"] = values.to(dtype)
        elif name + "_scale_inv" in stored:
            scales = stored[name + "_scale_inv"]
            weight, scales = requantised(tensor, scales) if ue8m0 else (tensor, scales)
            tensors[name] = fp8_values(weight, scales).to(dtype)
        elif not name.endswith(("_scale_inv", ".weight_scale", ".weight_shape")):
            tensors[name] = tensor
    return write(source, into, tensors, None)
