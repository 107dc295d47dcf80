# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""The torch engine on a small random Llama: gradients, optimizer, adapters, files and sampling.

The expected updates are computed by plain autograd through dense weights, W + (32 / rank) B A, with
no PEFT in it.
"""

from __future__ import annotations

import collections
import gc
import json
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import peft
import torch
import transformers
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import assert_near, near, share, terms_of_gradient, terms_of_pass, tolerance
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import CausalLMOutputWithPast

from tinker.local.engines import PACKAGED_FOLDER, PACKAGED_MODEL, directory_names
from tinker.local.engines.arrays import DecodingRun, Stops
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Continuation,
    Dimuon,
    EngineError,
    ExpectedLoss,
    PromptTargets,
    SampleJob,
    TrainingExample,
    shape_logits,
)
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.passes import SplitModel
from tinker.local.engines.torch.sampling import draw, truncate

SPEC = AdapterSpec(rank=4, seed=7)
ADAM = Adam(learning_rate=1e-2, weight_decay=0.1)
# a step in which an error of a gradient stays as small as it is
SMOOTH = attrs.evolve(ADAM, learning_rate=0.1, eps=10.0)
Expected = Callable[[torch.Tensor, dict[str, torch.Tensor]], torch.Tensor]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random two-layer Llama with tied embeddings, and the packaged tokenizer."""
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "random-llama")


@pytest.fixture(scope="session")
def shared_engine(model_directory: Path) -> TorchEngine:
    return TorchEngine(model_directory, device="cpu", share_passes=True)


@pytest.fixture
def engine(shared_engine: TorchEngine) -> Iterator[TorchEngine]:
    """Yield the shared engine with two fresh adapters, ``a`` and ``b``."""
    shared_engine.create_adapter("a", SPEC)
    shared_engine.create_adapter("b", AdapterSpec(rank=2, seed=8, train_unembed=False))
    yield shared_engine
    for name in ("a", "b", "c"):
        shared_engine.drop_adapter(name)


def rows(*lengths: int, seed: int = 0) -> list[TrainingExample]:
    """Random data which fits every loss."""
    rng = np.random.default_rng(seed)
    return [
        TrainingExample(
            tokens=rng.integers(0, 258, n).astype(np.int32),
            loss_inputs={
                "target_tokens": rng.integers(0, 258, n),
                "logprobs": rng.normal(-5, 1, n).astype(np.float32),
                "advantages": rng.normal(0, 1, n).astype(np.float32),
            },
        )
        for n in lengths
    ]


def supervised(*lengths: int, seed: int = 0, columns: int = 0) -> list[TrainingExample]:
    """Random data for cross entropy; about a third of the weights are zero."""
    rng = np.random.default_rng(seed)
    shapes = [(n, columns) if columns else (n,) for n in lengths]
    return [
        TrainingExample(
            tokens=rng.integers(0, 258, shape[0]).astype(np.int32),
            loss_inputs={
                "target_tokens": rng.integers(0, 258, shape),
                "weights": (rng.random(shape) * (rng.random(shape) > 0.3)).astype(np.float32),
            },
        )
        for shape in shapes
    ]


def weights(engine: TorchEngine, name: str) -> dict[str, torch.Tensor]:
    snapshot = engine.snapshot(name)
    assert isinstance(snapshot, LoraWeights)
    return {key: tensor.detach() for key, tensor in snapshot.tensors.items()}


def nudge(engine: TorchEngine, name: str, learning_rate: float = 0.02) -> None:
    """One training step, so that the adapter is no longer the base model."""
    engine.forward_backward(name, supervised(12, seed=99), "cross_entropy", {}, backward=True)
    engine.optim_step(name, Adam(learning_rate=learning_rate))


class Reference:
    """A plain transformers model with W + (32 / rank) B A in place of each W; torch.optim.AdamW
    trains A and B.
    """

    def __init__(self, directory: Path, start: dict[str, torch.Tensor], adam: Adam) -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            directory, torch_dtype=torch.float32
        )
        self.factors = {name: tensor.clone().requires_grad_() for name, tensor in start.items()}
        self.optimizer = torch.optim.AdamW(
            self.factors.values(),
            lr=adam.learning_rate,
            betas=(adam.beta1, adam.beta2),
            eps=adam.eps,
            weight_decay=adam.weight_decay,
        )

    def logprobs(self, example: TrainingExample) -> torch.Tensor:
        """Log-softmax ``[N, vocabulary]`` of one unpadded sequence."""
        dense = {}
        for name in {key.rpartition(".lora_")[0] for key in self.factors}:
            a, b = self.factors[f"{name}.lora_A.weight"], self.factors[f"{name}.lora_B.weight"]
            dense[f"{name}.weight"] = (
                self.model.get_submodule(name).weight.detach() + 32 / a.shape[0] * b @ a
            )
        tokens = torch.from_numpy(example.tokens.astype(np.int64))[None]
        out = torch.func.functional_call(
            self.model, dense, kwargs={"input_ids": tokens}, tie_weights=False
        )
        return torch.log_softmax(out.logits[0], dim=-1)

    def step(
        self, data: list[TrainingExample], loss: Expected, clip: float = 0.0
    ) -> tuple[float, float]:
        """Sum the loss over the data, step, and return the sum, and the size of what its terms
        round in.
        """
        self.optimizer.zero_grad()
        total, found = torch.zeros(()), list[torch.Tensor]()
        for example in data:
            inputs = {
                name: torch.from_numpy(np.asarray(value))
                for name, value in example.loss_inputs.items()
            }
            targets = inputs["target_tokens"].reshape(len(example.tokens), -1)
            found.append(
                self.logprobs(example).gather(1, targets).reshape(inputs["target_tokens"].shape)
            )
            found[-1].retain_grad()
            total = total + loss(found[-1], inputs)
        total.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(self.factors.values(), clip)
        self.optimizer.step()
        return total.item(), sum(
            float((one.grad * one).detach().abs().sum()) for one in found if one.grad is not None
        )


