# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Work in parts, and together, in the torch engine: the head, the layers, micro-batches, prompts,
losses of several runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import torch
import transformers
from support import engine_inputs
from support.engine_inputs import make_data, make_job, make_tokens, sample, tokens_of
from support.families import Family, write_family
from support.tallied import open_batch
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import assert_near, near, terms_of_gradient, terms_of_pass

import tinker
from tinker.local import Settings, State, serve_in_thread
from tinker.local.engines import Recompute
from tinker.local.engines.protocol import (
    AdapterSpec,
    ExpectedLoss,
    PromptTargets,
    SampleJob,
    SampleResult,
    is_out_of_memory,
)
from tinker.local.engines.torch import TorchEngine
from tinker.local.engines.torch.passes import SplitModel, estimate_bytes, split_positions
from tinker.local.settings import Durability

#: what each family does to its logits, large enough to be seen
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Gemma2": {"head_dim": 8, "final_logit_softcapping": 0.5},
    "Granite": {"logits_scaling": 3.0},
    "Cohere": {"logit_scale": 0.25},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "llama")


def open_engine(source: Path, recompute: Recompute = "auto") -> TorchEngine:
    """Return an engine whose adapter ``a`` is no longer the base model."""
    engine = TorchEngine(source, device="cpu", recompute=recompute)
    engine.create_adapter("a", AdapterSpec(rank=4, seed=1))
    for name, tensor in engine._adapter("a").weights.tensors.items():
        if "lora_B" in name:
            torch.nn.init.normal_(tensor, std=0.1, generator=torch.Generator().manual_seed(0))
    return engine


def compute(
    engine: TorchEngine, loss: str = "ppo", lengths: tuple[int, ...] = (9, 30, 31)
) -> tuple[Any, list[Any], Any]:
    """Log-probabilities, gradient and metrics of one call."""
    result = engine_inputs.compute(engine, "a", make_data(*lengths, loss_fn=loss), loss)
    gradient = [*engine_inputs.gradient_of(engine, "a").values()]
    engine._adapter("a").gradient = None
    return np.concatenate([one["logprobs"] for one in result.outputs]), gradient, result.metrics


def assert_same(one: tuple[Any, list[Any], Any], other: tuple[Any, list[Any], Any]) -> None:
    terms = terms_of_gradient(31, 80)
    assert_near(one[0], other[0], terms_of_pass(31))
    assert len(one[1]) == len(other[1]) > 0
    for mine, theirs in zip(one[1], other[1], strict=True):
        assert_near(mine, theirs, terms)
    assert one[2] == near(other[2], terms, float(np.abs(other[0]).sum()))


