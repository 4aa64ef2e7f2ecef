"""Trains a real model and keeps a second copy of it current, step by step.

SmolLM2-135M learns to answer in one short sentence (`brief.py`). The trainer publishes version 0 in
full and each training step as a delta. The engine's side, which sees nothing of the trainer but the
store, pulls each version into its own checkpoint directory, verifies it, loads it with transformers
and answers the next questions from it. At the end every tensor of the pulled checkpoint is compared
with the trainer's.

    python examples/smollm2/demo.py --out build/demo

Writes OUT/report.json, OUT/demo.png, OUT/store (the versions) and OUT/replica (the pulled
checkpoint). Exit code 1 if a tensor differs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from model import make_checkpoint
from report import (
    HEADER,
    Answer,
    Proof,
    Version,
    answer_lines,
    draw,
    table_row,
    write_report,
)

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
STEPS = 8


def timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """The result of the call and the seconds that it took."""
    start = time.perf_counter()
    return work(*args, **kwargs), time.perf_counter() - start


def compare(replica: Path, expected: dict[str, Tensor]) -> Proof:
    """Compares the files of `replica`, read by the reference library, with `expected`."""
    import torch
    from safetensors.torch import load_file

    found: dict[str, Tensor] = {}
    for file in replica.glob("*.safetensors"):
        found.update(load_file(file))

    def equal(name: str) -> bool:
        if name not in found or name not in expected:
            return False
        ours, theirs = expected[name], found[name]
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            return False
        return torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))

    names = expected.keys() | found.keys()
    return Proof(tensors=len(names), equal=sum(map(equal, names)))


def run(checkpoint: Path, out: Path, steps: int, seed: int) -> Proof:
    """Trains, publishes and pulls `steps` steps, shows them and writes the report to `out`."""
    import brief
    import syncline

    store, replica = out / "store", out / "replica"
    for directory in (store, replica):
        shutil.rmtree(directory, ignore_errors=True)
    held_out = brief.questions(brief.HELD_OUT)
    before = brief.Sampler(checkpoint).answer(held_out)
    trainer = brief.Trainer(checkpoint)
    publisher = syncline.Publisher(store, files=checkpoint)
    batches = brief.schedule(seed)
    rows: list[Version] = []
    rollout = None

    print(f"\n{HEADER}")
    for version in range(steps + 1):
        if rollout is not None:
            trainer.step(rollout)
        published, publish_s = timed(publisher.publish, version, trainer.named_tensors())
        # From here on it is the engine's side.
        _, pull_s = timed(syncline.pull, store, replica)
        _, verify_s = timed(syncline.verify, replica)
        engine = brief.Sampler(replica, seed=1000 * seed + version)
        rollout = engine.rollout(next(batches))
        row = Version(
            version=version,
            density=published.density,
            wire_bytes=published.bytes,
            full_bytes=published.full_bytes,
            publish_s=publish_s,
            pull_s=pull_s,
            verify_s=verify_s,
            reward=rollout.mean_reward,
        )
        rows.append(row)
        print(table_row(row), flush=True)

    print("\nQuestions that were not trained on, answered from the pulled checkpoint:\n")
    answers = [*map(Answer, held_out, before, engine.answer(held_out))]
    print("\n".join(map(answer_lines, answers)))
    proof = compare(replica, trainer.named_tensors())
    print(f"\nproof: {proof.equal} of {proof.tensors} tensors equal")
    write_report(out / "report.json", rows, proof, answers)
    draw(out / "demo.png", rows)
    return proof


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--cache", type=Path, default=Path("build/cache/smollm2"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    arguments.out.mkdir(parents=True, exist_ok=True)
    print("SmolLM2-135M learns to answer in one short sentence; each step is published and pulled.")
    start = time.perf_counter()
    checkpoint = make_checkpoint(arguments.cache)
    proof = run(checkpoint, arguments.out, arguments.steps, arguments.seed)
    seconds = time.perf_counter() - start
    print(f"written: {arguments.out}/report.json and demo.png ({seconds:.0f} s in all)")
    return 0 if proof.equal == proof.tensors else 1


if __name__ == "__main__":
    sys.exit(main())
