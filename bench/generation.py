"""Lines of the engine: generated tokens per second, and how fast a checkpoint is taken."""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import syncline
from lines import Line, Report, seconds

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples" / "smollm2"), str(ROOT / "tests" / "engine")]

PROMPT = 16  # tokens
NEW = 64
BATCHES = (1, 8, 32)
ROUNDS = 3
EVERY_PROMPT_WHOLE = {"disable_radix_cache": True}  # rounds repeat the same prompts


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(count)
    return rng.integers(1000, 40000, (count, PROMPT)).tolist()


def reference(checkpoint: Path) -> Callable[[int], float]:
    """Tokens per second of transformers' greedy generation for a batch, with its key-value cache."""
    import torch
    from model import quiet

    quiet()
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()

    def measure(count: int) -> float:
        batch = torch.tensor(prompts(count))
        with torch.no_grad():
            start = time.perf_counter()
            found = model.generate(
                batch,
                attention_mask=torch.ones_like(batch),
                do_sample=False,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
            )
        took = time.perf_counter() - start
        assert found.shape == (count, PROMPT + NEW)
        return count * NEW / took

    return measure


def ours(engine: syncline.Client, count: int) -> float:
    params = {"temperature": 0, "max_new_tokens": NEW, "ignore_eos": True}
    start = time.perf_counter()
    replies = engine.generate(input_ids=prompts(count), sampling_params=params)
    took = time.perf_counter() - start
    assert [len(reply["output_ids"]) for reply in replies] == [NEW] * count
    return count * NEW / took


@functools.cache
def memcpy_gbps() -> float:
    """Bytes copied a second by as many threads as there are processors; measured once a run."""
    threads = len(os.sched_getaffinity(0))
    source = np.ones((threads, 128 << 20), np.uint8)
    target = np.zeros_like(source)
    with ThreadPoolExecutor(threads) as pool:
        work = lambda: list(pool.map(np.copyto, target, source))
        return source.nbytes / 1e9 / min(seconds(work) for _ in range(5))


def generation(report: Report, checkpoint: Path) -> None:
    if not report.wants("generate_tokens_per_s"):
        return
    peer = reference(checkpoint)
    weights = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) / 1e9
    with syncline.Engine(checkpoint, options=EVERY_PROMPT_WHOLE) as engine:
        for count in BATCHES:
            peer(count)  # warm
            ours(engine, count)
            rounds = [(ours(engine, count), peer(count)) for _ in range(ROUNDS)]
            report.add(
                Line(
                    name="generate_tokens_per_s",
                    case=f"SmolLM2-135M bf16, {count} requests, {NEW} tokens",
                    unit="tokens/s",
                    ours=statistics.median(mine for mine, _ in rounds),
                    peer=statistics.median(theirs for _, theirs in rounds),
                    peer_name="transformers generate, bf16",
                    limit=memcpy_gbps() / weights * count,
                    limit_name="weights once a step at the memcpy rate",
                    target=1.0,
                )
            )


def quantised_generation(report: Report, checkpoint: Path) -> None:
    """Quantised twins of the checkpoint against the checkpoint itself, both of ours, in turns."""
    if not report.wants("generate_quantised_tokens_per_s"):
        return
    from quantise import quantised_twins

    twins = quantised_twins(checkpoint)
    for case, path, scales in (
        ("fp8", twins["fp8"], "fp32"),
        ("fp8 with packed scales", twins["fp8"], "ue8m0"),
        ("int4 in groups of 64", twins["int4"], "auto"),
    ):
        with (
            syncline.Engine(checkpoint, options=EVERY_PROMPT_WHOLE) as plain,
            syncline.Engine(path, options=EVERY_PROMPT_WHOLE | {"fp8_scales": scales}) as engine,
        ):
            for count in (1, 32):
                ours(plain, count), ours(engine, count)  # warm
                rounds = [(ours(engine, count), ours(plain, count)) for _ in range(ROUNDS)]
                report.add(
                    Line(
                        name="generate_quantised_tokens_per_s",
                        case=f"SmolLM2-135M {case}, {count} requests, {NEW} tokens",
                        unit="tokens/s",
                        ours=statistics.median(mine for mine, _ in rounds),
                        peer=statistics.median(theirs for _, theirs in rounds),
                        peer_name="ours in bf16",
                        target=0.6 if count > 1 else None,
                    )
                )