# The head


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_in_parts_gives_the_numbers_of_the_whole(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the logits of three cells at a time, log-probabilities are those of transformers, and
    gradients those of the whole.
    """
    kind = Family(family, "", f"{family}Config", f"{family}ForCausalLM", FAMILIES[family])
    source = write_family(kind, tmp_path)
    engine = open_engine(source)
    assert engine._trainer._split.is_split
    losses = ("ppo", "cross_entropy", "gspo")
    whole = [compute(engine, loss) for loss in losses]
    monkeypatch.setattr("tinker.local.engines.torch.passes.CHUNK_CELLS", 3 * 258)
    for loss, expected in zip(losses, whole, strict=True):
        assert_same(compute(engine, loss), expected)
    plain = transformers.AutoModelForCausalLM.from_pretrained(source, torch_dtype=torch.float32)
    tokens = make_tokens(20)
    with torch.no_grad():
        table = torch.log_softmax(
            plain(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0], dim=-1
        )
    found = sample(engine, 20, max_tokens=0, prompt_logprobs=True).prompt_logprobs
    assert found is not None
    assert_near(found[1:], table[range(19), tokens[1:]], terms_of_pass(20))


def test_parts_hold_few_logits(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass through the head, forward or backward, computes more logits than the limit."""
    engine, seen = open_engine(llama), list[int]()
    monkeypatch.setattr("tinker.local.engines.torch.passes.CHUNK_CELLS", 5 * 258)
    engine._model.get_output_embeddings().register_forward_hook(
        lambda module, args, output: seen.append(output[..., 0].numel())
    )
    compute(engine, lengths=(33, 40))
    assert max(seen) == 5
    assert sum(seen) >= 80


def test_the_head_is_one_product(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pass through the head is a batch of products, for which torch copies the head's weight,
    once for each row.
    """
    engine = open_engine(llama)
    monkeypatch.setattr("tinker.local.engines.torch.passes.CHUNK_CELLS", 5 * 258)
    with torch.profiler.profile(record_shapes=True) as profile:
        compute(engine, lengths=(33, 40))
        sample_jobs(engine, [make_job(20, max_tokens=2) for _ in range(2)])
        sample(engine, 9, max_tokens=0, prompt_logprobs=True)
    products = [
        event
        for event in profile.events()
        if event.name in ("aten::mm", "aten::bmm", "aten::addmm")
    ]
    of_head = {
        event.name for event in products if any(258 in shape for shape in event.input_shapes)
    }
    assert of_head == {"aten::mm"}


class PlacedHead(transformers.LlamaForCausalLM):
    """Its logits depend on where a token is, so that the head cannot be computed apart."""

    def forward(self, *args: Any, logits_to_keep: int = 0, **kwargs: Any) -> Any:
        output = super().forward(*args, logits_to_keep=logits_to_keep, **kwargs)
        output.logits = output.logits * torch.arange(1, output.logits.shape[1] + 1)[:, None]
        return output


def test_a_head_that_is_more_than_a_head_is_computed_as_a_whole(llama: Path) -> None:
    """A model that gives other logits in parts is not taken apart: its states are its logits."""
    model = PlacedHead.from_pretrained(llama, torch_dtype=torch.float32).eval()
    split, tokens = SplitModel(model), torch.arange(6)[None]
    assert not split.is_split
    with torch.no_grad():
        states = split.run(input_ids=tokens, use_cache=False).states
        assert_near(split.logits(states), model(input_ids=tokens).logits, terms_of_pass(6))
    assert SplitModel(transformers.LlamaForCausalLM.from_pretrained(llama).eval()).is_split


def test_parts_cover_every_position_once() -> None:
    """Parts follow on each other, and hold a position at least, however large the vocabulary."""
    for count, rows, vocabulary in ((10, 1, 100), (10, 3, 100), (7, 2, 10**6)):
        parts = list(split_positions(count, rows, vocabulary, 400))
        assert [place for part in parts for place in range(part.start, part.stop)] == list(
            range(count)
        )
        assert all(
            (part.stop - part.start) * rows * vocabulary <= 400 or part.stop - part.start == 1
            for part in parts
        )


# Layers


def test_recomputed_activations_change_nothing(llama: Path) -> None:
    """With recomputation each layer runs twice in a step, and the gradient is the same."""
    results, counts = [], []
    for recompute in ("never", "always"):
        engine, seen = open_engine(llama, recompute), list[int]()
        engine._model.model.layers[0].mlp.register_forward_pre_hook(
            lambda *args, seen=seen: seen.append(1)
        )
        results.append(compute(engine))
        counts.append(len(seen))
        engine.forward_backward("a", make_data(9, loss_fn="ppo"), "ppo", {}, backward=False)
        assert len(seen) == counts[-1] + 1  # nothing is kept without a gradient
    assert counts[1] == 2 * counts[0]
    assert_same(*results)


def test_what_layers_keep_grows_with_their_size(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``auto`` recomputes what would fill more than half of the free memory, and nothing else."""
    engine = open_engine(llama)
    config, seen = engine._model.config, list[int]()
    assert estimate_bytes(config, 200) == 2 * estimate_bytes(config, 100) > 100 * 2 * 32 * 4
    engine._model.model.layers[0].mlp.register_forward_pre_hook(lambda *args: seen.append(1))
    counts, needed = [], estimate_bytes(config, 31)
    for free in (2 * needed, 2 * needed - 1):
        monkeypatch.setattr(
            "tinker.local.engines.torch.passes.free_bytes", lambda device, free=free: free
        )
        seen.clear()
        compute(engine, lengths=(31,))
        counts.append(len(seen))
    assert counts[1] == 2 * counts[0]


def test_layers_without_a_width_are_taken_for_four_times_their_states() -> None:
    """A config that gives no width of the MLP, or one for each layer, is estimated with the usual
    width.
    """
    sizes: list[dict[str, Any]] = [
        {"intermediate_size": 4 * 32},
        {},
        {"intermediate_size": [64, 48]},
    ]
    found = [
        estimate_bytes(
            transformers.PretrainedConfig(hidden_size=32, num_hidden_layers=2, **one), 100
        )
        for one in sizes
    ]
    assert found[1:] == [found[0]] * 2
    one = transformers.PretrainedConfig(hidden_size=32, num_hidden_layers=1)
    assert estimate_bytes(transformers.PretrainedConfig(hidden_size=32), 100) == estimate_bytes(
        one, 100
    )


# Memory that does not suffice


class TightMemory:
    """Lets a model's first layer fail above so many cells, as an allocation of that size does;
    counts how often it did.
    """

    def __init__(self, engine: TorchEngine, cells: int, error: Callable[[], Exception]) -> None:
        self.cells, self.failures, self._error = cells, 0, error
        engine._model.model.layers[0].register_forward_pre_hook(self._allocate)

    def _allocate(self, module: Any, args: tuple[Any, ...]) -> None:
        if args[0][..., 0].numel() > self.cells:
            self.failures += 1
            raise self._error()


ERRORS: dict[str, Callable[[], Exception]] = {
    "gpu": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    "cpu": lambda: RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"
    ),
}


@pytest.fixture(params=ERRORS)
def tight(
    llama: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Any, TightMemory]]:
    """Yield a training client of a server whose engine has memory for 64 cells, and that memory."""
    engine = TorchEngine(llama, device="cpu")
    memory = TightMemory(engine, 64, ERRORS[request.param])
    state = State(lambda: engine, Settings(data_dir=tmp_path))
    with (
        serve_in_thread(state) as url,
        tinker.ServiceClient(base_url=url, api_key="tml-test") as service,
    ):
        yield service.create_lora_training_client(base_model="llama", rank=4, seed=3), memory
    state.close()


