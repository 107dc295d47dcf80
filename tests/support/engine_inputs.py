"""What tests give to engines: data for each loss, jobs and listeners; and the numbers of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Continuation,
    EngineError,
    LossResult,
    SampleJob,
    SampleResult,
    TrainingExample,
)

from .tiny_models import sample_jobs

VOCABULARY = 258
SPEC = AdapterSpec(rank=4, seed=7)
#: Steps in which an error of a gradient stays as small as it is.
SMOOTH = Adam(learning_rate=0.1, eps=10.0, weight_decay=0.1)


def make_tokens(length: int, seed: int = 0) -> Any:
    """Draw tokens that are bytes."""
    return np.random.default_rng([length, seed]).integers(0, 256, length).astype(np.int32)


def make_datum(
    length: int, loss_fn: str = "cross_entropy", seed: int = 0, columns: int = 0, **inputs: Any
) -> TrainingExample:
    """Make a random datum for a loss, with several targets for each position where ``columns`` are
    given.

    A third of the weights of cross entropy are zero, and targets there are no tokens.
    """
    rng = np.random.default_rng([length, seed])
    tokens = rng.integers(0, VOCABULARY, length).astype(np.int32)
    shape = (length, columns) if columns else (length,)
    made: dict[str, Any] = {"target_tokens": rng.integers(0, VOCABULARY, shape)}
    if loss_fn == "cross_entropy" and "weights" not in inputs:
        made["weights"] = (rng.random(shape) * (rng.random(shape) > 0.3)).astype(np.float32)
        made["target_tokens"] = np.where(made["weights"] == 0, -100, made["target_tokens"])
    elif loss_fn != "cross_entropy":
        made["logprobs"] = rng.normal(-5, 1, length).astype(np.float32)
        made["advantages"] = rng.normal(0, 1, length).astype(np.float32)
    if loss_fn == "gspo":
        made["sequence_ratio_mask"] = (np.arange(length) % 2 == 0).astype(np.float32)
    given = {name: np.asarray(value) for name, value in {**made, **inputs}.items()}
    return TrainingExample(tokens=tokens, loss_inputs=given)


def make_data(
    *lengths: int, loss_fn: str = "cross_entropy", seed: int = 0
) -> list[TrainingExample]:
    """Make a random datum of each length."""
    return [make_datum(length, loss_fn, seed) for length in lengths]


def make_text(tokens: Any) -> TrainingExample:
    """Make a datum of a text whose next tokens are to be learned."""
    tokens = np.asarray(tokens)
    return TrainingExample(
        tokens=tokens[:-1].astype(np.int32),
        loss_inputs={"target_tokens": tokens[1:].astype(np.int64)},
    )


def make_job(length: int = 6, **fields: Any) -> SampleJob:
    """Make a job for a random prompt that stops at nothing."""
    given = {"weights": None, "max_tokens": 12, "seed": 5, "stop": [], **fields}
    return SampleJob(**{"tokens": make_tokens(length), **given})


def sample(engine: Any, length: int = 6, **fields: Any) -> SampleResult:
    """Sample one job to its end."""
    return sample_jobs(engine, [make_job(length, **fields)])[0]


def only(engine: Any, length: int = 6, **fields: Any) -> Continuation:
    """Return the first sample of a job."""
    return sample(engine, length, **fields).sequences[0]


def tokens_of(result: Any) -> list[list[int]]:
    """Return the tokens of each sample of a result, which must be no failure."""
    assert isinstance(result, SampleResult), result
    return [one.tokens.tolist() for one in result.sequences]


def compute(
    engine: Any,
    name: str,
    data: Any,
    loss_fn: str = "cross_entropy",
    config: Mapping[str, float | str] = {},
    *,
    backward: bool = True,
) -> LossResult:
    """Compute a loss, with its gradient unless it is left out."""
    found: LossResult = engine.forward_backward(name, data, loss_fn, config, backward=backward)
    return found


def logprobs_of(engine: Any, name: str, one: TrainingExample) -> Any:
    """Return the log-probabilities of a datum's targets now."""
    bare = TrainingExample(
        tokens=one.tokens, loss_inputs={"target_tokens": one.loss_inputs["target_tokens"]}
    )
    return compute(engine, name, [bare], backward=False).outputs[0]["logprobs"]


def nudge(engine: Any, *names: str, learning_rate: float = 0.02) -> None:
    """Train adapters by a step, so that they are no longer the base model."""
    for name in names:
        compute(engine, name, make_data(12, seed=99))
        engine.optim_step(name, Adam(learning_rate=learning_rate))


def as_array(tensor: Any) -> Any:
    """Return an array that shares its memory with an array or a tensor."""
    return tensor.detach().numpy() if hasattr(tensor, "detach") else tensor


def weights_of(engine: Any, name: str) -> dict[str, Any]:
    """Return the weights of an adapter, which a later step does not change."""
    return {key: as_array(one) for key, one in engine.snapshot(name).tensors.items()}


def gradient_of(engine: Any, name: str) -> dict[str, Any]:
    """Return the gradient that an adapter has accumulated."""
    adapter = engine._adapter(name)
    parts = adapter.gradient
    assert parts is not None
    if isinstance(parts, list):
        parts = dict(zip(adapter.weights.tensors, parts, strict=True))
    return {key: as_array(one) for key, one in parts.items()}


class Heard:
    """A listener that keeps what it hears of each sample, and ends its job when it ``wants`` no
    more.
    """

    def __init__(self, wants: Callable[[Heard], bool] = lambda heard: True) -> None:
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, str | None] = {}
        self._wants = wants

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        self.tokens[index].append(token)
        self.ends[index] = stop_reason
        return self._wants(self)


def fail_to_hear(heard: Heard) -> bool:
    """Fail, as what a listener wants."""
    raise EngineError("not for me")


def finish(batch: Any, count: int) -> dict[Any, Any]:
    """Step until this many jobs have ended; return the outcome of each."""
    done: dict[Any, Any] = {}
    for _ in range(500):
        done.update(batch.step())
        if len(done) == count:
            return done
    raise AssertionError("no end")