def assert_same(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_near(actual[name], tensor, terms_of_gradient(17, 32), name=name)


def cross_entropy(logprobs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return -(logprobs * inputs["weights"]).sum()


def importance_sampling(logprobs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return -((logprobs - inputs["logprobs"]).exp() * inputs["advantages"]).sum()


def ppo(logprobs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    ratio = (logprobs - inputs["logprobs"]).exp()
    bounded = torch.max(torch.min(ratio, torch.tensor(1.2)), torch.tensor(0.8))
    return (
        -torch.stack([ratio * inputs["advantages"], bounded * inputs["advantages"]])
        .min(dim=0)
        .values.sum()
    )


def gspo(logprobs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    marked = inputs["sequence_ratio_mask"] != 0
    sequence = (logprobs.detach() - inputs["logprobs"])[marked].mean()
    return ppo(logprobs, {**inputs, "logprobs": logprobs.detach() - sequence})


def stable_reinforce(logprobs: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    weight = torch.min((logprobs.detach() - inputs["logprobs"]).exp(), torch.tensor(2.0))
    return -(weight * logprobs * inputs["advantages"]).sum()


@pytest.mark.numeric
@pytest.mark.parametrize(
    "expected", [cross_entropy, importance_sampling, ppo, gspo, stable_reinforce]
)
@pytest.mark.parametrize("name", ["a", "b"])
def test_updates_equal_plain_autograd_and_adamw(
    engine: TorchEngine, model_directory: Path, name: str, expected: Expected
) -> None:
    """Three steps on mixed lengths give the same loss and weights as dense autograd with torch's
    AdamW.
    """
    reference = Reference(model_directory, weights(engine, name), SMOOTH)
    for step in range(3):
        data = (supervised if expected is cross_entropy else rows)(5, 17, 1, 9, seed=step)
        for datum in data if expected is gspo else []:
            datum.loss_inputs["sequence_ratio_mask"] = (
                np.arange(len(datum.tokens)) % 2 == 0
            ).astype(np.float32)
        result = engine.forward_backward(name, data, expected.__name__, {}, backward=True)
        engine.optim_step(name, SMOOTH)
        loss, size = reference.step(data, expected)
        assert result.metrics["loss:sum"] == near(loss, terms_of_pass(17) + 32, size)
    assert_same(weights(engine, name), reference.factors)


@pytest.mark.numeric
def test_a_step_is_adamw_of_the_gradient(engine: TorchEngine) -> None:
    """Weights after three steps are, bit by bit, those of torch's AdamW with the engine's
    gradients, however small those are.
    """
    expected = {
        name: tensor.clone().requires_grad_() for name, tensor in weights(engine, "a").items()
    }
    options = {"lr": ADAM.learning_rate, "betas": (ADAM.beta1, ADAM.beta2), "eps": ADAM.eps}
    optimizer = torch.optim.AdamW(expected.values(), weight_decay=ADAM.weight_decay, **options)
    for step in range(3):
        engine.forward_backward("a", rows(5, 17, seed=step), "ppo", {}, backward=True)
        for tensor, part in zip(
            expected.values(), engine._adapter("a").gradient or [], strict=True
        ):
            tensor.grad = part.clone()
        engine.optim_step("a", ADAM)
        optimizer.step()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(engine, "a").items())


@pytest.mark.numeric
def test_two_targets_per_position(engine: TorchEngine, model_directory: Path) -> None:
    """``[N, K]`` targets with ``[N, K]`` weights sum over all cells, and the logprobs have the same
    shape.
    """
    reference = Reference(model_directory, weights(engine, "a"), SMOOTH)
    data = [*supervised(6, columns=3), *supervised(4, seed=1)]
    result = engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
    engine.optim_step("a", SMOOTH)
    reference.step(data, cross_entropy)
    assert [output["logprobs"].shape for output in result.outputs] == [(6, 3), (4,)]
    assert_same(weights(engine, "a"), reference.factors)


@pytest.mark.numeric
def test_logprobs_are_those_of_the_targets(engine: TorchEngine, model_directory: Path) -> None:
    """``logprobs`` is float32 and equals the log-softmax at the target, for weights of zero as
    well.
    """
    data = supervised(8, 3)
    reference = Reference(model_directory, weights(engine, "a"), ADAM)
    result = engine.forward_backward("a", data, "cross_entropy", {}, backward=False)
    for output, example in zip(result.outputs, data):
        targets = torch.from_numpy(example.loss_inputs["target_tokens"])[:, None]
        expected = reference.logprobs(example).gather(1, targets)[:, 0].detach().numpy()
        assert output["logprobs"].dtype == np.float32
        assert_near(output["logprobs"], expected, terms_of_pass(8))


@pytest.mark.numeric
def test_micro_batches_change_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs keep their order and the update is the same when every datum runs alone."""
    data = supervised(9, 4, 12, 4)
    together = engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
    engine.optim_step("a", SMOOTH)
    expected = weights(engine, "a")
    engine.create_adapter("a", SPEC)
    monkeypatch.setattr("tinker.local.engines.torch.passes.MAX_MICRO_BATCH_TOKENS", 1)
    alone = engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
    engine.optim_step("a", SMOOTH)
    for one, other in zip(alone.outputs, together.outputs):
        assert_near(one["logprobs"], other["logprobs"], terms_of_pass(12))
    assert_same(weights(engine, "a"), expected)


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
def test_metrics_leave_out_what_teaches_nothing(engine: TorchEngine, loss_fn: str) -> None:
    """On policy, with prompt positions of logprob 0 and advantage 0, every counted ratio is 1 and
    nothing is clipped.
    """
    data = rows(6, 4)
    plain = [
        TrainingExample(
            tokens=d.tokens, loss_inputs={"target_tokens": d.loss_inputs["target_tokens"]}
        )
        for d in data
    ]
    now = engine.forward_backward("a", plain, "cross_entropy", {}, backward=False).outputs
    rounding = tolerance(
        terms_of_pass(6), max(float(np.abs(output["logprobs"]).max()) for output in now)
    )
    for datum, output in zip(data, now, strict=True):
        datum.loss_inputs["logprobs"][:] = output["logprobs"]
        for name in ("logprobs", "advantages"):
            datum.loss_inputs[name][:2] = 0.0
    metrics = engine.forward_backward("a", data, loss_fn, {}, backward=True).metrics
    assert metrics["tokens:sum"] == 6
    assert (metrics["ratio:min"], metrics["ratio:max"]) == near((1.0, 1.0), magnitude=rounding)
    assert 0 <= metrics["sampler_logprob_gap:mean"] <= metrics["sampler_logprob_gap:max"] < rounding
    assert metrics.get("clipped:sum") == (None if loss_fn == "importance_sampling" else 0.0)
    for datum in data:
        datum.loss_inputs["advantages"][:] = 0.0
    metrics = engine.forward_backward("a", data, loss_fn, {}, backward=False).metrics
    assert metrics.pop("clipped:sum", 0.0) == 0.0
    assert metrics == {"loss:sum": 0.0, "tokens:sum": 0.0, "weights:sum": 0.0}


@pytest.mark.numeric
def test_gradients_accumulate_until_the_step(engine: TorchEngine, model_directory: Path) -> None:
    """Two calls and one step are one step on all data, and the step clears the gradient."""
    first, second = supervised(5, 6), supervised(7, seed=3)
    reference = Reference(model_directory, weights(engine, "a"), SMOOTH)
    for data in (first, second):
        engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
    engine.optim_step("a", SMOOTH)
    reference.step(first + second, cross_entropy)
    assert_same(weights(engine, "a"), reference.factors)
    assert engine.optim_step("a", ADAM)["grad_norm:mean"] == 0.0


@pytest.mark.numeric
def test_clipping_scales_the_whole_gradient(engine: TorchEngine, model_directory: Path) -> None:
    """``grad_clip_norm`` bounds the global norm; the metric is the norm before that."""
    data, adam = supervised(5, 6), attrs.evolve(ADAM, grad_clip_norm=0.5, eps=1.0)
    reference = Reference(model_directory, weights(engine, "a"), adam)
    engine.forward_backward("a", data, "cross_entropy", {}, backward=True)
    norm = engine.optim_step("a", adam)["grad_norm:mean"]
    reference.step(data, cross_entropy, clip=0.5)
    assert norm > 0.5
    assert_same(weights(engine, "a"), reference.factors)


def test_forward_leaves_no_gradient(engine: TorchEngine) -> None:
    """Without ``backward`` nothing accumulates."""
    engine.forward_backward("a", supervised(5), "cross_entropy", {}, backward=False)
    assert engine.optim_step("a", ADAM)["grad_norm:mean"] == 0.0


@pytest.mark.numeric
def test_an_adapter_begins_as_the_base_model(engine: TorchEngine) -> None:
    """A fresh adapter gives the base model's logprobs."""
    prompt = rows(10)[0].tokens
    jobs = [
        SampleJob(tokens=prompt, weights=chosen, max_tokens=0, prompt_logprobs=True)
        for chosen in (None, engine.snapshot("a"), engine.snapshot("b"))
    ]
    base, *adapters = [result.prompt_logprobs for result in sample_jobs(engine, jobs)]
    assert base is not None
    for logprobs in adapters:
        np.testing.assert_array_equal(logprobs, base)


def test_adapters_do_not_affect_each_other_or_the_base(engine: TorchEngine) -> None:
    """Training one adapter, its output head included, leaves the other adapter and the base model
    as they were.
    """
    prompt = rows(10)[0].tokens

    def measured() -> list[np.ndarray[Any, Any]]:
        jobs = [
            SampleJob(tokens=prompt, weights=w, max_tokens=0, prompt_logprobs=True)
            for w in (None, engine.snapshot("b"))
        ]
        return [
            result.prompt_logprobs
            for result in sample_jobs(engine, jobs)
            if result.prompt_logprobs is not None
        ]

    before, other = measured(), weights(engine, "b")
    engine.forward_backward("b", supervised(4), "cross_entropy", {}, backward=True)
    nudge(engine, "a")
    np.testing.assert_array_equal(before, measured())
    assert all(torch.equal(tensor, other[name]) for name, tensor in weights(engine, "b").items())


@pytest.mark.numeric
def test_a_loss_is_the_same_alone_and_in_company(engine: TorchEngine) -> None:
    """Small losses of several adapters in one pass have the results and gradients that they have
    alone, but for rounding.
    """
    engine.create_adapter("b", AdapterSpec(rank=4, seed=8, lora_alpha=8))
    engine.create_adapter("c", AdapterSpec(rank=4, seed=9))
    calls = [
        ExpectedLoss(
            adapter_id="a", data=supervised(12, 9, seed=1), loss_fn="cross_entropy", config={}
        ),
        ExpectedLoss(adapter_id="b", data=rows(12, 12), loss_fn="ppo", config={}),
        ExpectedLoss(
            adapter_id="c", data=supervised(7, 12, seed=2), loss_fn="cross_entropy", config={}
        ),
    ]

    def compute() -> list[Any]:
        found: list[Any] = []
        for call in calls:
            result = engine.forward_backward(
                call.adapter_id, call.data, call.loss_fn, call.config, backward=True
            )
            found += [
                *(output["logprobs"] for output in result.outputs),
                [*result.metrics.values()],
            ]
            found += [part.numpy() for part in engine._adapters[call.adapter_id].gradient or ()]
            engine._adapters[call.adapter_id].gradient = None
        return found

    for call in calls:
        nudge(engine, call.adapter_id)
    alone = compute()
    engine.expect_losses(calls)
    assert engine._expected.keys() == {"a", "b", "c"}
    for mine, wanted in zip(compute(), alone, strict=True):
        assert_near(mine, wanted, terms_of_gradient(12, 24))
    assert not engine._expected


def test_what_is_expected_is_forgotten(engine: TorchEngine) -> None:
    """A loss that cannot be computed fails alone, and one that does not come after all adds nothing
    to a later one.
    """
    engine.create_adapter("c", attrs.evolve(SPEC, seed=9))
    good = ExpectedLoss(adapter_id="a", data=supervised(8), loss_fn="cross_entropy", config={})
    nudge(engine, "c", learning_rate=1e20)
    engine.expect_losses([good, attrs.evolve(good, adapter_id="c")])
    assert engine._expected.keys() == {"a"}
    with pytest.raises(EngineError, match=r"data\[0\]"):
        engine.forward_backward("c", good.data, "cross_entropy", {}, backward=True)
    engine.expect_losses([])
    engine.forward_backward("a", supervised(8), "cross_entropy", {}, backward=True)
    once = engine.optim_step("a", ADAM)
    engine.create_adapter("a", SPEC)
    engine.forward_backward("a", supervised(8), "cross_entropy", {}, backward=True)
    assert engine.optim_step("a", ADAM) == once


def test_flags_choose_the_modules(engine: TorchEngine) -> None:
    """Attention, MLP and output head are adapted as the three flags say."""
    parts = {"train_attn": "self_attn", "train_mlp": "mlp", "train_unembed": "lm_head"}
    for flag in parts:
        chosen = {name: name == flag for name in parts}
        engine.create_adapter("c", AdapterSpec(rank=1, seed=0, **chosen))
        assert all(parts[flag] in name for name in weights(engine, "c"))


@pytest.mark.parametrize("family", ["GPTNeoX", "Qwen2"])
def test_other_architectures_are_adapted(tmp_path: Path, family: str) -> None:
    """Module names are found, not known: other families train all three parts and keep their base
    weights.
    """
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    more = {"num_key_value_heads": 2} if family == "Qwen2" else {}
    config = getattr(transformers, f"{family}Config")(
        vocab_size=258, tie_word_embeddings=False, **sizes, **more
    )
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((PACKAGED_FOLDER / file).read_bytes())
    engine = TorchEngine(tmp_path, device="cpu")
    for flag in ("train_attn", "train_mlp", "train_unembed"):
        chosen = {name: name == flag for name in ("train_attn", "train_mlp", "train_unembed")}
        engine.create_adapter("a", AdapterSpec(rank=2, **chosen))
        prompt = job(
            engine, weights=None, tokens=rows(6)[0].tokens, prompt_logprobs=True, temperature=0.0
        )
        before = sample_jobs(engine, [prompt])[0].prompt_logprobs
        nudge(engine, "a")
        results = sample_jobs(engine, [prompt, attrs.evolve(prompt, weights=engine.snapshot("a"))])
        np.testing.assert_array_equal(results[0].prompt_logprobs, before)
        assert np.abs(results[1].prompt_logprobs[1:] - before[1:]).max() > 1e-4


def test_an_architecture_without_linear_modules_is_refused(tmp_path: Path) -> None:
    """GPT-2 keeps its matrices in modules of another kind: an error says so, rather than adapting
    the head alone.
    """
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=258, n_embd=8, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes((PACKAGED_FOLDER / file).read_bytes())
    with pytest.raises(ValueError, match="GPT2LMHeadModel is not supported"):
        TorchEngine(tmp_path, device="cpu")


def test_a_half_precision_base_has_float32_adapters(model_directory: Path) -> None:
    """With a bfloat16 base, weights, logprobs and updates of the adapter are float32."""
    engine = TorchEngine(model_directory, device="cpu", dtype="bfloat16")
    engine.create_adapter("a", SPEC)
    first = engine.forward_backward("a", supervised(6), "cross_entropy", {}, backward=True)
    engine.optim_step("a", ADAM)
    second = engine.forward_backward("a", supervised(6), "cross_entropy", {}, backward=False)
    assert second.metrics["loss:sum"] < first.metrics["loss:sum"]
    assert {tensor.dtype for tensor in weights(engine, "a").values()} == {torch.float32}
    assert len(only(engine, job(engine)).tokens) == 12


def test_the_seed_decides_the_first_weights(engine: TorchEngine) -> None:
    """Equal seeds give equal adapters, no seed gives another one each time."""
    seen = []
    for seed in (7, 7, None, None):
        engine.create_adapter("c", attrs.evolve(SPEC, seed=seed))
        seen.append(torch.cat([tensor.flatten() for tensor in weights(engine, "c").values()]))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[2], seen[3])


@pytest.mark.parametrize(
    "flags", [{"rank": 0}, {"train_attn": False, "train_mlp": False, "train_unembed": False}]
)
def test_an_impossible_adapter_is_refused(engine: TorchEngine, flags: dict[str, Any]) -> None:
    """Rank 0 and an adapter of nothing are user errors."""
    with pytest.raises(EngineError):
        engine.create_adapter("c", AdapterSpec(**flags))


# Errors


@pytest.mark.parametrize(
    ("loss", "config", "change", "message"),
    [
        ("rope", {}, {}, "unknown loss_fn 'rope'"),
        ("ppo", {"epsilon": 0.2}, {}, "unknown loss_fn_config key 'epsilon'"),
        ("ppo", {}, {"advantages": np.ones(4, np.float32)}, r"data\[1\]: advantages has shape"),
        (
            "ppo",
            {},
            {"target_tokens": np.full(6, 258)},
            r"data\[1\]: target_tokens contains token id 258",
        ),
        (
            "importance_sampling",
            {},
            {"logprobs": np.full(6, -1e6, np.float32)},
            r"data\[1\]: the loss is not finite",
        ),
    ],
)
def test_a_refused_call_leaves_the_gradient_alone(
    engine: TorchEngine, loss: str, config: dict[str, float], change: dict[str, Any], message: str
) -> None:
    """A fault in the second datum is named, and nothing of the call reaches the next step."""
    good = supervised(5)
    engine.forward_backward("a", good, "cross_entropy", {}, backward=True)
    bad = rows(5, 6)
    bad[1] = attrs.evolve(bad[1], loss_inputs={**bad[1].loss_inputs, **change})
    with pytest.raises(EngineError, match=message):
        engine.forward_backward("a", bad, loss, config, backward=True)
    norm = engine.optim_step("a", ADAM)["grad_norm:mean"]
    engine.create_adapter("c", SPEC)
    engine.forward_backward("c", good, "cross_entropy", {}, backward=True)
    assert engine.optim_step("c", ADAM)["grad_norm:mean"] == norm


def test_weights_that_have_diverged_are_blamed(engine: TorchEngine) -> None:
    """A loss that is not finite is not blamed on data that are."""
    engine.forward_backward("a", supervised(5), "cross_entropy", {}, backward=True)
    engine.optim_step("a", attrs.evolve(ADAM, learning_rate=1e30))
    with pytest.raises(
        EngineError,
        match=r"is not finite: the weights have probably diverged\. Lower the learning rate",
    ):
        engine.forward_backward("a", supervised(5), "cross_entropy", {}, backward=True)


def test_a_too_long_datum_is_refused(engine: TorchEngine) -> None:
    """The context length bounds training too."""
    with pytest.raises(
        EngineError, match=r"data\[0\]: model_input has 129 tokens; it must have 1 to 128"
    ):
        engine.forward_backward("a", supervised(129), "cross_entropy", {}, backward=True)


def test_an_unknown_adapter_is_named(engine: TorchEngine) -> None:
    """Every operation on an unknown id says which id."""
    with pytest.raises(EngineError, match="'nobody'"):
        engine.optim_step("nobody", ADAM)


@pytest.mark.parametrize("change", [{"learning_rate": -1.0}, {"beta2": 1.0}, {"eps": float("nan")}])
def test_impossible_optimizer_values_are_refused(
    engine: TorchEngine, change: dict[str, float]
) -> None:
    """A bad value is refused by name before any weight moves."""
    with pytest.raises(EngineError, match=next(iter(change))):
        engine.optim_step("a", attrs.evolve(ADAM, **change))


# Files


@pytest.mark.parametrize("optimizer", [True, False])
def test_a_loaded_adapter_continues(engine: TorchEngine, tmp_path: Path, optimizer: bool) -> None:
    """With the optimizer state training continues bit for bit; without, as a fresh optimizer on the
    same weights.
    """
    nudge(engine, "a")
    engine.save("a", tmp_path, optimizer=True)
    spec = engine.load("c", tmp_path, optimizer=optimizer)
    assert spec == SPEC
    if not optimizer:
        engine.load("a", tmp_path, optimizer=False)
    for name in ("a", "c"):
        engine.forward_backward(name, supervised(6), "cross_entropy", {}, backward=True)
        engine.optim_step(name, ADAM)
    other = weights(engine, "c")
    assert all(torch.equal(tensor, other[name]) for name, tensor in weights(engine, "a").items())


def test_a_loaded_adapter_continues_under_clipping(engine: TorchEngine, tmp_path: Path) -> None:
    """Norms and weights of ten clipped steps are, bit for bit, those of the adapter that was never
    saved and loaded.
    """
    nudge(engine, "a")
    engine.save("a", tmp_path, optimizer=True)
    engine.load("c", tmp_path, optimizer=True)
    norms: dict[str, list[float]] = {"a": [], "c": []}
    for name in norms:
        for seed in range(10):
            engine.forward_backward(
                name, supervised(12, 7, seed=seed), "cross_entropy", {}, backward=True
            )
            norms[name].append(
                engine.optim_step(name, attrs.evolve(ADAM, grad_clip_norm=0.1))["grad_norm:mean"]
            )
    assert min(norms["a"]) > 0.1
    assert norms["a"] == norms["c"]
    ours, loaded = weights(engine, "a"), weights(engine, "c")
    assert list(ours) == list(loaded)
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in ours.items())


def test_the_optimizer_state_matters(engine: TorchEngine, tmp_path: Path) -> None:
    """Loading without the optimizer state gives another next step than loading with it."""
    nudge(engine, "a")
    engine.save("a", tmp_path, optimizer=True)
    after = []
    for optimizer in (True, False):
        engine.load("c", tmp_path, optimizer=optimizer)
        engine.forward_backward("c", supervised(6), "cross_entropy", {}, backward=True)
        engine.optim_step("c", ADAM)
        after.append(weights(engine, "c")["lm_head.lora_A.weight"])
    assert not torch.equal(*after)


def test_saved_without_optimizer_says_so(engine: TorchEngine, tmp_path: Path) -> None:
    """Asking for an optimizer state that was not saved is an error with advice."""
    engine.save("a", tmp_path, optimizer=False)
    with pytest.raises(EngineError, match="no optimizer state; load it without"):
        engine.load("c", tmp_path, optimizer=True)


@pytest.mark.numeric
def test_peft_loads_the_files(engine: TorchEngine, model_directory: Path, tmp_path: Path) -> None:
    """``PeftModel.from_pretrained`` gives the same logits as the engine, output head included."""
    nudge(engine, "a")
    engine.save("a", tmp_path, optimizer=True)
    base = transformers.AutoModelForCausalLM.from_pretrained(
        model_directory, torch_dtype=torch.float32
    )
    model = peft.PeftModel.from_pretrained(base, str(tmp_path))
    prompt = rows(10)[0].tokens
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(prompt.astype(np.int64))[None]).logits[0]
    expected = torch.log_softmax(logits, -1)[:-1].gather(
        1, torch.from_numpy(prompt[1:].astype(np.int64))[:, None]
    )[:, 0]
    job = SampleJob(tokens=prompt, weights=engine.snapshot("a"), max_tokens=0, prompt_logprobs=True)
    logprobs = sample_jobs(engine, [job])[0].prompt_logprobs
    assert logprobs is not None
    assert_near(logprobs[1:], expected, terms_of_pass(10))


def test_nothing_is_pickled(engine: TorchEngine, tmp_path: Path) -> None:
    """A checkpoint consists of safetensors and JSON."""
    nudge(engine, "a")
    engine.save("a", tmp_path, optimizer=True)
    assert {path.suffix for path in tmp_path.iterdir()} <= {".safetensors", ".json", ".md"}


@pytest.mark.parametrize("damage", ["another base model", "another shape", "no weights"])
def test_a_folder_that_does_not_fit_is_refused(
    engine: TorchEngine, tmp_path: Path, damage: str
) -> None:
    """Another base model, other shapes and missing files are user errors, for training and for
    sampling.
    """
    engine.save("a", tmp_path, optimizer=False)
    about = json.loads((tmp_path / "adapter.json").read_text())
    if damage == "another base model":
        about["base_model"] = "somebody/else"
    elif damage == "another shape":
        about["spec"]["rank"] = 5
    else:
        (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / "adapter.json").write_text(json.dumps(about))
    with pytest.raises(EngineError):
        engine.load("c", tmp_path, optimizer=False)
    with pytest.raises(EngineError):
        engine.load_snapshot(tmp_path)


# Dimuon


@pytest.mark.numeric
def test_a_dimuon_step_goes_along_the_orthogonalised_momentum(
    engine: TorchEngine, tmp_path: Path
) -> None:
    """Each matrix with a gradient moves by learning_rate * sqrt(rank); a saved and loaded adapter
    takes the same step.
    """
    nudge(engine, "a")
    before = {
        name: tensor.detach().clone()
        for name, tensor in engine._adapter("a").weights.tensors.items()
    }
    data = supervised(6, 4)

    def step(name: str) -> None:
        engine.forward_backward(name, data, "cross_entropy", {}, backward=True)
        engine.optim_step(name, Dimuon(learning_rate=0.01, beta1=0.5))

    step("a")
    for name, tensor in engine._adapter("a").weights.tensors.items():
        moved, rounding = (
            float((tensor - before[name]).detach().norm()),
            float(tensor.detach().norm()),
        )
        assert moved == near(0.01 * SPEC.rank**0.5, tensor.numel(), rounding)
    engine.save("a", tmp_path, optimizer=True)
    engine.load("c", tmp_path, optimizer=True)
    step("a")
    step("c")
    assert_same(weights(engine, "a"), weights(engine, "c"))


@pytest.mark.numeric
def test_the_momentum_of_dimuon_is_an_average(engine: TorchEngine) -> None:
    """As long as the gradient stays the same, so does the momentum, whatever share
    of it is kept.
    """
    nudge(engine, "a")
    found = list[list[torch.Tensor]]()
    for beta1 in (0.0, 0.5, 0.9):
        engine.forward_backward("a", supervised(6, 4), "cross_entropy", {}, backward=True)
        engine.optim_step("a", Dimuon(learning_rate=0.0, beta1=beta1))
        found.append(list(engine._adapter("a").moments["momentum"]))
    assert float(found[0][0].norm()) > 0
    for beta1 in (1, 2):
        for one, other in zip(found[beta1], found[0], strict=True):
            assert_near(one, other, 3)


class FailingTorch(TorchDispatchMode):
    """Counts what torch is asked to do, and fails instead of, or right after, the operation number
    ``at``.
    """

    def __init__(self, at: int = 0, *, after: bool = False) -> None:
        super().__init__()
        self.at, self.after, self.count = at, after, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self.at and not self.after:
            raise MemoryError(f"operation {self.count}")
        done = func(*args, **(kwargs or {}))
        if self.count == self.at:
            raise MemoryError(f"operation {self.count}")
        return done


def everything(engine: TorchEngine, name: str, folder: Path) -> Any:
    """Return the files with which a run is saved, and its gradient."""
    engine.save(name, folder, optimizer=True)
    files = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
    return files, [part.clone() for part in engine._adapter(name).gradient or ()]


FAILING = {"adam": attrs.evolve(ADAM, grad_clip_norm=1e-3), "dimuon": Dimuon(learning_rate=0.01)}


@pytest.mark.parametrize(
    ("step", "is_first", "after"),
    [
        pytest.param(
            step,
            is_first,
            after,
            id=f"{name}-{is_first}-{after}",
            marks=[] if pair else [pytest.mark.soak],
        )
        for name, step in FAILING.items()
        for is_first in (True, False)
        for after in (False, True)
        # half of them have each pair of the three
        for pair in [(is_first == after) == (name == "adam")]
    ],
)
def test_a_step_that_fails_changes_nothing(
    engine: TorchEngine, tmp_path: Path, step: Adam | Dimuon, is_first: bool, after: bool
) -> None:
    """Whichever operation of a step fails, weights, moments, count and gradient stay, and the next
    step is as if it had not.
    """
    for name in ("a", "c"):
        engine.create_adapter(name, AdapterSpec(rank=2, seed=7, target_modules=["q_proj"]))
        engine.forward_backward(name, supervised(6, 4), "cross_entropy", {}, backward=True)
        if not is_first:
            engine.optim_step(name, step)
            engine.forward_backward(name, supervised(5, seed=1), "cross_entropy", {}, backward=True)
    with FailingTorch() as counter:
        engine.optim_step("c", step)
    assert counter.count > 20
    before, gradient = everything(engine, "a", tmp_path)
    for at in range(1, counter.count + 1):
        with pytest.raises(MemoryError, match=f"operation {at}$"), FailingTorch(at, after=after):
            engine.optim_step("a", step)
        files, kept = everything(engine, "a", tmp_path)
        assert files == before, at
        assert len(kept) == len(gradient) > 0
        assert all(map(torch.equal, kept, gradient)), at
    engine.optim_step("a", step)
    assert everything(engine, "a", tmp_path) == everything(engine, "c", tmp_path)


@pytest.mark.parametrize(
    "step",
    [
        Adam(learning_rate=1e300),
        Adam(learning_rate=3.4028235e38),
        Adam(learning_rate=1e-60),
        Adam(eps=1e39),
        Adam(eps=1e-60),
        Adam(weight_decay=1e300),
        Adam(beta1=1 - 1e-12),
        Adam(beta2=1 - 1e-9),
        Adam(beta2=1e-60),
        Adam(grad_clip_norm=1e300),
        Adam(grad_clip_norm=1e-60),
        Adam(learning_rate=1e30, weight_decay=1e30),
        Adam(learning_rate=1e38, beta1=0.9999),
        Dimuon(learning_rate=1e300),
        Dimuon(learning_rate=1.0, beta1=1 - 1e-12),
        Dimuon(learning_rate=1.0, grad_clip_norm=1e-60),
    ],
    ids=repr,
)
def test_numbers_that_float32_does_not_hold_are_refused(
    engine: TorchEngine, step: Adam | Dimuon
) -> None:
    """A number that is infinite, 0, or for a beta 1, in the type of the weights is the user's
    fault, and changes nothing.
    """
    engine.forward_backward("a", supervised(6, 4), "cross_entropy", {}, backward=True)
    gradient = engine._adapter("a").gradient
    with pytest.raises(
        EngineError, match=r"^\w+( [/*] .*)? is \S+, which is .* float32, the type of the weights$"
    ):
        engine.optim_step("a", step)
    assert engine._adapter("a").gradient is gradient


@pytest.mark.parametrize("rate", [3.4e38, 1e-45, 0.0])
def test_numbers_that_float32_holds_are_taken(engine: TorchEngine, rate: float) -> None:
    """The largest and the smallest numbers of float32 are numbers with which a step is made."""
    engine.optim_step("a", Adam(learning_rate=rate, beta1=0.0, eps=rate, weight_decay=0.5))
    engine.optim_step("b", Dimuon(learning_rate=rate, beta1=1 - 1e-7))


# Sampling


def only(engine: TorchEngine, job: SampleJob) -> Continuation:
    return sample_jobs(engine, [job])[0].sequences[0]


def job(engine: TorchEngine, **changes: Any) -> SampleJob:
    values = {
        "tokens": rows(6)[0].tokens,
        "weights": engine.snapshot("a"),
        "max_tokens": 12,
        "seed": 5,
        "stop": [],
    }
    return SampleJob(**{**values, **changes})


def text(engine: TorchEngine, sampled: Continuation) -> str:
    return bytes(token for token in sampled.tokens.tolist() if token < 256).decode(
        "utf-8", "replace"
    )


def test_a_seed_gives_the_same_tokens_in_any_company(engine: TorchEngine) -> None:
    """Other prompts, lengths, adapters and sample counts in the batch change no token."""
    nudge(engine, "a")
    nudge(engine, "b")
    wanted = job(engine, num_samples=3)
    alone = sample_jobs(engine, [wanted])[0].sequences
    crowd = [
        job(engine, tokens=rows(40, seed=2)[0].tokens, seed=1, num_samples=2),
        job(engine, weights=engine.snapshot("b"), max_tokens=30),
        wanted,
        job(engine, tokens=rows(1, seed=3)[0].tokens, weights=None, max_tokens=3),
        attrs.evolve(wanted, num_samples=1),
    ]
    results = sample_jobs(engine, crowd)
    assert [s.tokens.tolist() for s in results[2].sequences] == [s.tokens.tolist() for s in alone]
    assert results[4].sequences[0].tokens.tolist() == alone[0].tokens.tolist()
    assert len({tuple(s.tokens.tolist()) for s in alone}) == 3


class Heard:
    """A listener that has enough after some tokens."""

    def __init__(self, enough: int) -> None:
        self.enough = enough
        self.tokens: dict[int, list[int]] = {}
        self.ends: dict[int, str | None] = {}

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        self.tokens.setdefault(index, []).append(token)
        self.ends[index] = stop_reason
        return len(self.tokens[index]) < self.enough


def test_a_listener_is_handed_each_token(engine: TorchEngine) -> None:
    """A listener gets the result's tokens in order, the last one with the reason, and can end one
    of several jobs.
    """
    heard, bored = Heard(99), Heard(2)
    jobs = [job(engine, num_samples=2, listener=heard), job(engine, listener=bored), job(engine)]
    results = sample_jobs(engine, jobs)
    assert [heard.tokens[index] for index in (0, 1)] == [
        one.tokens.tolist() for one in results[0].sequences
    ]
    assert heard.ends == {index: one.stop_reason for index, one in enumerate(results[0].sequences)}
    assert (len(bored.tokens[0]), len(results[1].sequences[0].tokens)) == (2, 2)
    assert results[2].sequences[0].tokens.tolist() == only(engine, job(engine)).tokens.tolist()


def test_without_a_seed_samples_differ(engine: TorchEngine) -> None:
    """No seed means fresh noise for every call."""
    unseeded = job(engine, seed=None)
    assert only(engine, unseeded).tokens.tolist() != only(engine, unseeded).tokens.tolist()


def test_temperature_zero_takes_the_likeliest_token(engine: TorchEngine) -> None:
    """Greedy tokens are the argmax of a forward pass over everything before them, padding and cache
    notwithstanding.
    """
    nudge(engine, "a")
    greedy = job(engine, temperature=0.0, topk_sample_logprobs=1)
    sampled = sample_jobs(engine, [job(engine, tokens=rows(30)[0].tokens), greedy])[1].sequences[0]
    assert sampled.topk is not None
    assert sampled.topk[0][:, 0].tolist() == sampled.tokens.tolist()
    whole = np.concatenate([greedy.tokens, sampled.tokens])
    check = job(engine, tokens=whole, max_tokens=0, prompt_logprobs=True, topk_prompt_logprobs=1)
    result = sample_jobs(engine, [check])[0]
    assert result.topk_prompt is not None
    assert result.topk_prompt[0][len(greedy.tokens) :, 0].tolist() == sampled.tokens.tolist()


@pytest.mark.numeric
@pytest.mark.parametrize("change", [{}, {"temperature": 0.3}, {"top_k": 3}, {"top_p": 0.5}])
def test_logprobs_are_the_models_own(engine: TorchEngine, change: dict[str, float]) -> None:
    """Whatever temperature, top_k and top_p, the reported logprobs are those of the plain model
    (temperature 1).
    """
    nudge(engine, "a")
    sampled = only(engine, job(engine, **change))
    whole = np.concatenate([job(engine).tokens, sampled.tokens])
    again = sample_jobs(engine, [job(engine, tokens=whole, max_tokens=0, prompt_logprobs=True)])[
        0
    ].prompt_logprobs
    assert again is not None
    assert_near(sampled.logprobs, again[len(job(engine).tokens) :], terms_of_pass(18))


def test_top_k_and_top_p_leave_only_likely_tokens(engine: TorchEngine) -> None:
    """Every drawn token is among the k likeliest, or within the nucleus of mass p."""
    k = only(engine, job(engine, top_k=2, topk_sample_logprobs=2, max_tokens=40))
    assert k.topk is not None
    assert all(token in row for token, row in zip(k.tokens, k.topk[0]))
    p = only(engine, job(engine, top_p=0.4, topk_sample_logprobs=258, max_tokens=40))
    assert p.topk is not None
    for logprob, row in zip(p.logprobs, p.topk[1]):
        assert np.exp(row[row > logprob].astype(np.float64)).sum() < 0.4 + tolerance(258, 0.4)


def test_min_p_leaves_out_unlikely_tokens(engine: TorchEngine) -> None:
    """Every drawn token is at least that part as likely as the likeliest one, and without a limit
    some are not.
    """

    def least(**changes: Any) -> float:
        sampled = only(engine, job(engine, topk_sample_logprobs=1, max_tokens=60, **changes))
        assert sampled.topk is not None
        return float(np.exp(sampled.logprobs - sampled.topk[1][:, 0]).min())

    assert least() < 0.5
    for also in ({}, {"top_k": 40}, {"top_p": 0.9}, {"seed": 3}):
        # of two log-probabilities near 5
        assert least(min_p=0.5, **also) >= 0.5 - tolerance(1, 5.0)
    # the part is that of the flattened distribution
    assert least(min_p=0.5, temperature=2.0) >= 0.25 - tolerance(1, 5.0)


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 1.5}, {"presence_penalty": 2.0, "frequency_penalty": -0.5}]
)
def test_penalties_of_drawn_tokens(engine: TorchEngine, penalty: dict[str, float]) -> None:
    """Each greedy token is the likeliest one after the penalties, and the reported logprobs are
    those of the plain model.
    """
    beside = job(engine, temperature=0, max_tokens=30)
    penalized = attrs.evolve(beside, **penalty, topk_sample_logprobs=258)
    plain, found = (result.sequences[0] for result in sample_jobs(engine, [beside, penalized]))
    assert found.topk is not None
    for at, token in enumerate(found.tokens.tolist()):
        row = np.empty(258)
        row[found.topk[0][at]] = found.topk[1][at]
        assert found.logprobs[at] == near(row[token])
        for drawn, count in collections.Counter(found.tokens[:at].tolist()).items():
            row[drawn] -= penalty.get("presence_penalty", 0) + count * penalty.get(
                "frequency_penalty", 0
            )
        assert token == row.argmax()
    assert only(engine, beside).tokens.tolist() == plain.tokens.tolist() != found.tokens.tolist()


