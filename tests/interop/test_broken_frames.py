"""Shards in good order whose frames or checksums are not: what `syncline pull` must refuse.

As in test_refusals.py: a message that names the tensor, an exit code of the table, nothing changed.
"""

from __future__ import annotations

import struct

import directory_format as reference
import pytest
from directory_format import CHECKSUMS, ENCODINGS
from harness import Exit, changed, random_tensors, tree
from safetensors_files import read_header
from scene import CORRUPT, edit_sum, frame_of, plain_of

ONE_TEBIBYTE_FRAME = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 40) + b"\x01\x00\x00"


class TestFrames:
    @pytest.mark.parametrize("kept", ["nothing", "1", "3", "4", "5", "7", "half", "all but one"])
    def test_cut_frame(self, scene, kept) -> None:
        """The file is in order, the frame in it is not: cut in its magic, header, blocks."""

        def cut(frame: bytes) -> bytes:
            sizes = {"nothing": 0, "half": len(frame) // 2, "all but one": len(frame) - 1}
            return frame[: sizes[kept] if kept in sizes else int(kept)]

        name = scene.replace_frame(cut)
        scene.refuses(naming=[name], codes=CORRUPT)

    @pytest.mark.parametrize(
        "frame",
        [
            b"\0" * 32,
            b"not a frame at all",
            b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip",
            ONE_TEBIBYTE_FRAME,
        ],
        ids=["zeros", "text", "skippable", "tebibyte"],
    )
    def test_no_frame(self, scene, frame) -> None:
        name = scene.replace_frame(lambda _: frame)
        scene.refuses(naming=[name])

    @pytest.mark.parametrize("difference", [-1, 1, 1 << 20])
    def test_xor_of_another_length(self, xor_scene, difference) -> None:
        def make(frame: bytes) -> bytes:
            plain = plain_of(frame)
            longer = plain + bytes(max(difference, 0))
            return frame_of(longer[: len(plain) + difference])

        name = xor_scene.replace_frame(make)
        xor_scene.refuses(naming=[name], codes=CORRUPT)

    def test_xor_of_no_length(self, xor_scene) -> None:
        name = xor_scene.replace_frame(lambda _: frame_of(b""))
        xor_scene.refuses(naming=[name], codes=CORRUPT)

    @pytest.mark.parametrize("position", ["end", "beyond", "last u32"])
    def test_overwrite_position_out_of_range(self, overwrite_scene, position) -> None:
        name = overwrite_scene.victim
        size = overwrite_scene.steps[2][name].nbytes
        at = {"end": size, "beyond": size + 4096, "last u32": 2**32 - 1}[position]
        overwrite_scene.replace_frame(lambda _: frame_of(reference.pack_overwrite([0, at], [1, 2])))
        overwrite_scene.refuses(naming=[name], codes=CORRUPT)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\1\0\0",
            b"\1\0\0\0",
            b"\1\0\0\0" + b"\0\0\0\0",
            b"\1\0\0\0" + b"\0\0\0\0" + b"ab",
            b"\0\0\0\0" + b"a",
            b"\2\0\0\0" + b"\0\0\0\0" + b"a",
            b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"a",
        ],
        ids=[
            "nothing",
            "half-count",
            "count-only",
            "no-value",
            "one-value-too-many",
            "value-without-position",
            "one-position-short",
            "count-of-4-Gi",
        ],
    )
    def test_overwrite_body_does_not_add_up(self, overwrite_scene, body) -> None:
        name = overwrite_scene.replace_frame(lambda _: frame_of(body))
        overwrite_scene.refuses(naming=[name], codes=CORRUPT)


class TestChecksums:
    WRONG = (Exit.CHECKSUM_MISMATCH,)

    @pytest.mark.parametrize("number", range(11))
    def test_br_05_wrong_hash_of_each_tensor(self, scene, number) -> None:
        """Whichever tensor turns out wrong after the patch: all go back, and the retry is right."""
        names = scene.changed_names()
        assert len(names) == 11, "as many as the parameter has values"
        name = names[number]
        path = scene.broken / scene.index()["weight_map"][name]
        edit_sum(path, name, lambda digest: digest[::-1])
        scene.refuses(naming=[name], codes=self.WRONG)

    @pytest.mark.parametrize("checksum", CHECKSUMS)
    @pytest.mark.parametrize("encoding", ENCODINGS)
    def test_every_kind_is_checked(self, cli, store, replica, rng, checksum, encoding) -> None:
        old = random_tensors(rng, ("BF16",))
        new = changed(rng, old)
        reference.write_full(store, 0, old)
        reference.pull(store, replica)
        reference.write_delta(store, 1, old, new, encoding, checksum)
        path = reference.version_dir(store, 1) / "model-00000-of-00001.safetensors"
        metadata, _ = read_header(path)
        name = max(metadata)
        flipped = {"0": "1"}
        edit_sum(path, name, lambda digest: flipped.get(digest[0], "0") + digest[1:])
        before = tree(replica)
        cli.fails("pull", "--from", store, "--into", replica, naming=[name], codes=self.WRONG)
        assert tree(replica) == before

    @pytest.mark.parametrize("digest", ["", "0", "z" * 32, "0" * 31, "0" * 33, "0" * 64])
    def test_no_digest(self, xor_scene, digest) -> None:
        name = xor_scene.victim
        edit_sum(xor_scene.shard, name, lambda _: digest)
        xor_scene.refuses(naming=[name], codes=(Exit.CHECKSUM_MISMATCH, Exit.CORRUPT))

    def test_digest_not_there(self, scene) -> None:
        name = scene.victim
        scene.edit_shard(lambda _, sums: sums.pop(name))
        scene.refuses(naming=[name], codes=CORRUPT)

    def test_frame_of_other_changes(self, scene) -> None:
        """A frame in good order that is not the one meant."""
        encoding = scene.index()["metadata"]["delta_encoding"]
        name = scene.victim
        size = scene.steps[2][name].nbytes
        if encoding == "xor":
            body = bytes(size - 1) + b"\1"
        else:
            body = reference.pack_overwrite([size - 1], [int(scene.steps[1][name].data[-1]) ^ 1])
        scene.replace_frame(lambda _: frame_of(body))
        scene.refuses(naming=[name], codes=self.WRONG)
