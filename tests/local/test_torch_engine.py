# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""The torch engine on a small random Llama: what it alone does. ``test_engines`` has what all do,
and ``test_numpy_engine`` holds its numbers against those of another.
"""

from __future__ import annotations

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

import torch
import transformers
from support.engine_inputs import SMOOTH, SPEC, compute, make_data, nudge, sample, weights_of
from support.families import Family, write_family
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import assert_near, terms_of_gradient, terms_of_pass
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import CausalLMOutputWithPast

from tinker.local.engines import PACKAGED_FOLDER, PACKAGED_MODEL, directory_names
from tinker.local.engines.arrays import DecodingRun, Stops
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    ExpectedLoss,
    SampleJob,
)
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.lora import LoraWeights
from tinker.local.engines.torch.passes import SplitModel
from tinker.local.engines.torch.sampling import draw

ADAM = Adam(learning_rate=1e-2, weight_decay=0.1)
# a step in which an error of a gradient stays as small as it is


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


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        assert_near(actual[name], tensor, terms_of_gradient(17, 32), name=name)


@pytest.mark.numeric
def test_a_step_is_adamw_of_the_gradient(engine: TorchEngine) -> None:
    """Weights after three steps are, bit by bit, those of torch's AdamW with the engine's
    gradients, however small those are.
    """
    expected = {
        name: tensor.detach().clone().requires_grad_()
        for name, tensor in engine.snapshot("a").tensors.items()
    }
    options = {"lr": ADAM.learning_rate, "betas": (ADAM.beta1, ADAM.beta2), "eps": ADAM.eps}
    optimizer = torch.optim.AdamW(expected.values(), weight_decay=ADAM.weight_decay, **options)
    for step in range(3):
        compute(engine, "a", make_data(5, 17, loss_fn="ppo", seed=step), "ppo")
        for tensor, part in zip(
            expected.values(), engine._adapter("a").gradient or [], strict=True
        ):
            tensor.grad = part.clone()
        engine.optim_step("a", ADAM)
        optimizer.step()
    for name, tensor in engine.snapshot("a").tensors.items():
        assert torch.equal(tensor, expected[name])


@pytest.mark.numeric
def test_micro_batches_change_nothing(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs keep their order and the update is the same when every datum runs alone."""
    data = make_data(9, 4, 12, 4)
    together = compute(engine, "a", data)
    engine.optim_step("a", SMOOTH)
    expected = weights_of(engine, "a")
    engine.create_adapter("a", SPEC)
    monkeypatch.setattr("tinker.local.engines.torch.passes.MAX_MICRO_BATCH_TOKENS", 1)
    alone = compute(engine, "a", data)
    engine.optim_step("a", SMOOTH)
    for one, other in zip(alone.outputs, together.outputs):
        assert_near(one["logprobs"], other["logprobs"], terms_of_pass(12))
    assert_same(weights_of(engine, "a"), expected)


@pytest.mark.numeric
def test_a_loss_is_the_same_alone_and_in_company(engine: TorchEngine) -> None:
    """Small losses of several adapters in one pass have the results and gradients that they have
    alone, but for rounding.
    """
    engine.create_adapter("b", AdapterSpec(rank=4, seed=8, lora_alpha=8))
    engine.create_adapter("c", AdapterSpec(rank=4, seed=9))
    calls = [
        ExpectedLoss(
            adapter_id="a", data=make_data(12, 9, seed=1), loss_fn="cross_entropy", config={}
        ),
        ExpectedLoss(
            adapter_id="b", data=make_data(12, 12, loss_fn="ppo"), loss_fn="ppo", config={}
        ),
        ExpectedLoss(
            adapter_id="c", data=make_data(7, 12, seed=2), loss_fn="cross_entropy", config={}
        ),
    ]

    def compute_all() -> list[Any]:
        found: list[Any] = []
        for call in calls:
            result = compute(engine, call.adapter_id, call.data, call.loss_fn)
            found += [
                *(output["logprobs"] for output in result.outputs),
                [*result.metrics.values()],
            ]
            found += [part.numpy() for part in engine._adapters[call.adapter_id].gradient or ()]
            engine._adapters[call.adapter_id].gradient = None
        return found

    for call in calls:
        nudge(engine, call.adapter_id)
    alone = compute_all()
    engine.expect_losses(calls)
    assert engine._expected.keys() == {"a", "b", "c"}
    for mine, wanted in zip(compute_all(), alone, strict=True):
        assert_near(mine, wanted, terms_of_gradient(12, 24))
    assert not engine._expected


