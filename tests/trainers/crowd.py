"""500 requests at once for some minutes, with an update every few seconds in a pause of each mode.

    crowd.py [--seconds 120] [--clients 500] [--tp 1] [--slack 0.05]

No request may be lost or answered twice, the versions of its tokens must be those that were served,
in order, and the engine's memory must not grow after the first quarter of the time, but for a share
of `slack` by which a heap breathes. Prints one JSON object; exit status 1 if that does not hold.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import mean
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / folder) for folder in ("engine", "reference", "serve", ".")]

import tiny_llama
from safetensors_files import Tensors, write_checkpoint
from server import Server, eventually
from streams import Streams, check_all
from trainer import ranks_of, resident

MODES = ("abort", "retract", "in_place")
EVERY = 2.0  # seconds from one update to the next
TOKENS = (16, 160)


def resident_of_all(server: Server) -> int:
    """Bytes that the engine's processes use."""
    pages = [Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in ranks_of(server)]
    return resident(server) + 4096 * sum(map(int, pages))


class Updates:
    """Versions of a tiny model, each brought in a pause: by a session or from disk, in turn."""

    def __init__(self, server: Server, scratch: Path) -> None:
        self.server, self._scratch = server, scratch
        self.labels = ["default"]
        self.by_mode = dict.fromkeys(MODES, 0)
        self.longest = 0.0  # of all pauses, in seconds
        self.weights: Tensors = {}

    def make(self) -> None:
        number = len(self.labels)
        mode = MODES[number % len(MODES)]
        self.weights = tiny_llama.weights(number)
        directory = self._scratch / f"version-{number}"
        directory.mkdir()
        for path in (self._scratch / "model").glob("*.json"):
            (directory / path.name).symlink_to(path)
        write_checkpoint(directory, self.weights)
        begin = time.monotonic()
        self.server.post("/pause_generation", {"mode": mode}).ok()
        if mode != "in_place":
            assert self.server.get("/flush_cache").status == 200
        if number // len(MODES) % 2:
            self._from_disk(directory, str(number), mode)
        else:
            self._in_session(directory, str(number))
        self.server.post("/continue_generation").ok()
        self.longest = max(self.longest, time.monotonic() - begin)
        self.by_mode[mode] += 1
        self.labels.append(str(number))

    def _from_disk(self, directory: Path, label: str, mode: str) -> None:
        body: dict[str, Any] = {"model_path": str(directory), "weight_version": label}
        body["flush_cache"] = mode != "in_place"
        self.server.post("/update_weights_from_disk", body).ok()

    def _in_session(self, directory: Path, label: str) -> None:
        self.server.post("/begin_weight_update").ok()
        route = f"/update_weights_from_tensor_raw?flush_cache=false&weight_version={label}"
        for file in directory.glob("*.safetensors"):
            self.server.request("POST", route, file.read_bytes()).ok()
        self.server.post("/end_weight_update").ok()


def count_of(server: Server, name: str) -> int:
    lines = server.get("/metrics").text.splitlines()
    (value,) = [line.split()[1] for line in lines if line.startswith(name + " ")]
    return int(float(value))


def run(scratch: Path, seconds: float, clients: int, ranks: int) -> dict[str, Any]:
    model = scratch / "model"
    tiny_llama.write(model, tiny_llama.weights(0))
    room = clients * (TOKENS[1] + 16)
    with closing(Server(model, "--tp", ranks, "--max-total-tokens", room)) as server:
        updates, memory = Updates(server, scratch), list[int]()
        begin = time.monotonic()
        with closing(Streams(server.port, clients, TOKENS)) as streams:
            streams.advance(1)
            while (passed := time.monotonic() - begin) < seconds or not min(
                updates.by_mode.values()
            ):
                memory.append(resident_of_all(server))
                updates.make()
                time.sleep(max(0.0, begin + passed + EVERY - time.monotonic()))
            answers = streams.finish()
        memory.append(resident_of_all(server))
        some = max(1, len(memory) // 8)
        quarter = len(memory) // 4
        found = check_all(answers, updates.labels, aborts=True)
        eventually(lambda: server.load() == 0, "the engine is idle")
        replies = [answer.reply for answer in answers]
        tokens = sum(len(reply["output_ids"]) for reply in replies)
        aborted = sum(r["meta_info"]["finish_reason"]["type"] == "abort" for r in replies)
        report = {
            "seconds": seconds,
            "clients": clients,
            "requests": len(answers),
            "requests_counted_by_engine": count_of(server, "syncline_generations_total"),
            "aborted": aborted,
            "tokens": tokens,
            "tokens_counted_by_engine": count_of(server, "syncline_generated_tokens_total"),
            "updates": updates.by_mode,
            "longest_pause_seconds": round(updates.longest, 3),
            "requests_over_several_versions": sum(len(spans) > 1 for spans in found.values()),
            "versions_seen": len({version for spans in found.values() for version in spans}),
            "resident_after_quarter": round(mean(memory[quarter : quarter + some])),
            "resident_at_end": round(mean(memory[-some:])),
            "holds_last_version": holds(server, updates.weights),
        }
        return report


def holds(server: Server, weights: Tensors) -> bool:
    return all(
        server.get(f"/export_weights?name={name}").body == tensor.data.tobytes()
        for name, tensor in weights.items()
    )


def good(report: dict[str, Any], slack: float) -> bool:
    flat = report["resident_at_end"] <= report["resident_after_quarter"] * (1 + slack)
    same = all(report[of] == report[f"{of}_counted_by_engine"] for of in ("requests", "tokens"))
    updated = min(report["updates"].values()) > 0 and report["requests_over_several_versions"] > 0
    return bool(flat and same and updated and report["holds_last_version"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--slack", type=float, default=0.05)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        report = run(Path(scratch), arguments.seconds, arguments.clients, arguments.tp)
    report["ok"] = good(report, arguments.slack)
    print(json.dumps(report, indent=2))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
