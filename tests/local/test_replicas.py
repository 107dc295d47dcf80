# ruff: noqa: E402 (the modules are optional, so their absence skips before the imports)
"""Two processes that train and sample one model: equal to one process, also while
they are killed.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import httpx
import numpy as np
import pytest

for needed in ("torch", "transformers", "peft", "ray"):
    pytest.importorskip(needed)

import ray
import torch
from safetensors.torch import load as load_tensors
from support.engine_inputs import Heard, make_datum, make_job, tokens_of
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import assert_near, near, terms_of_gradient, terms_of_pass
from transformers.modeling_layers import GradientCheckpointingLayer

import tinker
from tinker.local import Settings, running_server
from tinker.local.engines import Placement, open_engine
from tinker.local.engines.protocol import (
    LOSSES,
    Adam,
    AdapterSpec,
    EngineError,
    LossResult,
    SampleJob,
    SampleResult,
    TrainingExample,
)
from tinker.local.engines.replicas import (
    AdapterState,
    HeardToken,
    NewJob,
    SampleTurn,
    SampleTurnResult,
    WorkersLost,
)
from tinker.local.engines.replicas.engine import (
    ReplicatedBatch,
    ReplicatedEngine,
    StepsLost,
    WorkerCall,
)
from tinker.local.engines.replicas.shards import Shards, find_layers
from tinker.local.engines.replicas.worker import ReplicaWorker
from tinker.local.engines.torch import TorchEngine

WEIGHTS = "adapter_model.safetensors"
# a step as long as the gradient, and no more uncertain than that
STEP = Adam(learning_rate=1.0, eps=1.0, grad_clip_norm=0.5)
SPEC = AdapterSpec(rank=4, seed=3)
TICKETS = ["a", "b", "c", "d", "e"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "llama")


@pytest.fixture(scope="module")
def one(source: Path) -> TorchEngine:
    """Return the engine in this process."""
    return TorchEngine(source, device="cpu")


@pytest.fixture(scope="module", params=["whole", pytest.param("split", marks=pytest.mark.soak)])
def two(source: Path, request: pytest.FixtureRequest) -> Iterator[ReplicatedEngine]:
    """Yield the engine of two processes, each of which has the whole model, or a part of each
    layer; Ray ends with it.
    """
    engine = open_engine(
        "torch", str(source), Placement(device="cpu", replicas=2, fsdp=request.param == "split")
    )
    assert isinstance(engine, ReplicatedEngine)
    yield engine
    engine.close()
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def alone(source: Path, request: pytest.FixtureRequest) -> Iterator[ReplicaWorker]:
    """Yield a worker in this process, which is a group of its own."""
    is_split = getattr(request, "param", "whole") == "split"
    worker = ReplicaWorker(str(source), Placement(device="cpu", replicas=2, fsdp=is_split), 1)
    worker.join(0, 1, "127.0.0.1", worker.meet("127.0.0.1"))
    yield worker
    worker.leave()


def examples(count: int, loss: str = "ppo", seed: int = 0) -> list[TrainingExample]:
    """Return data of unlike lengths for a loss, whose ratios are near 1."""
    rng = np.random.default_rng(seed)
    near_now = {} if loss == "cross_entropy" else {"logprobs": rng.normal(-5.5, 0.1, 60)}
    return [
        make_datum(length, loss, seed, **{key: one[:length] for key, one in near_now.items()})
        for length in rng.integers(1, 60, count).tolist()
    ]


def job(seed: int, weights: object = None, **options: Any) -> SampleJob:
    given = {"tokens": np.array([5 + seed, 6, 7], np.int32), "num_samples": 2, "stop": None}
    return make_job(**{**given, "weights": weights, "seed": seed, **options})


def until(last: int) -> Heard:
    """Return a listener that wants no more once it has heard the last token."""
    return Heard(lambda heard: heard.tokens[0][-1] != last)


def states(engine: ReplicatedEngine, adapter_id: str) -> list[AdapterState]:
    """Return an adapter as each process has it."""
    return engine.workers.call_all("pack", adapter_id)


def assert_same_weights(one: TorchEngine, two: ReplicatedEngine, adapter_id: str) -> None:
    """Assert that the weights of the engines are equal but for rounding, and those of the processes
    bit by bit.
    """
    first, second = (load_tensors(state.files[WEIGHTS]) for state in states(two, adapter_id))
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name, mine in one._adapters[adapter_id].weights.tensors.items():
        assert_near(first[f"base_model.model.{name}"], mine, terms_of_gradient(60, 400), name=name)


def size_of_terms(data: Sequence[TrainingExample], outputs: Sequence[Mapping[str, Any]]) -> float:
    """Return a bound of the sum of what a token adds to a metric, whatever the loss and the sign:
    they cancel in the sum.
    """
    size = 0.0
    for datum, output in zip(data, outputs, strict=True):
        now = np.asarray(output["logprobs"], np.float64)
        then, factors = (
            datum.loss_inputs.get("logprobs", now),
            np.abs(datum.loss_inputs.get("advantages", np.ones(1))),
        )
        size += float(
            (
                np.maximum(1, np.exp(now - then))
                * np.maximum(1, np.abs(now))
                * np.maximum(1, factors)
            ).sum()
        )
    return size


def both(one: TorchEngine, two: ReplicatedEngine, do: Callable[[Any], Any]) -> tuple[Any, Any]:
    return do(one), do(two)


def near_metrics(result: LossResult, data: Sequence[TrainingExample]) -> Any:
    """Return what equals the metrics of these data but for rounding."""
    terms = terms_of_pass(60) + sum(len(one.tokens) for one in data)
    return near(result.metrics, terms, size_of_terms(data, result.outputs))


def take_step(
    one: TorchEngine,
    two: ReplicatedEngine,
    adapter_id: str,
    data: Sequence[TrainingExample],
    loss: str,
) -> None:
    """Train both engines on the same data, and compare what they return."""
    options: Mapping[str, float] = {}
    mine, theirs = both(
        one,
        two,
        lambda engine: engine.forward_backward(adapter_id, data, loss, options, backward=True),
    )
    assert theirs.metrics == near_metrics(mine, data)
    for left, right in zip(mine.outputs, theirs.outputs, strict=True):
        assert_near(right["logprobs"], left["logprobs"], terms_of_pass(60))
    mine, theirs = both(one, two, lambda engine: engine.optim_step(adapter_id, STEP))
    assert theirs == near(mine, terms_of_gradient(60, sum(len(one.tokens) for one in data)))


def kill(engine: ReplicatedEngine, rank: int) -> None:
    os.kill(engine.workers.call_one(rank, "describe").pid, signal.SIGKILL)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(name, marks=pytest.mark.numeric if name == "ppo" else ())
        for name in sorted(LOSSES)
    ],
)
def test_training_is_equal_to_that_of_one_process(
    one: TorchEngine, two: ReplicatedEngine, loss: str
) -> None:
    """Outputs, metrics, gradient norms and weights are those of one process, also where a process
    has no data.
    """
    both(one, two, lambda engine: engine.create_adapter(loss, SPEC))
    for step, count in enumerate((12, 1, 7, 2, 5)):
        take_step(one, two, loss, examples(count, loss, seed=step), loss)
    assert_same_weights(one, two, loss)


def test_steps_with_the_default_eps_differ_in_few_weights(
    one: TorchEngine, two: ReplicatedEngine
) -> None:
    """A gradient of nearly zero may change its sign with the order of a sum: its weight is off by
    whole steps, and few are.

    Adam divides each gradient by its own size, however small that is. With betas of 0.9 and 0.95
    none of the first five steps is longer than 1.003 learning rates (Cauchy and Schwarz, for the
    two averages).
    """
    both(one, two, lambda engine: engine.create_adapter("default", SPEC))
    params, steps = Adam(learning_rate=1e-3, grad_clip_norm=0.5), 5
    for step in range(steps):
        data = examples(12, seed=step)
        both(
            one,
            two,
            lambda engine, data=data: engine.forward_backward(
                "default", data, "ppo", {}, backward=True
            ),
        )
        both(one, two, lambda engine: engine.optim_step("default", params))
    theirs = load_tensors(states(two, "default")[0].files[WEIGHTS])
    named = one._adapters["default"].weights.tensors
    pairs = ((theirs[f"base_model.model.{name}"], mine.detach()) for name, mine in named.items())
    apart = torch.cat([(first - second).abs().flatten() for first, second in pairs])
    assert float(apart.max()) <= 2 * steps * params.learning_rate * 1.003
    assert float((apart > 1e-5).double().mean()) < 1e-3


def test_a_refused_datum_changes_no_gradient(one: TorchEngine, two: ReplicatedEngine) -> None:
    """A loss that is not finite names the datum, and nothing of its request is in the gradient of
    any process.
    """
    both(one, two, lambda engine: engine.create_adapter("refused", SPEC))
    data = examples(6, seed=9)
    inputs = {**data[4].loss_inputs, "logprobs": np.full(len(data[4].tokens), -1e30, np.float32)}
    wrong = [*data[:4], attrs.evolve(data[4], loss_inputs=inputs), data[5]]
    for engine in (one, two):
        engine.forward_backward("refused", data, "ppo", {}, backward=True)
        with pytest.raises(EngineError, match=r"^data\[4\]: "):
            engine.forward_backward("refused", wrong, "ppo", {}, backward=True)
        bare = attrs.evolve(
            data[5], loss_inputs={"target_tokens": data[5].loss_inputs["target_tokens"]}
        )
        with pytest.raises(EngineError, match=r"^data\[5\]: .* is missing advantages"):
            engine.forward_backward("refused", [*data[:5], bare], "ppo", {}, backward=True)
    take_step(one, two, "refused", examples(3), "ppo")


def test_a_loss_alone_adds_nothing_to_the_gradient(one: TorchEngine, two: ReplicatedEngine) -> None:
    """A loss without its gradient is that of one process, also where a process has no data, and the
    next step is too.
    """
    both(one, two, lambda engine: engine.create_adapter("loss", SPEC))
    take_step(one, two, "loss", examples(4), "ppo")
    for count in (1, 5):
        data = examples(count, seed=count)
        mine, theirs = both(
            one,
            two,
            lambda engine: engine.forward_backward("loss", data, "ppo", {}, backward=False),  # noqa: B023
        )
        assert theirs.metrics == near_metrics(mine, data)
    assert two.optim_step("loss", STEP) == {"grad_norm:mean": 0.0}


def test_workers_leave_the_cores_to_others(two: ReplicatedEngine) -> None:
    """Workers reserve no core at Ray, so that a machine has room for more of them than it has
    cores.
    """
    assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]


def test_a_step_that_was_taken_is_not_taken_again(two: ReplicatedEngine) -> None:
    """A step during which a worker is lost is that of the others, on the new one too, and its
    gradient is used once.
    """
    two.create_adapter("begun", SPEC)
    two.forward_backward("begun", examples(4), "ppo", {}, backward=True)
    metrics = two.workers.call_all("take_step", "begun", 1, STEP)[0]
    taken = states(two, "begun")[0].files[WEIGHTS]
    two.workers.call_one(0, "drop_adapter", "begun")  # a new worker has none
    two.repair(WorkersLost("it was killed"))
    assert two.optim_step("begun", STEP) == metrics
    assert [state.files[WEIGHTS] for state in states(two, "begun")] == [taken, taken]
    assert two.optim_step("begun", STEP) == {"grad_norm:mean": 0.0}


def test_samples_are_those_of_one_process(
    one: TorchEngine, two: ReplicatedEngine, tmp_path: Path
) -> None:
    """The same seeds draw the same tokens from the base model, a snapshot and saved weights,
    wherever they are sampled.
    """
    both(one, two, lambda engine: engine.create_adapter("sampled", SPEC))
    for seed in range(3):
        take_step(one, two, "sampled", examples(6, seed=seed), "ppo")
    two.save("sampled", tmp_path, optimizer=False)

    def draw(engine: Any) -> list[list[list[int]]]:
        weights = [None, engine.snapshot("sampled"), engine.load_snapshot(tmp_path)]
        jobs = [job(seed, weights[seed % 3]) for seed in range(9)]
        return list(map(tokens_of, sample_jobs(engine, jobs)))

    mine, theirs = both(one, two, draw)
    assert mine == theirs


def test_a_wrong_job_is_refused_alone(two: ReplicatedEngine) -> None:
    """A job that no process could sample is refused when it is added, one with
    foreign weights too.
    """
    batch = two.open_batch(1000)
    with pytest.raises(EngineError, match="context length"):
        batch.add(0, job(0, max_tokens=1000))
    with pytest.raises(EngineError, match="do not come from this engine"):
        batch.add(0, job(0, weights=object()))
    assert batch.step() == []


def test_weights_are_forgotten_with_their_last_reference(two: ReplicatedEngine) -> None:
    """Processes forget a snapshot when the next one is taken and nothing refers to it."""
    two.create_adapter("frozen", SPEC)
    numbers = [two.snapshot("frozen").number for _ in range(3)]
    kept = two.snapshot("frozen")
    for held in two.workers.call_all("find_held"):
        assert not set(numbers) & held.frozen
        assert kept.number in held.frozen


def test_adapters_are_saved_and_loaded(
    one: TorchEngine, two: ReplicatedEngine, tmp_path: Path
) -> None:
    """What one engine saves the other loads, with its optimizer, and goes on equally; PEFT files
    are imported alike.
    """
    both(one, two, lambda engine: engine.create_adapter("saved", SPEC))
    take_step(one, two, "saved", examples(5), "ppo")
    for name in ("a", "b", "c", "d"):
        (tmp_path / name).mkdir()
    one.save("saved", tmp_path / "a", optimizer=True)
    two.save("saved", tmp_path / "b", optimizer=True)
    both(
        one,
        two,
        lambda engine: engine.load(
            "loaded", tmp_path / ("b" if engine is one else "a"), optimizer=True
        ),
    )
    take_step(one, two, "loaded", examples(4, seed=4), "ppo")
    assert_same_weights(one, two, "loaded")
    for engine, name in ((one, "c"), (two, "d")):
        engine.import_adapter(tmp_path / "a", SPEC, tmp_path / name)
    assert (tmp_path / "c" / WEIGHTS).read_bytes() == (tmp_path / "d" / WEIGHTS).read_bytes()
    (tmp_path / "a" / WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(EngineError, match="damaged"):
        two.load("loaded", tmp_path / "a", optimizer=True)
    two.drop_adapter("loaded")
    with pytest.raises(EngineError, match="no adapter 'loaded'"):
        two.optim_step("loaded", STEP)


@pytest.mark.soak
def test_work_goes_on_when_a_process_is_killed(one: TorchEngine, two: ReplicatedEngine) -> None:
    """A gradient, a step, a snapshot and a sample that is being heard are as they would be if no
    process had been killed.
    """
    both(one, two, lambda engine: engine.create_adapter("killed", SPEC))
    data = examples(6, seed=1)
    for rank in (0, 1):
        both(
            one,
            two,
            lambda engine: engine.forward_backward("killed", data, "ppo", {}, backward=True),
        )
        kill(two, rank)
        take_step(one, two, "killed", examples(4, seed=2), "ppo")
    assert_same_weights(one, two, "killed")

    killed = list[int]()

    def kill_after_three(heard: Heard) -> bool:
        if len(heard.tokens[0]) == 3 and not killed:
            killed.append(0)
            kill(two, 0)
        return True

    drawn, heard = [], [[Heard(), Heard()], [Heard(kill_after_three), Heard()]]
    for engine, listeners in zip((one, two), heard, strict=True):
        weights = engine.snapshot("killed")
        jobs = [job(at, weights, listener=listeners[at], max_tokens=100) for at in range(2)]
        drawn.append(list(map(tokens_of, sample_jobs(engine, jobs))))
    assert drawn[0] == drawn[1]
    ours, theirs = ([each.tokens for each in listeners] for listeners in heard)
    assert ours == theirs


@pytest.mark.soak
def test_a_run_goes_on_from_its_last_save_when_all_are_killed(
    two: ReplicatedEngine, tmp_path: Path
) -> None:
    """The first request says how many steps are lost; the next ones go on from the last save.
    Without a loss none fails.
    """
    for name in ("lost", "kept"):
        two.create_adapter(name, SPEC)
        two.forward_backward(name, examples(4), "ppo", {}, backward=True)
        two.optim_step(name, STEP)
        folder = tmp_path / name
        folder.mkdir()
        two.save(name, folder, optimizer=True)
    saved = states(two, "lost")[0].files[WEIGHTS]
    for _ in range(2):
        two.optim_step("lost", STEP)
    two.forward_backward("kept", examples(4), "ppo", {}, backward=True)
    for rank in (0, 1):
        kill(two, rank)
    assert two.optim_step("kept", STEP)["grad_norm:mean"] > 0
    with pytest.raises(StepsLost, match="2 optimizer steps are lost"):
        two.forward_backward("lost", examples(4), "ppo", {}, backward=True)
    assert [state.files[WEIGHTS] for state in states(two, "lost")] == [saved, saved]
    assert two.optim_step("lost", STEP) == {"grad_norm:mean": 0.0}


def test_a_lost_run_is_that_of_a_save_with_its_optimizer(
    two: ReplicatedEngine, tmp_path: Path
) -> None:
    """A later save without the optimizer is none to go on from. Without a seed, the weights are
    still those of all workers.
    """
    two.create_adapter("unseeded", AdapterSpec(rank=4))
    first, second = (state.files[WEIGHTS] for state in states(two, "unseeded"))
    assert first == second
    for optimizer in (True, False):
        two.forward_backward("unseeded", examples(4), "ppo", {}, backward=True)
        two.optim_step("unseeded", STEP)
        (tmp_path / str(optimizer)).mkdir()
        two.save("unseeded", tmp_path / str(optimizer), optimizer=optimizer)
    two.workers.call_all("drop_adapter", "unseeded")  # as if all were new
    two.repair(WorkersLost("all were killed"))
    with pytest.raises(StepsLost, match="1 optimizer step is lost"):
        two.snapshot("unseeded")
    saved = (tmp_path / "True" / WEIGHTS).read_bytes()
    assert [state.files[WEIGHTS] for state in states(two, "unseeded")] == [saved, saved]
    two.load("unseeded", tmp_path / "False", optimizer=False)
    assert [state.files[WEIGHTS] for state in states(two, "unseeded")] == [
        (tmp_path / "False" / WEIGHTS).read_bytes()
    ] * 2


def test_a_step_is_taken_once(alone: ReplicaWorker) -> None:
    """A worker that is asked again for a step that it took returns the same metrics, and changes
    nothing.
    """
    alone.create_adapter("a", SPEC)
    alone.add_share("a", [3, 5], examples(2), "ppo", {}, True)
    first = alone.take_step("a", 1, STEP)
    before = alone.pack("a")
    alone.add_share("a", [3, 5], examples(2), "ppo", {}, True)
    assert alone.take_step("a", 1, STEP) == first
    assert alone.pack("a").files[WEIGHTS] == before.files[WEIGHTS]
    assert (before.steps, before.metrics) == (1, first)


def test_a_fault_is_that_of_the_whole_data(alone: ReplicaWorker) -> None:
    """A worker names a datum by its place in the data of the request."""
    alone.create_adapter("b", SPEC)
    wrong = attrs.evolve(examples(1)[0], loss_inputs={})
    with pytest.raises(EngineError, match=r"^data\[5\]: "):
        alone.add_share("b", [3, 5], [*examples(1), wrong], "ppo", {}, True)


def test_a_worker_sends_the_tokens_of_heard_jobs(alone: ReplicaWorker) -> None:
    """Every token of a job with a listener is sent, once and before its result; a job that is
    refused ends with the reason.
    """
    new = [
        NewJob(number=number, job=job(number), weights=None, is_heard=number == 4)
        for number in (4, 5)
    ]
    new.append(NewJob(number=6, job=job(6, max_tokens=1000), weights=None, is_heard=True))
    results = [alone.sample(SampleTurn(batch=3, limit=1000, new=new, dropped=[]))]
    while results[-1].tokens:
        results.append(alone.sample(SampleTurn(batch=3, limit=1000, new=[], dropped=[])))
    ended: dict[int, Any] = dict(one for result in results for one in result.ended)
    assert "context length" in str(ended.pop(6))
    drawn = [
        (token.number, token.index, token.token) for result in results for token in result.drawn
    ]
    tokens = [
        (4, index, token) for index, one in enumerate(ended[4].sequences) for token in one.tokens
    ]
    assert sorted(drawn, key=lambda one: one[:2]) == tokens


def test_a_dropped_job_draws_nothing_more(alone: ReplicaWorker) -> None:
    """A job that is dropped is not returned, and a new batch begins without the jobs of the one
    before.
    """
    new = NewJob(number=7, job=job(1, max_tokens=100), weights=None, is_heard=True)
    first = alone.sample(SampleTurn(batch=1, limit=1000, new=[new], dropped=[]))
    assert first.tokens > 0 or first.ended
    assert alone.sample(SampleTurn(batch=1, limit=1000, new=[], dropped=[7])).tokens == 0
    alone.sample(SampleTurn(batch=1, limit=1000, new=[attrs.evolve(new, number=8)], dropped=[]))
    assert alone.sample(SampleTurn(batch=2, limit=1000, new=[], dropped=[])).tokens == 0


class ScriptedWorkers:
    """Workers that answer the turns of a batch as a test says, in the place of an engine with its
    own; None is a death.
    """

    is_split = False
    vocabulary, max_context_length = 258, 128

    def __init__(self, count: int) -> None:
        self.workers, self.processes, self.repairs = self, [0] * count, 0
        self.turns: list[dict[int, SampleTurn]] = []
        self.answers: dict[int, SampleTurnResult | Exception | None] = {}

    def __len__(self) -> int:
        return len(self.processes)

    def count_starts(self, rank: int) -> int:
        return self.processes[rank]

    def repair(self, failure: WorkersLost) -> None:
        self.repairs += 1
        self.processes = [
            one + (self.answers.get(rank, True) is None) for rank, one in enumerate(self.processes)
        ]

    def call(self, calls: Sequence[WorkerCall]) -> list[Any]:
        self.turns.append({one.rank: one.arguments[0] for one in calls})
        found = [self.answers.get(one.rank, answer()) for one in calls]
        return [WorkersLost("killed") if one is None else one for one in found]

    def batch(self, *jobs: SampleJob) -> ReplicatedBatch:
        """Return a batch with these jobs, whose tickets are TICKETS."""
        batch = ReplicatedBatch(self, 1, 1000)  # type: ignore[arg-type]
        for ticket, one in zip(TICKETS, jobs, strict=False):
            batch.add(ticket, one)
        return batch

    def step(self, batch: ReplicatedBatch, **answers: SampleTurnResult | Exception | None) -> Any:
        """Make a step in which the workers ``first`` and ``second`` answer this, and return its
        outcomes and turns.
        """
        self.answers = {("first", "second").index(name): answer for name, answer in answers.items()}
        return batch.step(), self.turns[-1]


def answer(
    *, tokens: int = 0, drawn: Sequence[tuple[int, int]] = (), ended: Sequence[int] = ()
) -> SampleTurnResult:
    """Return the answer to a turn: the number and the token of what is drawn, and the jobs that
    end.
    """
    heard = [HeardToken(number, 0, token, -1.0, None) for number, token in drawn]
    return SampleTurnResult(
        tokens=tokens, drawn=heard, ended=[(number, SampleResult(sequences=[])) for number in ended]
    )


def test_jobs_go_to_the_worker_that_holds_the_fewest_tokens() -> None:
    """A job counts as its prompt and one token for each sample, until its worker says how many
    tokens it holds.
    """
    workers = ScriptedWorkers(2)
    batch = workers.batch(
        job(0, num_samples=3),
        job(1, num_samples=2),
        job(2, num_samples=1),
        job(3),
        job(4, num_samples=1),
    )
    assert batch.tokens == 16
    turns = workers.step(batch, first=answer(tokens=50), second=answer(tokens=49))[1]
    assert {rank: [one.number for one in turn.new] for rank, turn in turns.items()} == {
        0: [0, 3],
        1: [1, 2, 4],
    }
    assert batch.tokens == 49
    batch.add("later", job(5))
    assert [one.number for one in workers.step(batch)[1][1].new] == [5]


def test_each_result_is_that_of_its_job() -> None:
    """Jobs end one by one, each once and with its own result; the tokens of each go to its
    listener.
    """
    workers, listeners = ScriptedWorkers(2), [Heard() for _ in range(4)]
    batch = workers.batch(
        *(job(seed, listener=listener) for seed, listener in enumerate(listeners))
    )
    ended = answer(drawn=[(3, 30), (1, 10), (3, 31)], ended=[3])
    assert workers.step(batch, first=answer(drawn=[(2, 20)]), second=ended)[0] == [
        ("d", ended.ended[0][1])
    ]
    assert [one.tokens[0] for one in listeners] == [[], [10], [20], [30, 31]]
    outcomes, turns = workers.step(batch, first=answer(ended=[0, 2]), second=answer(ended=[1]))
    assert [ticket for ticket, _ in outcomes] == ["a", "c", "b"]
    assert [(turn.new, turn.dropped) for turn in turns.values()] == [([], []), ([], [])]
    assert batch.step() == []


def test_a_job_that_nobody_wants_is_dropped_at_its_worker() -> None:
    """A worker is told once that a job was dropped, or ended by its listener; only the latter is an
    outcome.
    """
    workers = ScriptedWorkers(2)
    batch = workers.batch(job(0, listener=until(5)), job(1), job(2, listener=until(6)))
    (whole, (ticket, error)), _ = workers.step(
        batch, first=answer(drawn=[(0, 4), (0, 5), (2, 6)], ended=[2])
    )
    assert (whole[0], ticket, str(error)) == ("c", "a", "its listener has ended it")
    batch.drop(TICKETS[1])
    outcomes, turns = workers.step(batch, second=answer(drawn=[(1, 7)], ended=[1]))
    assert (outcomes, {rank: turn.dropped for rank, turn in turns.items()}) == (
        [],
        {0: [0], 1: [1]},
    )
    assert workers.step(batch)[0] == []
    assert len(workers.turns[-1]) == 0


def test_a_split_model_needs_a_turn_of_every_worker() -> None:
    """Workers without a job have a turn while another one has one, since they make its passes with
    it.
    """
    workers = ScriptedWorkers(3)
    workers.is_split = True
    batch = workers.batch(job(0))
    assert [len(turn.new) for turn in workers.step(batch, first=answer(ended=[0]))[1].values()] == [
        1,
        0,
        0,
    ]
    assert len(workers.step(batch)[1]) == 0


def test_a_job_is_sampled_again_where_its_worker_died() -> None:
    """The new worker gets the job with the same seed, and its listener hears what it has not heard;
    others go on.
    """
    workers, listener = ScriptedWorkers(2), Heard()
    batch = workers.batch(attrs.evolve(job(0, listener=listener), seed=None), job(1))
    _, first = workers.step(batch, first=answer(drawn=[(0, 1), (0, 2)]))
    workers.step(batch, first=None, second=answer())
    _, again = workers.step(batch, first=answer(drawn=[(0, 1), (0, 2), (0, 3)]))
    assert (first[0].batch, first[0].limit) == (1, 1000)
    assert (first[0].new[0].is_heard, first[0].new[0].job.listener) == (True, None)
    assert first[0].new[0].job.seed == again[0].new[0].job.seed is not None
    assert again[1].new == []
    assert listener.tokens[0] == [1, 2, 3]
    workers.step(batch, first=answer(drawn=[(0, 4)]))
    workers.step(batch, first=None, second=None)
    assert workers.repairs == 2
    workers.step(batch, first=answer(drawn=[(0, one) for one in (1, 2, 3, 4, 5)]))
    assert listener.tokens[0] == [1, 2, 3, 4, 5]


def test_a_worker_that_lives_begins_the_jobs_of_a_lost_answer_anew() -> None:
    """The answer of a turn may be lost, with the results in it, while its worker lives: its jobs
    are sampled there again.
    """
    workers, listener = ScriptedWorkers(2), Heard()
    batch = workers.batch(job(0, listener=listener), job(1))
    workers.step(batch, first=answer(drawn=[(0, 1)]))
    batch.drop(TICKETS[1])
    workers.step(batch, first=WorkersLost("unavailable"), second=WorkersLost("unavailable"))
    outcomes, turns = workers.step(batch, first=answer(drawn=[(0, 1), (0, 2)], ended=[0]))
    assert [(turn.dropped, [one.number for one in turn.new]) for turn in turns.values()] == [
        ([0], [0]),
        ([1], []),
    ]
    assert (outcomes[0][0], listener.tokens[0]) == ("a", [1, 2])


def test_a_job_whose_workers_die_is_given_up() -> None:
    """The third death ends a job with the reason, and not one that was begun later; a failure of
    another kind is raised.
    """
    workers = ScriptedWorkers(2)
    batch = workers.batch(job(0), job(1))
    for _ in range(2):
        assert workers.step(batch, first=None, second=answer(tokens=50))[0] == []
    batch.add("later", job(2))
    assert workers.step(batch, first=None)[0] == []
    ((ticket, error),), turns = workers.step(batch)
    assert (ticket, str(error)) == ("a", "3 workers died while they sampled this")
    assert [one.number for one in turns[0].new] == [2]
    with pytest.raises(KeyError, match="unknown"):
        workers.step(batch, second=KeyError("unknown"))
    assert workers.repairs == 3


@pytest.mark.soak
def test_a_server_has_replicas(source: Path, tmp_path: Path) -> None:
    """A server with the setting trains and samples by two processes, which end with it; its first
    answer waits for both.
    """
    settings = Settings(data_dir=tmp_path, device="cpu", replicas=2)
    with (
        running_server(settings, "torch", model=str(source)) as url,
        tinker.ServiceClient(base_url=url) as service,
    ):
        httpx.get(
            f"{url}/api/v1/get_server_capabilities", headers={"X-API-Key": "any"}, timeout=600
        ).raise_for_status()
        training = service.create_lora_training_client("llama", rank=4, seed=1)
        data = [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints([n, 2, 3]),
                loss_fn_inputs={"target_tokens": [2, 3, 4]},
            )
            for n in range(5)
        ]
        loss = training.forward_backward(data, "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(600)
        assert len(loss.result(600).loss_fn_outputs) == 5
        sampler = training.save_weights_and_get_sampling_client()
        sampled = sampler.sample(
            tinker.ModelInput.from_ints([1, 2]), 3, tinker.SamplingParams(max_tokens=5)
        ).result(600)
        assert len(sampled.sequences) == 3
        assert httpx.get(f"{url}/overview").json()["models"][0]["restarts"] == [0, 0]


@pytest.mark.parametrize("alone", ["split"], indirect=True)
def test_a_pass_that_breaks_off_is_made_again_in_smaller_parts(alone: ReplicaWorker) -> None:
    """Where the layers are split, memory that does not suffice ends the group; after the next one,
    smaller parts suffice.
    """
    alone.create_adapter("a", SPEC)
    call = ("a", [0, 1], examples(2), "ppo", {}, True)
    expected = alone.add_share(*call)

    def refuse(module: object, inputs: object) -> None:
        raise MemoryError

    alone._model.model.layers[1].mlp.register_forward_pre_hook(refuse)
    with pytest.raises(WorkersLost, match="could not finish a pass: it ran out of memory"):
        alone.add_share(*call)
    alone.leave()
    alone.describe()
    alone.join(0, 1, "127.0.0.1", alone.meet("127.0.0.1"))
    assert alone.add_share(*call).metrics == near_metrics(expected, examples(2))
    assert alone._trainer.too_much is not None


class Pair(GradientCheckpointingLayer):
    """A layer that returns a tuple, as those of some models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.inner(states), None


