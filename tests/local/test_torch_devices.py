# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""The torch engine on every device that torch finds here; on a machine without an accelerator that
is the CPU alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import torch
from click.testing import CliRunner
from support.engine_inputs import compute, make_data, make_job, make_tokens, tokens_of
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import BFLOAT16, FLOAT16, FLOAT32, assert_near, terms_of_pass, tolerance

import tinker
from tinker.cli import main
from tinker.local import Settings, close_in_process, in_process_app
from tinker.local.engines import DType, Placement, open_engine
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    PromptTargets,
    SampleJob,
)
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.engine import find_devices, find_place

KINDS: tuple[DType, ...] = ("float32", "bfloat16", "float16")
# what a pass computes after each other in this model, of two layers, and rounds to the dtype
STAGES = 2 * 12 + 3
UNITS = {"float32": FLOAT32, "bfloat16": BFLOAT16, "float16": FLOAT16}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def expected(source: Path) -> TorchEngine:
    """Return the reference engine for the others."""
    engine = TorchEngine(source, device="cpu", dtype="float32")
    train(engine)
    return engine


@pytest.fixture(
    scope="module", params=[f"{device}-{kind}" for device in find_devices() for kind in KINDS]
)
def engine(source: Path, request: pytest.FixtureRequest) -> TorchEngine:
    """Return a trained engine on one device with one dtype."""
    device, kind = request.param.rsplit("-", 1)
    engine = TorchEngine(source, device=device, dtype=kind)
    train(engine)
    return engine


def kind_of(engine: TorchEngine) -> str:
    return str(engine._model.dtype).removeprefix("torch.")


def train(engine: TorchEngine) -> None:
    """Make the adapters ``a`` and ``b``, with and without a head, and train each for a step."""
    for number, name in enumerate(("a", "b")):
        engine.create_adapter(
            name, AdapterSpec(rank=4 + 4 * number, seed=number, train_unembed=number == 0)
        )
        compute(engine, name, make_data(9, 5, 17, loss_fn="ppo"), "ppo")
        engine.optim_step(name, Adam(learning_rate=0.1, eps=1.0, grad_clip_norm=1.0))


def step(engine: TorchEngine, name: str) -> None:
    compute(engine, name, make_data(12, 7, loss_fn="dro"), "dro")
    engine.optim_step(name, Adam(learning_rate=1e-3))


def job(**changes: Any) -> SampleJob:
    return make_job(40, **{"max_tokens": 8, **changes})


def score(engine: TorchEngine, name: str) -> Any:
    """Return an engine's scores of a prompt."""
    return sample_jobs(
        engine, [job(weights=engine.snapshot(name), max_tokens=0, prompt_logprobs=True)]
    )[0].prompt_logprobs


@pytest.mark.numeric
def test_log_probabilities_are_those_of_the_cpu(engine: TorchEngine, expected: TorchEngine) -> None:
    """After a step of training, log-probabilities differ from those of float32 on the CPU by
    rounding only.
    """
    kind = kind_of(engine)
    # In half precision a sum is float32, and rounds once at its end, on one of the two sides only;
    # logits are about 1.
    terms, size = (terms_of_pass(40), 6.0) if kind == "float32" else (STAGES // 2 + 1, 1.0)
    for name in ("a", "b"):
        assert_near(score(engine, name)[1:], score(expected, name)[1:], terms, size, UNITS[kind])
    given = make_data(9, 30, loss_fn="importance_sampling")
    one, other = (
        compute(each, "a", given, "importance_sampling", backward=False)
        for each in (engine, expected)
    )
    for mine, theirs in zip(one.outputs, other.outputs, strict=True):
        assert_near(mine["logprobs"], theirs["logprobs"], terms, size, UNITS[kind])


def test_adapters_are_float32_beside_the_base(engine: TorchEngine) -> None:
    """Weights, gradients and optimizer state are float32 on the model's device, and the model keeps
    its dtype.
    """
    compute(engine, "a", make_data(12, loss_fn="cispo"), "cispo")
    adapter = engine._adapter("a")
    state = [
        tensor for name, tensors in adapter.moments.items() if name != "step" for tensor in tensors
    ]
    tensors = [*adapter.weights.tensors.values(), *(adapter.gradient or []), *state]
    assert len(tensors) >= 4 * len(adapter.weights.tensors)
    assert {tensor.dtype for tensor in tensors} == {torch.float32}
    assert {tensor.device for tensor in tensors} == {engine._model.device}
    base = [p for name, p in engine._model.named_parameters() if "lora_" not in name]
    assert {p.dtype for p in base} == {getattr(torch, kind_of(engine))}
    engine.optim_step("a", Adam(learning_rate=0.0))


def test_every_kind_of_sample_is_drawn(engine: TorchEngine) -> None:
    """Greedy, top_k, top_p and plain samples of two adapters run together, are finite, and are
    repeatable by seed.
    """
    kinds = [
        {"temperature": 0.0},
        {"top_k": 5},
        {"top_p": 0.7},
        {"top_k": 50, "top_p": 0.9, "temperature": 0.5},
        {},
    ]
    jobs = [
        job(weights=engine.snapshot(name), num_samples=3, topk_sample_logprobs=4, **kind)
        for kind in kinds
        for name in ("a", "b")
    ]
    first, second = (sample_jobs(engine, jobs) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert tokens_of(one) == tokens_of(other)
        for mine in one.sequences:
            assert np.isfinite(mine.logprobs).all()
            assert mine.topk is not None


def test_every_score_of_a_prompt_is_read(engine: TorchEngine) -> None:
    """Log-probabilities, the likeliest tokens, chosen ones and alternatives come from the same
    table.
    """
    chosen = PromptTargets(positions=np.arange(1, 40), tokens=make_tokens(40)[1:].astype(np.int64))
    wanted = {
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 3,
        "prompt_targets": chosen,
        "prompt_alternatives": 2,
    }
    result = sample_jobs(engine, [job(weights=engine.snapshot("a"), **wanted)])[0]
    assert result.prompt_logprobs is not None
    assert result.topk_prompt is not None
    assert result.alternatives is not None
    assert_near(result.target_logprobs, result.prompt_logprobs[1:], 2)
    assert (result.topk_prompt[1][1:, 0] >= result.prompt_logprobs[1:] - tolerance(2, 6.0)).all()


def test_a_saved_run_goes_on_here(engine: TorchEngine, tmp_path: Path) -> None:
    """A run that is loaded with its optimizer takes the same next step."""
    engine.create_adapter("c", AdapterSpec(rank=4, seed=2))
    step(engine, "c")
    engine.save("c", tmp_path, optimizer=True)
    engine.load("d", tmp_path, optimizer=True)
    for name in ("c", "d"):
        step(engine, name)
    np.testing.assert_array_equal(score(engine, "d")[1:], score(engine, "c")[1:])
    for name in ("c", "d"):
        engine.drop_adapter(name)


def test_a_model_is_spread_by_transformers(source: Path, expected: TorchEngine) -> None:
    """With a device map the model trains and samples, on however many devices there are."""
    engine = TorchEngine(source, device_map="auto", dtype="float32")
    train(engine)
    assert_near(score(engine, "a")[1:], score(expected, "a")[1:], terms_of_pass(40))
    assert len(sample_jobs(engine, [job(weights=engine.snapshot("b"))])[0].sequences[0].tokens) == 8


# Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "device is 'tpu'; it must be auto, cpu, cuda, cuda:N or mps"),
        ({"device": "cuda:"}, "device is 'cuda:'"),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be one of auto, float32, bfloat16, float16"),
        ({"device_map": "disk"}, "device_map is 'disk'; it must be one of auto, balanced"),
        (
            {"device": "cpu", "device_map": "auto"},
            "device 'cpu' and device_map 'auto' cannot be combined",
        ),
    ],
)
def test_what_no_machine_has_is_refused(changes: dict[str, Any], message: str) -> None:
    """An impossible setting is refused in one sentence that names what is available."""
    with pytest.raises(ValueError, match=message):
        Placement(**changes)