def test_the_penalty_of_repetition() -> None:
    """It divides positive logits of tokens in prompt and sample, multiplies negative ones, and
    comes before the others.
    """
    one = SampleJob(
        tokens=np.array([0, 1], np.int32),
        weights=None,
        max_tokens=1,
        repetition_penalty=2,
        presence_penalty=0.5,
    )
    logits = np.array([3, -3, 1, -1, 0.25, 7], np.float32)
    shape_logits(one, [2, 3], logits)
    assert logits.tolist() == [1.5, -6, 0, -2.5, 0.25, 7]


def test_truncation_keeps_the_crossing_token() -> None:
    """top_p keeps tokens until the mass reaches p, the one that crosses included; top_k counts; 1.0
    and -1 keep all.
    """
    one = SampleJob(tokens=np.zeros(1, np.int32), weights=None, max_tokens=1)
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()

    def kept(**changes: Any) -> list[int]:
        ids, weights, is_sure = truncate(logits, [attrs.evolve(one, **changes)])
        assert is_sure.all()
        return ids[weights > 0].tolist()

    assert kept() == [0, 1, 2, 3]
    assert kept(top_p=0.5) == [1]
    assert kept(top_p=0.51) == [1, 3]
    assert kept(top_k=3) == [1, 2, 3]
    assert kept(top_k=3, top_p=0.8) == [1, 3]
    assert kept(top_p=1e-9) == [1]
    assert kept(top_p=0.0) == [1]


