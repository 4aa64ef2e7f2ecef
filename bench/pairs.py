"""Makes the step pairs of the benchmarks: two checkpoints of a real training run, one step apart.

SmolLM2-135M is fine-tuned with fp32 master weights and AdamW (betas 0.9 and 0.98, weight decay 0.1,
gradient clip 1.0, batch 4 x 128 tokens, bf16 autocast, fixed seed) at three learning rates. What is
kept: the bf16 weights after step 11 and after step 12, each as a complete Hugging Face directory.

    CACHE/<lr>/old/    CACHE/<lr>/new/      lr: 1e-6, 5e-6, 3e-5

The text is docstrings of Python's standard library, so nothing is fetched. Pairs that are there are
reused; making all three takes about two minutes on two cores.

    python bench/pairs.py [--cache build/cache/pairs]
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ["OMP_WAIT_POLICY"] = "passive"  # idle threads give the core away
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "smollm2"))

import torch
from model import make_checkpoint, quiet
from safetensors.torch import load_file, save_file

LEARNING_RATES = ("1e-6", "5e-6", "3e-5")
STEPS = 12  # the pair is the weights before and after the last of these
BATCH, LENGTH = 4, 128
SEED = 0
MODULES = """
argparse asyncio.tasks collections decimal difflib email.message fractions functools heapq inspect
ipaddress json logging pathlib pickle random shutil socket statistics string subprocess textwrap
threading typing unittest.case zipfile
"""


def docstrings() -> str:
    """The docstrings of `MODULES`, in a fixed order."""
    library = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for name in MODULES.split():
        stem = library.joinpath(*name.split("."))
        source = (
            stem.with_suffix(".py") if stem.with_suffix(".py").is_file() else stem / "__init__.py"
        )
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append(ast.get_docstring(node) or "")
    return "\n\n".join(text for text in found if text)


def batches(checkpoint: Path) -> torch.Tensor:
    """Token ids of all steps, shape [STEPS, BATCH, LENGTH], drawn with the fixed seed."""
    from transformers import AutoTokenizer

    ids = torch.tensor(AutoTokenizer.from_pretrained(checkpoint)(docstrings())["input_ids"])
    rows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED))
    return rows[order[: STEPS * BATCH]].view(STEPS, BATCH, LENGTH)


def save(checkpoint: Path, model: torch.nn.Module, directory: Path) -> None:
    """Writes `model` in bf16 to `directory`, with the other files of `checkpoint` beside it."""
    shutil.copytree(checkpoint, directory, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = {name: value.detach().to(torch.bfloat16) for name, value in model.named_parameters()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)


def train(checkpoint: Path, rate: float, data: torch.Tensor, directory: Path) -> None:
    """Trains `checkpoint` at learning rate `rate`; writes `directory`/old and `directory`/new."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.1, fused=True
    )
    for step, ids in enumerate(data, start=1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step == STEPS - 1:
            save(checkpoint, model, directory / "old")
    save(checkpoint, model, directory / "new")


def density(pair: Path) -> float:
    """Share of the elements whose bits differ between `pair`/old and `pair`/new."""
    old, new = (load_file(pair / side / "model.safetensors") for side in ("old", "new"))
    changed = sum(int((old[n].view(torch.int16) != new[n].view(torch.int16)).sum()) for n in old)
    return changed / sum(tensor.numel() for tensor in old.values())


def make_pair(checkpoint: Path, rate: str, pair: Path) -> None:
    """Makes the pair of learning rate `rate` at `pair`: written beside its place, then renamed."""
    pair.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{pair.name}.", dir=pair.parent))
    try:
        train(checkpoint, float(rate), batches(checkpoint), scratch)
        scratch.chmod(0o755)
        scratch.rename(pair)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the step pairs of the benchmarks.")
    parser.add_argument("--cache", type=Path, default=Path("build/cache/pairs"))
    parser.add_argument("--model", type=Path, default=Path("build/cache/smollm2"))
    arguments = parser.parse_args()
    quiet()
    checkpoint = make_checkpoint(arguments.model)
    for rate in LEARNING_RATES:
        start = time.monotonic()
        pair = arguments.cache / rate
        made = not pair.is_dir()
        if made:
            make_pair(checkpoint, rate, pair)
        share = density(pair)
        note = f"made in {time.monotonic() - start:.0f} s" if made else "reused"
        print(f"{pair}: {100 * share:.3f} % of the elements changed ({note})", flush=True)


if __name__ == "__main__":
    main()
