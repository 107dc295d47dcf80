# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Adapters made by PEFT and uploaded to the local server: they compute the same, can be trained,
and load in PEFT again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.tiny_models import write_tiny_llama
from support.tolerances import assert_near, terms_of_pass

import tinker
from tinker import checkpoints
from tinker.local import Settings, running_server
from tinker.local.engines.protocol import AdapterSpec, EngineError
from tinker.local.engines.torch import TorchEngine

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38]
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small random model."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "random-llama")


@pytest.fixture(scope="module")
def engine(model_directory: Path) -> TorchEngine:
    """Return an engine on that model."""
    return TorchEngine(model_directory, device="cpu")


@pytest.fixture
def service(engine: TorchEngine, tmp_path: Path) -> Iterator[tinker.ServiceClient]:
    """Yield a client of a server with that engine."""
    server = running_server(Settings(data_dir=tmp_path / "server"), engine)
    with server as url, tinker.ServiceClient(base_url=url, api_key="tml-key") as service:
        yield service


def make_adapter(model_directory: Path, folder: Path, **options: Any) -> Path:
    """Make a PEFT adapter whose matrices are all random."""
    base = transformers.AutoModelForCausalLM.from_pretrained(
        model_directory, torch_dtype=torch.float32
    )
    given = {
        "r": 4,
        "lora_alpha": 32,
        "target_modules": ["q_proj", "v_proj"],
        "task_type": "CAUSAL_LM",
        **options,
    }
    model = peft.get_peft_model(base, peft.LoraConfig(**given))
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(0, 0.1)
    model.save_pretrained(folder, save_embedding_layers=False)
    return folder


def peft_logprobs(model_directory: Path, folder: Path) -> np.ndarray[Any, Any]:
    """Return the log-probability of each prompt token but the first, as PEFT computes it."""
    base = transformers.AutoModelForCausalLM.from_pretrained(
        model_directory, torch_dtype=torch.float32
    )
    model = peft.PeftModel.from_pretrained(base, str(folder))
    tokens = torch.tensor(PROMPT)
    with torch.no_grad():
        table = torch.log_softmax(model(input_ids=tokens[None]).logits[0], -1)
    return table[:-1].gather(1, tokens[1:, None])[:, 0].numpy()


def our_logprobs(training: tinker.TrainingClient) -> np.ndarray[Any, Any]:
    sampler = training.save_weights_and_get_sampling_client()
    return np.array(sampler.compute_logprobs(tinker.ModelInput.from_ints(PROMPT)).result(60)[1:])


