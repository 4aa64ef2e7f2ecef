"""Good and bad safetensors files, each rule of the format by itself.

A file that breaks more than one rule proves little, so the bad ones are good ones with one change.
The judge is the reference library; `Case.good` says what it is expected to find, so that a case
cannot be bad for another reason than its own without being noticed. Where the reference lets
something through that the text of the format forbids, `Case.stricter` names the rule, and ours must
refuse the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from safetensors_files import DTYPE_BITS

HEADER_LIMIT = 100_000_000


@dataclass(frozen=True)
class Case:
    """One file: its bytes, the verdict that the reference library is expected to give, and why."""

    name: str
    content: bytes = field(repr=False)
    good: bool
    mentions: tuple[str, ...] = ()  # what the error names beside the file
    stricter: str = ""  # a rule of the format that the reference does not enforce

    @property
    def must_load(self) -> bool:
        return self.good and not self.stricter


def file_of(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file with any header: bytes and text go in as they are, else as JSON; `length` may lie."""
    if isinstance(header, str):
        header = header.encode()
    if not isinstance(header, bytes):
        header = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype: Any = "U8", shape: Any = (2,), begin: Any = 0, end: Any = 2) -> dict[str, Any]:
    """A tensor in a header; by default the two bytes that most cases have as data."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def _text(shape: str = "[2]", offsets: str = "[0,2]", more: str = "") -> str:
    """A header of one tensor "w", its numbers as text: for what JSON writers would not write."""
    return f'{{"w":{{"dtype":"U8","shape":{shape},"data_offsets":{offsets}{more}}}}}'


_DATA = b"xy"
_TENSOR = '{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'


def cases() -> list[Case]:
    """The whole corpus; names are unique and fit for file names."""
    groups = (_sizes, _json, _numbers, _offsets, _duplicates, _fields, _metadata, _names, _dtypes)
    return [case for group in groups for case in group()]


def _sizes() -> Iterator[Case]:
    """BR-10, BR-14: the eight bytes in front, and where the file ends."""
    whole = file_of({"a": entry(), "b": entry(begin=2, end=4)}, b"abcd")
    header = len(whole) - 8 - 4
    yield Case("size-whole", whole, True)
    for name, size in {
        "nothing": 0,
        "half-the-length": 4,
        "length-only": 8,
        "one-byte-of-header": 9,
        "half-the-header": 8 + header // 2,
        "header-but-one": 8 + header - 1,
        "header-only": 8 + header,
        "first-tensor-but-one": 8 + header + 1,
        "first-tensor-only": 8 + header + 2,
        "all-but-one": len(whole) - 1,
    }.items():
        yield Case(f"size-cut-{name}", whole[:size], False, (str(size),))
    yield Case("size-one-more", whole + b"z", False, (str(len(whole) + 1),))
    yield Case("size-no-tensor-one-more", file_of("{}", b"z"), False)
    for name, length in {
        "2-to-63": 2**63,
        "2-to-64-less-1": 2**64 - 1,
        "2-to-64-less-8": 2**64 - 8,
        "limit": HEADER_LIMIT,
        "limit-and-one": HEADER_LIMIT + 1,
        "one-more": 3,
    }.items():
        yield Case(f"length-{name}", file_of("{}", length=length), False)
    yield Case("length-one-less", file_of({"w": entry()}, _DATA, length=10), False)
    yield Case("length-zero", file_of("", b""), False)


def _json() -> Iterator[Case]:
    """BR-15: the header is one JSON object in UTF-8."""
    yield Case("json-empty-object", file_of("{}"), True)
    yield Case("json-trailing-spaces", file_of("{}      "), True)
    yield Case("json-trailing-newline", file_of("{}\n\t\r "), True)
    yield Case("json-spaces-inside", file_of('{ "w" :\n\t' + _TENSOR + "\r }", _DATA), True)
    for first in (" ", "\n", "\t"):
        rule = "the header begins with {"
        yield Case(f"json-begins-with-{ord(first)}", file_of(first + "{}"), True, (), rule)
    bad = {
        "byte-order-mark": b"\xef\xbb\xbf{}",
        "array": "[]",
        "null": "null",
        "number": "1",
        "text": '"w"',
        "not-closed": "{",
        "only-spaces": "        ",
        "trailing-nul": "{}\0\0",
        "trailing-text": "{}x",
        "two-objects": "{}{}",
        "comment": "{/* w */}",
        "single-quotes": f"{{'w':{_TENSOR}}}",
        "trailing-comma": f'{{"w":{_TENSOR},}}',
        "no-colon": f'{{"w" {_TENSOR}}}',
        "name-without-quotes": f"{{w:{_TENSOR}}}",
        "control-character": b'{"w\x01":' + _TENSOR.encode() + b"}",
        "unknown-escape": f'{{"w\\x41":{_TENSOR}}}',
        "nan": _text(more=',"q":NaN'),
        "utf8-in-name": b'{"w\xff":' + _TENSOR.encode() + b"}",
        "utf8-in-ignored-field": _text(more=',"q":"@"').encode().replace(b"@", b"\xc3"),
        "utf8-overlong": b'{"w\xc0\xaf":' + _TENSOR.encode() + b"}",
        "utf8-surrogate": b'{"w\xed\xa0\x80":' + _TENSOR.encode() + b"}",
        "lone-surrogate": f'{{"\\ud83d":{_TENSOR}}}',
        "surrogates-reversed": f'{{"\\ude00\\ud83d":{_TENSOR}}}',
        "nested-200-deep": _text(more=',"q":' + "[" * 200 + "]" * 200),
    }
    for name, header in bad.items():
        yield Case(f"json-{name}", file_of(header, _DATA), False)
    yield Case(
        "json-nested-20-deep", file_of(_text(more=',"q":' + "[" * 20 + "]" * 20), _DATA), True
    )


def _numbers() -> Iterator[Case]:
    """BR-15: shapes and offsets are whole numbers below 2^64; no product overflows."""
    for name, shape in {
        "negative": "[-2]",
        "minus-zero": "[-0,2]",
        "fraction": "[2.0]",
        "exponent": "[2e0]",
        "text": '["2"]',
        "null": "[null]",
        "true": "[true]",
        "leading-zero": "[02]",
        "plus": "[+2]",
        "hexadecimal": "[0x2]",
        "2-to-64": "[18446744073709551616]",
        "nested": "[[2]]",
        "number": "2",
        "object": "{}",
    }.items():
        yield Case(f"shape-{name}", file_of(_text(shape=shape), _DATA), False)
    yield Case("shape-absent-value", file_of(_text(shape="null"), _DATA), False)
    for name, offsets in {
        "negative": "[-1,1]",
        "minus-zero": "[-0,2]",
        "fraction": "[0,2.0]",
        "exponent": "[0,2e0]",
        "text": '["0","2"]',
        "null": "[null,2]",
        "2-to-64": "[0,18446744073709551616]",
        "2-to-64-and-two": "[18446744073709551616,18446744073709551618]",
        "one": "[2]",
        "three": "[0,2,2]",
        "none": "[]",
        "object": '{"begin":0,"end":2}',
    }.items():
        yield Case(f"offsets-{name}", file_of(_text(offsets=offsets), _DATA), False)
    for name, dtype, shape in (
        ("product", "U8", [2**63, 2**63]),
        ("product-wraps-to-two", "U8", [2**63 + 1, 2]),
        ("product-before-zero", "U8", [2**63, 2**63, 0]),
        ("bits", "F64", [2**60]),
        ("bits-of-bytes", "U8", [2**61]),
        ("bits-wrap-to-two-bytes", "U8", [2**61 + 2]),
        ("four-bits", "F4", [2**62 + 4]),
    ):
        content = file_of({"w": entry(dtype, shape)}, _DATA)
        yield Case(f"overflow-{name}", content, False, ("w",))
    zero_first = file_of({"w": entry("U8", [0, 2**63, 2**63], 0, 0)})
    yield Case("overflow-after-zero", zero_first, True)


def _offsets() -> Iterator[Case]:
    """BR-15, BR-18: tensors follow each other without gap or overlap from 0 to the end."""
    good = {
        "in-other-order": ({"b": entry(begin=2, end=4), "a": entry()}, b"abcd"),
        "scalar": ({"w": entry("F32", [], 0, 4)}, b"abcd"),
        "two-empty": ({"a": entry("U8", [0], 0, 0), "b": entry("F32", [2, 0], 0, 0)}, b""),
        "empty-between": (
            {"a": entry(), "b": entry("F32", [0], 2, 2), "c": entry(begin=2, end=4)},
            b"abcd",
        ),
        "empty-last": ({"a": entry(), "b": entry("I64", [3, 0], 2, 2)}, b"ab"),
        "many-dimensions": ({"w": entry("U8", [1] * 63 + [2])}, _DATA),
    }
    for name, (header, data) in good.items():
        yield Case(f"layout-{name}", file_of(header, data), True)
    bad = {
        "overlap": ({"a": entry(), "b": entry(begin=1, end=3)}, b"abc"),
        "same-bytes": ({"a": entry(), "b": entry()}, b"ab"),
        "gap": ({"a": entry(), "b": entry(begin=3, end=5)}, b"abcde"),
        "gap-in-front": ({"a": entry(begin=1, end=3)}, b"abc"),
        "begin-beyond-end": ({"a": entry(begin=2, end=0)}, b"ab"),
        "beyond-the-file": ({"a": entry("U8", [4], 0, 4)}, b"ab"),
        "far-beyond-the-file": ({"a": entry("U8", [2**40], 0, 2**40)}, b"ab"),
        "empty-beyond": ({"a": entry(), "b": entry("U8", [0], 3, 3)}, b"ab"),
        "empty-inside": ({"a": entry(), "b": entry("U8", [0], 1, 1)}, b"ab"),
        "shape-too-large": ({"a": entry("U8", [3])}, b"ab"),
        "shape-too-small": ({"a": entry("U8", [1])}, b"ab"),
        "scalar-too-small": ({"a": entry("F32", [])}, b"ab"),
        "empty-with-bytes": ({"a": entry("U8", [0])}, b"ab"),
        "dtype-too-wide": ({"a": entry("F32", [2])}, b"ab"),
    }
    for name, (header, data) in bad.items():
        yield Case(f"layout-{name}", file_of(header, data), False)


def _duplicates() -> Iterator[Case]:
    """BR-15: no key comes twice. The reference keeps the last one, and then may miss bytes."""
    rule = "no key comes twice"
    other = _TENSOR.replace("[0,2]", "[2,4]")
    empty = '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    two, four, none = _DATA, b"abcd", b""
    for name, header, data, good in (
        ("tensor-same-bytes", f'{{"w":{_TENSOR},"w":{_TENSOR}}}', two, True),
        ("tensor-other-bytes", f'{{"w":{_TENSOR},"w":{other}}}', four, False),
        ("tensor-escaped", f'{{"w":{_TENSOR},"\\u0077":{_TENSOR}}}', two, True),
        ("tensor-empty", f'{{"w":{empty},"w":{empty}}}', none, True),
        ("tensor-apart", f'{{"w":{_TENSOR},"v":{other},"w":{_TENSOR}}}', four, True),
        ("field-ignored", _text(more=',"q":1,"q":1'), two, True),
        ("metadata-key", '{"__metadata__":{"w":"a","w":"b"}}', none, True),
    ):
        stricter = rule if good else ""
        mentions = ("w",) if "tensor" in name else ()
        yield Case(f"twice-{name}", file_of(header, data), good, mentions, stricter)
    for key, value in {"dtype": '"U8"', "shape": "[2]", "data_offsets": "[0,2]"}.items():
        header = _text(more=f',"{key}":{value}')
        yield Case(f"twice-field-{key}", file_of(header, _DATA), False)
    header = '{"__metadata__":{"a":"b"},"__metadata__":{"c":"d"}}'
    yield Case("twice-metadata", file_of(header), False)


def _fields() -> Iterator[Case]:
    """What a tensor's entry holds."""
    unknown = entry() | {"strides": [1], "comment": {"by": ["x", None, 1.5e3, True]}}
    yield Case("field-unknown", file_of({"w": unknown}, _DATA), True)
    for key in entry():
        content = file_of({"w": {k: v for k, v in entry().items() if k != key}}, _DATA)
        yield Case(f"field-without-{key}", content, False)
        yield Case(f"field-null-{key}", file_of({"w": entry() | {key: None}}, _DATA), False)
    for name, value in {"null": None, "text": "w", "number": 1, "empty": {}}.items():
        yield Case(f"field-tensor-is-{name}", file_of({"w": value}, _DATA), False)
    rule = "a tensor is an object, its dtype a text"
    yield Case("field-tensor-is-list", file_of({"w": ["U8", [2], [0, 2]]}, _DATA), True, (), rule)
    dtype = {"U8": None}
    yield Case("field-dtype-is-object", file_of({"w": entry(dtype)}, _DATA), True, (), rule)
    yield Case("field-dtype-is-number", file_of({"w": entry(1)}, _DATA), False)


