# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""The engine in numpy beside the torch engine and plain autograd: losses, gradients, steps, files
and samples are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import torch
import transformers
from support.engine_inputs import (
    SMOOTH,
    SPEC,
    Heard,
    compute,
    fail_to_hear,
    gradient_of,
    make_data,
    make_datum,
    make_job,
    make_text,
    tokens_of,
    weights_of,
)
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import FLOAT64, assert_near, near, terms_of_gradient, terms_of_pass

from tinker.local.engines import PACKAGED_FOLDER, PACKAGED_MODEL, arrays, numpy
from tinker.local.engines.numpy import NumpyEngine
from tinker.local.engines.protocol import (
    LOSS_FORMS,
    AdapterSpec,
    Dimuon,
    EngineError,
    PromptTargets,
    SampleResult,
)
from tinker.local.engines.torch import TorchEngine

Engine = NumpyEngine | TorchEngine
LENGTHS = (5, 17, 1, 9)
Two = tuple[NumpyEngine, TorchEngine]


@pytest.fixture(scope="session", params=["tied head", "own head"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a random Llama of two layers with fewer heads for keys than for queries."""
    directory = write_tiny_llama(tmp_path_factory.mktemp("models") / "llama")
    if request.param == "own head":
        torch.manual_seed(1)
        config = transformers.LlamaConfig.from_pretrained(directory)
        config.tie_word_embeddings = False
        config.rope_parameters = {"rope_type": "default", "rope_theta": 500.0}
        transformers.LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def opened(folder: Path) -> Two:
    return NumpyEngine(folder), TorchEngine(folder, device="cpu")


@pytest.fixture
def engines(opened: Two) -> Iterator[Two]:
    """Yield both engines, each with two adapters that are no longer the base model."""
    for engine in opened:
        engine.create_adapter("a", SPEC)
        engine.create_adapter("b", AdapterSpec(rank=2, seed=8, train_unembed=False, lora_alpha=3))
        for name in "ab":
            compute(engine, name, make_data(12, seed=99))
            engine.optim_step(name, SMOOTH)
    yield opened
    for engine in opened:
        for name in "abcd":
            engine.drop_adapter(name)


def assert_same_weights(engines: Sequence[Engine], name: str = "a") -> None:
    ours, theirs = (engine._adapter(name).weights.tensors for engine in engines)
    assert list(ours) == list(theirs)
    for key, tensor in theirs.items():
        assert_near(ours[key], tensor, terms_of_gradient(17, 32), name=key)


# Losses and gradients


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", sorted(LOSS_FORMS))
def test_losses_and_gradients_are_those_of_torch(engines: Two, loss_fn: str) -> None:
    """Every loss over data of several lengths, for cross entropy also with several targets for each
    position, has the log-probabilities, metrics and gradient that it has with torch.
    """
    data = make_data(*LENGTHS, loss_fn=loss_fn)
    data += [make_datum(7, columns=3)] if loss_fn == "cross_entropy" else []
    for name in "ab":
        ours, theirs = (compute(engine, name, data, loss_fn) for engine in engines)
        size = 32 * max(abs(value) for value in theirs.metrics.values())
        assert ours.metrics == near(theirs.metrics, terms_of_pass(17), size)
        for mine, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert mine["logprobs"].shape == other["logprobs"].shape
            assert_near(mine["logprobs"], other["logprobs"], terms_of_pass(17))
        found, expected = (gradient_of(engine, name) for engine in engines)
        assert list(found) == list(expected)
        largest = max(float(np.abs(part).max()) for part in expected.values())
        for key, part in expected.items():
            assert_near(found[key], part, terms_of_gradient(17, 32), largest, name=key)


@pytest.mark.numeric
@pytest.mark.parametrize(("name", "scale"), [("a", 32 / 4), ("b", 3 / 2)])
def test_the_gradient_is_that_of_autograd(
    engines: Two, folder: Path, name: str, scale: float
) -> None:
    """The gradient of cross entropy is that of float64 autograd through transformers' model with W
    + (alpha / rank) B A for each W.
    """
    engine, datum = engines[0], make_datum(17)
    compute(engine, name, [datum])
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    factors = {
        key: torch.tensor(one, dtype=torch.float64).requires_grad_()
        for key, one in weights_of(engine, name).items()
    }
    dense = {}
    for key in {key.rpartition(".lora_")[0] for key in factors}:
        update = factors[f"{key}.lora_B.weight"] @ factors[f"{key}.lora_A.weight"]
        dense[f"{key}.weight"] = model.get_submodule(key).weight.detach() + scale * update
    tokens = torch.from_numpy(datum.tokens.astype(np.int64))[None]
    logits = torch.func.functional_call(
        model, dense, kwargs={"input_ids": tokens}, tie_weights=False
    ).logits[0]
    given = {key: torch.from_numpy(value) for key, value in datum.loss_inputs.items()}
    targets = given["target_tokens"].clamp(min=0)[:, None]
    logprobs = logits.log_softmax(dim=-1).gather(1, targets)[:, 0]
    (-(logprobs * given["weights"]).sum()).backward()
    slopes = {key: one.grad for key, one in factors.items() if one.grad is not None}
    largest = max(float(part.abs().max()) for part in slopes.values())
    for key, part in gradient_of(engine, name).items():
        assert_near(part, slopes[key], terms_of_gradient(17, 17), largest, name=key)


def _attend(queries: Any, keys: Any, values: Any, mask: Any) -> Any:
    repeated = [
        one.repeat_interleave(queries.shape[2] // one.shape[2], dim=2).transpose(1, 2)
        for one in (keys, values)
    ]
    mixed = torch.nn.functional.scaled_dot_product_attention(
        queries.transpose(1, 2), *repeated, attn_mask=mask[:, None]
    )
    return mixed.transpose(1, 2)


@pytest.mark.numeric
def test_each_operation_has_the_slope_of_autograd() -> None:
    """In float64 each operation and its derivative are those of torch, but for the last digits."""
    rng = np.random.default_rng(3)
    x, y, weight = rng.normal(size=(5, 8)), rng.normal(size=(5, 8)), rng.normal(size=8)
    queries, keys, values = (rng.normal(size=(2, 6, heads, 4)) for heads in (4, 2, 2))
    mask = np.where(np.tri(6, dtype=bool), 0.0, -np.inf)[None].repeat(2, axis=0)
    slope, wide = rng.normal(size=(5, 8)), rng.normal(size=queries.shape)
    angles = np.tile(rng.normal(size=(5, 4)), 2)
    mixed, shares = numpy.attend(queries, keys, values, mask)
    norm = torch.nn.functional.rms_norm
    silu = torch.nn.functional.silu

    def turn(one: Any) -> Any:
        first, second = one.chunk(2, dim=-1)
        return one * torch.tensor(np.cos(angles)) + torch.cat(
            [-second, first], dim=-1
        ) * torch.tensor(np.sin(angles))

    cases: list[tuple[Any, tuple[Any, ...], Any, Any, Any]] = [
        (lambda a: norm(a, (8,), torch.tensor(weight), 1e-5), (x,), numpy.norm(x, weight, 1e-5), slope,
         (numpy.norm_slope(slope, x, weight, 1e-5),)),
        (lambda a, b: silu(a) * b, (x, y), numpy.gate(x, y), slope, numpy.gate_slopes(slope, x, y)),
        (turn, (x,), numpy.rotate(x, np.cos(angles), np.sin(angles)), slope,
         (numpy.rotate(slope, np.cos(angles), -np.sin(angles)),)),
        (lambda *given: _attend(*given, torch.tensor(mask)), (queries, keys, values), mixed, wide,
         numpy.attend_slopes(wide, queries, keys, values, shares)),
    ]  # fmt: skip
    for operation, given, result, by_result, slopes in cases:
        arguments = [torch.tensor(one).requires_grad_() for one in given]
        expected = operation(*arguments)
        expected.backward(torch.tensor(by_result))
        # the scale of attention and the epsilon of the norm are rounded to float32
        unit = FLOAT64 if operation is turn or len(given) == 2 else 2.0**-24
        assert_near(result, expected, 50, unit=unit)
        for found, argument in zip(slopes, arguments, strict=True):
            assert_near(found, argument.grad, 50, unit=unit)


# Steps and adapters


@pytest.mark.numeric
def test_steps_of_dimuon_are_those_of_torch(opened: Two) -> None:
    """After two steps each matrix is that of torch; of a fresh adapter A has no
    gradient and stays.
    """
    for engine in opened:
        engine.create_adapter("c", SPEC)
        for seed in range(2):
            compute(engine, "c", make_data(*LENGTHS, loss_fn="ppo", seed=seed), "ppo")
            engine.optim_step("c", Dimuon(learning_rate=0.01))
    ours, theirs = (engine._adapter("c").weights.tensors for engine in opened)
    for key, tensor in theirs.items():
        # the direction is as certain as the smallest singular value that was raised to 1
        if ".lora_B." in key:
            step = np.linalg.norm(np.asarray(ours[key]) - tensor.detach().numpy())
            assert step < 1e-2 * np.linalg.norm(tensor.detach().numpy()), key


def test_fresh_adapters_of_one_seed_are_equal(opened: Two) -> None:
    """Both engines draw the same matrices from a seed, bit by bit, whatever is adapted."""
    specs = [
        SPEC,
        AdapterSpec(rank=3, seed=2**40 + 5, train_mlp=False),
        AdapterSpec(rank=1, target_modules=["1.self_attn.q_proj"], seed=-1),
    ]
    for spec in specs:
        for engine in opened:
            engine.create_adapter("d", spec)
        ours, theirs = (engine._adapter("d").weights.tensors for engine in opened)
        assert list(ours) == list(theirs)
        assert all(
            np.array_equal(ours[name], tensor.detach().numpy()) for name, tensor in theirs.items()
        )
    for engine in opened:
        for wrong in (AdapterSpec(rank=0), AdapterSpec(target_modules=["gate"])):
            with pytest.raises(
                EngineError, match=r"rank is 0|'gate' names no module .* there are down_proj"
            ):
                engine.create_adapter("d", wrong)


@pytest.mark.parametrize("optimizer", [True, False])
@pytest.mark.parametrize("way", [(0, 1), (1, 0)], ids=["to torch", "from torch"])
def test_checkpoints_go_both_ways(
    engines: Two, tmp_path: Path, way: tuple[int, int], optimizer: bool
) -> None:
    """A run that one engine has saved goes on in the other, with its optimizer or without, and is
    saved as the same bytes.
    """
    writer, reader = engines[way[0]], engines[way[1]]
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    writer.save("a", first, optimizer=True)
    assert (
        reader.load("a", first, optimizer=optimizer)
        == writer.load("a", first, optimizer=optimizer)
        == SPEC
    )
    reader.save("a", second, optimizer=optimizer)
    for file in second.iterdir():
        assert file.read_bytes() == (first / file.name).read_bytes() or (
            file.name == "optimizer.safetensors" and not optimizer
        )
    for engine in engines:
        compute(engine, "a", make_data(*LENGTHS, loss_fn="ppo"), "ppo")
        engine.optim_step("a", SMOOTH)
    assert_same_weights(engines)


# Samples


TARGETS = PromptTargets(positions=np.array([3, 1, 3, 8]), tokens=np.array([5, 70, 71, 257]))
JOBS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "greedy, several": {"temperature": 0.0, "num_samples": 3, "length": 3},
    "seeded": {"num_samples": 4},
    "hot": {"temperature": 3.0, "length": 17},
    "top_k": {"top_k": 3, "num_samples": 2},
    "top_p": {"top_p": 0.5, "num_samples": 2},
    "top_p zero": {"top_p": 0.0},
    "both": {"top_k": 7, "top_p": 0.8, "temperature": 1.5},
    "min_p": {"min_p": 0.2},
    "penalties": {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.3,
        "repetition_penalty": 1.3,
        "temperature": 0.0,
    },
    "a stop": {"stop": ["e"], "max_tokens": 40, "num_samples": 2},
    "a stop of ids": {"stop": list(range(0, 258, 3)), "num_samples": 2},
    "the end of text": {"stop": None, "temperature": 4.0, "max_tokens": 90},
    "scores": {
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 3,
        "prompt_targets": TARGETS,
        "prompt_alternatives": 4,
    },
    "scores alone": {"prompt_logprobs": True, "max_tokens": 0, "length": 1},
    "greedy alternatives": {"prompt_alternatives": 2, "temperature": 0.0, "max_tokens": 0},
    "top-k": {"topk_sample_logprobs": 5, "temperature": 0.0},
}


def assert_same_result(ours: SampleResult, theirs: SampleResult, name: str) -> None:
    for mine, other in zip(ours.sequences, theirs.sequences, strict=True):
        assert (mine.tokens.tolist(), mine.stop_reason) == (
            other.tokens.tolist(),
            other.stop_reason,
        ), name
        assert_near(mine.logprobs, other.logprobs, terms_of_pass(64), 20.0, name=name)
    pairs = [
        (getattr(ours, field), getattr(theirs, field)) for field in ("topk_prompt", "alternatives")
    ]
    pairs += [
        (mine.topk, other.topk)
        for mine, other in zip(ours.sequences, theirs.sequences, strict=True)
    ]
    for mine, other in pairs:
        assert (mine is None) is (other is None), name
        if mine is not None:
            np.testing.assert_array_equal(mine[0], other[0], err_msg=name)
            assert_near(mine[1], other[1], terms_of_pass(17), 20.0, name=name)
    for field in ("prompt_logprobs", "target_logprobs"):
        mine, other = getattr(ours, field), getattr(theirs, field)
        assert (mine is None) is (other is None), name
        if mine is not None:
            assert_near(mine, other, terms_of_pass(17), 20.0, name=name)


def test_samples_are_those_of_torch(engines: Two) -> None:
    """Jobs of every kind, of the base model and two adapters, have the same tokens, stops and
    scores, alone and together.
    """
    found: list[list[SampleResult]] = []
    for engine in engines:
        weights = [None, engine.snapshot("a"), engine.snapshot("b")]
        jobs = [
            make_job(**{"length": 9, **fields, "weights": weights[index % 3]})
            for index, fields in enumerate(JOBS.values())
        ]
        found.append(sample_jobs(engine, jobs))
        if isinstance(engine, NumpyEngine):
            for name, one, together in zip(JOBS, jobs, found[0], strict=True):
                assert_same_result(sample_jobs(engine, [one])[0], together, name)
    for name, ours, theirs in zip(JOBS, *found, strict=True):
        assert_same_result(ours, theirs, name)
    reasons = {one.stop_reason for result in found[0] for one in result.sequences}
    assert reasons == {"stop", "length"}


def test_rows_wait_until_there_is_room(engines: Two) -> None:
    """A batch begins no more rows than its limit holds, one at least, and each draws what it draws
    alone.
    """
    engine, jobs = engines[0], [make_job(9, seed=seed, num_samples=2) for seed in range(4)]
    expected, notes = list(map(tokens_of, sample_jobs(engine, jobs))), [Heard() for _ in jobs]
    batch, results, seen = engine.open_batch(20), dict[object, Any](), list[int]()
    for index, one in enumerate(jobs):
        batch.add(index, attrs.evolve(one, listener=notes[index]))
    while len(results) < len(jobs):
        results.update(batch.step())
        seen.append(sum(len(one.tokens) for one in notes))
    assert seen[0] == 2
    assert [tokens_of(results[index]) for index in range(4)] == expected


# The packaged model, and others


def test_the_packaged_model_is_within_its_promise(tmp_path: Path) -> None:
    """Losses of tinker/babble after three steps are within 1e-5 of their size, log-probabilities
    too; greedy tokens are equal.
    """
    ours, theirs = engines = NumpyEngine(), TorchEngine(PACKAGED_MODEL, device="cpu")
    assert (ours.base_model, ours.tokenizer_id) == (theirs.base_model, theirs.tokenizer_id)
    assert ours.max_context_length == theirs.max_context_length
    texts = [b"The quick brown fox jumps over the lazy dog. ", b"balloon -> ", b"a"]
    prompts = [np.frombuffer(text, np.uint8).astype(np.int32) for text in texts]
    data = [make_text(one) for one in prompts[:2]]
    logprobs: list[Any] = []
    losses: list[float] = []
    tokens: list[Any] = []
    for engine in engines:
        engine.create_adapter("a", AdapterSpec(rank=8, seed=1))
        for _ in range(3):
            compute(engine, "a", data)
            engine.optim_step("a", SMOOTH)
        result = compute(engine, "a", data, backward=False)
        losses.append(result.metrics["loss:sum"])
        logprobs.append(np.concatenate([one["logprobs"] for one in result.outputs]))
        jobs = [
            make_job(tokens=one, temperature=0.0, max_tokens=24, weights=engine.snapshot("a"))
            for one in prompts
        ]
        tokens.append([one.sequences[0].tokens.tolist() for one in sample_jobs(engine, jobs)])
    assert_near(
        np.array(losses[0]),
        np.array(losses[1]),
        terms_of_pass(45, layers=4, hidden=192, inner=512, head=32) + sum(map(len, prompts[:2])),
    )
    assert_near(*logprobs, terms_of_pass(45, layers=4, hidden=192, inner=512, head=32))
    assert np.abs(logprobs[0] - logprobs[1]).max() < 1e-5 * np.abs(logprobs[1]).max()
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "qwen3"}, "model_type 'qwen3'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1.0}}, "rope_type 'llama3'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
    ],
    ids=str,
)
def test_another_architecture_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """What is not exactly this architecture is named, before weights are read."""
    import json

    config = json.loads((PACKAGED_FOLDER / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(
        ValueError, match=rf"plain Llama models, and .* has {said}.*; use the torch engine"
    ):
        NumpyEngine(tmp_path)


def test_products_take_one_thread(opened: Two) -> None:
    """While the engine computes, the library of numpy uses one thread, and afterwards as many as
    before, also after a failure.
    """
    get, put = arrays._find_functions()
    before = get()
    put(2)
    try:
        seen = list[int]()

        def look(heard: Heard) -> bool:
            seen.append(get())
            return fail_to_hear(heard)

        with pytest.raises(EngineError, match="not for me"):
            sample_jobs(opened[0], [make_job(listener=Heard(look))])
        assert (seen, get()) in (([1], 2), ([1], 1))  # the latter where numpy has another library
    finally:
        put(before)
