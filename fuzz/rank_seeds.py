"""Seeds of the target rank_frames: what the ranks of an engine send each other, and what they must
not believe.

Written from the description in src/ranks/protocol.h, which is not used here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

HELLO, WELCOME, REFUSED, HEARTBEAT, COMMAND, ASK, ANSWER, FAULT, END, FAREWELL = range(1, 11)

# What an input is read as, and how often its bytes are repeated (shifted by two).
AS_HELLO, AS_STREAM, AS_PAYLOAD, AS_MESSAGE = range(4)
TWICE, OFTEN = 2 << 2, 3 << 2


def seed(kind: int, content: bytes, script: bytes = b"") -> bytes:
    return bytes([kind, len(script)]) + script + content


def frame(kind: int, payload: bytes = b"", *, id: int = 0, word: int = 0, size: int = -1) -> bytes:
    announced = len(payload) if size < 0 else size
    return struct.pack("<QQII", announced, id, word, kind) + payload


def counted(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def hello_payload(channel: int = 1, rank: int = 1) -> bytes:
    numbers = struct.pack("<IIIIIIqQ", channel, rank, 4, 0, 2, 0, 4711, 0x0123456789ABCDEF)
    texts = (b"secret", b"syncline 0.1.0, --tp 4 --ep 1, config.json 0123", b"node-3")
    return numbers + b"".join(counted(text) for text in texts)


def hello(payload: bytes, *, protocol: int = 1, kind: int = HELLO, size: int = -1) -> bytes:
    return b"SynRanks" + struct.pack("<II", protocol, 0) + frame(kind, payload, size=size)


def hello_seeds() -> Iterator[tuple[str, bytes]]:
    good = hello(hello_payload())
    yield "good", seed(AS_HELLO, good, b"\x07")
    yield "work-channel", seed(AS_HELLO, hello(hello_payload(2, 3)))
    yield "empty-texts", seed(AS_HELLO, hello(hello_payload()[:40] + bytes(12)), b"\0")
    yield "idle-set", seed(AS_HELLO, good.replace(bytes(12), b"abcdefghijkl"))
    yield "no-channel", seed(AS_HELLO, hello(hello_payload(3)))
    yield "http", seed(AS_HELLO, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\0")
    yield "other-protocol", seed(AS_HELLO, hello(b"", protocol=2), b"\x03")
    yield "other-frame", seed(AS_HELLO, hello(b"", kind=COMMAND))
    too_long = hello(hello_payload(), size=(64 << 10) + 1)
    yield "too-long", seed(AS_HELLO | OFTEN, too_long)
    yield "never-complete", seed(AS_HELLO | OFTEN, hello(hello_payload(), size=64 << 10))
    yield "more-behind", seed(AS_HELLO | TWICE, good, b"\x1f")
    text_too_long = hello_payload()[:40] + struct.pack("<I", 2**32 - 1) + bytes(8)
    yield "text-too-long", seed(AS_HELLO, hello(text_too_long))


def error(code: int, text: str) -> bytes:
    return struct.pack("<I", code) + text.encode()


def stream_seeds() -> Iterator[tuple[str, bytes]]:
    lost = error(14, "rank 2 (host 10.0.0.2, pid 77) is gone: connection closed")
    commands = [
        frame(HEARTBEAT),
        frame(COMMAND, bytes(range(40)), word=2),
        frame(COMMAND, b"", id=7, word=100),
        frame(END),
    ]
    yield "commands", seed(AS_STREAM, b"".join(commands), b"\x17\0\x05")
    work = [
        frame(ASK, b"a question" * 5, id=8, word=3),
        frame(ANSWER, b"its answer" * 9, id=8),
        frame(FAULT, error(5, "rank 1: tensor w"), id=9),
        frame(HEARTBEAT),
        frame(FAREWELL, lost),
    ]
    yield "work", seed(AS_STREAM, b"".join(work), b"\x0b")
    yield "welcome", seed(AS_STREAM, frame(WELCOME, struct.pack("<II", 500, 3000)))
    yield "refused", seed(AS_STREAM, frame(REFUSED, error(12, "no token")), b"\0")
    yield "heartbeats", seed(AS_STREAM | OFTEN, frame(HEARTBEAT) * 9, b"\x47\xff")
    yield "across-buffers", seed(AS_STREAM | OFTEN, frame(ASK, bytes(900)), b"\xff\x30")
    large = struct.pack("<Q", 150_000) + bytes(12) + struct.pack("<I", ANSWER) + bytes(1200)
    yield "large", seed(AS_STREAM | OFTEN, large, b"\xff\x40\x80")
    for name, size in {
        "largest": 8 << 30,
        "above-largest": (8 << 30) + 1,
        "all-ones": 2**64 - 1,
    }.items():
        yield name, seed(AS_STREAM, frame(ASK, b"abc", size=size), b"\x09")
    yield "heartbeat-with-payload", seed(AS_STREAM, frame(HEARTBEAT, b"x"))
    yield "no-such-type", seed(AS_STREAM, frame(END) + frame(11) + frame(0))
    yield "cut", seed(AS_STREAM, b"".join(work)[:-1], b"\x02")


def payload_seeds() -> Iterator[tuple[str, bytes]]:
    yield "error", seed(AS_PAYLOAD, error(13, "timed out: \u20ac"))
    yield "error-without-text", seed(AS_PAYLOAD, error(1, "")[:3])
    yield "error-of-no-code", seed(AS_PAYLOAD, error(17, "a code of the future"))
    yield "error-too-long", seed(AS_PAYLOAD | OFTEN, error(3, "\u20ac" * 500))
    yield "welcome-payload", seed(AS_PAYLOAD, struct.pack("<II", 500, 3000))
    yield "welcome-without-beat", seed(AS_PAYLOAD, struct.pack("<II", 0, 3000))
    yield "welcome-too-silent", seed(AS_PAYLOAD, struct.pack("<II", 500, 500))


# Kinds of values, as the target counts them; an array's is one more than its number's.
U8, I16, U32, U64, F32, F64 = range(0, 12, 2)
TEXT, BYTES = 12, 14


def long(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def array(code: str, *values: float) -> bytes:
    return struct.pack(f"<Q{len(values)}{code}", len(values), *values)


def message_seeds() -> Iterator[tuple[str, bytes]]:
    batch = array("i", 5, 6, 7) + struct.pack("<QIII", 1, 0, 3, 0) + array("I", 9) + array("I", 2)
    kinds = bytes([U32 + 1, U64, U32, U32, U32, U32 + 1, U32 + 1])
    yield "batch", seed(AS_MESSAGE, batch, kinds)
    mixed = b"\x01" + long(b"a text") + array("h", -1, 2) + struct.pack("<fd", 1.5, -0.0)
    mixed += long(b"\0\xff") + array("Q") + array("d", 1e300) + array("f", 2.0)
    kinds = bytes([U8, TEXT, I16 + 1, F32, F64, BYTES, U64 + 1, F64 + 1, F32 + 1])
    yield "mixed", seed(AS_MESSAGE, mixed, kinds)
    yield "message-cut", seed(AS_MESSAGE, mixed[:-1], kinds)
    yield "message-longer", seed(AS_MESSAGE, mixed + b"\0", kinds)
    yield "count-overflows", seed(AS_MESSAGE, struct.pack("<Q", 2**61) + bytes(8), bytes([U64 + 1]))
    yield "count-huge", seed(AS_MESSAGE, struct.pack("<Q", 2**40) + bytes(8), bytes([U8 + 1]))
    yield "length-huge", seed(AS_MESSAGE, struct.pack("<Q", 2**64 - 1) + b"abc", bytes([TEXT]))


def rank_frames_seeds() -> Iterator[tuple[str, bytes]]:
    yield from hello_seeds()
    yield from stream_seeds()
    yield from payload_seeds()
    yield from message_seeds()