def test_draws_follow_the_distribution() -> None:
    """Over evenly spaced noise every token is drawn as often as its probability at the run's
    temperature says.
    """
    logprobs = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).log().repeat(1000, 1)
    one = SampleJob(tokens=np.zeros(1, np.int32), weights=None, max_tokens=1, temperature=0.5)
    runs = [
        DecodingRun(one, Stops(one, frozenset(), str), iter([(i + 0.5) / 1000]))
        for i in range(1000)
    ]
    counts = torch.bincount(draw(logprobs, runs), minlength=4) / 1000
    # the ends of the even steps
    assert (1000 * counts - 1000 * torch.tensor([1, 4, 9, 16]) / 30).abs().max() <= 1


@pytest.mark.numeric
def test_prompt_logprobs_equal_a_forward_pass(engine: TorchEngine) -> None:
    """Position 0 is NaN, position i is the logprob of token i given those before;
    top-k rows agree.
    """
    nudge(engine, "a")
    tokens = rows(9)[0].tokens
    shifted = TrainingExample(
        tokens=tokens[:-1], loss_inputs={"target_tokens": tokens[1:].astype(np.int64)}
    )
    expected = engine.forward_backward("a", [shifted], "cross_entropy", {}, backward=False).outputs[
        0
    ]["logprobs"]
    result = sample_jobs(
        engine, [job(engine, tokens=tokens, prompt_logprobs=True, topk_prompt_logprobs=258)]
    )[0]
    assert result.prompt_logprobs is not None
    assert result.topk_prompt is not None
    assert np.isnan(result.prompt_logprobs[0])
    assert_near(result.prompt_logprobs[1:], expected, terms_of_pass(9))
    ids, logprobs = result.topk_prompt
    assert (ids.shape, logprobs.shape) == ((9, 258), (9, 258))
    assert ids[0].tolist() == [0] * 258
    assert set(logprobs[0].tolist()) == {-99999.0}
    for row in range(1, 9):
        assert logprobs[row][ids[row] == tokens[row]] == near(result.prompt_logprobs[row])


