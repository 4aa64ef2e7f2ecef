"""The additive digest of a tensor, written a second time: from its description in docs/format.md."""

from __future__ import annotations

BLOCK = 4096
BLOCK_SEED = 0x53796E636C696E65
MASK = 2**64 - 1


def split_mix(seed: int, index: int) -> int:
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
    return z ^ z >> 31


def lane_of(data: bytes, unit_bytes: int, first_unit: int, lane: int) -> int:
    total = 0
    for index in range(len(data) // unit_bytes):
        block, place = divmod(first_unit + index, BLOCK)
        place_key = split_mix(0, place) >> 32 * lane & 0xFFFFFFFF | 1
        block_key = split_mix(BLOCK_SEED, 2 * block + lane) | 1
        bits = int.from_bytes(data[index * unit_bytes : (index + 1) * unit_bytes], "little")
        total += block_key * place_key * bits
    return total & MASK


def digest_of(data: bytes, unit_bytes: int, first_unit: int = 0) -> str:
    """32 hex digits: lane 1, then lane 0."""
    low, high = (lane_of(data, unit_bytes, first_unit, lane) for lane in (0, 1))
    return f"{high:016x}{low:016x}"
