"""The forms of a request with tensors, each as a function that sends it."""

from __future__ import annotations

import base64
from collections.abc import Callable

import torch
from payloads import OLD_HOME, Named, encode, old_bucket, safetensors, sglang_bucket, verl
from server import Reply
from trainer import Trainer


def send_plain(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.send(tensors)


def send_dict(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([encode(dict(tensors)) for _ in range(trainer.ranks)])


def send_parameters(trainer: Trainer, tensors: Named) -> Reply:
    """As `model.named_parameters()` gives them."""
    return trainer.send([(name, torch.nn.Parameter(tensor)) for name, tensor in tensors])


def send_bucket(trainer: Trainer, tensors: Named) -> Reply:
    payloads = [sglang_bucket(tensors) for _ in range(trainer.ranks)]
    return trainer.post(payloads, load_format="flattened_bucket", flush_cache=False)


def send_old_bucket(trainer: Trainer, tensors: Named) -> Reply:
    payloads = [old_bucket(tensors) for _ in range(trainer.ranks)]
    return trainer.post(payloads, load_format="flattened_bucket", disable_draft_model=True)


def send_verl(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([verl([tensors] * trainer.ranks)] * trainer.ranks)


def send_old_verl(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([verl([tensors] * trainer.ranks, OLD_HOME)] * trainer.ranks)


def send_safetensors(trainer: Trainer, tensors: Named) -> Reply:
    """One payload stands for all ranks."""
    return trainer.post([safetensors(tensors)], load_format="safetensors")


def send_safetensors_of_each(trainer: Trainer, tensors: Named) -> Reply:
    return trainer.post([safetensors(tensors)] * trainer.ranks, load_format="safetensors")


def send_raw(trainer: Trainer, tensors: Named, query: str = "") -> Reply:
    return trainer.server.request(
        "POST",
        "/update_weights_from_tensor_raw" + query,
        base64.b64decode(safetensors(tensors)),
        **{"Content-Type": "application/octet-stream"},
    )


FORMS: dict[str, Callable[[Trainer, Named], Reply]] = {
    "list": send_plain,
    "dict": send_dict,
    "parameters": send_parameters,
    "bucket of SGLang": send_bucket,
    "bucket, first generation": send_old_bucket,
    "verl": send_verl,
    "verl, older class": send_old_verl,
    "safetensors": send_safetensors,
    "safetensors of each rank": send_safetensors_of_each,
    "raw": send_raw,
}
