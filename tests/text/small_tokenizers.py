"""Small tokenizer.json files of each kind that src/text decodes."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

SPACE = "\u2581"  # SentencePiece's sign for it
PREPEND = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
NEVER = {**PREPEND, "prepend_scheme": "never"}
REPLACE = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
BYTE_FALLBACK = {"type": "ByteFallback"}
FUSE = {"type": "Fuse"}
STRIP_LEFT = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
# Of "aab" and "b▁c". The reference panics where nothing is left of a token.
STRIP_BOTH = {"type": "Strip", "content": "b", "start": 1, "stop": 1}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}

# Bytes of which random sequences form characters often, and break them often.
BYTES = b"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\xed\xa0\xf4\x90 A"
WORDS = [SPACE, f"{SPACE}{SPACE}{SPACE}", f"{SPACE}a", "a", "aab", f"b{SPACE}c", "é", "€uro", " ",
         "", "\n", f"a{SPACE}", "<0xZZ>", "<0x4>", "<0x+A>",
         f"{SPACE}<0x41>"]  # fmt: skip


def sequence(*decoders: Json) -> Json:
    return {"type": "Sequence", "decoders": list(decoders)}


def added(content: str, number: int, *, special: bool) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, **flags, "special": special}


def tokenizer(model: Json, decoder: Json | None, added_tokens: list[Json]) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe(vocab: dict[str, int]) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": vocab,
        "merges": [],
    }


def unigram(pieces: list[str]) -> Json:
    vocab = [[piece, -float(number)] for number, piece in enumerate(pieces)]
    return {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": True}


def byte_characters() -> dict[int, str]:
    """GPT-2's character for each byte."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    return {byte: chr(byte) for byte in prints} | {
        byte: chr(256 + place) for place, byte in enumerate(others)
    }


def sentencepiece_like(decoder: Json | None, words: list[str] = WORDS) -> Json:
    """A BPE vocabulary with byte tokens, gaps between the ids and added tokens of all sorts."""
    tokens = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in BYTES), *words]
    vocab = {token: 3 * number for number, token in enumerate(tokens)}
    size = len(vocab)
    return tokenizer(
        bpe(vocab),
        decoder,
        [
            added("<s>", 3, special=True),
            added("a", vocab["a"], special=False),
            added("<tool>", size, special=False),
            added("<end>", size + 1, special=True),
            added(f"{SPACE}x y", size + 2, special=True),
        ],
    )


def small_tokenizers() -> dict[str, Json]:
    """By name. The ids that they know are below 200."""
    characters = byte_characters()
    byte_tokens = [characters[byte] for byte in BYTES]
    pairs = ["".join(byte_tokens[place : place + 2]) for place in range(0, len(byte_tokens), 2)]
    byte_level = tokenizer(
        bpe({token: number for number, token in enumerate(dict.fromkeys(byte_tokens + pairs))}),
        BYTE_LEVEL,
        [
            added("<|end|>", 40, special=True),
            added("has space", 41, special=False),
            added("ÃĠé", 42, special=False),
            added("€", 43, special=True),
        ],
    )
    unigram_model = unigram(["<unk>", *WORDS])
    return {
        "byte_level": byte_level,
        "byte_level_in_sequence": {
            **byte_level,
            "decoder": sequence(
                {"type": "Replace", "pattern": {"String": "Ã"}, "content": "Ġ"},
                sequence(BYTE_LEVEL),
                FUSE,
                STRIP_LEFT,
            ),
        },
        "llama": sentencepiece_like(sequence(REPLACE, BYTE_FALLBACK, FUSE, STRIP_LEFT)),
        "gemma": sentencepiece_like(sequence(REPLACE, BYTE_FALLBACK, FUSE)),
        "strip_each": sentencepiece_like(
            sequence(STRIP_BOTH, REPLACE, STRIP_LEFT, FUSE), [word for word in WORDS if word]
        ),
        "strip_more": sentencepiece_like(
            sequence(REPLACE, FUSE, {**STRIP_LEFT, "start": 3}),
        ),
        "metaspace_fallback": sentencepiece_like(sequence(PREPEND, BYTE_FALLBACK, FUSE)),
        "fallback_only": sentencepiece_like(BYTE_FALLBACK),
        "no_decoder": sentencepiece_like(None),
        "metaspace": tokenizer(unigram_model, PREPEND, [added("<pad>", 16, special=True)]),
        "metaspace_never": tokenizer(unigram_model, NEVER, []),
        "fuse": tokenizer({"type": "WordLevel", "vocab": {"a": 0, " b": 4}, "unk_token": "a"},
                          FUSE, []),
    }  # fmt: skip
