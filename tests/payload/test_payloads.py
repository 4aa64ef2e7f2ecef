"""What Python trainers send, made by torch and SGLang itself, against what payload_dump reads."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import pickletools
import subprocess
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.multiprocessing
import xxhash
from harness import BINARY
from safetensors.torch import save as save_safetensors
from trainer_classes import define, module, tensor_bucket

SHARED = Path("/dev/shm")
SHARING: Any = torch.multiprocessing

Named = list[tuple[str, torch.Tensor]]

DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.complex64: "C64",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}


class Receiver:
    """payload_dump: one process that takes one payload after the other."""

    def __init__(self, scratch: Path) -> None:
        self.path = scratch / "message"
        program = BINARY.parent / "payload_dump"
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def take(self, message: bytes, form: str = "plain", rank: int = 0) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.path.write_bytes(message)
        self.process.stdin.write(f"{form} {rank} {self.path}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        assert answer["mappings"] == 0
        return answer

    def close(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    started = Receiver(tmp_path)
    yield started
    started.close()


@pytest.fixture(autouse=True)
def strategy() -> Iterator[None]:
    """Senders share memory by name, as those must whose engine is another process."""
    before = SHARING.get_sharing_strategy()
    SHARING.set_sharing_strategy("file_system")
    yield
    SHARING.set_sharing_strategy(before)


def dumps(content: object, protocol: int | None = None) -> bytes:
    """As SGLang's MultiprocessingSerializer and verl pickle."""
    buffer = io.BytesIO()
    ForkingPickler(buffer, protocol).dump(content)
    return buffer.getvalue()


def content(tensor: torch.Tensor) -> bytes:
    packed = tensor.detach().clone(memory_format=torch.contiguous_format).reshape(-1)
    return packed.view(torch.uint8).numpy().tobytes() if packed.numel() else b""


def described(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "bytes": len(content(tensor)),
            "xxh3": xxhash.xxh3_128_hexdigest(content(tensor)),
        }
        for name, tensor in tensors
    ]


def random_tensor(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape) < 0.5
    size = dtype.itemsize * torch.Size(shape).numel()
    return torch.randint(0, 256, (size,), dtype=torch.uint8).view(dtype).reshape(shape)


def views() -> Named:
    base = random_tensor(4, 6)
    return [
        ("packed", random_tensor(3, 5)),
        ("transposed", base.t()),
        ("slice", base[1:3, 2:4]),
        ("column", base[:, 3]),
        ("every-other", base[::2, ::3]),
        ("expanded", random_tensor(3, 1).expand(3, 4)),
        ("overlapping", base.as_strided((3, 4), (1, 2), 1)),
        ("permuted", random_tensor(2, 3, 4, dtype=torch.bfloat16).permute(2, 0, 1)),
        ("channels-last", random_tensor(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        ("other-type", base.view(torch.uint8)[1:, 1:3]),
        ("scalar", torch.tensor(1.5)),
        ("scalar-at-an-offset", base[3, 5]),
        ("empty", torch.empty(0, 3)),
        ("empty-slice", base[4:]),
        ("parameter", torch.nn.Parameter(random_tensor(2, 2))),
        ("buffer", torch.nn.Buffer(random_tensor(2, 2))),
        ("gradient", random_tensor(2, 2).requires_grad_()),
    ]


@pytest.fixture(scope="module")
def sglang() -> Iterator[ModuleType]:
    with tensor_bucket() as theirs:
        yield theirs


FORMS: dict[str, Callable[[Named], object]] = {"list": list, "dict": dict, "tuple": tuple}


@pytest.mark.parametrize("form", FORMS)
def test_views_of_every_kind_arrive_packed(receiver: Receiver, form: str) -> None:
    """BR-40."""
    tensors = views()
    assert receiver.take(dumps(FORMS[form](tensors)))["tensors"] == described(tensors)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPES.values())
def test_every_type_arrives(receiver: Receiver, dtype: torch.dtype) -> None:
    tensors = [("a", random_tensor(3, 5, dtype=dtype)), ("b", random_tensor(4, 2, dtype=dtype).t())]
    assert receiver.take(dumps(tensors))["tensors"] == described(tensors)


def test_two_values_in_one_element(receiver: Receiver) -> None:
    tensor = random_tensor(3, 4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    (read,) = receiver.take(dumps([("a", tensor)]))["tensors"]
    assert (read["dtype"], read["shape"], read["bytes"]) == ("F4", [3, 8], 12)
    assert read["xxh3"] == xxhash.xxh3_128_hexdigest(content(tensor.view(torch.uint8)))


def test_an_unknown_type_is_named(receiver: Receiver) -> None:
    answer = receiver.take(dumps([("a", random_tensor(2, dtype=torch.complex128))]))
    assert answer["code"] == "invalid_argument"
    assert "torch.complex128 is not one of the classes" in answer["message"]


def test_a_state_dict_arrives(receiver: Receiver) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3))
    state = model.state_dict()
    assert receiver.take(dumps(state))["tensors"] == described(state.items())
    parameters = list(model.named_parameters())
    assert receiver.take(dumps(parameters))["tensors"] == described(parameters)


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_protocols(receiver: Receiver, protocol: int) -> None:
    tensors = views()
    assert receiver.take(dumps(tensors, protocol))["tensors"] == described(tensors)
    optimized = pickletools.optimize(dumps(tensors, protocol))
    assert receiver.take(optimized)["tensors"] == described(tensors)