@pytest.mark.numeric
def test_chosen_tokens_and_alternatives_of_a_prompt_are_scored(engine: TorchEngine) -> None:
    """Targets and draws have the log-probabilities of the whole table; draws follow it, and are
    greedy at temperature 0.
    """
    nudge(engine, "a")
    targets = PromptTargets(positions=np.array([8, 2]), tokens=np.array([5, 9]))
    fields = {"tokens": rows(9)[0].tokens, "topk_prompt_logprobs": 258, "prompt_targets": targets}
    asked, greedy = sample_jobs(
        engine, [job(engine, **fields, prompt_alternatives=2000, temperature=t) for t in (1.0, 0.0)]
    )
    assert asked.topk_prompt is not None
    table = np.zeros((9, 258), np.float32)
    np.put_along_axis(table, asked.topk_prompt[0].astype(np.int64), asked.topk_prompt[1], axis=1)
    assert asked.target_logprobs is not None
    assert_near(asked.target_logprobs, table[[8, 2], [5, 9]], 2)
    assert asked.alternatives is not None
    ids, logprobs = asked.alternatives
    assert ids.shape == logprobs.shape == (8, 2000)
    assert_near(logprobs, np.take_along_axis(table[1:], ids.astype(np.int64), axis=1), 2)
    likeliest = int(table[4].argmax())
    assert (ids[3] == likeliest).mean() == share(float(np.exp(table[4, likeliest])), 2000)
    assert greedy.alternatives is not None
    assert (greedy.alternatives[0] == table[1:].argmax(axis=1, keepdims=True)).all()