def train(training: tinker.TrainingClient) -> None:
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(PROMPT[:-1]),
        loss_fn_inputs={
            "target_tokens": np.array(PROMPT[1:]),
            "weights": np.ones(len(PROMPT) - 1, np.float32),
        },
    )
    training.forward_backward([datum], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.01)).result(60)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lora_alpha": 8, "target_modules": ["q_proj", "down_proj", "lm_head"]},
        {"lora_alpha": 16, "use_rslora": True},
    ],
    ids=["attention only", "another scale", "rank-stabilized"],
)
def test_round_trip(
    service: tinker.ServiceClient, model_directory: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    """A PEFT adapter of any scale gives the same values here; trained and downloaded, it gives our
    values in PEFT.
    """
    folder = make_adapter(model_directory, tmp_path / "adapter", **options)
    name = service.get_server_capabilities().supported_models[0].model_name
    brought = checkpoints.upload(folder, base_model=name, service=service).result(60)
    training = service.create_training_client_from_state(brought.checkpoint_path)
    assert_near(
        our_logprobs(training), peft_logprobs(model_directory, folder), terms_of_pass(len(PROMPT))
    )

    train(training)
    trained = our_logprobs(training)
    assert (
        trained.sum()
        > our_logprobs(service.create_training_client_from_state(brought.checkpoint_path)).sum()
        + 0.1
    )
    saved = training.save_state("trained").result(60).path
    back = checkpoints.download(saved, tmp_path / "back", service=service).result(60).destination
    assert_near(peft_logprobs(model_directory, back), trained, terms_of_pass(len(PROMPT)))


def test_a_scale_and_modules_of_ones_own(
    service: tinker.ServiceClient, model_directory: Path, tmp_path: Path
) -> None:
    """A run with a scale and a choice of modules gives PEFT's values, also after it was resumed,
    and tells PEFT of both.
    """
    name = service.get_server_capabilities().supported_models[0].model_name
    modules = ["q_proj", "layers.0.mlp.up_proj"]
    training = service.create_lora_training_client(
        name, rank=4, seed=3, lora_alpha=8, target_modules=modules
    )
    train(training)
    saved = training.save_state("own").result(60).path
    resumed = service.create_training_client_from_state_with_optimizer(saved)
    for run, step in ((training, "own-2"), (resumed, "resumed")):
        train(run)
        path = run.save_state(step).result(60).path
        folder = checkpoints.download(path, tmp_path / step, service=service).result(60).destination
        config = json.loads((folder / CONFIG).read_text())
        assert config["lora_alpha"] == 8
        adapted = {
            key.split(".lora_")[0].removeprefix("base_model.model.")
            for key in load_file(folder / WEIGHTS)
        }
        assert {one.rpartition(".")[2] for one in adapted} == {"q_proj", "up_proj"}
        assert [one for one in adapted if "up_proj" in one] == ["model.layers.0.mlp.up_proj"]
        assert_near(
            peft_logprobs(model_directory, folder), our_logprobs(run), terms_of_pass(len(PROMPT))
        )
    np.testing.assert_array_equal(our_logprobs(training), our_logprobs(resumed))


def test_a_scale_and_modules_that_cannot_be(service: tinker.ServiceClient) -> None:
    """A scale of zero raises at the call, and an unknown module fails the creation with the names
    that there are.
    """
    name = service.get_server_capabilities().supported_models[0].model_name
    with pytest.raises(ValueError, match="lora_alpha must be above 0"):
        service.create_lora_training_client(name, lora_alpha=0)
    with pytest.raises(ValueError, match="target_modules must be a list of names"):
        service.create_lora_training_client(name, target_modules=[])
    unknown = service.create_lora_training_client(name, target_modules=["q_proj", "query"])
    with pytest.raises(
        tinker.TinkerError,
        match="'query' names no module that this adapter could change; there are down_proj",
    ):
        unknown.result(60)


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def change_weights(folder: Path, **changes: Any) -> None:
    """Replace tensors, or with None drop them, by a part of their name."""
    tensors = load_file(folder / WEIGHTS)
    for part, value in changes.items():
        name = next(name for name in tensors if part in name)
        tensors.pop(name) if value is None else tensors.update({name: value})
    save_file(tensors, folder / WEIGHTS)


DAMAGES: dict[str, tuple[Any, str]] = {
    "no config": (lambda folder: (folder / CONFIG).unlink(), "adapter_config.json cannot be read"),
    "a deep config": (
        lambda folder: (folder / CONFIG).write_text("[" * 100_000),
        "adapter_config.json is not JSON",
    ),
    "a huge config": (lambda folder: (folder / CONFIG).write_text(" " * (2 << 20)), "larger"),
    "another method": (
        lambda folder: change_config(folder, peft_type="IA3"),
        "only LORA adapters are supported",
    ),
    "another rank": (lambda folder: change_config(folder, r=8), "r is 8"),
    "an endless scale": (
        lambda folder: change_config(folder, lora_alpha=float("inf")),
        "lora_alpha",
    ),
    "DoRA": (lambda folder: change_config(folder, use_dora=True), "use_dora"),
    "biases": (lambda folder: change_config(folder, bias="all"), "bias"),
    "no safetensors": (lambda folder: (folder / WEIGHTS).write_bytes(b"PK\3\4"), "cannot be read"),
    "nothing": (lambda folder: save_file({}, folder / WEIGHTS), "contains no adapter"),
    "half a pair": (lambda folder: change_weights(folder, lora_B=None), "not half of a pair"),
    "another shape": (
        lambda folder: change_weights(folder, lora_B=torch.zeros(3, 4)),
        "does not fit",
    ),
    "integers": (
        lambda folder: change_weights(folder, lora_B=torch.zeros(32, 4, dtype=torch.int32)),
        "finite numbers",
    ),
    "no numbers": (
        lambda folder: change_weights(folder, lora_B=torch.full((32, 4), torch.nan)),
        "finite numbers",
    ),
    "weights of the base": (
        lambda folder: save_file({"model.embed_tokens.weight": torch.zeros(2)}, folder / WEIGHTS),
        "not the name of a weight of PEFT",
    ),
}


@pytest.mark.parametrize(("damage", "reason"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_no_adapter_of_this_model_is_refused(
    engine: TorchEngine, model_directory: Path, tmp_path: Path, damage: Any, reason: str
) -> None:
    """Files that are damaged, foreign, or of another shape than announced are user errors, and
    nothing is stored.
    """
    folder = make_adapter(model_directory, tmp_path / "adapter")
    damage(folder)
    with pytest.raises(EngineError, match=reason):
        engine.import_adapter(folder, AdapterSpec(rank=4), tmp_path)
    assert not (tmp_path / WEIGHTS).exists()
