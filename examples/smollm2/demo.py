"""A reinforcement-learning loop on a real model: the engine generates while versions arrive.

SmolLM2-135M learns to answer in one short sentence (`brief.py`). The trainer publishes version 0 in
full and each training step as a delta. The engine serves the model all the time: to the trainer's
rollouts, and to other clients that keep streaming. For each version it pulls the delta into its
host's checkpoint while it generates, pauses, takes the new weights, and continues the requests that
ran. At the end every tensor that the engine serves, exported from its memory by its checkpoint name,
is compared with the trainer's.

    python examples/smollm2/demo.py --out build/demo

Writes OUT/report.json, OUT/demo.png, OUT/store (the versions) and OUT/replica (the pulled
checkpoint). Exit code 1 if a tensor differs or a request was aborted.
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
    import syncline
    from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")
STEPS = 8
STREAMS = 4  # other clients


def timed(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, float]:
    """The result of the call and the seconds that it took."""
    start = time.perf_counter()
    return work(*args, **kwargs), time.perf_counter() - start


def compare(engine: syncline.Client, expected: dict[str, Tensor]) -> Proof:
    """Compares the live weights of `engine` with `expected`, byte for byte."""
    import torch

    def equal(name: str) -> bool:
        if name not in expected:
            return False
        dtype, shape, data = engine.export_weight(name)
        ours = expected[name]
        if (dtype, shape) != ("BF16", tuple(ours.shape)):
            return False
        return torch.equal(
            ours.reshape(-1).view(torch.uint8), torch.frombuffer(bytearray(data), dtype=torch.uint8)
        )

    names = expected.keys() | set(engine.weight_names())
    return Proof(tensors=len(names), equal=sum(map(equal, names)))


def run(checkpoint: Path, out: Path, steps: int, seed: int) -> tuple[Proof, int]:
    """Trains and serves `steps` steps, shows them and writes the report to `out`.

    Returns the proof and how many requests of other clients were aborted.
    """
    import brief
    import syncline

    store, replica = out / "store", out / "replica"
    for directory in (store, replica):
        shutil.rmtree(directory, ignore_errors=True)
    held_out = brief.questions(brief.HELD_OUT)
    prompts = brief.Prompts(checkpoint)
    trainer = brief.Trainer(checkpoint)
    publisher = syncline.Publisher(store, files=checkpoint)
    batches = brief.schedule(seed)
    rows: list[Version] = []
    rollout = None

    with syncline.Engine(checkpoint) as engine:
        sampler = brief.Sampler(engine, prompts, seed=1_000_000 * seed)
        before = sampler.answer(held_out)
        streams = brief.Streams(engine, [prompts(question) for question in held_out], STREAMS)
        print(f"\n{HEADER}")
        for version in range(steps + 1):
            if rollout is not None:
                trainer.step(rollout)
            published, publish_s = timed(publisher.publish, version, trainer.named_tensors())
            aborted = streams.aborted
            update = engine.update(store, replica, version)
            rollout = sampler.rollout(next(batches))
            row = Version(
                version=version,
                density=published.density,
                wire_bytes=published.bytes,
                full_bytes=published.full_bytes,
                publish_s=publish_s,
                pull_s=update.pull_s,
                pause_s=update.pause_s,
                aborted=streams.aborted - aborted,
                reward=rollout.mean_reward,
            )
            rows.append(row)
            print(table_row(row), flush=True)
        streams.stop()
        print(
            f"\nmeanwhile: {streams.finished} requests of {STREAMS} other clients, "
            f"{streams.tokens} tokens, {streams.across_versions} requests over more than one "
            f"version, {streams.aborted} aborted"
        )
        print("\nQuestions that were not trained on:\n")
        answers = [*map(Answer, held_out, before, sampler.answer(held_out))]
        print("\n".join(map(answer_lines, answers)))
        proof = compare(engine, trainer.named_tensors())
    print(f"\nproof: {proof.equal} of {proof.tensors} served tensors equal the trainer's")
    write_report(out / "report.json", rows, proof, answers)
    draw(out / "demo.png", rows)
    return proof, streams.aborted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--cache", type=Path, default=Path("build/cache/smollm2"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    arguments.out.mkdir(parents=True, exist_ok=True)
    print("SmolLM2-135M learns to answer in one short sentence; the engine takes every step live.")
    start = time.perf_counter()
    checkpoint = make_checkpoint(arguments.cache)
    proof, aborted = run(checkpoint, arguments.out, arguments.steps, arguments.seed)
    seconds = time.perf_counter() - start
    print(f"written: {arguments.out}/report.json and demo.png ({seconds:.0f} s in all)")
    return 0 if proof.equal == proof.tensors and aborted == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