def datum(length: int, seed: int = 0) -> tinker.Datum:
    tokens = [int(token) for token in np.random.default_rng(seed).integers(0, 256, length)]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens),
        loss_fn_inputs={"target_tokens": np.array(tokens), "weights": np.ones(length, np.float32)},
    )


def test_what_does_not_fit_is_tried_in_smaller_parts(tight: tuple[Any, TightMemory]) -> None:
    """A call that runs out of memory succeeds in smaller micro-batches; one as large begins with
    those; small ones do not.
    """
    training, memory = tight
    data = [datum(16, seed) for seed in range(8)]
    each = [
        training.forward([one], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
        for one in data
    ]
    for _ in range(2):
        result = training.forward_backward(data, "cross_entropy").result()
        assert memory.failures == 1
        for found, expected in zip(result.loss_fn_outputs, each, strict=True):
            assert_near(found["logprobs"].to_numpy(), expected, terms_of_pass(16))
    assert (
        training.optim_step(tinker.AdamParams(learning_rate=1e-3))
        .result()
        .metrics["grad_norm:mean"]
        > 0
    )


def test_what_does_not_fit_at_all_is_one_sentence_and_the_run_goes_on(
    tight: tuple[Any, TightMemory],
) -> None:
    """The client of a datum that is too long reads so; nothing of it reaches the next step, which
    works.
    """
    training, _ = tight
    with pytest.raises(
        tinker.TinkerError, match=r"out of memory on cpu, .* 100 tokens; send shorter ones"
    ):
        training.forward_backward([datum(100), datum(8)], "cross_entropy").result()
    assert (
        training.optim_step(tinker.AdamParams(learning_rate=1e-3))
        .result()
        .metrics["grad_norm:mean"]
        == 0.0
    )
    training.forward_backward([datum(8)], "cross_entropy").result()
    assert (
        training.optim_step(tinker.AdamParams(learning_rate=1e-3))
        .result()
        .metrics["grad_norm:mean"]
        > 0
    )


def test_other_errors_are_no_lack_of_memory() -> None:
    """What torch raises for other reasons is not tried again."""
    assert all(is_out_of_memory(make()) for make in ERRORS.values())
    assert is_out_of_memory(MemoryError())
    assert not is_out_of_memory(RuntimeError("shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


# Prompts in pieces


def prompts() -> list[SampleJob]:
    """Prompts of unlike lengths, two of them scored."""
    targets = PromptTargets(positions=np.array([1, 60, 89, 60]), tokens=np.array([5, 6, 7, 8]))
    more = {"topk_prompt_logprobs": 2, "prompt_targets": targets, "prompt_alternatives": 2}
    scored: dict[str, Any] = {"prompt_logprobs": True}
    options: list[dict[str, Any]] = [{}, scored, {**scored, **more}, {}]
    return [
        make_job(length, max_tokens=4, **chosen)
        for length, chosen in zip((100, 95, 90, 7), options, strict=True)
    ]


def flatten(result: SampleResult) -> list[Any]:
    topk, drawn = result.topk_prompt or (), result.alternatives or ()
    return [
        result.prompt_logprobs,
        result.target_logprobs,
        *topk,
        *drawn,
        *(one.logprobs for one in result.sequences),
    ]


def test_prompts_in_pieces_give_the_results_of_whole_ones(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of unlike lengths, their scores and their samples are the same in pieces of a few
    columns.
    """
    whole = sample_jobs(open_engine(llama), prompts())
    monkeypatch.setattr("tinker.local.engines.torch.sampling.PIECE_TOKENS", 32)
    engine = open_engine(llama)
    pieces = sample_jobs(engine, prompts())
    for one, other in zip(pieces, whole, strict=True):
        assert tokens_of(one) == tokens_of(other)
        for mine, theirs in zip(flatten(one), flatten(other), strict=True):
            if theirs is None:
                assert mine is None
            else:
                assert_near(mine, theirs, terms_of_pass(104))


def test_samples_that_run_take_turns_with_the_pieces(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step computes one piece of a long prompt, and draws a token of each sample that runs."""
    monkeypatch.setattr("tinker.local.engines.torch.sampling.PIECE_TOKENS", 20)
    batch = open_batch(open_engine(llama), 10_000)
    batch.add(
        "running",
        make_job(5, max_tokens=7),
    )
    batch.step()
    batch.add(
        "long",
        make_job(120, max_tokens=2),
    )
    ends = {ticket: step for step in range(2, 13) for ticket, _ in batch.step()}
    # three steps for others to come, and six pieces, of which the last draws a token
    assert ends == {"running": 7, "long": 11}
    assert batch.tally.passes == 7 + 6 + 1
    assert batch.tally.real == 5 + 6 + 120 + 1


def test_a_prompt_that_nobody_wants_is_not_computed_to_its_end(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropping a job between two pieces of its prompt stops there."""
    monkeypatch.setattr("tinker.local.engines.torch.sampling.PIECE_TOKENS", 20)
    batch = open_batch(open_engine(llama), 10_000)
    batch.add("long", make_job(120, max_tokens=2, prompt_logprobs=True))
    batch.step()
    batch.drop("long")
    assert batch.step() == []
    assert batch.tally.passes == 1


class NotingEngine(TorchEngine):
    """An engine that notes how many losses it is asked to compute in one pass."""

    def __init__(self, model: Path, **options: Any) -> None:
        super().__init__(model, device="cpu", **options)
        self.together: list[int] = []

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        self.together += [len(calls)] if calls else []
        super().expect_losses(calls)


@pytest.mark.parametrize("durability", ["save", "step"])
def test_runs_that_wait_share_a_pass(llama: Path, tmp_path: Path, durability: Durability) -> None:
    """Small losses of several runs that wait are one pass, unless a restarted server must repeat
    them; results are the same.
    """
    engine = NotingEngine(llama, share_passes=True)
    state = State(lambda: engine, Settings(data_dir=tmp_path, durability=durability))

    def wait_for_three(_: object) -> None:
        while state.futures.count_pending()["training"] < 3:
            time.sleep(0.001)

    with (
        serve_in_thread(state) as url,
        tinker.ServiceClient(base_url=url, api_key="tml-test") as service,
    ):
        clients = [
            service.create_lora_training_client(base_model="llama", rank=4, seed=seed)
            for seed in range(3)
        ]
        for client in clients:
            client.result(60)
        alone = [
            client.forward([datum(12, seed)], "cross_entropy").result(60).loss
            for seed, client in enumerate(clients)
        ]
        state._worker.submit_task(wait_for_three)
        futures = [
            client.forward_backward([datum(12, seed)], "cross_entropy")
            for seed, client in enumerate(clients)
        ]
        assert [future.result(60).loss for future in futures] == near(alone, terms_of_pass(12) + 12)
        norms = [client.optim_step(tinker.AdamParams()).result(60).metrics for client in clients]
    assert len({tuple(norm.items()) for norm in norms if norm}) == 3
    assert engine.together == ([3] if durability == "save" else [])
    state.close()
