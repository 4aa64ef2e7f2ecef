"""Seeds of the target payload: messages as torch 2.13, SGLang and verl pickle them, and bombs.

Written opcode by opcode, so that neither torch nor SGLang is needed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

PLAIN, BUCKET, SAFETENSORS = range(3)
REDUCTIONS = "torch.multiprocessing.reductions"
BUCKETS = "sglang.srt.weight_sync.tensor_bucket"
RUNNER = "sglang.srt.model_executor.model_runner"
TRUE, FALSE, NONE, MARK = b"\x88", b"\x89", b"N", b"("


def seed(form: int, message: bytes, rank: int = 0) -> bytes:
    return bytes([form + 3 * rank]) + message


def pickle(content: bytes, protocol: int = 4) -> bytes:
    if protocol < 4:
        return bytes([0x80, protocol]) + content + b"."
    return bytes([0x80, protocol, 0x95]) + struct.pack("<Q", len(content) + 1) + content + b"."


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode() + b"\x94"


def octets(value: bytes) -> bytes:
    if len(value) < 256:
        return b"C" + bytes([len(value)]) + value
    return b"B" + struct.pack("<I", len(value)) + value


def number(value: int) -> bytes:
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def name(module: str, of: str) -> bytes:
    return text(module) + text(of) + b"\x93\x94"


def group(*items: bytes) -> bytes:
    short = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}
    if len(items) in short:
        return b"".join(items) + short[len(items)]
    return MARK + b"".join(items) + b"t"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + group(*arguments) + b"R\x94"


def many(*items: bytes) -> bytes:
    return b"]\x94" + MARK + b"".join(items) + b"e"


def table(*items: bytes) -> bytes:
    return b"}\x94" + MARK + b"".join(items) + b"u"


def built(cls: bytes, state: bytes) -> bytes:
    return cls + b")\x81\x94" + state + b"b"


def storage(size: int, shared: bytes = b"/torch_22785_4125294039_0") -> bytes:
    return call(
        name(REDUCTIONS, "rebuild_storage_filename"),
        name("torch.storage", "UntypedStorage"),
        octets(b"/tmp/torch-shm-dir-a/manager.sock"),
        octets(shared),
        number(size),
    )


def tensor(
    size: int, dtype: str, shape: list[int], stride: list[int], *, offset: int = 0, **shared: bytes
) -> bytes:
    typed = name(REDUCTIONS, "rebuild_typed_storage")
    sizes = call(name("torch", "Size"), group(*map(number, shape)))
    view = group(number(offset), sizes, group(*map(number, stride)), FALSE)
    return call(
        name(REDUCTIONS, "rebuild_tensor"),
        name("torch", "Tensor"),
        call(typed, storage(size, **shared), name("torch", dtype)),
        view,
    )


def plain_seeds() -> Iterator[tuple[str, bytes]]:
    one = text("model.w") + tensor(96, "float32", [4, 6], [6, 1])
    two = text("b") + tensor(8, "bfloat16", [4], [1], shared=b"/torch_1_2_3")
    pairs = [one + b"\x86\x94", two + b"\x86\x94"]
    yield "list", seed(PLAIN, pickle(many(*pairs)))
    yield "list-5", seed(PLAIN, pickle(many(*pairs), 5))
    yield "dict", seed(PLAIN, pickle(table(one, two)))
    yield "twice", seed(PLAIN, pickle(many(pairs[0], pairs[0])))
    for kind, (shape, stride, offset) in {
        "transposed": ([6, 4], [1, 6], 0),
        "slice": ([2, 2], [6, 1], 8),
        "expanded": ([4, 6], [0, 1], 0),
        "overlapping": ([3, 4], [1, 2], 1),
        "too-far": ([4, 6], [6, 1], 1),
        "negative": ([4, 6], [-6, 1], 18),
        "huge": ([2**30, 2**30], [0, 0], 0),
    }.items():
        view = tensor(96, "float32", shape, stride, offset=offset)
        yield kind, seed(PLAIN, pickle(table(text("a"), view)))
    yield "scalar", seed(PLAIN, pickle(table(text("a"), tensor(2, "float16", [], []))))
    pairs_of_values = tensor(8, "float4_e2m1fn_x2", [2, 4], [4, 1])
    yield "two-values", seed(PLAIN, pickle(table(text("a"), pairs_of_values)))
    ordered = call(name("collections", "OrderedDict")) + MARK + one + two + b"u"
    state = table(text("_metadata"), call(name("collections", "OrderedDict")))
    yield "state-dict", seed(PLAIN, pickle(ordered + state + b"b"))
    device = call(
        name("sglang.srt.utils.patch_torch", "_rebuild_cuda_tensor_modified"),
        name("torch", "Tensor"),
        group(number(2)),
        group(number(1)),
        number(0),
        name("torch.storage", "UntypedStorage"),
        name("torch", "float32"),
        text("cafe-uuid"),
        octets(bytes(64)),
        *[number(0)] * 7,
    )
    yield "cuda", seed(PLAIN, pickle(table(text("a"), device)))
    yield "descriptor", seed(PLAIN, pickle(name(REDUCTIONS, "rebuild_storage_fd")))


def metadata(of: str, dtype: str, shape: list[int], start: int, end: int) -> bytes:
    fields = {
        "name": text(of),
        "shape": call(name("torch", "Size"), group(*map(number, shape))),
        "dtype": name("torch", dtype),
        "start_idx": number(start),
        "end_idx": number(end),
        "numel": number(end - start),
    }
    state = table(*(text(field) + value for field, value in fields.items()))
    return built(name(BUCKETS, "FlattenedTensorMetadata"), state)


def bucket(flat: bytes, *entries: bytes) -> bytes:
    return pickle(table(text("flattened_tensor"), flat, text("metadata"), many(*entries)))


def bucket_seeds() -> Iterator[tuple[str, bytes]]:
    entries = [metadata("a", "bool", [3], 0, 3), metadata("b", "float32", [2, 2], 3, 19)]
    yield "bytes", seed(BUCKET, bucket(tensor(19, "uint8", [19], [1]), *entries))
    old = [metadata("a", "bfloat16", [], 0, 1), metadata("b", "bfloat16", [3], 1, 4)]
    yield "elements", seed(BUCKET, bucket(tensor(8, "bfloat16", [4], [1]), *old))
    yield "empty", seed(BUCKET, bucket(tensor(0, "uint8", [0], [1])))
    strided = tensor(40, "uint8", [19], [2])
    yield "strided", seed(BUCKET, bucket(strided, *entries))
    yield "short", seed(BUCKET, bucket(tensor(18, "uint8", [18], [1]), *entries))


def verl_seeds() -> Iterator[tuple[str, bytes]]:
    inner = [pickle(tensor(size, "uint8", [2], [1])) for size in (2, 4)]
    local = table(text("values"), many(*map(octets, inner)))
    message = many(text("a") + built(name(RUNNER, "LocalSerializedTensor"), local) + b"\x86")
    for rank in range(3):
        yield f"rank-{rank}", seed(PLAIN, pickle(message), rank)


def bomb_seeds() -> Iterator[tuple[str, bytes]]:
    yield "system", seed(PLAIN, pickle(b"cos\nsystem\n\x8c\x02ls\x85R", 2))
    laughs = b"N\x94" + b"".join(
        MARK + (b"h" + bytes([level])) * 10 + b"t\x94" for level in range(20)
    )
    yield "laughs", seed(PLAIN, pickle(MARK + laughs + b"t"))
    yield "long-text", seed(PLAIN, b"\x80\x04X\xff\xff\xff\xffabc.")
    yield "long-bytes", seed(PLAIN, b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.")
    yield "lists", seed(PLAIN, pickle(b"]" * 900 + b"a" * 899))
    yield "marks", seed(PLAIN, pickle(b"(" * 900 + b"t" * 900))
    yield "tuples", seed(PLAIN, pickle(b"N" + b"\x85" * 900))
    yield "itself", seed(PLAIN, pickle(b"]\x94h\x00a"))
    yield "memo", seed(PLAIN, pickle(b"Nr\xff\xff\xff\xff"))


def safetensors(header: object, data: bytes) -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def payload_seeds() -> Iterator[tuple[str, bytes]]:
    yield from plain_seeds()
    yield from bucket_seeds()
    yield from verl_seeds()
    yield from bomb_seeds()
    header = {"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    yield "safetensors", seed(SAFETENSORS, safetensors(header, bytes(4)))
    yield "safetensors-long", seed(SAFETENSORS, b"\xff" * 8 + b"{}")
