"""How many bits the steps of a model need at least, where the old exponent says how likely each is.

A step is how far an element moves in the order of its type's numbers, with a direction; 0 for what
does not change. For each dtype and old exponent the frequencies of all steps (0 included) are
counted in the very pair that is coded, and their entropy is summed up over all elements. A code
that uses no other context, and is told these frequencies, takes that much.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "reference"))
from safetensors_files import DTYPE_BITS, Tensors

MANTISSA = {"F32": 23, "BF16": 7, "F16": 10, "F8_E4M3": 3, "F8_E5M2": 2}  # bits; of the floats here
PIECE = 1 << 22  # elements looked at at a time


def information(counts: np.ndarray) -> float:
    """Sum of n log2 n."""
    positive = counts[counts > 0]
    return float(positive @ np.log2(positive))


class StepCounts:
    """Frequencies of the steps of one dtype, by old exponent."""

    def __init__(self, dtype: str) -> None:
        self.bits = DTYPE_BITS[dtype]
        self.word = np.dtype(f"<u{self.bits // 8}")
        self.mantissa = MANTISSA[dtype]
        self.magnitude = (1 << (self.bits - 1)) - 1
        self.elements = np.zeros(1 << (self.bits - 1 - self.mantissa), np.int64)
        self.steps: list[np.ndarray] = []  # exponent * 2^bits + step, of each changed element

    def add(self, old: np.ndarray, new: np.ndarray) -> None:
        for begin in range(0, old.size, PIECE):
            self._add(old[begin : begin + PIECE], new[begin : begin + PIECE])

    def _add(self, old: np.ndarray, new: np.ndarray) -> None:
        exponent = (old & self.word.type(self.magnitude)) >> self.mantissa
        self.elements += np.bincount(exponent, minlength=self.elements.size)
        changed = np.flatnonzero(old != new)
        step = self._key(new[changed]) - self._key(old[changed])  # modulo 2^bits
        self.steps.append((exponent[changed].astype(np.uint64) << self.bits) + step)

    def _key(self, values: np.ndarray) -> np.ndarray:
        """Ascending where the numbers do."""
        negative = values > self.magnitude
        return np.where(negative, values ^ self.word.type(self.magnitude), values)

    @property
    def changed(self) -> int:
        return sum(steps.size for steps in self.steps)

    def entropy(self) -> float:
        """Bits of all elements together."""
        values, counts = np.unique(np.concatenate(self.steps), return_counts=True)
        exponents = (values >> np.uint64(self.bits)).astype(np.int64)
        same = self.elements.copy()
        np.subtract.at(same, exponents, counts)
        return information(self.elements) - information(same) - information(counts)


def step_entropy(old: Tensors, new: Tensors) -> tuple[int, float]:
    """Elements that change, and the bits that each of them takes at least."""
    kinds: dict[str, StepCounts] = {}
    for name, before in old.items():
        counts = kinds.setdefault(before.dtype, StepCounts(before.dtype))
        counts.add(before.data.view(counts.word), new[name].data.view(counts.word))
    changed = sum(counts.changed for counts in kinds.values())
    return changed, sum(counts.entropy() for counts in kinds.values()) / changed