def test_what_is_expected_is_forgotten(engine: TorchEngine) -> None:
    """A loss that cannot be computed fails alone, and one that does not come after all adds nothing
    to a later one.
    """
    engine.create_adapter("c", attrs.evolve(SPEC, seed=9))
    good = ExpectedLoss(adapter_id="a", data=make_data(8), loss_fn="cross_entropy", config={})
    nudge(engine, "c", learning_rate=1e20)
    engine.expect_losses([good, attrs.evolve(good, adapter_id="c")])
    assert engine._expected.keys() == {"a"}
    with pytest.raises(EngineError, match=r"data\[0\]"):
        compute(engine, "c", good.data)
    engine.expect_losses([])
    compute(engine, "a", make_data(8))
    once = engine.optim_step("a", ADAM)
    engine.create_adapter("a", SPEC)
    compute(engine, "a", make_data(8))
    assert engine.optim_step("a", ADAM) == once


@pytest.mark.parametrize("family", ["GPTNeoX", "Qwen2"])
def test_other_architectures_are_adapted(tmp_path: Path, family: str) -> None:
    """Module names are found, not known: other families train all three parts and keep their base
    weights.
    """
    options = {"num_hidden_layers": 1, "tie_word_embeddings": False}
    kind = Family(family, "", f"{family}Config", f"{family}ForCausalLM", options)
    engine = TorchEngine(write_family(kind, tmp_path), device="cpu")
    for flag in ("train_attn", "train_mlp", "train_unembed"):
        chosen = {name: name == flag for name in ("train_attn", "train_mlp", "train_unembed")}
        engine.create_adapter("a", AdapterSpec(rank=2, **chosen))
        before = sample(engine, prompt_logprobs=True).prompt_logprobs
        nudge(engine, "a")
        after, adapted = (
            sample(engine, weights=weights, prompt_logprobs=True).prompt_logprobs
            for weights in (None, engine.snapshot("a"))
        )
        np.testing.assert_array_equal(after, before)
        assert np.abs(adapted[1:] - before[1:]).max() > 1e-4


def test_an_adapter_of_nothing_is_refused(engine: TorchEngine) -> None:
    """The three switches off together are a user error."""
    with pytest.raises(EngineError):
        engine.create_adapter(
            "c", AdapterSpec(train_attn=False, train_mlp=False, train_unembed=False)
        )


# Files


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
def test_the_momentum_of_dimuon_is_an_average(engine: TorchEngine) -> None:
    """As long as the gradient stays the same, so does the momentum, whatever share
    of it is kept.
    """
    nudge(engine, "a")
    found = list[list[torch.Tensor]]()
    for beta1 in (0.0, 0.5, 0.9):
        compute(engine, "a", make_data(6, 4))
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
        compute(engine, name, make_data(6, 4))
        if not is_first:
            engine.optim_step(name, step)
            compute(engine, name, make_data(5, seed=1))
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


# Sampling


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


def test_a_snapshot_is_freed_with_its_last_reference(engine: TorchEngine) -> None:
    """The engine keeps nothing of a snapshot after sampling from it."""
    snapshot = engine.snapshot("a")
    assert isinstance(snapshot, LoraWeights)
    watched = weakref.ref(next(iter(snapshot.tensors.values())))
    sample(engine, weights=snapshot)
    del snapshot
    gc.collect()
    assert watched() is None


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
    for text in ("word -> ordway\n", "  two  spaces, naïve café, 東京 🙂", "\x00\x7f"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == list(text.encode())
        assert tokenizer.decode(ids) == text
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
