"""A trainer that writes straight into the parameters of an engine, as miles does over RDMA."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from peer import Peer, Transfer
from server import Server
from trainer import Weights, content

# What an engine stacks, and what it divides along columns. All else that is divided is by rows.
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
BY_COLUMNS = ("o_proj", "down_proj")
VOCABULARY = ("embed_tokens", "lm_head")
Places = dict[str, tuple[int, int, int]]  # address, elements, bytes of each


def parameter(weights: Weights, name: str, rank: int, ranks: int, elements: int) -> torch.Tensor:
    """A parameter of a Llama as a rank holds it, of any format whose blocks ranks do not share."""
    module, _, suffix = name.rpartition(".")
    parent, dot, leaf = module.rpartition(".")
    if "norm" in leaf:
        return weights[name]
    if leaf in VOCABULARY:  # of equal numbers of rows, the last ones padding
        rows = elements // weights[name].shape[1]
        own = weights[name][rank * rows : (rank + 1) * rows]
        return torch.cat([own, own.new_zeros(rows - len(own), own.shape[1])])
    axis = 1 if leaf in BY_COLUMNS else 0
    names = [f"{parent}{dot}{piece}.{suffix}" for piece in FUSED.get(leaf, (leaf,))]
    return torch.cat([weights[piece].chunk(ranks, axis)[rank] for piece in names])


class Writer:
    """Of one engine, with a process of its own."""

    def __init__(self, server: Server, ranks: int, path: Path, size: int = 16 << 20) -> None:
        self.server = server
        self.ranks = ranks
        self.peer = Peer(path, size)

    def places(self, rank: int) -> tuple[str, Places]:
        reply = self.server.get(f"/get_remote_instance_transfer_engine_info?rank={rank}").ok()
        assert reply["rank"] == rank
        session, places = reply["remote_instance_transfer_engine_info"]
        return session, {name: tuple(place) for name, place in places.items()}

    def all_places(self) -> list[tuple[str, Places]]:
        return [self.places(rank) for rank in range(self.ranks)]

    def write(
        self, bytes_of: Callable[[str, int, int], bytes], names: Iterable[str] | None = None
    ) -> list[int]:
        """Parameters of all ranks, those of `names` or every one. The status of each write."""
        transfers: list[Transfer] = []
        offset = 0
        for rank in range(self.ranks):
            session, places = self.places(rank)
            for name in places if names is None else names:
                address, elements, size = places[name]
                data = bytes_of(name, rank, elements)
                assert len(data) == elements * size, name
                self.peer.memory[offset : offset + len(data)] = data
                transfers.append((session, address, offset, len(data)))
                offset += len(data)
        return self.peer.write(transfers)

    def write_weights(self, weights: Weights, names: Iterable[str] | None = None) -> None:
        assert set(self.write(self.of(weights), names)) <= {0}

    def of(self, weights: Weights) -> Callable[[str, int, int], bytes]:
        def bytes_of(name: str, rank: int, elements: int) -> bytes:
            return content(parameter(weights, name, rank, self.ranks, elements))

        return bytes_of

    def read(self) -> dict[tuple[str, int], bytes]:
        """All parameters, by name and rank."""
        transfers: list[Transfer] = []
        keys: list[tuple[str, int]] = []
        offset = 0
        for rank in range(self.ranks):
            session, places = self.places(rank)
            for name, (address, elements, size) in places.items():
                transfers.append((session, address, offset, elements * size))
                keys.append((name, rank))
                offset += elements * size
        assert set(self.peer.read(transfers)) == {0}
        return {
            key: bytes(self.peer.memory[offset : offset + length])
            for key, (_, _, offset, length) in zip(keys, transfers, strict=True)
        }

    def begin(self, **fields: object) -> None:
        self.server.post("/begin_weight_update", fields).ok()

    def end(self, version: str | None = None, **fields: object) -> dict[str, object]:
        if version is not None:
            body = {"new_version": version, "abort_all_requests": False}
            self.server.post("/update_weight_version", body).ok()
        return dict(self.server.post("/end_weight_update", fields).ok())


def changed(weights: Weights, layers: Iterable[int]) -> list[str]:
    """Names of a Llama's fused parameters in these layers."""
    fused = {piece: name for name, pieces in FUSED.items() for piece in pieces}
    wanted = tuple(f"model.layers.{layer}." for layer in layers)
    names: dict[str, None] = {}
    for name in weights:
        if name.startswith(wanted) and not name.endswith("_shape"):
            parent, leaf, suffix = name.rsplit(".", 2)
            names[f"{parent}.{fused.get(leaf, leaf)}.{suffix}"] = None
    return list(names)
