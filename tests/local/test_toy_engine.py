"""The toy engine: exact gradients, every size of vocabulary, its own files. ``test_engines`` has
what all engines do.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from support.engine_inputs import compute, logprobs_of, make_data, make_datum, make_text, sample
from support.tolerances import FLOAT64, assert_near, near, near_slope

from tinker.local.engines.arrays import newton_schulz, orthogonal_direction
from tinker.local.engines.protocol import (
    LOSS_FORMS,
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    TrainingExample,
)
from tinker.local.engines.toy import ToyEngine

SPEC = AdapterSpec(rank=3, seed=5)
TEXT = [104, 101, 300, 7, 104, 101]


@pytest.fixture
def engine() -> ToyEngine:
    engine = ToyEngine(vocabulary=512)
    engine.create_adapter("a", SPEC)
    return engine


def train(engine: ToyEngine, adapter: str, tokens: Any, steps: int, rate: float = 0.02) -> Any:
    """Train on a text, and return the loss before each step."""
    losses: list[float] = []
    for _ in range(steps):
        losses.append(compute(engine, adapter, [make_text(tokens)]).metrics["loss:sum"])
        engine.optim_step(adapter, Adam(learning_rate=rate))
    return losses


def make(loss_fn: str, **inputs: Any) -> TrainingExample:
    return attrs.evolve(
        make_datum(5, loss_fn, target_tokens=TEXT[1:], **inputs), tokens=make_text(TEXT).tokens
    )


def make_drifted(engine: ToyEngine, loss_fn: str) -> TrainingExample:
    """Sampling logprobs near and far from today's, so that every branch of the clipped losses is
    taken.
    """
    one = make(loss_fn, advantages=np.array([1.0, 2.0, -1.0, -2.0, 0.5], np.float32))
    drift = np.array([0.0, 0.5, -0.5, 0.5, -0.5], np.float32)
    one.loss_inputs["logprobs"][:] = logprobs_of(engine, "a", one) + drift
    return one


# Losses and gradients


@pytest.mark.parametrize("vocabulary", [2, 256, 257, 512, 700, 32_768, 65_536])
def test_the_distribution_sums_to_one(vocabulary: int) -> None:
    """For every size of vocabulary the probabilities of all next tokens sum to one, and losses
    agree with them.
    """
    engine = ToyEngine(vocabulary=vocabulary)
    last = vocabulary - 1
    result = sample(
        engine, tokens=np.array([last], np.int32), max_tokens=1, topk_sample_logprobs=vocabulary
    )
    table = result.sequences[0].topk
    assert table is not None
    ids, logprobs = table
    assert sorted(ids[0].tolist()) == list(range(vocabulary))
    assert np.exp(logprobs[0].astype(np.float64)).sum() == near(
        1.0, magnitude=float(np.abs(logprobs[0]).max())
    )
    engine.create_adapter("a", SPEC)
    found = logprobs_of(engine, "a", make_text([last, ids[0, 0]]))
    assert found[0] == near(float(logprobs[0, 0]))


@pytest.mark.numeric
# the ratio of two losses is a constant to the gradient: the next test compares it
@pytest.mark.parametrize("loss_fn", sorted({*LOSS_FORMS} - {"cispo", "stable_reinforce"}))
def test_gradients_are_exact(engine: ToyEngine, loss_fn: str) -> None:
    """Each loss has the gradient of central differences on every LoRA matrix."""
    train(engine, "a", [*b"abcabc"], 2)
    adapter = engine._adapter("a")
    one = (
        make(loss_fn, weights=[0.5, 1.0, 2.0, 0.0, -1.0])
        if loss_fn == "cross_entropy"
        else make_drifted(engine, loss_fn)
    )

    def loss(*, backward: bool = False) -> float:
        return compute(engine, "a", [one, one], loss_fn, backward=backward).metrics["loss:sum"]

    # a token's gradient is its part: that of the whole where all tokens have one advantage
    if loss_fn == "gspo":
        one.loss_inputs["advantages"][:] = 0.5
        one.loss_inputs["sequence_ratio_mask"][:] = 1
    loss(backward=True)
    assert adapter.gradient is not None
    factors = one.loss_inputs["weights" if loss_fn == "cross_entropy" else "advantages"]
    # of two datums, ratios below 2, log-probabilities near 6
    size = 2 * float(np.abs(factors).sum()) * 2 * math.log(512)
    rng = np.random.default_rng(0)
    for name, gradient in adapter.gradient.items():
        direction, step = rng.standard_normal(gradient.shape), 1e-6
        direction /= np.linalg.norm(direction)
        values = []
        for sign in (1, -1):
            adapter.weights.tensors[name] = adapter.weights.tensors[name] + sign * step * direction
            values.append(loss())
            adapter.weights.tensors[name] = adapter.weights.tensors[name] - sign * step * direction
        slope = (values[0] - values[1]) / (2 * step)
        assert slope == near_slope(float((gradient * direction).sum()), step, direction.size, size)


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("loss_fn", "low", "high"), [("cispo", 0.8, 1.2), ("stable_reinforce", 0.0, 2.0)]
)
def test_a_ratio_that_is_a_constant(
    engine: ToyEngine, loss_fn: str, low: float, high: float
) -> None:
    """The gradient is that of cross entropy with the clipped ratio times the
    advantage as weights.
    """
    train(engine, "a", [*b"abcabc"], 2)
    one = make_drifted(engine, loss_fn)
    one.loss_inputs["logprobs"][2] -= 1.0
    compute(engine, "a", [one], loss_fn)
    gradient, engine._adapter("a").gradient = engine._adapter("a").gradient, None
    today = logprobs_of(engine, "a", one)
    ratios = np.clip(np.exp(today - one.loss_inputs["logprobs"]), low, high)
    weights = (ratios * one.loss_inputs["advantages"]).astype(np.float32)
    compute(engine, "a", [make("cross_entropy", weights=weights)])
    assert gradient is not None
    for name, expected in (engine._adapter("a").gradient or {}).items():
        # `today` is float32
        assert_near(
            gradient[name], expected, 5, float(np.abs(today).max() * np.abs(expected).max())
        )


# Optimizer


class FailingArray(np.ndarray[Any, Any]):
    """An array that counts what numpy does with it and what comes of it, and fails at the operation
    number ``at``.
    """

    at, count = 0, 0

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any
    ) -> Any:
        FailingArray.count += 1
        if FailingArray.count == FailingArray.at:
            raise MemoryError(f"operation {FailingArray.count}")
        plain = [np.asarray(one) for one in inputs]
        options = {
            name: np.asarray(value) if name == "where" else value for name, value in options.items()
        }
        if out is not None:
            options["out"] = tuple(np.asarray(one) for one in out)
        done = getattr(ufunc, method)(*plain, **options)
        return done.view(FailingArray) if isinstance(done, np.ndarray) else done


def numbers_of(engine: ToyEngine, name: str) -> Any:
    """Return a run as bytes."""
    adapter = engine._adapter(name)
    parts = (adapter.weights.tensors, *adapter.moments.values(), adapter.gradient or {})
    return [{name: array.tobytes() for name, array in part.items()} for part in parts]


@pytest.mark.parametrize(
    "step",
    [Adam(grad_clip_norm=1e-3, weight_decay=0.1), Dimuon(learning_rate=0.1)],
    ids=["adam", "dimuon"],
)
def test_a_step_that_fails_changes_nothing(engine: ToyEngine, step: Adam | Dimuon) -> None:
    """Whichever operation of a step fails, weights, moments, count and gradient stay, and the next
    step is as if it had not.
    """
    for name in ("a", "c"):
        engine.create_adapter(name, AdapterSpec(rank=2, seed=1))
        for _ in range(2):
            engine.optim_step(name, step)
            compute(engine, name, make_data(5))
        adapter = engine._adapter(name)
        parts: Any = (adapter.weights.tensors, *adapter.moments.values(), adapter.gradient)
        for part in parts:
            part.update({key: array.view(FailingArray) for key, array in part.items()})
    FailingArray.at = FailingArray.count = 0
    engine.optim_step("c", step)
    before, count = numbers_of(engine, "a"), FailingArray.count
    assert count > 20
    for FailingArray.at in range(1, count + 1):
        FailingArray.count = 0
        with pytest.raises(MemoryError, match=f"operation {FailingArray.at}$"):
            engine.optim_step("a", step)
        assert numbers_of(engine, "a") == before, FailingArray.at
    FailingArray.at = 0
    engine.optim_step("a", step)
    assert numbers_of(engine, "a") == numbers_of(engine, "c")


def test_the_model_learns(engine: ToyEngine) -> None:
    """A sentence of distinct bytes is learned nearly by heart, in any part of a
    large vocabulary.
    """
    losses = train(engine, "a", [*b"the quick!"], 60)
    assert losses[-1] < 0.05 * losses[0]
    large = ToyEngine(vocabulary=50_000)
    large.create_adapter("a", AdapterSpec(rank=8, seed=1))
    assert train(large, "a", [49_999, 12_345, 33, 40_000, 256], 60)[-1] < 0.5


# Adapters on disk and in memory


def test_files_that_do_not_fit_are_refused(engine: ToyEngine, tmp_path: Path) -> None:
    """A broken file and another vocabulary are errors that say so."""
    engine.save("a", tmp_path, optimizer=False)
    with pytest.raises(EngineError, match="512 token ids, this model 300"):
        ToyEngine(vocabulary=300).load_snapshot(tmp_path)
    (tmp_path / "toy_adapter.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(EngineError, match="not written by this engine"):
        engine.load_snapshot(tmp_path)


def test_the_scale_of_an_adapter(engine: ToyEngine) -> None:
    """One small step moves the logprobs twice as far with twice the scale, and what cannot be
    chosen is refused by name.
    """

    def moved(alpha: float) -> float:
        engine.create_adapter("scaled", attrs.evolve(SPEC, lora_alpha=alpha))
        before, after = train(engine, "scaled", [*b"hello"], 2, rate=1e-6)
        return before - after

    assert abs(moved(64) / moved(32) - 2) < 0.01  # the curve of the loss over a step, not rounding
    with pytest.raises(EngineError, match="target_modules: the toy model has no modules"):
        engine.create_adapter("other", attrs.evolve(SPEC, target_modules=("q_proj",)))


# Dimuon


@pytest.mark.numeric
def test_newton_schulz_makes_singular_values_alike() -> None:
    """Of a matrix with singular values from 1 to 1/1000, all come near 1, and the singular vectors
    stay.
    """
    rng = np.random.default_rng(0)
    left, right = (
        np.linalg.qr(rng.standard_normal((40, 5)))[0],
        np.linalg.qr(rng.standard_normal((9, 5)))[0],
    )
    matrix = left * np.geomspace(1, 1e-3, 5) @ right.T
    for turned in (matrix, matrix.T):
        values = np.linalg.svd(newton_schulz(turned), compute_uv=False)
        assert ((values[:5] > 0.6) & (values[:5] < 1.25)).all()
    aligned = left.T @ newton_schulz(matrix) @ right
    # products of 40 rows; each pass sums twice
    assert_near(aligned, np.diag(np.diag(aligned)), 40 * 6 * 5, 40.0, FLOAT64)


def test_each_matrix_of_a_stack_has_the_length_of_its_rank() -> None:
    """The direction of each matrix in a stack has the Frobenius norm sqrt(min(rows, columns)),
    however many there are.
    """
    stack = np.random.default_rng(0).standard_normal((2, 3, 4))
    assert_near(
        np.linalg.norm(orthogonal_direction(stack), axis=(1, 2)),
        [math.sqrt(3)] * 2,
        12,
        unit=FLOAT64,
    )


def test_impossible_sizes_are_refused(engine: ToyEngine) -> None:
    """A rank or a vocabulary that cannot be is an error at creation."""
    with pytest.raises(EngineError, match="rank is"):
        engine.create_adapter("b", AdapterSpec(rank=100_000))
    with pytest.raises(ValueError, match="vocabulary"):
        ToyEngine(vocabulary=1)