def test_protocol_2_has_no_bytes(receiver: Receiver) -> None:
    answer = receiver.take(dumps(views(), 2))
    assert "_codecs.encode is not one of the classes" in answer["message"]


def test_many_tensors_of_one_payload(receiver: Receiver) -> None:
    """More than the batches of 1000 and the memos of one byte that picklers write."""
    storage = random_tensor(5000, 4)
    tensors = [(f"model.layers.{i}.weight", storage[i]) for i in range(5000)]
    assert receiver.take(dumps(tensors))["tensors"] == described(tensors)
    assert receiver.take(dumps(dict(tensors)))["tensors"] == described(tensors)


def bucket_tensors() -> Named:
    return [
        ("odd", random_tensor(3, dtype=torch.uint8)),
        ("bf16", random_tensor(5, 7, dtype=torch.bfloat16)),
        ("scale", random_tensor(1)),
        ("fp8", random_tensor(2, 3, dtype=torch.float8_e4m3fn)),
        ("transposed", random_tensor(4, 6).t()),
        ("int", random_tensor(2, 2, dtype=torch.int64)),
        ("empty", torch.empty(0, 8)),
    ]


def test_a_bucket_of_sglang_arrives(receiver: Receiver, sglang: ModuleType) -> None:
    tensors = bucket_tensors()
    bucket = sglang.FlattenedTensorBucket(named_tensors=tensors)
    message = dumps(
        {
            "flattened_tensor": bucket.get_flattened_tensor(),
            "metadata": bucket.get_metadata(),
        }
    )
    read = receiver.take(message, "flattened_bucket")["tensors"]
    assert read == described(tensors)
    # Its own reader needs every tensor at a multiple of its elements' size.
    aligned = sglang.FlattenedTensorBucket(named_tensors=tensors[4:5] + tensors[1:2])
    assert described(aligned.reconstruct_tensors()) == [read[4], read[1]]


def test_a_bucket_of_many_tensors_arrives(receiver: Receiver, sglang: ModuleType) -> None:
    tensors = [(f"model.layers.{i}.w", random_tensor(2, 2 + i % 7)) for i in range(3000)]
    bucket = sglang.FlattenedTensorBucket(named_tensors=tensors)
    message = dumps(
        {
            "metadata": bucket.get_metadata(),
            "flattened_tensor": bucket.get_flattened_tensor(),
        }
    )
    read = receiver.take(message, "flattened_bucket")["tensors"]
    assert read == described(bucket.reconstruct_tensors()) == described(tensors)


def test_an_old_bucket_counts_elements(receiver: Receiver) -> None:
    """One type for all, in the class's older place."""
    tensors = [
        (name, random_tensor(*shape, dtype=torch.bfloat16))
        for name, shape in {"a": (2, 3), "b": (), "c": (4,)}.items()
    ]
    with module("sglang.srt.model_executor.model_runner") as home:
        fields = ("name", "shape", "dtype", "start_idx", "end_idx", "numel")
        metadata_class = define(home, "FlattenedTensorMetadata", *fields)
        metadata = []
        end = 0
        for name, tensor in tensors:
            start, end = end, end + tensor.numel()
            entry = metadata_class(name, tensor.shape, tensor.dtype, start, end, tensor.numel())
            metadata.append(entry)
        flat = torch.cat([tensor.flatten() for _, tensor in tensors])
        message = dumps({"flattened_tensor": flat, "metadata": metadata})
    assert receiver.take(message, "flattened_bucket")["tensors"] == described(tensors)


@pytest.mark.parametrize("sharing", ["file_system", "file_descriptor"])
def test_an_empty_bucket_is_fine(receiver: Receiver, sharing: str) -> None:
    SHARING.set_sharing_strategy(sharing)
    empty = {"flattened_tensor": torch.empty(0, dtype=torch.uint8), "metadata": []}
    assert receiver.take(dumps(empty), "flattened_bucket")["tensors"] == []


@pytest.mark.parametrize(
    "place",
    [
        "sglang.srt.model_executor.model_runner",
        "sglang.srt.model_executor.model_runner_components.weight_updater",
    ],
)
@pytest.mark.parametrize("as_text", [False, True], ids=["bytes", "base64"])
def test_each_rank_takes_its_own_of_verl(receiver: Receiver, place: str, as_text: bool) -> None:
    ranks = [[(name, random_tensor(2, 3)) for name in ("a", "b")] for _ in range(3)]

    def serialize(tensor: torch.Tensor) -> bytes | str:
        return base64.b64encode(dumps(tensor)).decode() if as_text else dumps(tensor)

    with module(place) as home:
        local = define(home, "LocalSerializedTensor", "values")
        message = dumps(
            [
                (entries[0][0], local([serialize(tensor) for _, tensor in entries]))
                for entries in zip(*ranks, strict=True)
            ]
        )
    for rank, tensors in enumerate(ranks):
        assert receiver.take(message, rank=rank)["tensors"] == described(tensors)
    answer = receiver.take(message, rank=3)
    assert "values for 3 ranks, but this is rank 3" in answer["message"]


