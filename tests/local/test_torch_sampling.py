# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Samples that join and leave batches in the torch engine, measured in passes and cells, never in
time.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed)

import attrs
import torch
from support.engine_inputs import Heard, compute, fail_to_hear, finish, tokens_of
from support.tallied import PassTally, TalliedBatch, open_batch
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import assert_near, near, terms_of_gradient, terms_of_pass

from tinker.local.engines import read_resident
from tinker.local.engines.arrays import is_alike, split_batches
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    EngineError,
    SampleJob,
    TrainingExample,
)
from tinker.local.engines.torch import TorchEngine, sampling
from tinker.local.engines.torch import lora as mixture_module
from tinker.local.engines.torch.lora import MAX_RANK, SLACK, MemoryReturn, find_trim
from tinker.local.engines.torch.sampling import (
    NUCLEUS,
    SHORTEST,
    Prefixes,
    PrefixNode,
    RowStates,
    make_cache,
    truncate,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    """Return a tiny random Llama with two adapters that are no longer the base model."""
    engine = TorchEngine(
        write_tiny_llama(tmp_path_factory.mktemp("models") / "llama"), device="cpu"
    )
    for number, name in enumerate(("a", "b")):
        engine.create_adapter(
            name, AdapterSpec(rank=4 + 2 * number, seed=number, train_unembed=number == 0)
        )
        for _ in range(2):
            compute(engine, name, [repeat(prompt(20, seed=number))])
            engine.optim_step(name, Adam(learning_rate=0.02))
    return engine


@pytest.fixture
def engine(shared: TorchEngine) -> TorchEngine:
    """Return the shared engine, with an empty prefix cache."""
    shared._parts.prefixes = Prefixes()
    return shared


def repeat(tokens: Any) -> TrainingExample:
    return TrainingExample(tokens=tokens, loss_inputs={"target_tokens": tokens.astype(np.int64)})


def prompt(length: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, length).astype(np.int32)


def job(length: int = 6, **changes: Any) -> SampleJob:
    values = {"tokens": prompt(length), "weights": None, "max_tokens": 8, "seed": 5, "stop": []}
    return SampleJob(**{**values, **changes})


def spent(batch: TalliedBatch, before: PassTally) -> PassTally:
    """Return the passes and cells since ``before``."""
    now = batch.tally
    return PassTally(now.passes - before.passes, now.real - before.real, now.padded - before.padded)


def test_a_job_ends_at_its_own_last_token(engine: TorchEngine) -> None:
    """Each step draws one token of every job; a job is returned by the step that
    drew its last one.
    """
    batch = open_batch(engine, 1000)
    ends = {}
    for name, length in (("long", 7), ("short", 2)):
        batch.add(name, job(max_tokens=length))
    for number in range(1, 8):
        if number == 3:
            batch.add("late", job(9, max_tokens=3))
        ends |= {name: number for name, _ in batch.step()}
    assert ends == {"short": 2, "late": 5, "long": 7}
    assert (batch.tokens, batch._groups, batch._owners) == (0, [], {})


@pytest.fixture
def threads() -> Iterator[int]:
    """Let torch have two threads in a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def test_company_decides_no_number_of_threads(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """A pass below the limit runs in one thread, a larger one in all, samples in as many in any
    number of rows; other passes have all again, and results are equal.
    """
    seen, results = list[int](), list[Any]()
    engine._model.get_output_embeddings().register_forward_hook(
        lambda *_: seen.append(torch.get_num_threads())
    )
    for rows, limit, sampled, trained in (
        (1, 65, 1, 1),
        (100, 65, 1, threads),
        (1, 64, threads, 1),
        (100, 64, threads, threads),
    ):
        monkeypatch.setattr(mixture_module, "SMALL_PASS", limit * engine._model.num_parameters())
        seen.clear()
        (drawn,) = sample_jobs(engine, [job(6, num_samples=rows, max_tokens=3)])
        assert (set(seen), torch.get_num_threads()) == ({sampled}, threads)
        seen.clear()
        loss = compute(engine, "a", [repeat(prompt(6))] * rows).metrics["loss:sum"] / rows
        norm = engine.optim_step("a", Adam(learning_rate=0.0))["grad_norm:mean"] / rows
        assert (set(seen), torch.get_num_threads()) == ({trained}, threads)
        results.append([loss, norm, *drawn.sequences[0].tokens, *drawn.sequences[0].logprobs])
    for one in results[1:]:
        size = float(np.abs(one[-3:]).max())
        assert one == near(results[0], terms_of_gradient(9, 600), size)


def test_a_dropped_job_draws_no_further_token(engine: TorchEngine) -> None:
    """A dropped job frees its memory at once, the others continue, and an unknown
    name is ignored.
    """
    batch = open_batch(engine, 1000)
    batch.add("gone", job(max_tokens=50))
    batch.add("kept", job(9, max_tokens=3))
    batch.step()
    batch.drop("gone")
    batch.drop("nobody")
    assert [len(group.runs) for group in batch._groups] == [1]
    before = attrs.evolve(batch.tally)
    assert finish(batch, 1).keys() == {"kept"}
    assert spent(batch, before) == PassTally(passes=2, real=2, padded=2)


def test_equal_prompts_are_computed_once(engine: TorchEngine) -> None:
    """Sixteen requests of a prompt cost the passes and tokens of one request with sixteen samples,
    for any adapters.
    """
    one, many = open_batch(engine, 4000), open_batch(engine, 4000)
    one.add(0, job(50, num_samples=16, max_tokens=4))
    finish(one, 1)
    engine._parts.prefixes = Prefixes()
    for number in range(16):
        many.add(number, job(50, seed=number, max_tokens=4))
    finish(many, 16)
    assert many.tally == one.tally == PassTally(passes=4, real=50 + 3 * 16, padded=50 + 3 * 16)


def test_equal_prompts_that_come_one_by_one_share_passes(engine: TorchEngine) -> None:
    """A cached prompt draws its first token in the pass of the samples that run; tokens are those
    of requests alone.
    """
    jobs = [job(50, seed=number, max_tokens=12) for number in range(8)]
    alone = [tokens_of(sample_jobs(engine, [one])[0]) for one in jobs]
    engine._parts.prefixes = Prefixes()
    batch, done = open_batch(engine, 4000), dict[Any, Any]()
    for number, one in enumerate(jobs):
        batch.add(number, one)
        done.update(batch.step())
    done.update(finish(batch, 8))
    assert [tokens_of(done[number]) for number in range(8)] == alone
    assert batch.tally == PassTally(passes=12 + 8, real=50 + 11 + 7 * 12, padded=50 + 11 + 7 * 12)


def test_prompts_one_step_apart_share_passes(engine: TorchEngine) -> None:
    """While rows draw, prompts that come with every step are computed four at a time, and the first
    of them at once.
    """
    batch, ended = open_batch(engine, 4000), dict[object, int]()
    for number in range(1, 29):
        if number <= 9:
            batch.add(number, job(12, tokens=prompt(12, seed=number), max_tokens=20))
        ended |= {ticket: number for ticket, _ in batch.step()}
    assert ended == {
        ticket: 19 + began for ticket, began in enumerate((1, 5, 5, 5, 5, 9, 9, 9, 9), 1)
    }
    assert batch.tally == PassTally(passes=3 + 27, real=9 * (12 + 19), padded=9 * (12 + 19))


def test_the_next_turn_begins_where_the_last_one_ended(engine: TorchEngine) -> None:
    """Only new tokens of a conversation are computed, all with other weights; results are those of
    a fresh start.
    """
    batch = open_batch(engine, 4000)
    batch.add(0, job(40))
    first = finish(batch, 1)[0].sequences[0].tokens
    turn = np.concatenate([prompt(40), first, prompt(5, seed=3)])
    for weights, computed in ((None, 6), (engine.snapshot("a"), 53)):
        before = attrs.evolve(batch.tally)
        batch.add(1, job(tokens=turn, weights=weights, max_tokens=1))
        done = finish(batch, 1)[1]
        assert spent(batch, before).real == computed
        engine._parts.prefixes = Prefixes()
        assert tokens_of(done) == tokens_of(
            sample_jobs(engine, [job(tokens=turn, weights=weights, max_tokens=1)])[0]
        )
        engine._parts.prefixes = Prefixes()


@pytest.mark.parametrize(
    ("layer", "groups"), [(0, 2), (sampling.LAYER_NUMBERS, 1)], ids=["large model", "small model"]
)
def test_rows_of_unlike_lengths(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch, layer: int, groups: int
) -> None:
    """Four fifths of all cells of prompts are tokens, and of rows too, except where a pass costs
    more than the padding.
    """
    monkeypatch.setattr(sampling, "LAYER_NUMBERS", layer)
    batch = open_batch(engine, 4000)
    for number in range(12):
        batch.add(number, job(4, seed=number, tokens=prompt(4, seed=number)))
    batch.add("long", job(110))
    batch.step()
    batch.step()
    assert batch.tally.real >= 0.8 * batch.tally.padded
    assert len(batch._groups) == groups
    assert groups == 1 or sum(group.mask.numel() for group in batch._groups) <= (12 * 6 + 112) / 0.8


def test_rows_of_like_lengths_come_together(engine: TorchEngine) -> None:
    """Rows of similar length share one pass for each token, although they began at different times
    and under two adapters.
    """
    batch = open_batch(engine, 4000)
    for number, weights in enumerate((None, engine.snapshot("a"), engine.snapshot("b"))):
        batch.add(number, job(weights=weights, max_tokens=20))
        for _ in range(1 + sampling.PATIENCE):
            batch.step()
    before = attrs.evolve(batch.tally)
    batch.step()
    assert spent(batch, before) == PassTally(passes=1, real=3, padded=3)


def test_too_large_adapters_go_apart(engine: TorchEngine) -> None:
    """Adapters whose ranks are too large for one pass get a pass each."""
    engine.create_adapter("c", AdapterSpec(rank=MAX_RANK, seed=3))
    batch = open_batch(engine, 4000)
    batch.add(0, job(weights=engine.snapshot("c")))
    batch.add(1, job(weights=engine.snapshot("a")))
    engine.drop_adapter("c")
    finish(batch, 2)
    assert batch.tally.passes == 1 + 1 + 7 + 7


def test_when_there_is_no_room_the_newest_waits(engine: TorchEngine) -> None:
    """As samples grow beyond the limit the newest is put back, and continues later with the same
    tokens.
    """
    jobs = [
        job(20, max_tokens=90, seed=number, tokens=prompt(20, seed=number)) for number in range(3)
    ]
    alone = [tokens_of(sample_jobs(engine, [one])[0]) for one in jobs]
    engine._parts.prefixes = Prefixes()
    batch, most, rows = open_batch(engine, 270), 0, set[int]()
    for number, one in enumerate(jobs):
        batch.add(number, one)
    done: dict[Any, Any] = {}
    while len(done) < 3:
        done.update(batch.step())
        held = [run.length for group in batch._groups for run in group.runs]
        most, rows = max(most, sum(held)), rows | {len(held)}
    assert [tokens_of(done[number]) for number in range(3)] == alone
    assert most <= 270
    assert rows >= {1, 2, 3}


def test_the_room_is_used_to_the_last_token(engine: TorchEngine) -> None:
    """Samples begin together, and go on together, as long as they fit; those that fill the room
    exactly do.
    """
    for missing in (0, 1):
        batch, lengths = open_batch(engine, 2 * (6 + sampling.SLACK) - missing), [[6, 6]]
        for seed in range(2):
            batch.add(seed, job(seed=seed, max_tokens=sampling.SLACK + 9))
        while len(lengths[-1]) == 2:
            batch.step()
            lengths.append([run.length for group in batch._groups for run in group.runs])
        full = 6 + sampling.SLACK
        assert lengths[-2:] == ([[6, 6], [7]] if missing else [[full, full], [full + 1]])


def test_the_failure_of_one_job_is_its_own(engine: TorchEngine) -> None:
    """A failing listener, and weights that overflow, end one job; the others in the
    pass continue.
    """

    broken: Any = engine.snapshot("a")
    with torch.no_grad():
        for tensor in broken.tensors.values():
            tensor.fill_(1e30)
    batch = open_batch(engine, 1000)
    batch.add("deaf", job(listener=Heard(fail_to_hear)))
    batch.add("diverged", job(weights=broken))
    batch.add("good", job())
    done = finish(batch, 3)
    assert str(done["deaf"]) == "not for me"
    assert "training has diverged" in str(done["diverged"])
    assert tokens_of(done["good"]) == tokens_of(sample_jobs(engine, [job()])[0])
    for tensor in broken.tensors.values():
        tensor.data.fill_(float("nan"))
    engine._finite.clear()
    with pytest.raises(EngineError, match="training has diverged"):
        batch.add("not a number", job(weights=broken))


def test_a_model_that_mixes_up_rows_computes_one_adapter_at_a_time(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an adapter sees inputs without rows, as experts do, adapters are computed separately,
    as each would be alone.
    """
    jobs = [job(weights=engine.snapshot(name), num_samples=2) for name in ("a", "b")]
    alone = [tokens_of(sample_jobs(engine, [one])[0]) for one in jobs]
    engine._parts.prefixes = Prefixes()
    module: Any = engine._model.get_submodule("model.layers.1.mlp")
    plain = type(module).forward

    def flatten(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self is not module:
            return plain(self, x)
        padded = torch.cat([x.reshape(-1, x.shape[-1]), x.new_zeros(1, x.shape[-1])])
        return plain(self, padded)[:-1].reshape(x.shape)

    monkeypatch.setattr(type(module), "forward", flatten)
    assert [tokens_of(result) for result in sample_jobs(engine, jobs)] == alone
    assert engine._parts.is_apart
    batch = open_batch(engine, 1000)
    for number, one in enumerate([*jobs, *jobs]):
        batch.add(
            number,
            attrs.evolve(one, tokens=prompt(6, seed=number + 1), num_samples=1, max_tokens=1),
        )
    finish(batch, 4)
    assert batch.tally.passes == 2  # one for each adapter, whatever the order of the prompts
    engine._parts.is_apart = False


def test_scores_of_a_prompt_take_no_second_pass(engine: TorchEngine) -> None:
    """The pass that computes a prompt also scores it, once for all requests; without samples it is
    the only pass.
    """
    batch = open_batch(engine, 1000)
    for number in range(2):
        batch.add(number, job(20, max_tokens=1, prompt_logprobs=True, topk_prompt_logprobs=number))
    done = finish(batch, 2)
    assert batch.tally == PassTally(passes=1, real=20, padded=20)
    assert_near(done[0].prompt_logprobs, done[1].prompt_logprobs, terms_of_pass(20))
    batch.add(2, job(20, max_tokens=0, prompt_logprobs=True))
    assert_near(finish(batch, 1)[2].prompt_logprobs, done[0].prompt_logprobs, terms_of_pass(20))
    assert batch.tally.passes == 2
    assert batch._groups == []


# Beginnings that are remembered


def states(tokens: Any) -> Any:
    """Keys and values of two layers, which identify their tokens."""
    keys = torch.from_numpy(np.asarray(tokens)).float()[None, :, None].repeat(2, 1, 3)
    return RowStates([(keys, -keys), (keys + 0.5, -keys)])


def remember(prefixes: Prefixes, weights: Any, tokens: Any) -> list[tuple[int, int]]:
    """Add a sequence; return the ranges that were read."""
    read: list[tuple[int, int]] = []

    def read_states(start: int, end: int) -> Any:
        read.append((start, end))
        return states(tokens[start:end])

    prefixes.add(weights, tokens, read_states)
    return read


def test_the_longest_known_beginning_is_found() -> None:
    """Sequences share their common prefix; only the rest is read, and short ones are not kept."""
    prefixes = Prefixes()
    first = prompt(60)
    second = np.concatenate([first[:45], prompt(20, seed=1)])
    assert remember(prefixes, None, first) == [(0, 60)]
    assert remember(prefixes, None, second) == [(45, 65)]
    assert remember(prefixes, None, first[:50]) == []
    assert remember(prefixes, None, prompt(SHORTEST - 1, seed=2)) == []
    for tokens, length in (
        (first, 60),
        (second, 65),
        (np.concatenate([second[:50], first]), 50),
        (first[:SHORTEST], SHORTEST),
    ):
        count, found = prefixes.find(None, tokens)
        assert count == length
        for pair, expected in zip(found.columns, states(tokens[:length]).columns, strict=True):
            assert all(
                torch.equal(ours, theirs) for ours, theirs in zip(pair, expected, strict=True)
            )
    assert prefixes.find(None, first[: SHORTEST - 1])[0] == 0
    assert prefixes.find(None, prompt(60, seed=9))[0] == 0


def test_a_whole_beginning_ends_where_its_end_was_kept() -> None:
    """States that cannot be cut serve only sequences that begin with all of their tokens; each is
    kept once, and counted.
    """
    prefixes, long, fork = Prefixes(), prompt(60), np.concatenate([prompt(45), prompt(20, seed=1)])
    for tokens in (long, fork, long[:40], long[:40], long):
        end = [torch.full((3,), float(len(tokens)))]
        prefixes.add(
            None,
            tokens,
            lambda start, stop, tokens=tokens, end=end: kept(tokens[start:stop], end),
            whole=True,
        )
    columns = states(np.concatenate([long, fork[45:]])).nbytes
    assert prefixes.nbytes == columns + 3 * end[0].nbytes
    for tokens, length in (
        (long[:44], 40),
        (fork[:50], 40),
        (fork, 65),
        (np.concatenate([long, fork]), 60),
        (long[:39], 0),
    ):
        count, found = prefixes.find(None, tokens, whole=True)
        assert count == length
        if length:
            assert torch.equal(found.columns[0][0], states(tokens[:length]).columns[0][0])
            assert found.end is not None
            assert found.end[0].tolist() == [length] * 3


def kept(tokens: Any, end: Any) -> RowStates:
    return RowStates(states(tokens).columns, end)


def test_a_model_that_cannot_continue_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a prompt in two parts, with kept states between them, gives other logits, prompts are
    computed again.
    """
    forget = {
        "make_cache": lambda config, rows, length: make_cache(
            config, [RowStates(rows[0].columns[:1] * 2)], length
        )
    }
    for broken in ({}, forget):
        for name, value in broken.items():
            monkeypatch.setattr(sampling, name, value)
        engine = TorchEngine(write_tiny_llama(tmp_path / f"{len(broken)}"), device="cpu")
        batch = open_batch(engine, 1000)
        for number in range(2):
            batch.add(number, job(50, max_tokens=1))
            finish(batch, 1)
        assert batch.tally.real == (100 if broken else 51)


def test_what_was_used_the_longest_ago_is_forgotten(engine: TorchEngine) -> None:
    """The least recently used prefixes are dropped at the limit, and those of a snapshot with their
    weights.
    """
    one = states(prompt(40)).nbytes
    prefixes = Prefixes(3 * one)
    for seed in range(3):
        remember(prefixes, None, prompt(40, seed=seed))
    prefixes.find(None, prompt(40, seed=0))
    snapshot: Any = engine.snapshot("a")
    remember(prefixes, snapshot, prompt(40, seed=0))
    assert [prefixes.find(None, prompt(40, seed=seed))[0] for seed in range(3)] == [40, 0, 40]
    assert prefixes.find(snapshot, prompt(40, seed=0))[0] == 40
    assert prefixes.nbytes == 3 * one
    del snapshot
    assert prefixes.nbytes == 2 * one


def test_beginnings_take_256_mb_at_most() -> None:
    """The cache of an engine keeps as many bytes as the page about the local server says."""
    prefixes = Prefixes()
    for seed in range(3):
        prefixes.add(
            None,
            prompt(64, seed=seed),
            lambda start, end: RowStates([(torch.empty(1, end - start, 1 << 19, device="meta"),)]),
        )
    assert prefixes.nbytes == 256 << 20  # two of the three


class CountedNode(PrefixNode):
    """A node that counts how often any node's fields are read."""

    reads = 0

    def __getattribute__(self, name: str) -> Any:
        CountedNode.reads += 1
        return super().__getattribute__(name)


def test_remembering_costs_the_same_however_much_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over 5,000 samples of groups of eight, before and after the limit is reached, each reads a
    few nodes only.
    """
    monkeypatch.setattr(sampling, "PrefixNode", CountedNode)
    prefixes, names = Prefixes(1000 * 8 * 2), np.arange(5000 + 40)
    for number in range(5000):
        tokens = np.concatenate([names[number // 8 :][:SHORTEST], names[number:][:8]])
        CountedNode.reads = 0
        prefixes.add(
            None,
            tokens,
            lambda start, end: RowStates(
                [(torch.empty(1, 0, 1), torch.empty(1, end - start, 1, dtype=torch.int8))]
            ),
        )
        assert CountedNode.reads < 200, number
    assert prefixes.nbytes <= 1000 * 8 * 2
    assert prefixes.find(None, tokens)[0] == len(tokens)


# Like lengths


def test_batches_hold_little_padding() -> None:
    """Every batch has four fifths real cells or next to no padding, stays within its cells, and
    every row is in one.
    """
    rng = np.random.default_rng(0)
    for _ in range(20):
        lengths = rng.integers(1, 2000, 40).tolist()
        batches = list(split_batches(lengths, 5000))
        assert sorted(index for batch in batches for index in batch) == list(range(40))
        for batch in batches:
            chosen = [lengths[index] for index in batch]
            assert is_alike(chosen)
            assert len(batch) == 1 or len(chosen) * max(chosen) <= 5000
    assert list(split_batches([16] * 7 + [1024], 8192)) == [list(range(7)), [7]]
    assert list(split_batches([3, 10, 7], 8192)) == [[0, 2, 1]]


def test_training_computes_little_padding(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven short data and a long one in a call: two passes, none of them padded."""
    shapes: list[tuple[int, ...]] = []
    embedding = engine._model.get_input_embeddings()
    hook = embedding.register_forward_pre_hook(
        lambda module, args: shapes.append(tuple(args[0].shape))
    )
    data = [repeat(prompt(n)) for n in (*[8] * 7, 120)]
    compute(engine, "a", data, backward=False)
    hook.remove()
    assert shapes == [(7, 8), (1, 120)]


def test_free_memory_is_given_back_when_the_process_has_grown() -> None:
    """Memory is returned after the first step, and after growth beyond the reserve of the next one,
    and not otherwise.
    """
    resident, trimmed = [1 << 30], list[int]()

    def trim(padding: int) -> None:
        trimmed.append(resident[0])
        resident[0] = 1 << 30

    memory = MemoryReturn(trim, lambda: resident[0])
    first, kept = 1 << 30, (1 << 30) + 3 * SLACK
    for now in (first, kept, kept, kept + SLACK, kept + SLACK + 1, kept, kept, kept + SLACK + 1):
        resident[0] = now
        memory.count_step()
    assert trimmed == [first, kept + SLACK + 1, kept + SLACK + 1]
    MemoryReturn(None).count_step()
    found = find_trim()
    assert (found is not None) == (platform.libc_ver()[0] == "glibc")
    assert found is None or found(0) in (0, 1)
    assert found is None or (read_resident() or 0) > 1 << 20


# Truncation


def reference(logits: torch.Tensor, one: SampleJob) -> list[int]:
    """Return the ids that top_k and then top_p keep, by sorting everything."""
    probabilities = torch.softmax(logits.double() / one.temperature, dim=-1)
    values, order = probabilities.sort(descending=True, stable=True)
    if one.top_k >= 1:
        values, order = values[: one.top_k], order[: one.top_k]
    before = values.cumsum(0) - values
    return sorted(order[before < (one.top_p if one.top_p < 1 else 9) * values.sum()].tolist())


@pytest.mark.parametrize("kind", ["random", "coarse", "flat"])
def test_truncation_equals_a_full_sort(kind: str) -> None:
    """Truncation equals a full sort, also with many equal logits and a nucleus of thousands of
    tokens, which is flagged.
    """
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 5000, generator=generator) * (0.01 if kind == "flat" else 3)
    logits = (logits > 0).float() if kind == "coarse" else logits
    # 0.91 of 50 equal probabilities lies between two of them, so that rounding decides nothing
    jobs = [
        job(top_k=k, top_p=p, temperature=t)
        for k, p, t in [(50, 1.0, 1.0), (50, 0.91, 0.7), (-1, 0.9, 1.0), (1, 1.0, 2.0)]
    ]
    jobs += [job(top_k=4999, top_p=1.0), job(top_k=9000, top_p=0.99)]
    ids, weights, is_sure = truncate(logits, jobs)
    whole = truncate(logits, jobs, 5000)
    assert whole[2].all()
    for row, one in enumerate(jobs):
        expected = reference(logits[row], one)
        assert whole[0][row][whole[1][row] > 0].tolist() == expected
        if is_sure[row]:
            assert ids[row][weights[row] > 0].tolist() == expected
    narrow = truncate(logits[:4], jobs[:4])
    assert narrow[0].shape[1] == max(NUCLEUS, 50 + 128)
    assert (
        narrow[2].tolist()
        == {"random": [True] * 4, "coarse": [False] * 4, "flat": [True, True, False, True]}[kind]
    )


def test_truncation_keeps_the_crossing_token() -> None:
    """top_p keeps tokens until the mass reaches p, the one that crosses included; top_k counts; 1.0
    and -1 keep all.
    """
    logits = torch.tensor([[0.1, 0.5, 0.15, 0.25]]).log()

    def kept(**changes: Any) -> list[int]:
        ids, weights, is_sure = truncate(logits, [job(1, **changes)])
        assert is_sure.all()
        return ids[weights > 0].tolist()

    assert kept() == [0, 1, 2, 3]
    assert kept(top_p=0.5) == [1]
    assert kept(top_p=0.51) == [1, 3]
    assert kept(top_k=3) == [1, 2, 3]
    assert kept(top_k=3, top_p=0.8) == [1, 3]
    assert kept(top_p=1e-9) == [1]
    assert kept(top_p=0.0) == [1]