def read_gbps(checkpoint: Path) -> float:
    """Reads all weight files into memory, warm, with one thread a processor."""
    jobs = []
    for path in sorted(checkpoint.glob("*.safetensors")):
        handle, size = os.open(path, os.O_RDONLY), path.stat().st_size
        buffer = np.zeros(size, np.uint8)
        jobs += [(handle, buffer[at : at + (4 << 20)], at) for at in range(0, size, 4 << 20)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        start = time.perf_counter()
        done = sum(pool.map(lambda job: os.preadv(job[0], [job[1]], job[2]), jobs))
        took = time.perf_counter() - start
    for handle in {job[0] for job in jobs}:
        os.close(handle)
    return done / took / 1e9


def twin(checkpoint: Path) -> Path:
    """The same checkpoint with another first weight, as every tensor of a step has some: what is live is not loaded again."""
    path = checkpoint.parent / f"{checkpoint.name}-twin"
    if not path.exists():
        shutil.copytree(checkpoint, path)
        for file in path.glob("*.safetensors"):
            with file.open("r+b") as data:
                header = int.from_bytes(data.read(8), "little")
                entries = json.loads(data.read(header))
                for name, entry in entries.items():
                    if name != "__metadata__":
                        at = 8 + header + entry["data_offsets"][0]
                        data.seek(at)
                        byte = data.read(1)[0]
                        data.seek(at)
                        data.write(bytes([byte ^ 1]))
    return path


def measure_load(
    report: Report, engine: syncline.Client, checkpoint: Path, case: str
) -> list[float]:
    """Adds the line `load_gbps` of that engine; the seconds of the exchanges."""
    size = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) / 1e9
    mine, theirs, swap = [], [], []
    engine.update_weights_from_disk(checkpoint)  # makes the second arena
    for i in range(8):
        reply = engine.update_weights_from_disk(checkpoint if i % 2 else twin(checkpoint))
        assert not reply["unchanged"]
        mine.append(size / reply["stage_seconds"])
        swap.append(reply["apply_seconds"])
        theirs.append(read_gbps(checkpoint))
    report.add(
        Line(
            name="load_gbps",
            case=case,
            unit="GB/s",
            ours=statistics.median(mine),
            peer=statistics.median(theirs),
            peer_name="reading the files, as many threads",
            limit=memcpy_gbps(),
            limit_name="memcpy",
        )
    )
    return swap


def loading(report: Report, checkpoint: Path) -> None:
    if not report.wants("load_gbps", "commit_gbps"):
        return
    size = sum(file.stat().st_size for file in checkpoint.glob("*.safetensors")) / 1e9
    with syncline.Engine(checkpoint) as engine:
        case = "SmolLM2-135M, warm files, names and shapes checked"
        swap = measure_load(report, engine, checkpoint, case)
    report.add(
        Line(
            name="commit_gbps",
            case="what was made ready is copied over the live weights, no forward runs",
            unit="GB/s",
            ours=size / statistics.median(swap),
            limit=memcpy_gbps(),
            limit_name="one memcpy of the weights",
        )
    )


def over_ranks(report: Report, checkpoint: Path) -> None:
    """A random Llama of the size of SmolLM2 that two ranks can share, on the same processors as one rank."""
    if not report.wants("load_gbps", "allreduce_share"):
        return
    model = divisible(checkpoint)
    cores = len(os.sched_getaffinity(0))
    with syncline.Engine(model, options={"tp": 2, "skip_tokenizer_init": True}) as engine:
        measure_load(report, engine, model, "0.17 B bf16 over 2 ranks, warm files")
        for count in BATCHES:
            ours(engine, count)  # warm
            before = engine.server_info()["internal_states"][0]
            speed = statistics.median(ours(engine, count) for _ in range(ROUNDS))
            after = engine.server_info()["internal_states"][0]
            spent = {k: after[k] - before[k] for k in ("step_seconds", "collective_seconds")}
            report.add(
                Line(
                    name="allreduce_share",
                    case=f"2 ranks, {cores} cores, {count} requests, {speed:.0f} tokens/s",
                    unit="of a step",
                    ours=spent["collective_seconds"] / spent["step_seconds"],
                )
            )


def divisible(checkpoint: Path) -> Path:
    """A checkpoint like SmolLM2's with 8 query and 4 key heads."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    path = checkpoint.parent / "llama-for-two"
    if not (path / "config.json").exists():
        torch.manual_seed(1)
        config = LlamaConfig.from_pretrained(checkpoint)
        config.num_attention_heads, config.num_key_value_heads = 8, 4
        config.tie_word_embeddings = False
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(path)
    return path


def health(report: Report, checkpoint: Path) -> None:
    """`/health` beside 1,000 streams that wait and 64 that run."""
    if not report.wants("health_p99_ms"):
        return
    options = {"max_running_requests": 64}
    with syncline.Engine(checkpoint, options=options) as engine, ThreadPoolExecutor(64) as pool:
        address = (urlsplit(engine.url).hostname, urlsplit(engine.url).port)
        params = {"max_new_tokens": 400, "ignore_eos": True}
        body = json.dumps({"input_ids": [5, 6], "sampling_params": params, "stream": True})
        request = f"POST /generate HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        running = [
            pool.submit(lambda: list(engine.stream(input_ids=[7, 8], sampling_params=params)))
            for _ in range(64)
        ]
        time.sleep(1)
        idle = [socket.create_connection(address) for _ in range(1000)]
        for connection in idle:
            connection.sendall(request)
        took = []
        while not all(stream.done() for stream in running):
            took.append(1000 * seconds(lambda: engine.get("/health")))
            time.sleep(0.02)
        for connection in idle:
            connection.close()
    report.add(
        Line(
            name="health_p99_ms",
            case="1,000 waiting and 64 running streams",
            unit="ms",
            ours=float(np.quantile(took, 0.99)),
            peer=50.0,
            peer_name="what is asked for",
            target=1.0,
            less_is_better=True,
        )
    )


def run(report: Report, checkpoint: Path) -> None:
    generation(report, checkpoint)
    quantised_generation(report, checkpoint)
    loading(report, checkpoint)
    over_ranks(report, checkpoint)
    health(report, checkpoint)
