"""A store whose newest version the tests break, and a replica that must not care."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import directory_format as reference
import numpy as np
import zstandard
from directory_format import INDEX_NAME, Tensor, read_checkpoint
from harness import Cli, Exit, changed, random_tensors, tree
from safetensors_files import map_file, read_header, write_safetensors

CORRUPT = (Exit.CORRUPT,)
CORRUPT_OR_MISSING = (Exit.CORRUPT, Exit.NOT_FOUND)

SHARD = "model-00000-of-00002.safetensors"
OTHER_SHARD = "model-00001-of-00002.safetensors"


class Scene:
    """A store of version 0 (full), 1 and 2 (deltas; 2 in two shards) and a replica at version 1.

    Tests break version 2, in `broken`.
    """

    def __init__(self, cli: Cli, directory: Path, rng: np.random.Generator, encoding: str) -> None:
        self.cli = cli
        self.store = directory / "store"
        self.replica = directory / "replica"
        self.broken = reference.version_dir(self.store, 2)
        self.steps = [random_tensors(rng, ("BF16", "BOOL", "F32"))]
        for _ in range(2):
            self.steps.append(changed(rng, self.steps[-1]))
        reference.write_full(self.store, 0, self.steps[0], shards=2)
        reference.write_delta(self.store, 1, *self.steps[0:2], "xor")
        reference.write_delta(self.store, 2, *self.steps[1:3], encoding, shards=2)
        reference.pull(self.store, self.replica, 1)
        self._pristine = directory / "pristine"
        shutil.copytree(self.store, self._pristine)

    @property
    def shard(self) -> Path:
        return self.broken / SHARD

    def changed_names(self) -> list[str]:
        """Names of the tensors that version 2 changes."""
        return list(self.index()["weight_map"])

    def index(self) -> dict[str, Any]:
        return json.loads((self.broken / INDEX_NAME).read_text())

    def edit_index(self, edit: Callable[[dict[str, Any]], None]) -> None:
        index = self.index()
        edit(index)
        (self.broken / INDEX_NAME).write_text(json.dumps(index))

    def edit_shard(self, edit: Callable[[dict[str, bytes], dict[str, str]], None]) -> None:
        """Rewrites the first shard after `edit` has changed its frames and its checksums."""
        metadata, spans = read_header(self.shard)
        content = map_file(self.shard)
        frames = {
            name: content[span.offset : span.offset + span.nbytes].tobytes()
            for name, span in spans.items()
        }
        edit(frames, metadata)
        tensors = {
            name: Tensor("U8", (len(frame),), np.frombuffer(frame, np.uint8))
            for name, frame in frames.items()
        }
        write_safetensors(self.shard, tensors, metadata)

    @property
    def victim(self) -> str:
        """The largest tensor of the first shard."""
        names = (name for name, file in self.index()["weight_map"].items() if file == SHARD)
        return max(names, key=lambda name: self.steps[2][name].nbytes)

    def replace_frame(self, make: Callable[[bytes], bytes]) -> str:
        """Puts make(frame) in the place of the victim's frame. Returns its name."""
        name = self.victim

        def edit(frames: dict[str, bytes], _: dict[str, str]) -> None:
            frames[name] = make(frames[name])

        self.edit_shard(edit)
        return name

    def pull(self, *options: object) -> list[object]:
        return ["pull", "--from", self.store, "--into", self.replica, *options]

    def _held(self) -> tuple[dict[str, str], int | None]:
        """The files and the version; what we note beside another program's marker may come."""
        own = (".weight_sync/lock", ".weight_sync/state.json", ".weight_sync/syncline.json")
        return tree(self.replica, without=own), reference.read_marker(self.replica)

    def refuses(
        self, *options: object, naming: Iterable[str] = (), codes: Iterable[Exit] = ()
    ) -> str:
        """The pull fails and changes nothing; when the store is whole again it succeeds."""
        before = self._held()
        message = self.cli.fails(*self.pull(*options), naming=naming, codes=codes)
        assert self._held() == before, f"the replica is not what it was; {message}"
        shutil.rmtree(self.store)
        shutil.copytree(self._pristine, self.store)
        self.cli.ok(*self.pull())
        assert read_checkpoint(self.replica) == self.steps[2]
        assert reference.read_marker(self.replica) == 2
        return message


def edit_sum(path: Path, name: str, edit: Callable[[str], str]) -> None:
    """Changes the checksum of one tensor; the frames stay."""
    metadata, spans = read_header(path)
    content = map_file(path).copy()
    tensors = {
        n: Tensor("U8", s.shape, content[s.offset : s.offset + s.nbytes]) for n, s in spans.items()
    }
    write_safetensors(path, tensors, {**metadata, name: edit(metadata[name])})


def cuts_of(path: Path) -> dict[str, int]:
    """Sizes to which a file can be cut (or grown) so that a part of its structure is not whole."""
    size = path.stat().st_size
    (header,) = struct.unpack("<Q", path.read_bytes()[:8])
    ends = sorted(span.offset + span.nbytes for span in read_header(path)[1].values())
    return {
        "empty": 0,
        "half-length": 4,
        "length-only": 8,
        "one-byte-of-header": 9,
        "half-header": 8 + header // 2,
        "header-but-one": 8 + header - 1,
        "header-only": 8 + header,
        "inside-first-tensor": ends[0] - 1,
        "after-first-tensor": ends[0],
        "all-but-one": size - 1,
        "one-more": size + 1,
    }


CUTS = [
    "empty",
    "half-length",
    "length-only",
    "one-byte-of-header",
    "half-header",
    "header-but-one",
    "header-only",
    "inside-first-tensor",
    "after-first-tensor",
    "all-but-one",
    "one-more",
]


def resize(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def plain_of(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame)


def frame_of(plain: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(plain)
