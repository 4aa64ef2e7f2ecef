"""Writes the seeds of the fuzz targets: files named seed-* in fuzz/corpus/TARGET/.

Seeds are small inputs that follow the format, or break one rule of it. Files with other names in a
corpus were found by fuzzing; those named bug-* once made a target fail.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import xxhash
import zstandard
from compact_seeds import compact_roundtrip_seeds, compact_seeds
from payload_seeds import payload_seeds
from rank_seeds import rank_frames_seeds

CORPUS = Path(__file__).resolve().parent / "corpus"


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def safetensors_file(header: object, data: bytes = b"", pad: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else compact(header)
    text += b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_seeds() -> Iterator[tuple[str, bytes]]:
    two = {"a": entry("BF16", [2, 2], 0, 8), "b": entry("U8", [3], 8, 11)}
    yield "two-tensors", safetensors_file(two, bytes(range(11)))
    yield "metadata", safetensors_file({"__metadata__": {"format": "pt"}, **two}, bytes(11), 5)
    yield "no-tensor", safetensors_file({})
    empty = {"x": entry("F32", [0], 0, 0), "y": entry("F32", [2, 0], 0, 0)}
    yield "empty-tensors", safetensors_file({**empty, "z": entry("F32", [], 0, 4)}, b"abcd")
    yield "four-bits", safetensors_file({"w": entry("F4", [2, 8], 0, 8)}, bytes(8))
    yield "six-bits", safetensors_file({"w": entry("F6_E2M3", [4], 0, 3)}, bytes(3))
    yield "gap", safetensors_file({"w": entry("U8", [2], 1, 3)}, b"abc")
    yield "overlap", safetensors_file({"a": two["a"], "b": entry("U8", [3], 7, 10)}, bytes(10))
    tensor = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'
    yield "twice", safetensors_file(f'{{"w":{tensor},"w":{tensor}}}'.encode(), b"ab")
    yield "overflow", safetensors_file({"w": entry("F64", [2**32, 2**32], 0, 0)})
    yield "unknown-dtype", safetensors_file({"w": entry("F128", [1], 0, 16)}, bytes(16))
    yield "long-header", struct.pack("<Q", 2**63) + b"{}"
    yield "cut", safetensors_file(two, bytes(10))


def index(metadata: dict[str, object], weight_map: object) -> bytes:
    return compact({"metadata": metadata, "weight_map": weight_map})


def index_seeds() -> Iterator[tuple[str, bytes]]:
    delta: dict[str, object] = {
        "version": "000007",
        "base_version": "000006",
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    yield "full", index({"total_size": 42}, {"a": "model-00001-of-00002.safetensors"})
    yield "delta", index(delta, {"a": "model-00000-of-00001.safetensors", "b": "sub/x.safetensors"})
    yield (
        "overwrite",
        index(
            delta | {"delta_encoding": "overwrite", "checksum_format": "blake3", "version": 7}, {}
        ),
    )
    yield "adler", index(delta | {"checksum_format": "adler32"}, {})
    yield "unknown-encoding", index(delta | {"delta_encoding": "gzip"}, {})
    yield "no-base", index({k: v for k, v in delta.items() if k != "base_version"}, {})
    for name, file in {
        "up": "../a.safetensors",
        "absolute": "/etc/passwd",
        "down-and-up": "a/../../b",
        "nul": "a\0b",
        "dots": "..a/.b/c..",
    }.items():
        yield f"path-{name}", index({}, {"w": file})
    yield "no-map", compact({"metadata": {}})
    yield "null-metadata", compact({"metadata": None, "weight_map": {"w": "x"}})


def manifest_seeds() -> Iterator[tuple[str, bytes]]:
    digest = "0123456789abcdef" * 4
    tensors = {
        "a": {"dtype": "BF16", "shape": [10, 20], "xxh3-128": digest[:32]},
        "b": {"dtype": "F32", "shape": [], "xxh3-128": digest[:32]},
    }
    files = {
        "model.safetensors.index.json": {"bytes": 420, "sha256": digest},
        "full/model.safetensors": {"bytes": 999, "sha256": digest},
    }
    manifest: dict[str, object] = {
        "format": 2,
        "run": digest[:32],
        "version": 7,
        "created_ns": 1790000000000000000,
        "tensors_total": 3,
        "elements": 1000,
        "elements_changed": 11,
        "full_bytes": 2000,
        "base_version": 6,
        "parent": digest,
        "tensors": tensors,
        "files": files,
    }
    yield "delta", compact(manifest)
    full = manifest | {"base_version": None, "tensors_total": 2, "elements": 201}
    yield "full", compact(full | {"full_bytes": 404, "parent": None})
    yield "full-sums", compact(full)
    digested = tensors | {"b": tensors["b"] | {"digest": digest[:32]}}
    yield "digests", compact(manifest | {"tensors": digested})
    yield (
        "digest-short",
        compact(manifest | {"tensors": {"b": tensors["b"] | {"digest": digest[:31]}}}),
    )
    copied = {"dtype": "BF16", "shape": [400], "digest": digest[:32]}
    copy = {
        "copy_tensors": {"a": copied, "c": copied | {"shape": [599]}, "d": copied | {"shape": []}}
    }
    yield "copy", compact(manifest | copy)
    yield "copy-of-full", compact(full | {"full_bytes": 404} | copy)
    yield "other-format", compact(manifest | {"format": 99})
    yield "base-above", compact(manifest | {"base_version": 7})
    yield "path-outside", compact(manifest | {"files": {"../x": files["full/model.safetensors"]}})
    yield "size-negative", compact(manifest | {"files": {"x": {"bytes": -1, "sha256": digest}}})
    huge = {"dtype": "F64", "shape": [2**32, 2**31], "xxh3-128": digest[:32]}
    yield "shape-overflow", compact(manifest | {"tensors": {"w": huge}})
    yield "no-files", compact({k: v for k, v in manifest.items() if k != "files"})


def signature_seeds() -> Iterator[tuple[str, bytes]]:
    # By the key of signature.cc.
    signed = {
        "format": 1,
        "algorithm": "ed25519",
        "key": "56475aa75463474c",
        "signature": "8c5a118f1c417e6209215d77352d86704c3f81495b69fcc531f985ddb98f3ceb"
        "ffca6df2078f7e21875a6e6a66fe19889aed16755cb93b8feafa660366c23a09",
    }
    yield "right", compact(signed)
    yield "wrong", compact(signed | {"signature": "0" * 128})
    yield "short", compact(signed | {"signature": "00"})
    yield "upper-case", compact(signed | {"key": "56475AA75463474C"})
    yield "other-key", compact(signed | {"key": "0123456789abcdef"})
    yield "other-algorithm", compact(signed | {"algorithm": "rsa"})
    yield "empty", b""
    yield "not-json", b"\x00\xff"


def json_seeds() -> Iterator[tuple[str, bytes]]:
    texts = {
        "scalars": "[null,true,false,0,-1,1.5,-0.0,1e10,18446744073709551615,-9223372036854775808]",
        "too-large": "[18446744073709551616,1e999,-1e999,1e-999]",
        "strings": '["\\u0000\\ud83d\\ude00\\n\\\\\\"/","\u00e9\u20ac\U0001f600"]',
        "lone-surrogate": '"\\ud800"',
        "object": '{"a":{"b":[{},[]]}," ":1}',
        "twice": '{"a":1,"b":2,"a":3}',
        "twice-escaped": '{"a":1,"\\u0061":3}',
        "deepest": "[" * 32 + "]" * 32,
        "too-deep": "[" * 33 + "]" * 33,
        "comment": "[1,/*x*/2]",
        "trailing-comma": "[1,]",
        "more": "{} {}",
        "leading-zero": "[01]",
        "space": " \t\n\r{ } ",
        "nan": "[NaN,Infinity]",
    }
    for name, text in texts.items():
        yield name, text.encode()
    yield "overlong-utf8", b'"\xc0\x80"'
    yield "surrogate-utf8", b'"\xed\xa0\x80"'


def frame_input(kind: int, tensor_bytes: int, frame: bytes) -> bytes:
    return bytes([kind]) + tensor_bytes.to_bytes(3, "little") + frame


def zstd(content: bytes, *, level: int = 1, size: bool = True, checksum: bool = False) -> bytes:
    return zstandard.ZstdCompressor(
        level=level, write_content_size=size, write_checksum=checksum
    ).compress(content)


def sparse(size: int, every: int) -> bytes:
    content = bytearray(size)
    content[::every] = bytes(1 + i % 255 for i in range(len(content[::every])))
    return bytes(content)


def overwrite(positions: list[int], values: bytes) -> bytes:
    return struct.pack(f"<I{len(positions)}I", len(positions), *positions) + values


def delta_frame_seeds() -> Iterator[tuple[str, bytes]]:
    yield "xor-sparse", frame_input(0, 200000, zstd(sparse(200000, 2999)))
    yield "xor-units", frame_input(2, 70000, zstd(sparse(70000, 1001)))
    yield "xor-dense", frame_input(0, 300, zstd(bytes(range(250)) + bytes(50)))
    yield "xor-text", frame_input(0, 4000, zstd(b"the same words again " * 200)[:2000])
    yield "xor-zeros", frame_input(2, 400000, zstd(bytes(400000)))
    yield "xor-empty", frame_input(0, 0, zstd(b""))
    yield "xor-no-size", frame_input(0, 5000, zstd(sparse(5000, 71), size=False))
    yield "xor-checksum", frame_input(0, 5000, zstd(sparse(5000, 71), checksum=True))
    yield "xor-best", frame_input(2, 9000, zstd(sparse(9000, 50), level=19))
    yield "xor-wrong-size", frame_input(0, 4999, zstd(sparse(5000, 71)))
    yield "xor-trailing", frame_input(0, 5000, zstd(sparse(5000, 71)) + b"\0")
    yield "xor-two-frames", frame_input(0, 200, zstd(bytes(100)) + zstd(bytes(100)))
    yield "skippable", frame_input(0, 0, b"\x50\x2a\x4d\x18\x02\0\0\0ab")
    rle = b"\x28\xb5\x2f\xfd\x00\x58" + (3 | 1000 << 3).to_bytes(3, "little") + b"\x07"
    yield "xor-rle", frame_input(0, 1000, rle)
    yield "overwrite", frame_input(1, 5000, zstd(overwrite([0, 7, 4999], b"abc")))
    yield "overwrite-none", frame_input(1, 5000, zstd(overwrite([], b"")))
    yield "overwrite-outside", frame_input(1, 5000, zstd(overwrite([5000], b"a")))
    yield "overwrite-twice", frame_input(1, 5000, zstd(overwrite([7, 7], b"ab")))
    yield "overwrite-falling", frame_input(1, 5000, zstd(overwrite([7, 6], b"ab")))
    yield "overwrite-short", frame_input(1, 5000, zstd(overwrite([6, 7], b"a")))
    yield "overwrite-count", frame_input(1, 5000, zstd(struct.pack("<I", 2**32 - 1)))


def encoders_seeds() -> Iterator[tuple[str, bytes]]:
    for dtype in range(4):
        yield f"one-{dtype}", bytes([dtype, 0, 3]) + b"\x01"
        yield f"spread-{dtype}", bytes([dtype, 31, 14]) + b"\x01\x80\x00\x40"
        yield f"dense-{dtype}", bytes([dtype, 20, 0]) + bytes(range(256)) * 2
    yield "nothing", bytes([1, 9, 12]) + bytes(30)
    yield "same-byte", bytes([1, 9, 5]) + b"\x07" * 400


def record(block: int, positions: list[int], old: bytes, new: bytes) -> bytes:
    """A sparse record of units of one byte."""
    head = struct.pack("<QIBBHQ", block, len(positions), 1, 0, 0, 0)
    return head + struct.pack(f"<{len(positions)}H", *positions) + old + new


def journal_file(head: object, segments: list[tuple[int, bytes]]) -> bytes:
    text = head if isinstance(head, bytes) else compact(head)
    head_sum = xxhash.xxh3_64_intdigest(text)
    body = b"SYNCJRN1" + struct.pack("<IIQ", len(text), 0, head_sum) + text
    entries = b""
    for tensor, content in segments:
        digest = xxhash.xxh3_64_intdigest(content)
        entries += struct.pack("<QIIQ", len(body), len(content), tensor, digest)
        body += content
    ends = (len(body), len(segments), xxhash.xxh3_64_intdigest(entries), head_sum)
    return body + entries + struct.pack("<QQQQ", *ends) + b"SYNCEND1"


def journal_seeds() -> Iterator[tuple[str, bytes]]:
    digest = "0123456789abcdef" * 4
    held = {"version": 6, "token": digest[:32], "run": digest[:32], "identity": digest}
    sums = [f"xxh3-128:{digest[:32]}", f"blake3:{digest}"]
    file = "model-00001-of-00001.safetensors"
    head: dict[str, object] = {
        "format": 1,
        "boot_id": "01234567-89ab-cdef-0123-456789abcdef",
        "from": held,
        "to": held | {"version": 7},
        "tensors": [["a", file, 400, 100_000, *sums], ["b", file, 100_400, 64, *sums]],
    }
    sparse_one = record(0, [0, 7, 65535], b"abc", b"xyz")
    sparse_two = record(65536, [3], b"a", b"b")
    whole = struct.pack("<QIBBHQ", 0, 4, 2, 1, 0, 0) + bytes(range(16))
    good = [(0, sparse_one + sparse_two), (1, whole)]
    for kind in (0, 1):
        yield f"good-{kind}", bytes([kind]) + journal_file(head, good)
    yield "empty", b"\0" + journal_file(head | {"tensors": []}, [])
    yield "outside", b"\0" + journal_file(head, [(1, sparse_one)])
    yield "far-block", b"\0" + journal_file(head, [(0, record(2**64 - 65536, [65535], b"a", b"b"))])
    yield "falling", b"\0" + journal_file(head, [(0, record(0, [7, 7], b"ab", b"cd"))])
    yield "no-tensor", b"\0" + journal_file(head, [(2, sparse_one)])
    yield "no-format", b"\0" + journal_file(head | {"format": 9}, good)
    leaving = [["a", "../x", 0, 4, *sums]]
    yield "path-outside", b"\0" + journal_file(head | {"tensors": leaving}, [])
    yield "cut", b"\1" + journal_file(head, good)[:-1]


SEEDS = {
    "compact": compact_seeds,
    "compact_roundtrip": compact_roundtrip_seeds,
    "delta_frame": delta_frame_seeds,
    "encoders": encoders_seeds,
    "index": index_seeds,
    "journal": journal_seeds,
    "json": json_seeds,
    "manifest": manifest_seeds,
    "payload": payload_seeds,
    "rank_frames": rank_frames_seeds,
    "safetensors": safetensors_seeds,
    "signature": signature_seeds,
}


def main() -> None:
    for target, seeds in SEEDS.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("seed-*"):
            old.unlink()
        for name, content in seeds():
            (folder / f"seed-{name}").write_bytes(content)


if __name__ == "__main__":
    main()
