# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Models in four and eight bits: what they compute, held against PEFT on the same quantized model,
and what they take.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from click.testing import CliRunner

for needed in ("torch", "transformers", "peft", "bitsandbytes"):
    pytest.importorskip(needed)

import bitsandbytes
import torch
import transformers
from support.compared import assert_same_gradient, load_in_peft, pick
from support.engine_inputs import compute, make_job, make_text, make_tokens, sample, tokens_of
from support.families import FAMILIES, Family, write_family
from support.tiny_models import sample_jobs
from support.tolerances import assert_near, terms_of_pass

import tinker
from tinker.cli import main
from tinker.local import Settings
from tinker.local.app import close_in_process
from tinker.local.engines import Placement, Quantize, open_engine
from tinker.local.engines.protocol import Adam, AdapterSpec, TrainingExample
from tinker.local.engines.replicas.shards import find_layers
from tinker.local.engines.torch import TorchEngine

SIZES = {"hidden_size": 128, "intermediate_size": 384, "head_dim": 32, "initializer_range": 0.1}
KINDS: dict[Quantize, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "int8": {"load_in_8bit": True},
}
IN_PASS = {
    "hidden": SIZES["hidden_size"],
    "inner": SIZES["intermediate_size"],
    "head": SIZES["head_dim"],
}


def train(engine: TorchEngine, data: list[TrainingExample]) -> list[Any]:
    """Return the log-probabilities, and add to the gradient of the adapter ``a``."""
    return [one["logprobs"] for one in compute(engine, "a", data).outputs]


def load_plain(source: Path, kind: Quantize) -> Any:
    """Load the quantized model with transformers alone."""
    config = transformers.BitsAndBytesConfig(**KINDS[kind])
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(source, dtype=torch.float32, quantization_config=config, device_map={"": "cpu"})


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model most of whose numbers are in its layers."""
    return write_family(
        Family("Qwen3", "dense", "Qwen3Config", "Qwen3ForCausalLM", SIZES),
        tmp_path_factory.mktemp("m") / "plain",
    )


@attrs.frozen(eq=False)
class Quantized:
    """A quantized engine with an adapter that has taken a step, and the adapter's file."""

    kind: Quantize
    source: Path
    engine: TorchEngine
    saved: Path