@pytest.mark.parametrize(
    "device", [f"cuda:{torch.cuda.device_count()}", *([] if "mps" in find_devices() else ["mps"])]
)
def test_a_device_that_is_not_here_is_refused(device: str) -> None:
    """A device that this machine lacks is refused before anything is loaded."""
    with pytest.raises(ValueError, match=f"device '{device}' is not available"):
        open_engine("torch", "no/model", Placement(device=device))


def test_the_default_fits_the_device() -> None:
    """The default is the first GPU in bfloat16, else the CPU in float32."""
    place = find_place(Placement())
    expected = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    assert (place.device.type, place.dtype) == expected
    assert find_place(Placement(device="cpu")).dtype == torch.float32


def test_a_server_refuses_at_its_start_what_is_not_here(tmp_path: Path) -> None:
    """`tinker serve` ends with one sentence for an impossible device or combination; in a URL it is
    refused, too.
    """
    gpu = f"cuda:{torch.cuda.device_count()}"
    for arguments, message in (
        (["--device", gpu], f"device '{gpu}' is not available"),
        (["--device", "tpu"], "device is 'tpu'"),
        (["--device", "cpu", "--device-map", "auto"], "cannot be combined"),
    ):
        result = CliRunner().invoke(main, ["serve", "--engine", "torch", "--port", "0", *arguments])
        assert result.exit_code == 1
        assert (
            message
            in result.output.removeprefix("Loading torch and tinker/babble ...\n").splitlines()[0]
        )
    with pytest.raises(ValueError, match="device is 'tpu'"):
        in_process_app("local://toy?device=tpu", tmp_path)
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        Settings(dtype="int8")
    assert Settings(device="cpu", recompute="always").placement == Placement(
        device="cpu", recompute="always"
    )


def test_the_query_of_a_url_says_where_to_compute(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of a `local://` URL is loaded with the dtype in its query."""
    monkeypatch.setenv("TINKER_LOCAL_DIR", str(tmp_path))
    with tinker.ServiceClient(base_url=f"local://{source}?device=cpu&dtype=bfloat16") as service:
        sampler = service.create_sampling_client(base_model="llama")
        result = sampler.compute_logprobs(
            tinker.ModelInput.from_ints(make_tokens(20).tolist())
        ).result()
    engine = TorchEngine(source, device="cpu", dtype="bfloat16")
    expected = sample_jobs(
        engine, [job(tokens=make_tokens(20), max_tokens=0, prompt_logprobs=True)]
    )[0].prompt_logprobs
    assert expected is not None
    np.testing.assert_array_equal(np.array(result[1:], np.float32), expected[1:])
    close_in_process()


def test_the_toy_has_no_device() -> None:
    """The toy engine refuses settings that it would ignore, and accepts the CPU."""
    with pytest.raises(ValueError, match="the toy engine computes in numpy"):
        open_engine("toy", None, Placement(dtype="bfloat16"))
    assert open_engine("toy", None, Placement(device="cpu")).base_model