def _metadata() -> Iterator[Case]:
    """`__metadata__` maps texts to texts."""
    with_tensor = {"__metadata__": {"format": "pt"}, "w": entry()}
    yield Case("metadata-before-tensor", file_of(with_tensor, _DATA), True)
    after = f'{{"w":{_TENSOR},"__metadata__":{{"format":"pt"}}}}'
    yield Case("metadata-after-tensor", file_of(after, _DATA), True)
    yield Case("metadata-only", file_of({"__metadata__": {"format": "pt"}}), True)
    yield Case("metadata-empty", file_of({"__metadata__": {}}), True)
    for name, value in {
        "number-inside": {"a": 1},
        "null-inside": {"a": None},
        "object-inside": {"a": {}},
        "list": [],
        "text": "pt",
        "tensor": entry(),
    }.items():
        yield Case(f"metadata-{name}", file_of({"__metadata__": value}), False)
    yield Case("metadata-null", file_of({"__metadata__": None}), True, ())


def _names() -> Iterator[Case]:
    """Any text is a name."""
    for name, tensor in {
        "empty": "",
        "unicode": "größe.😀.重み",
        "nul": "a\0b",
        "newline": "a\nb",
        "quote": 'a"b\\c',
        "path": "../../etc/passwd",
        "long": "w" * 5000,
        "almost-metadata": "__metadata__ ",
    }.items():
        yield Case(f"name-{name}", file_of({tensor: entry()}, _DATA), True)
    raw = f'{{"größe.😀":{_TENSOR}}}'
    yield Case("name-raw-utf8", file_of(raw, _DATA), True)


