"""The reference's two halves understand each other: a failure of other tests is not its own."""

from __future__ import annotations

import directory_format as reference
import pytest
from directory_format import CHECKSUMS, ENCODINGS, read_checkpoint, write_checkpoint
from harness import changed, training_steps


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("checksum", CHECKSUMS)
@pytest.mark.parametrize("shards", [1, 3])
def test_chain(store, replica, rng, encoding, checksum, shards) -> None:
    steps = training_steps(rng, 5, dtypes=tuple(reference.DTYPE_BITS))
    reference.write_full(store, 0, steps[0], shards=shards)
    for number in range(1, 6):
        old, new = steps[number - 1 : number + 1]
        reference.write_delta(store, number, old, new, encoding, checksum, shards)
    assert reference.pull(store, replica, 3) == [1, 2, 3]
    assert read_checkpoint(replica) == steps[3]
    assert reference.pull(store, replica) == [4, 5]
    assert read_checkpoint(replica) == steps[5]
    assert reference.pull(store, replica, 2) == []
    assert reference.pull(store, replica, 0) == []
    assert read_checkpoint(replica) == steps[0]


def test_a_wrong_byte_is_noticed(store, replica, rng) -> None:
    steps = training_steps(rng, 1)
    reference.write_full(store, 0, steps[0])
    reference.write_delta(store, 1, *steps)
    reference.pull(store, replica, 0)
    write_checkpoint(replica, changed(rng, steps[0]))
    with pytest.raises(reference.FormatError, match="checksum mismatch"):
        reference.pull(store, replica)
    assert reference.read_marker(replica) is None
    reference.pull(store, replica)
    assert read_checkpoint(replica) == steps[1]