def test_a_prompt_of_one_token_has_no_logprob(engine: TorchEngine) -> None:
    """The only entry is NaN."""
    result = sample_jobs(
        engine,
        [job(engine, tokens=np.array([3], np.int32), prompt_logprobs=True, topk_prompt_logprobs=2)],
    )[0]
    assert result.prompt_logprobs is not None
    assert np.isnan(result.prompt_logprobs).tolist() == [True]


def test_a_stop_string_ends_the_sequence_and_stays_in_it(engine: TorchEngine) -> None:
    """The tokens end with the piece that completed the stop text, also when it spans several
    tokens.
    """
    free = only(engine, job(engine, temperature=2.0, max_tokens=100))
    tokens = free.tokens.tolist()
    place = next(i for i in range(10, 90) if all(32 < t < 127 for t in tokens[i : i + 2]))
    piece = bytes(tokens[place : place + 2]).decode()
    stopped = only(engine, job(engine, temperature=2.0, max_tokens=100, stop=["\x00never", piece]))
    end = bytes(t if t < 128 else 0 for t in tokens).find(piece.encode()) + 2
    assert (stopped.tokens.tolist(), stopped.stop_reason) == (tokens[:end], "stop")


def test_a_stop_id_ends_the_sequence(engine: TorchEngine) -> None:
    """Token ids stop at their first occurrence; until then the text is the same."""
    free = only(engine, job(engine)).tokens.tolist()
    stopped = only(engine, job(engine, stop=[free[5]]))
    assert (stopped.tokens.tolist(), stopped.stop_reason) == (
        free[: free.index(free[5]) + 1],
        "stop",
    )