def _dtypes() -> Iterator[Case]:
    """BR-19: every dtype, and sizes that are no whole number of bytes."""
    for dtype, bits in DTYPE_BITS.items():
        data = bytes(range(bits))
        content = file_of({"w": entry(dtype, [2, 4], 0, bits)}, data)
        yield Case(f"dtype-{dtype}", content, True)
        yield Case(f"dtype-{dtype}-empty", file_of({"w": entry(dtype, [3, 0], 0, 0)}), True)
        short = file_of({"w": entry(dtype, [2, 4], 0, bits - 1)}, data[:-1])
        yield Case(f"dtype-{dtype}-one-byte-short", short, False)
    for dtype in ("U9", "u8", "F8_E4M3FN", "C128", "F128", "bfloat16", "", "U8 "):
        name = dtype.replace(" ", "_") or "nothing"
        content = file_of({"w": entry(dtype)}, _DATA)
        yield Case(f"dtype-unknown-{name}", content, False, (dtype,))
    yield Case("dtype-unknown-empty", file_of({"w": entry("U9", [0], 0, 0)}), False, ("U9",))
    for dtype, shape, size, good in (
        ("F4", [2, 1], 1, True),
        ("F4", [3, 2], 3, True),
        ("F4", [3], 1, False),
        ("F4", [3], 2, False),
        ("F4", [3, 3], 4, False),
        ("F4", [3, 3], 5, False),
        ("F4", [], 1, False),
        ("F6_E2M3", [4], 3, True),
        ("F6_E3M2", [2, 2], 3, True),
        ("F6_E2M3", [2], 1, False),
        ("F6_E2M3", [2], 2, False),
        ("F6_E3M2", [], 1, False),
    ):
        content = file_of({"w": entry(dtype, shape, 0, size)}, bytes(size))
        mentions = () if good else ("w",)
        label = "x".join(map(str, shape)) or "scalar"
        yield Case(f"dtype-{dtype}-{label}-in-{size}", content, good, mentions)
    odd_bool = file_of({"w": entry("BOOL", [2])}, b"\x02\xff")
    yield Case("dtype-BOOL-of-other-bytes", odd_bool, True)