def test_safetensors_arrive(receiver: Receiver) -> None:
    tensors = dict(bucket_tensors())
    tensors["transposed"] = tensors["transposed"].contiguous()
    read = receiver.take(save_safetensors(tensors), "safetensors")["tensors"]
    by_name = sorted(read, key=lambda tensor: tensor["name"])
    assert by_name == described(sorted(tensors.items()))


def test_memory_behind_a_descriptor_is_refused_with_advice(receiver: Receiver) -> None:
    SHARING.set_sharing_strategy("file_descriptor")
    answer = receiver.take(dumps([("a", random_tensor(2))]))
    assert answer["code"] == "invalid_argument"
    assert 'set_sharing_strategy("file_system")' in answer["message"]


def shared_objects() -> list[str]:
    """What this process shares by name."""
    return sorted(path.name for path in SHARED.glob(f"torch_{os.getpid()}_*"))


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_nothing_is_left_of_a_hundred_updates(receiver: Receiver) -> None:
    """BR-41: memory, descriptors and mappings after update 100 are those after update 2."""
    weights = [("kept", random_tensor(64, 64)), ("view", random_tensor(8, 8).t())]
    before = len(shared_objects())
    held = []
    for update in range(1, 101):
        bucket = random_tensor(1 << 20, dtype=torch.uint8)
        tensors = [*weights, ("new", bucket)]
        expected = described(tensors)
        message = dumps(tensors)
        if update % 2 == 0:
            # The sender lets go before the receiver has looked.
            del bucket, tensors
        answer = receiver.take(message)
        assert answer["tensors"] == expected
        bucket = tensors = None  # type: ignore[assignment]
        held.append((len(shared_objects()) - before, descriptors(), answer["descriptors"]))
        if update == 2:
            resident = answer["resident"]
    assert held[99] == held[1]
    assert held[1][0] == 2, "the kept tensors, and none of the buckets"
    assert answer["resident"] < resident + (4 << 20)
    # What the sender keeps, it can send again.
    assert receiver.take(dumps(weights))["tensors"] == described(weights)
    del weights
    assert len(shared_objects()) == before


def test_a_refused_payload_leaves_nothing(receiver: Receiver) -> None:
    before = shared_objects()
    for _ in range(10):
        answer = receiver.take(dumps([("a", random_tensor(4)), ("b", None)]))
        assert answer["message"] == "tensor b: expected a tensor, found None"
    assert shared_objects() == before


def test_a_payload_is_taken_once(receiver: Receiver) -> None:
    message = dumps([("a", random_tensor(4))])
    assert "tensors" in receiver.take(message)
    answer = receiver.take(message)
    assert answer["code"] == "not_found"
    assert "is not there" in answer["message"]


class Bomb:
    def __init__(self, function: Callable[..., Any], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return self.call


def test_code_in_a_payload_is_not_run(receiver: Receiver, tmp_path: Path) -> None:
    """BR-46."""
    target = tmp_path / "made"
    bombs = {
        "posix.system": Bomb(os.system, f"touch {target}"),
        "builtins.exec": Bomb(exec, f"open({str(target)!r}, 'w')"),
        "builtins.getattr": Bomb(getattr, "os", "system"),
        "io.open": Bomb(open, str(target), "w"),
        "torch.serialization.load": Bomb(torch.load, str(target)),
    }
    with module("sglang.srt.model_executor.model_runner") as home:
        local = define(home, "LocalSerializedTensor", "values")
        for name, bomb in bombs.items():
            for message, form in (
                (bomb, "plain"),
                ([("a", bomb)], "plain"),
                ([("a", local([dumps(bomb)]))], "plain"),
                ({"flattened_tensor": bomb, "metadata": []}, "flattened_bucket"),
            ):
                answer = receiver.take(dumps(message), form)
                assert answer["code"] == "invalid_argument"
                assert f"{name} is not one of the classes" in answer["message"]
    assert not target.exists()


def test_a_tensor_pickled_without_torch_multiprocessing_is_refused(receiver: Receiver) -> None:
    answer = receiver.take(pickle.dumps([("a", random_tensor(2))]))
    assert "torch.storage._load_from_bytes is not one of the classes" in answer["message"]


def test_a_payload_cut_anywhere_is_refused(receiver: Receiver, sglang: ModuleType) -> None:
    """BR-46."""
    bucket = sglang.FlattenedTensorBucket(named_tensors=bucket_tensors()[:2])
    message = dumps(
        {
            "flattened_tensor": bucket.get_flattened_tensor(),
            "metadata": bucket.get_metadata(),
        }
    )
    for end in range(len(message)):
        assert receiver.take(message[:end], "flattened_bucket")["code"] == "invalid_argument"
    assert "tensors" in receiver.take(message, "flattened_bucket")