@pytest.mark.parametrize("alone", ["split"], indirect=True)
def test_a_pass_ends_with_its_gradient_or_without(alone: ReplicaWorker) -> None:
    """Layers may return tuples; where the loss fails, the pass is differentiated nevertheless, as
    the other workers do.
    """
    layers = torch.nn.ModuleList([Pair(), Pair()])
    shards = Shards(layers, alone._split, alone._parts.mixer, torch.device("cpu"))
    alone.create_adapter("a", SPEC)

    def run(backward: Callable[[torch.Tensor], object]) -> None:
        with shards.move_together(alone._adapter("a").weights):
            backward(layers[1](layers[0](torch.ones(1, 2))[0])[0].sum())

    run(torch.Tensor.backward)
    with pytest.raises(TypeError, match="not callable"):
        run(None)  # type: ignore[arg-type]
    assert shards._open is None
    with torch.no_grad():
        run(torch.Tensor.item)


def test_a_model_without_marked_layers_is_not_split() -> None:
    """A model whose layers cannot be found is refused by name."""
    with pytest.raises(ValueError, match="Linear cannot be split over workers"):
        find_layers(torch.nn.Linear(2, 2))


def test_a_device_map_is_for_one_process() -> None:
    """Replicas with a device that they cannot share are refused with the reason."""
    for options in ({"device": "cuda:1"}, {"device_map": "auto"}):
        with pytest.raises(ValueError, match="each replica is on one device"):
            Placement(replicas=2, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        Placement(replicas=0)
    with pytest.raises(ValueError, match="at least 2"):
        Placement(fsdp=True)
    assert Settings(replicas=2, fsdp=True).placement.fsdp