@pytest.fixture(scope="module", params=list(KINDS))
def quantized(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> Quantized:
    engine = TorchEngine(source, device="cpu", quantize=request.param)
    engine.create_adapter("a", AdapterSpec(rank=4, seed=1))
    train(engine, [make_text(make_tokens(13)), make_text(make_tokens(6))])
    engine.optim_step("a", Adam(learning_rate=0.02))
    saved = tmp_path_factory.mktemp("adapter")
    engine.save("a", saved, optimizer=False)
    return Quantized(request.param, source, engine, saved)


@pytest.mark.numeric
def test_training_equals_peft_on_the_quantized_model(quantized: Quantized) -> None:
    """The saved adapter loads in PEFT there; log-probabilities and the gradient of every matrix are
    the same.
    """
    # when it trains, it does not round the inputs of int8
    plain = load_plain(quantized.source, quantized.kind).train()
    model = load_in_peft(plain, quantized.saved)
    data = [make_text(make_tokens(length)) for length in (6, 15, 2)]
    quantized.engine._adapters["a"].gradient = None
    for one, logprobs in zip(data, train(quantized.engine, data), strict=True):
        logits = model(input_ids=torch.from_numpy(one.tokens.astype(np.int64))[None]).logits[0]
        expected = pick(torch.log_softmax(logits, dim=-1), one.loss_inputs["target_tokens"])
        assert_near(logprobs, expected, terms_of_pass(14, **IN_PASS))
        (-expected.sum()).backward()
    assert_same_gradient(quantized.engine, model, 2 * terms_of_pass(14, **IN_PASS) + 20)


@pytest.mark.numeric
def test_samples_and_training_compute_the_same(quantized: Quantized) -> None:
    """Rows of unlike lengths, of the adapter and the base model, draw together what they draw
    alone, and score as in training.
    """
    engine, weights = quantized.engine, quantized.engine.snapshot("a")
    jobs = [
        make_job(length, weights=chosen, max_tokens=6)
        for length, chosen in ((9, weights), (4, None), (6, weights))
    ]
    together = sample_jobs(engine, jobs)
    for job, result in zip(jobs, together, strict=True):
        assert tokens_of(sample_jobs(engine, [job])[0]) == tokens_of(result)
    data = [
        make_text(np.concatenate([job.tokens, result.sequences[0].tokens]))
        for job, result in zip(jobs, together, strict=True)
    ]
    scored = train(engine, [data[0], data[2]])
    for result, logprobs in zip((together[0], together[2]), scored, strict=True):
        drawn = result.sequences[0].logprobs
        assert_near(drawn, logprobs[-len(drawn) :], terms_of_pass(14, **IN_PASS))


def test_as_on_a_processor_with_fast_bfloat16(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There bitsandbytes rounds weights for passes without a gradient, for good; samples and
    gradients are as elsewhere.
    """
    found: list[list[Any]] = []
    for is_fast in (False, True):
        monkeypatch.setattr(
            "bitsandbytes.nn.modules.has_avx512bf16", lambda is_fast=is_fast: is_fast
        )
        engine = TorchEngine(source, device="cpu", quantize="nf4")
        engine.create_adapter("a", AdapterSpec(rank=4, seed=1))
        scores = sample(engine, 10, max_tokens=0, prompt_logprobs=True).prompt_logprobs
        assert scores is not None
        found.append(
            [
                scores[1:],
                *train(engine, [make_text(make_tokens(11))]),
                *(engine._adapters["a"].gradient or []),
            ]
        )
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def count_bytes(model: Any) -> int:
    """Count what the weights take, with what they are quantized by."""
    total = sum(one.nbytes for one in model.parameters())
    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            total += sum(
                one.nbytes
                for one in module.weight.quant_state.as_dict().values()
                if isinstance(one, torch.Tensor)
            )
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            total += module.state.SCB.nbytes
    return total


def test_what_weights_take(quantized: Quantized) -> None:
    """At most 0.4 of bfloat16 in four bits, 0.6 in eight; embeddings and head are as they are
    without.
    """
    whole = TorchEngine(quantized.source, device="cpu", dtype="bfloat16")
    model = TorchEngine(
        quantized.source, device="cpu", dtype="bfloat16", quantize=quantized.kind
    )._model
    assert count_bytes(model) <= {"nf4": 0.4, "int8": 0.6}[quantized.kind] * count_bytes(
        whole._model
    )
    for part in ("get_input_embeddings", "get_output_embeddings"):
        assert torch.equal(getattr(model, part)().weight, getattr(whole._model, part)().weight)


def test_models_that_are_stored_quantized(quantized: Quantized, tmp_path: Path) -> None:
    """They compute what the model does that is quantized as it is loaded, in the data type that is
    asked for.
    """
    folder = tmp_path / quantized.source.name
    shutil.copytree(
        quantized.source, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json")
    )
    load_plain(quantized.source, quantized.kind).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["bnb_4bit_compute_dtype"] = "float16"
    (folder / "config.json").write_text(json.dumps(config))
    stored = TorchEngine(folder, device="cpu", dtype="float32")
    stored.load("a", quantized.saved, optimizer=False)
    data = [make_text(make_tokens(8))]
    np.testing.assert_array_equal(train(stored, data), train(quantized.engine, data))
    with pytest.raises(
        ValueError, match=r"plain is quantized already \(bitsandbytes\); leave out quantize"
    ):
        TorchEngine(folder, device="cpu", quantize=quantized.kind)
    with pytest.raises(
        ValueError, match="Qwen3ForCausalLM cannot be split over workers: it is quantized"
    ):
        find_layers(stored._model)


def test_experts_in_one_tensor_stay_as_they_are(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """bitsandbytes quantizes matrices only, so a mixture of experts takes about what it takes
    without; the log says so.
    """
    with caplog.at_level(logging.WARNING, "tinker.local"):
        engine = TorchEngine(
            write_family(next(one for one in FAMILIES if one.name == "Qwen3-MoE"), tmp_path),
            device="cpu",
            quantize="int8",
        )
    assert caplog.messages == [
        f"{tmp_path}: the experts of each layer are in one tensor, which is not quantized"
    ]
    assert {str(one.dtype) for one in engine._model.parameters()} == {"torch.float32", "torch.int8"}


def test_where_it_is_given(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an option of the command, a setting, and a word in the query of a URL."""
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    assert Settings(quantize="int8").placement == Placement(quantize="int8")
    with tinker.ServiceClient(base_url=f"local://{source}?device=cpu&quantize=nf4") as service:
        sampler = service.create_sampling_client(base_model="plain")
        result = sampler.compute_logprobs(
            tinker.ModelInput.from_ints(tokens=make_tokens(9).tolist())
        ).result()
    tokens = torch.from_numpy(make_tokens(9).astype(np.int64))
    logits = load_plain(source, "nf4").eval()(input_ids=tokens[None]).logits[0]
    expected = pick(torch.log_softmax(logits, dim=-1)[:-1], tokens[1:])
    assert_near(np.array(result[1:], np.float32), expected, terms_of_pass(9, **IN_PASS))
    close_in_process()


def test_what_does_not_work_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in one sentence, before anything is loaded; without bitsandbytes with the command that
    installs it.
    """
    for options, message in (
        (
            ["--quantize", "nf4", "--replicas", "2", "--fsdp"],
            "Error: fsdp cannot split a quantized model; leave out fsdp or quantize",
        ),
        (
            ["--quantize", "nf4", "--sampler", "vllm"],
            "Error: sampler 'vllm' starts a vLLM that samples from the model as ",
        ),
    ):
        result = CliRunner().invoke(
            main, ["serve", "--model", str(source), "--port", "0", *options]
        )
        assert result.exit_code == 1
        assert result.output.startswith(message), result.output
        assert len(result.output.splitlines()) == 1
    for engine in ("numpy", "toy"):
        with pytest.raises(
            ValueError,
            match=f"the {engine} engine computes in numpy on the CPU: it takes no .* quantize,",
        ):
            open_engine(engine, None, Placement(quantize="int8"))
    with pytest.raises(ValueError, match="quantize is 'int4'; it must be one of nf4, int8"):
        Settings(quantize="int4")
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(
        ImportError,
        match=r"plain in four or eight bits needs bitsandbytes: pip install 'bitsandbytes>=0\.50'",
    ):
        open_engine(None, str(source), Placement(quantize="nf4"))