def test_end_of_text_stops_by_default_only(engine: TorchEngine) -> None:
    """None stops at the model's end of text; an empty list disables that too."""
    engine.create_adapter("c", AdapterSpec(rank=4, seed=1))
    ends = TrainingExample(
        tokens=np.array([1, 2, 3], np.int32), loss_inputs={"target_tokens": np.full(3, 256)}
    )
    for _ in range(25):
        engine.forward_backward("c", [ends], "cross_entropy", {}, backward=True)
        engine.optim_step("c", Adam(learning_rate=0.02))
    prompt = {
        "tokens": ends.tokens,
        "weights": engine.snapshot("c"),
        "temperature": 0.0,
        "max_tokens": 4,
    }
    by_default, never = sample_jobs(
        engine, [job(engine, **prompt, stop=None), job(engine, **prompt, stop=[])]
    )
    assert (by_default.sequences[0].tokens.tolist(), by_default.sequences[0].stop_reason) == (
        [256],
        "stop",
    )
    assert (len(never.sequences[0].tokens), never.sequences[0].stop_reason) == (4, "length")


def test_max_tokens_ends_with_length(engine: TorchEngine) -> None:
    """Without a stop the sequence has max_tokens tokens, as many logprobs, and says ``length``."""
    sampled = only(engine, job(engine, max_tokens=7))
    assert (len(sampled.tokens), len(sampled.logprobs), sampled.stop_reason) == (7, 7, "length")
    assert (sampled.tokens.dtype, sampled.logprobs.dtype) == (np.int32, np.float32)


