"""Servers for the tests of the routes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from payloads import sharing
from quantise import Fp8, Int4
from quantised import CASES, SCHEMES, Case, ToldCold, Versions, arguments_of
from random_models import make
from safetensors.numpy import load_file, save_file
from server import ENGINE, Server, eventually
from trainer import OPTIONS, Borrow, Cold, Trainer


@pytest.fixture(scope="session")
def shared_server(smollm2: Path) -> Iterator[Server]:
    if not ENGINE.exists():
        pytest.fail(f"{ENGINE} does not exist: build it, or set SYNCLINE_ENGINE")
    server = Server(smollm2, "--served-model-name", "smollm2", "--max-total-tokens", 16384)
    yield server
    server.close()


@pytest.fixture
def chat_server(shared_server: Server) -> Server:
    """SmolLM2 with its tokenizer, idle. Tests leave it as they found it."""
    eventually(lambda: shared_server.load() == 0, "the engine is idle")
    return shared_server


@pytest.fixture
def start(small_llama: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers of a small model without a tokenizer (or of another `model`)."""
    started: list[Server] = []

    def begin(*arguments: object, model: Path | None = None, **options: object) -> Server:
        started.append(Server(model or small_llama, *arguments, **options))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for server in started:
        server.close()


@pytest.fixture
def server(start: Callable[..., Server]) -> Server:
    """A small model without a tokenizer, for one test."""
    return start("--max-total-tokens", 4096)


@pytest.fixture
def other_checkpoint(small_llama: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a checkpoint of the small model with other weights; `seed` says which."""

    def write(seed: int) -> Path:
        directory = tmp_path / f"weights-{seed}"
        directory.mkdir()
        rng = np.random.default_rng(seed)
        tensors = {
            name: value + rng.normal(0, 0.02, value.shape).astype(value.dtype)
            for name, value in load_file(small_llama / "model.safetensors").items()
        }
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        for name in ("config.json", "generation_config.json"):
            (directory / name).write_bytes((small_llama / name).read_bytes())
        return directory

    return write


class Engines:
    """Engines that the tests of a module share, by model and options."""

    def __init__(self) -> None:
        self._running: dict[tuple[object, ...], tuple[Server, str]] = {}

    def get(self, model: Path, *arguments: object) -> Server:
        key = (model, *arguments)
        if key not in self._running:
            server = Server(model, *arguments)
            self._running[key] = (server, self._checksum(server))
        return self._running[key][0]

    def put_back(self, model: Path, *arguments: object) -> None:
        """Idle, without a session, and with the weights of its start."""
        server, first = self._running.pop((model, *arguments))
        try:
            server.post("/end_weight_update", {"abort": True})
            server.post("/abort_request", {"abort_all": True})
            server.post("/continue_generation").ok()
            body = {"model_path": str(model), "weight_version": "default"}
            server.post("/update_weights_from_disk", body).ok()
            eventually(lambda: server.load() == 0, "the engine is idle")
            assert self._checksum(server) == first
        except BaseException:
            server.close()
            raise
        self._running[(model, *arguments)] = (server, first)

    def close(self) -> None:
        for server, _ in self._running.values():
            server.close()

    @staticmethod
    def _checksum(server: Server) -> str:
        return str(server.post("/weights_checker").ok()["per_engine_checksum"])


@pytest.fixture(scope="module")
def engines() -> Iterator[Engines]:
    made = Engines()
    yield made
    made.close()


@pytest.fixture
def borrow(engines: Engines, small_llama: Path) -> Iterator[Callable[..., Server]]:
    """Gives an engine of the module's, of the small model or of another `model`; it is put back."""
    borrowed: dict[tuple[object, ...], None] = {}

    def get(*arguments: object, model: Path | None = None) -> Server:
        borrowed[(model or small_llama, *arguments)] = None
        return engines.get(model or small_llama, *arguments)

    yield get
    for model, *arguments in borrowed:
        engines.put_back(model, *arguments)  # type: ignore[arg-type]


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def trainer(borrow: Callable[..., Server], ranks: int) -> Trainer:
    """Of engines of one and of two ranks, with the small model."""
    return Trainer(borrow("--tp", ranks, *OPTIONS), ranks)


@pytest.fixture
def single(borrow: Callable[..., Server]) -> Trainer:
    """Of an engine of one rank."""
    return Trainer(borrow("--tp", 1, *OPTIONS))


@pytest.fixture
def pair(borrow: Callable[..., Server]) -> Trainer:
    """Of an engine of two ranks."""
    return Trainer(borrow("--tp", 2, *OPTIONS), 2)


@pytest.fixture(scope="session")
def cold(tmp_path_factory: pytest.TempPathFactory) -> Cold:
    return Cold(tmp_path_factory.mktemp("cold"))


@pytest.fixture
def by_name() -> Iterator[None]:
    """Torch shares memory by name, as trainers must whose engine is no child of theirs."""
    with sharing("file_system"):
        yield


@pytest.fixture(scope="session")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DeepSeek-V3 in bf16: fused latent projections, experts, and weights that are derived."""
    path = tmp_path_factory.mktemp("latent") / "model"
    fields = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 28,
        "kv_lora_rank": 20,
        "qk_nope_head_dim": 12,
        "qk_rope_head_dim": 8,
        "v_head_dim": 10,
        "first_k_dense_replace": 1,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 24,
        "n_group": 2,
        "topk_group": 1,
    }
    make(path, "DeepseekV3", fields, dtype="bfloat16")
    return path


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return Versions(tmp_path_factory.mktemp("versions"))


@pytest.fixture(scope="session")
def told_cold(cold: Cold) -> ToldCold:
    return ToldCold(cold)


@pytest.fixture
def make_case(borrow: Borrow, versions: Versions, told_cold: ToldCold) -> Callable[..., Case]:
    """Borrows an engine of a quantised model: `own` are arguments, `fields` go over the model's."""

    def make_one(
        model: str,
        scheme: str,
        ranks: int,
        *own: object,
        form: Fp8 | Int4 | None = None,
        **fields: object,
    ) -> Case:
        form = form or SCHEMES[scheme][0]
        first, second = (versions.get(model, form, seed, **fields) for seed in (3, 4))
        arguments = (*arguments_of(scheme, ranks), *own)
        trainer = Trainer(borrow(*arguments, model=first), ranks)
        return Case(trainer, first, second, arguments, told_cold)

    return make_one


@pytest.fixture(params=CASES, ids=lambda parts: "-".join(map(str, parts)).replace(" ", "-"))
def case(request: pytest.FixtureRequest, make_case: Callable[..., Case]) -> Case:
    return make_case(*request.param)