def test_a_snapshot_is_frozen(engine: TorchEngine) -> None:
    """Later steps and dropping the adapter leave a snapshot as it was."""
    nudge(engine, "a")
    greedy = job(engine, temperature=0.0)
    before = only(engine, greedy).logprobs
    nudge(engine, "a")
    engine.drop_adapter("a")
    np.testing.assert_array_equal(only(engine, greedy).logprobs, before)


def test_a_snapshot_is_freed_with_its_last_reference(engine: TorchEngine) -> None:
    """The engine keeps nothing of a snapshot after sampling from it."""
    snapshot = engine.snapshot("a")
    assert isinstance(snapshot, LoraWeights)
    watched = weakref.ref(next(iter(snapshot.tensors.values())))
    sample_jobs(engine, [job(engine, weights=snapshot)])
    del snapshot
    gc.collect()
    assert watched() is None


def test_a_diverged_adapter_says_so(engine: TorchEngine) -> None:
    """Weights so large that probabilities are NaN are an error that names the cause, not tokens."""
    nudge(engine, "a")
    for tensor in engine._adapters["a"].weights.tensors.values():
        tensor.data.mul_(1e30)
    with pytest.raises(EngineError, match="training has diverged"):
        sample_jobs(engine, [job(engine)])


def test_a_saved_snapshot_samples_the_same(engine: TorchEngine, tmp_path: Path) -> None:
    """``load_snapshot`` of saved weights gives the same tokens and logprobs."""
    nudge(engine, "a")
    engine.save("a", tmp_path, optimizer=False)
    here, there = (
        only(engine, job(engine)),
        only(engine, job(engine, weights=engine.load_snapshot(tmp_path))),
    )
    assert here.tokens.tolist() == there.tokens.tolist()
    np.testing.assert_array_equal(here.logprobs, there.logprobs)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"tokens": np.array([], np.int32)}, "prompt is empty"),
        ({"tokens": np.array([258], np.int32)}, "token id 258"),
        (
            {"max_tokens": 123},
            "a prompt of 6 tokens exceeds the context length of 128; use max_tokens of at most 122",
        ),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p is 1.1; it must be from 0 to 1"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; it must be from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1; it must be from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be more than 0"),
        ({"json_schema": {}}, "json_schema needs vLLM"),
        ({"num_samples": 0}, "num_samples"),
        ({"topk_sample_logprobs": 259}, "topk_sample_logprobs"),
        ({"stop": [""]}, "empty stop string"),
        ({"weights": object()}, "do not come from this engine"),
    ],
)
def test_an_impossible_job_is_refused(
    engine: TorchEngine, change: dict[str, Any], fault: str
) -> None:
    """Every parameter out of range is a user error that names it."""
    with pytest.raises(EngineError, match=fault):
        sample_jobs(engine, [job(engine, **change)])


# The packaged model


def test_the_packaged_model_is_small_and_complete() -> None:
    """At most 4 MB, and an own byte-level tokenizer that returns every text unchanged."""
    files = {path.name: path.stat().st_size for path in PACKAGED_FOLDER.iterdir() if path.is_file()}
    assert {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    } <= files.keys()
    assert sum(files.values()) <= 4_000_000
    tokenizer = transformers.AutoTokenizer.from_pretrained(PACKAGED_FOLDER)
    for sample in ("word -> ordway\n", "  two  spaces, naïve café, 東京 🙂", "\x00\x7f"):
        ids = tokenizer.encode(sample, add_special_tokens=False)
        assert ids == list(sample.encode())
        assert tokenizer.decode(ids) == sample
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, len(tokenizer)) == (256, 257, 258)


def test_only_directories_of_the_user_have_paths_for_names() -> None:
    """A model of a hub and the packaged one are not served under the name of any path."""
    assert (
        directory_names("tinker/no-such-folder")
        == directory_names(str(PACKAGED_FOLDER))
        == frozenset()
    )


def test_the_packaged_model_has_learned_text() -> None:
    """It finds plain English far likelier than chance (8 bits a byte), and loads quietly under its
    public name.
    """
    engine = TorchEngine(PACKAGED_MODEL, device="cpu")
    prompt = np.array([256, *b"Return a list of the names in the current local scope."], np.int32)
    logprobs = sample_jobs(
        engine, [SampleJob(tokens=prompt, weights=None, max_tokens=0, prompt_logprobs=True)]
    )[0].prompt_logprobs
    assert logprobs is not None
    assert -np.nanmean(logprobs) / np.log(2) < 2.5
    assert (engine.base_model, engine.max_context_length) == ("tinker/babble", 512)


QUIET = """
import sys
import numpy as np
from tinker.local.engines.protocol import Adam, AdapterSpec, SampleJob, TrainingExample
from tinker.local.engines.torch import TorchEngine

engine, tokens = TorchEngine(sys.argv[1]), np.arange(40, dtype=np.int32)
engine.create_adapter("a", AdapterSpec(rank=1))
example = TrainingExample(tokens=tokens, loss_inputs={"target_tokens": tokens.astype(np.int64)})
engine.forward_backward("a", [example], "cross_entropy", {}, backward=True)
engine.optim_step("a", Adam())
for _ in range(2):  # the second time the prompt comes out of the cache
    batch = engine.open_batch(1000)
    batch.add(1, SampleJob(tokens=tokens, weights=engine.snapshot("a"), max_tokens=3, prompt_logprobs=True))
    batch.add(2, SampleJob(tokens=tokens, weights=None, max_tokens=3))
    while batch.tokens:
        batch.step()
"""


def test_loading_training_and_sampling_print_nothing(model_directory: Path) -> None:
    """No progress bar, no warning and no notice on either stream."""
    # where PEFT finds bitsandbytes
    of_torch = "ignore:`torch.jit.script_method` is deprecated:DeprecationWarning"
    command = [sys.executable, "-W", "default", "-W", of_torch, "-c", QUIET, str(model_directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def older_forward(
    *, input_ids: torch.Tensor, past_key_values: str | None = None
) -> CausalLMOutputWithPast:
    assert past_key_values in (None, "before")
    return CausalLMOutputWithPast(logits=input_ids[..., None].float(), past_key_values="after")


def newer_forward(*, input_ids: torch.Tensor, cache: str | None = None) -> Any:
    assert cache in (None, "before")
    return NewerOutput(logits=input_ids[..., None].float(), cache="after")


class NewerOutput(dict[str, Any]):
    """An output in the form of newer versions of transformers."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class Foreign(torch.nn.Module):
    """A model with this forward."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = forward

    def get_output_embeddings(self) -> torch.nn.Module:
        return torch.nn.Identity()


@pytest.mark.parametrize("forward", [older_forward, newer_forward])
@pytest.mark.parametrize("cache", [None, "before"])
def test_the_cache_has_the_name_that_the_model_uses(
    forward: Callable[..., Any], cache: str | None
) -> None:
    """A forward gets and returns its cache under the name that older or newer versions of
    transformers use.
    """
    passed = SplitModel(Foreign(forward)).run(
        cache=cache, input_ids=torch.zeros(1, 1, dtype=torch.long)
    )
    assert passed.cache == "after"
