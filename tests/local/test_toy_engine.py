"""The toy engine: exact gradients, a real optimizer, weights on disk, and sampling from the
distribution it reports.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from support.tolerances import FLOAT64, assert_near, near, near_slope, share, tolerance

from tinker.local.engines.arrays import newton_schulz, orthogonal_direction
from tinker.local.engines.protocol import (
    LOSS_FORMS,
    LOSSES,
    SEQUENCE_LOG_RATIO,
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    PromptTargets,
    SampleJob,
    SampleResult,
    TrainingExample,
)
from tinker.local.engines.toy import END_OF_TEXT, ToyEngine

SPEC = AdapterSpec(rank=3, seed=5)
TOKENS = np.array([104, 101, 300, 7, 104], np.int32)
TARGETS = np.array([101, 300, 7, 104, 101], np.int64)


def example(**inputs: Any) -> TrainingExample:
    arrays = {"target_tokens": TARGETS, **inputs}
    return TrainingExample(
        tokens=TOKENS, loss_inputs={name: np.asarray(value) for name, value in arrays.items()}
    )


def rl_example(engine: ToyEngine) -> TrainingExample:
    """Sampling logprobs near and far from today's, so that every branch of the clipped losses is
    taken.
    """
    today = engine.forward_backward("a", [example()], "cross_entropy", {}, backward=False).outputs[
        0
    ]["logprobs"]
    drift = np.array([0.0, 0.5, -0.5, 0.5, -0.5], np.float32)
    return example(
        logprobs=today + drift, advantages=np.array([1.0, 2.0, -1.0, -2.0, 0.5], np.float32)
    )


@pytest.fixture
def engine() -> ToyEngine:
    engine = ToyEngine(vocabulary=512)
    engine.create_adapter("a", SPEC)
    return engine


def train(
    engine: ToyEngine, adapter: str, text: bytes, steps: int, rate: float = 0.02
) -> list[float]:
    """Train, and return the loss before each step."""
    tokens = np.frombuffer(text, np.uint8).astype(np.int32)
    one = TrainingExample(
        tokens=tokens[:-1], loss_inputs={"target_tokens": tokens[1:].astype(np.int64)}
    )
    losses: list[float] = []
    for _ in range(steps):
        losses.append(
            engine.forward_backward(adapter, [one], "cross_entropy", {}, backward=True).metrics[
                "loss:sum"
            ]
        )
        engine.optim_step(adapter, Adam(learning_rate=rate))
    return losses


def sample(engine: ToyEngine, text: bytes = b"h", **fields: Any) -> SampleResult:
    tokens = fields.pop("tokens", np.frombuffer(text, np.uint8).astype(np.int32))
    job = SampleJob(**{"tokens": tokens, "weights": None, "max_tokens": 5, "seed": 1, **fields})
    return engine.sample([job])[0]


# Losses and gradients


@pytest.mark.numeric
def test_a_fresh_adapter_is_the_base_model(engine: ToyEngine) -> None:
    """Before the first step the adapter's logprobs are those of the base model, whatever its rank
    and seed.
    """
    base = sample(engine, b"hello", prompt_logprobs=True).prompt_logprobs
    fresh = sample(
        engine, b"hello", prompt_logprobs=True, weights=engine.snapshot("a")
    ).prompt_logprobs
    assert base is not None
    assert fresh is not None
    assert math.isnan(base[0])
    np.testing.assert_array_equal(base, fresh)


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
    one = TrainingExample(
        tokens=np.array([last], np.int32),
        loss_inputs={"target_tokens": ids[0, :1].astype(np.int64)},
    )
    loss = engine.forward_backward("a", [one], "cross_entropy", {}, backward=True)
    assert loss.outputs[0]["logprobs"][0] == near(float(logprobs[0, 0]))


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", sorted(LOSS_FORMS))
def test_gradients_are_exact(engine: ToyEngine, loss_fn: str) -> None:
    """Each loss has the gradient of central differences on every LoRA matrix."""
    train(engine, "a", b"abcabc", 2)
    adapter = engine._adapter("a")
    one = (
        example(weights=[0.5, 1.0, 2.0, 0.0, -1.0])
        if loss_fn == "cross_entropy"
        else rl_example(engine)
    )

    def loss(*, backward: bool = False) -> float:
        return engine.forward_backward("a", [one, one], loss_fn, {}, backward=backward).metrics[
            "loss:sum"
        ]

    # their ratio is a constant to the gradient: the next test compares it
    if loss_fn in ("cispo", "stable_reinforce"):
        return
    # a token's gradient is its part: that of the whole where all tokens have one advantage
    if loss_fn == "gspo":
        one.loss_inputs["advantages"][:], one.loss_inputs["sequence_ratio_mask"] = (
            0.5,
            np.ones(5, np.float32),
        )
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
    train(engine, "a", b"abcabc", 2)
    one = rl_example(engine)
    one.loss_inputs["logprobs"][2] -= 1.0
    engine.forward_backward("a", [one], loss_fn, {}, backward=True)
    gradient = engine._adapter("a").gradient
    engine._adapter("a").gradient = None
    today = engine.forward_backward("a", [example()], "cross_entropy", {}, backward=False).outputs[
        0
    ]["logprobs"]
    ratios = np.clip(np.exp(today - one.loss_inputs["logprobs"]), low, high)
    weighted = example(weights=(ratios * one.loss_inputs["advantages"]).astype(np.float32))
    engine.forward_backward("a", [weighted], "cross_entropy", {}, backward=True)
    assert gradient is not None
    for name, expected in (engine._adapter("a").gradient or {}).items():
        # `today` is float32
        assert_near(
            gradient[name], expected, 5, float(np.abs(today).max() * np.abs(expected).max())
        )


@pytest.mark.numeric
def test_losses_over_sequences_and_records_have_their_documented_values(engine: ToyEngine) -> None:
    """gspo clips the geometric mean of the marked ratios; truncated REINFORCE cuts ratios at 2 and
    pulls to the sampler.
    """
    one = rl_example(engine)
    one.loss_inputs["logprobs"][2] -= 1.0
    mask = np.array([0, 1, 1, 1, 0], np.float32)
    now = (
        engine.forward_backward("a", [example()], "cross_entropy", {}, backward=False)
        .outputs[0]["logprobs"]
        .astype(float)
    )
    q, advantages = (
        np.asarray(one.loss_inputs[name], np.float64) for name in ("logprobs", "advantages")
    )
    whole = math.exp((now - q)[mask != 0].mean())
    expected = -np.minimum(whole * advantages, min(max(whole, 0.8), 1.2) * advantages).sum()
    marked = attrs.evolve(one, loss_inputs={**one.loss_inputs, "sequence_ratio_mask": mask})
    metrics = engine.forward_backward("a", [marked], "gspo", {}, backward=False).metrics
    size = float(np.abs(now).max())  # of what is rounded to float32, in the exponent of a ratio
    assert metrics["loss:sum"] == near(expected, 5, size * whole * float(np.abs(advantages).sum()))
    assert (metrics["ratio:min"], metrics["ratio:max"]) == near((whole, whole), 3, size * whole)
    ratios = np.exp(now - q)
    expected = (-np.minimum(ratios, 2.0) * now * advantages + 0.05 * (now - q) ** 2).sum()
    metrics = engine.forward_backward(
        "a", [one], "stable_reinforce", {"kl_coeff": 0.1}, backward=False
    ).metrics
    assert metrics["loss:sum"] == near(
        expected, 5, size * 2 * float(np.abs(now * advantages).sum())
    )
    assert metrics["truncated_reinforce/clipped:sum"] == (ratios > 2).sum() == 1


@pytest.mark.numeric
def test_losses_have_their_documented_values(engine: ToyEngine) -> None:
    """The sums over tokens follow the published formulas, with clip thresholds 0.8 and 1.2 and beta
    0.05 by default.
    """
    one = rl_example(engine)
    now = engine.forward_backward("a", [example()], "cross_entropy", {}, backward=False).outputs[0][
        "logprobs"
    ]
    q, advantages = (
        np.asarray(one.loss_inputs[name], np.float64) for name in ("logprobs", "advantages")
    )
    ratios = np.exp(now - q)
    clipped = np.clip(ratios, 0.8, 1.2)
    expected = {
        "importance_sampling": -(ratios * advantages).sum(),
        "ppo": -np.minimum(ratios * advantages, clipped * advantages).sum(),
        "cispo": -(clipped * now * advantages).sum(),
        "dro": -(now * advantages - 0.5 * 0.05 * (now - q) ** 2).sum(),
    }
    # `now` is float32, in the exponent and beside it
    size = float((ratios * now * now * np.abs(advantages)).sum())
    for loss_fn, value in expected.items():
        metrics = engine.forward_backward("a", [one], loss_fn, {}, backward=False).metrics
        assert metrics["loss:sum"] == near(value, 5, size)
        assert metrics["tokens:sum"] == 5
    wide = {"clip_low_threshold": 0.1, "clip_high_threshold": 10.0}
    unclipped = engine.forward_backward("a", [one], "ppo", wide, backward=False).metrics
    assert unclipped["loss:sum"] == near(expected["importance_sampling"], 5, size)
    assert unclipped["clipped:sum"] == 0


def test_the_loss_divided_by_the_weights_does_not_depend_on_them(engine: ToyEngine) -> None:
    """A tenth of the weights is a tenth of the loss and of `weights:sum`; the
    tokens are as many.
    """
    whole, tenth = (
        engine.forward_backward(
            "a",
            [example(weights=np.full(5, weight, np.float32))],
            "cross_entropy",
            {},
            backward=False,
        ).metrics
        for weight in (1.0, 0.1)
    )
    assert (whole["weights:sum"], whole["tokens:sum"], tenth["tokens:sum"]) == (5, 5, 5)
    assert tenth["weights:sum"] == near(0.5, 5)
    assert tenth["loss:sum"] / tenth["weights:sum"] == near(
        whole["loss:sum"] / whole["weights:sum"], 5
    )


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", ["importance_sampling", "ppo", "cispo"])
def test_metrics_leave_out_what_teaches_nothing(engine: ToyEngine, loss_fn: str) -> None:
    """On policy, with prompt positions of logprob 0 and advantage 0, every counted ratio is 1 and
    nothing is clipped.
    """
    now = engine.forward_backward("a", [example()], "cross_entropy", {}, backward=False).outputs[0][
        "logprobs"
    ]
    learned = np.array([0, 0, 1, 1, 1], np.float32)
    on_policy = example(
        logprobs=now * learned, advantages=learned * np.array([0, 0, 1.5, -1, 2], np.float32)
    )
    metrics = engine.forward_backward("a", [on_policy], loss_fn, {}, backward=False).metrics
    assert metrics["tokens:sum"] == 3
    assert (
        metrics["ratio:min"]
        == near(1.0, magnitude=float(np.abs(now).max()))
        == metrics["ratio:max"]
    )
    assert metrics.get("clipped:sum") == (None if loss_fn == "importance_sampling" else 0.0)
    nothing = example(logprobs=now * 0, advantages=learned * 0)
    metrics = engine.forward_backward("a", [nothing], loss_fn, {}, backward=False).metrics
    assert metrics.pop("clipped:sum", 0.0) == 0.0
    assert metrics == {"loss:sum": 0.0, "tokens:sum": 0.0, "weights:sum": 0.0}


@pytest.mark.parametrize(
    "loss_fn", ["importance_sampling", "ppo", "cispo", "dro", "stable_reinforce"]
)
def test_the_gap_between_sampler_and_trainer_is_a_metric(engine: ToyEngine, loss_fn: str) -> None:
    """The mean and the largest difference of both log-probabilities are metrics, over the tokens
    that the metrics count.
    """
    now = engine.forward_backward("a", [example()], "cross_entropy", {}, backward=False).outputs[0][
        "logprobs"
    ]
    apart = np.array([0, 0.25, -0.5, 0, 0], np.float32)
    one = example(logprobs=now + apart, advantages=np.ones(5, np.float32))
    metrics = engine.forward_backward("a", [one], loss_fn, {}, backward=False).metrics
    gaps = metrics["sampler_logprob_gap:mean"], metrics["sampler_logprob_gap:max"]
    assert gaps == near((0.15, 0.5), 5, float(np.abs(now).max()))
    assert (
        "sampler_logprob_gap:mean"
        not in engine.forward_backward("a", [example()], "cross_entropy", {}, backward=True).metrics
    )


def test_dro_counts_what_has_no_advantage(engine: ToyEngine) -> None:
    """Tokens without an advantage count in dro, because of its penalty."""
    drifting = example(logprobs=np.zeros(5, np.float32), advantages=np.zeros(5, np.float32))
    metrics = engine.forward_backward("a", [drifting], "dro", {}, backward=False).metrics
    assert metrics["tokens:sum"] == 5
    assert metrics["loss:sum"] > 0


def test_weights_and_masks_scale_terms_and_silence_the_rest(engine: ToyEngine) -> None:
    """A position of weight zero has no effect, whatever its value; an impossible target is reported
    with logprob 0.
    """
    targets = TARGETS.copy()
    targets[1] = -100
    one = example(target_tokens=targets, weights=[1.0, 0.0, 1.0, 2.0, 0.5])
    result = engine.forward_backward("a", [one], "cross_entropy", {}, backward=False)
    logprobs = result.outputs[0]["logprobs"]
    assert logprobs[1] == 0.0
    assert result.metrics["loss:sum"] == near(
        -float(logprobs @ np.array([1.0, 0.0, 1.0, 2.0, 0.5])), 5
    )
    rl = rl_example(engine)
    masked = attrs.evolve(rl, loss_inputs={**rl.loss_inputs, "mask": np.zeros(5, np.float32)})
    assert (
        engine.forward_backward("a", [masked], "ppo", {}, backward=False).metrics["loss:sum"] == 0.0
    )


def test_several_targets_for_each_position(engine: ToyEngine) -> None:
    """``target_tokens [N, K]`` gives logprobs of that shape, equal to those of K
    single requests.
    """
    both = np.stack([TARGETS, TARGETS[::-1]], axis=1)
    wide = engine.forward_backward(
        "a", [example(target_tokens=both)], "cross_entropy", {}, backward=False
    )
    assert wide.outputs[0]["logprobs"].shape == (5, 2)
    for column in range(2):
        one = example(target_tokens=both[:, column])
        narrow = engine.forward_backward("a", [one], "cross_entropy", {}, backward=False).outputs[
            0
        ]["logprobs"]
        np.testing.assert_array_equal(wide.outputs[0]["logprobs"][:, column], narrow)


@pytest.mark.numeric
def test_gradients_accumulate_until_a_step(engine: ToyEngine) -> None:
    """Two calls and one step are one call with both datums and one step; a forward adds nothing."""
    engine.create_adapter("b", SPEC)
    adam = Adam(learning_rate=1.0, eps=1.0)  # whose step is no more uncertain than the gradient
    for _ in range(2):
        engine.forward_backward("a", [example()], "cross_entropy", {}, backward=True)
    engine.forward_backward("b", [example(), example()], "cross_entropy", {}, backward=True)
    engine.forward_backward("b", [example()], "cross_entropy", {}, backward=False)
    assert engine.optim_step("a", adam) == near(
        engine.optim_step("b", adam), TOKENS.size * 2, unit=FLOAT64
    )
    for name, tensor in engine._adapter("a").weights.tensors.items():
        assert_near(
            tensor, engine._adapter("b").weights.tensors[name], TOKENS.size * 2, unit=FLOAT64
        )


# Optimizer


@pytest.mark.numeric
def test_steps_follow_adam(engine: ToyEngine) -> None:
    """Two steps with clipping and decoupled weight decay match the textbook; a step without a
    gradient counts it as zero.
    """
    params = Adam(
        learning_rate=0.1, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.5, grad_clip_norm=0.01
    )
    adapter = engine._adapter("a")
    value, first, second = adapter.weights.tensors["low.b"].copy(), 0.0, 0.0
    for step in (1, 2):
        gradient: Any = 0.0
        if step == 1:
            engine.forward_backward("a", [example()], "cross_entropy", {}, backward=True)
            assert adapter.gradient is not None
            norm = math.sqrt(sum(float((part**2).sum()) for part in adapter.gradient.values()))
            assert norm > 0.01
            gradient = adapter.gradient["low.b"] * 0.01 / norm
        metrics = engine.optim_step("a", params)
        assert metrics["grad_norm:mean"] == near(
            norm if step == 1 else 0.0, value.size, unit=FLOAT64
        )
        first, second = 0.8 * first + 0.2 * gradient, 0.9 * second + 0.1 * gradient**2
        direction = first / (1 - 0.8**step) / (np.sqrt(second / (1 - 0.9**step)) + 1e-3)
        value = value * (1 - 0.1 * 0.5) - 0.1 * direction
    assert_near(engine._adapter("a").weights.tensors["low.b"], value, value.size, unit=FLOAT64)


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
            engine.forward_backward(name, [example()], "cross_entropy", {}, backward=True)
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


@pytest.mark.parametrize(
    "step", [Adam(learning_rate=1e300), Adam(eps=1e-60), Dimuon(learning_rate=1e300)], ids=repr
)
def test_numbers_that_float32_does_not_hold_are_refused(
    engine: ToyEngine, step: Adam | Dimuon
) -> None:
    """The numbers of a step are checked as those of a real model are."""
    with pytest.raises(EngineError, match=r"which is .* float32, the type of the weights$"):
        engine.optim_step("a", step)


def test_the_model_learns(engine: ToyEngine) -> None:
    """A sentence of distinct bytes is learned nearly by heart, in any part of a
    large vocabulary.
    """
    losses = train(engine, "a", b"the quick!", 60)
    assert losses[-1] < 0.05 * losses[0]
    large = ToyEngine(vocabulary=50_000)
    large.create_adapter("a", AdapterSpec(rank=8, seed=1))
    tokens = np.array([49_999, 12_345, 33, 40_000, 256], np.int32)
    one = TrainingExample(
        tokens=tokens[:-1], loss_inputs={"target_tokens": tokens[1:].astype(np.int64)}
    )
    for _ in range(60):
        loss = large.forward_backward("a", [one], "cross_entropy", {}, backward=True).metrics[
            "loss:sum"
        ]
        large.optim_step("a", Adam(learning_rate=0.02))
    assert loss < 0.5


# Adapters on disk and in memory


def test_a_saved_adapter_goes_on_as_if_nothing_had_happened(
    engine: ToyEngine, tmp_path: Path
) -> None:
    """With the optimizer the next steps are identical; without it they differ; a snapshot needs the
    weights only.
    """
    train(engine, "a", b"abcabc", 3)
    engine.save("a", tmp_path, optimizer=True)
    other = ToyEngine(vocabulary=512)
    assert other.load("b", tmp_path, optimizer=True) == SPEC
    other.load("c", tmp_path, optimizer=False)
    expected = train(engine, "a", b"abcabc", 3)
    assert train(other, "b", b"abcabc", 3) == expected
    assert train(other, "c", b"abcabc", 3)[0] == expected[0]
    assert train(other, "c", b"abcabc", 1)[0] != expected[-1]
    fields = {"text": b"abc", "prompt_logprobs": True}
    engine.load("a", tmp_path, optimizer=False)
    np.testing.assert_array_equal(
        sample(other, weights=other.load_snapshot(tmp_path), **fields).prompt_logprobs,
        sample(engine, weights=engine.snapshot("a"), **fields).prompt_logprobs,
    )


def test_files_that_do_not_fit_are_refused(engine: ToyEngine, tmp_path: Path) -> None:
    """An empty folder, a broken file and another vocabulary are errors that say so."""
    with pytest.raises(EngineError, match="not written by this engine"):
        engine.load("b", tmp_path, optimizer=False)
    engine.save("a", tmp_path, optimizer=False)
    with pytest.raises(EngineError, match="no optimizer state; load it without"):
        engine.load("b", tmp_path, optimizer=True)
    with pytest.raises(EngineError, match="512 token ids, this model 300"):
        ToyEngine(vocabulary=300).load_snapshot(tmp_path)
    (tmp_path / "toy_adapter.npz").write_bytes(b"PK\x03\x04")
    with pytest.raises(EngineError, match="not written by this engine"):
        engine.load_snapshot(tmp_path)


def test_snapshots_do_not_move(engine: ToyEngine) -> None:
    """Later steps and the end of the adapter leave a snapshot as it was."""
    frozen = engine.snapshot("a")
    before = sample(engine, b"abc", weights=frozen, prompt_logprobs=True).prompt_logprobs
    train(engine, "a", b"abcabc", 3)
    moved = sample(
        engine, b"abc", weights=engine.snapshot("a"), prompt_logprobs=True
    ).prompt_logprobs
    engine.drop_adapter("a")
    engine.drop_adapter("a")
    after = sample(engine, b"abc", weights=frozen, prompt_logprobs=True).prompt_logprobs
    np.testing.assert_array_equal(before, after)
    assert not np.array_equal(before, moved)
    with pytest.raises(EngineError, match="no adapter 'a'"):
        engine.snapshot("a")


def test_seeds_decide_adapters(engine: ToyEngine) -> None:
    """The same seed starts with the same matrices, another seed with others; a seed is drawn where
    none is given.
    """
    for name, seed in {"b": 5, "c": 6, "d": None}.items():
        engine.create_adapter(name, AdapterSpec(rank=3, seed=seed))
    first = {name: engine._adapter(name).weights.tensors["low.a"] for name in "abcd"}
    assert np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], first["c"])
    assert engine._adapter("d").weights.spec.seed is not None


# Sampling


def test_a_seed_decides_whatever_else_is_in_the_batch(engine: ToyEngine) -> None:
    """A job gets the same tokens alone and among others; its samples differ from each other."""
    jobs = [
        SampleJob(
            tokens=np.array([97 + index], np.int32),
            weights=None,
            max_tokens=30,
            seed=3,
            num_samples=2,
            stop=[],
        )
        for index in range(4)
    ]
    together = engine.sample(jobs)
    for job, result in zip(jobs, together):
        alone = engine.sample([job])[0]
        for one, other in zip(alone.sequences, result.sequences):
            np.testing.assert_array_equal(one.tokens, other.tokens)
        assert not np.array_equal(result.sequences[0].tokens, result.sequences[1].tokens)


def test_draws_follow_the_distribution(engine: ToyEngine) -> None:
    """Frequencies of two thousand draws agree with the probabilities reported for them."""
    result = sample(engine, num_samples=2000, max_tokens=1, topk_sample_logprobs=3)
    drawn = np.array([sequence.tokens[0] for sequence in result.sequences])
    table = result.sequences[0].topk
    assert table is not None
    for token, logprob in zip(table[0][0], table[1][0]):
        probability = math.exp(logprob)
        assert (drawn == token).mean() == share(probability, 2000)


def test_temperature_zero_is_greedy(engine: ToyEngine) -> None:
    """Without temperature the likeliest token is taken every time, and its real
    logprob reported.
    """
    result = sample(engine, temperature=0.0, num_samples=3, topk_sample_logprobs=1, seed=None)
    for sequence in result.sequences:
        assert sequence.topk is not None
        np.testing.assert_array_equal(sequence.tokens, sequence.topk[0][:, 0])
        np.testing.assert_array_equal(sequence.logprobs, sequence.topk[1][:, 0])


def test_top_k_and_top_p_cut_the_tail(engine: ToyEngine) -> None:
    """Only the k likeliest tokens, or the fewest that reach probability p, are ever drawn."""
    everything = sample(engine, max_tokens=1, topk_sample_logprobs=512).sequences[0].topk
    assert everything is not None
    order, probabilities = everything[0][0], np.exp(everything[1][0].astype(np.float64))
    fewest = int(np.searchsorted(probabilities.cumsum(), 0.6)) + 1
    for cut, kept in (
        ({"top_k": 2}, 2),
        ({"top_p": 0.6}, fewest),
        ({"top_p": 0.0}, 1),
        ({"top_k": 1, "top_p": 0.99}, 1),
    ):
        drawn = {
            int(s.tokens[0]) for s in sample(engine, num_samples=300, max_tokens=1, **cut).sequences
        }
        assert drawn <= set(order[:kept].tolist())
        assert len(drawn) == kept


def test_the_scale_of_an_adapter(engine: ToyEngine) -> None:
    """One small step moves the logprobs twice as far with twice the scale, and what cannot be
    chosen is refused by name.
    """

    def moved(alpha: float) -> float:
        engine.create_adapter("scaled", attrs.evolve(SPEC, lora_alpha=alpha))
        before, after = train(engine, "scaled", b"hello", 2, rate=1e-6)
        return before - after

    assert abs(moved(64) / moved(32) - 2) < 0.01  # the curve of the loss over a step, not rounding
    with pytest.raises(EngineError, match="target_modules: the toy model has no modules"):
        engine.create_adapter("other", attrs.evolve(SPEC, target_modules=("q_proj",)))


def test_min_p_and_penalties_change_what_is_drawn(engine: ToyEngine) -> None:
    """Tokens less likely than that part of the likeliest are never drawn, and a penalty makes
    greedy tokens differ.
    """
    likeliest = sample(engine, max_tokens=1, temperature=0).sequences[0].logprobs[0]
    for sampled in sample(engine, num_samples=300, max_tokens=1, min_p=0.3).sequences:
        assert sampled.logprobs[0] >= likeliest + math.log(0.3) - tolerance(1, abs(likeliest) + 1)
    greedy, penalized = (
        sample(engine, max_tokens=40, temperature=0, stop=[], frequency_penalty=penalty)
        .sequences[0]
        .tokens.tolist()
        for penalty in (0.0, 2.0)
    )
    assert len(set(greedy)) < len(set(penalized))


def test_stops_end_a_sequence_and_stay_in_it(engine: ToyEngine) -> None:
    """A text ends the sequence where its bytes first appear, an id where it is first drawn; both
    are its last tokens.
    """
    free = bytes(
        sample(engine, max_tokens=60, seed=2, stop=[]).sequences[0].tokens.clip(0, 255).tolist()
    )
    pair = free[30:32]
    stops: list[tuple[list[Any], bytes]] = [
        ([pair.decode()], free[: free.index(pair) + 2]),
        (["\n\n\n", pair.decode()], free[: free.index(pair) + 2]),
        ([pair[0]], free[: free.index(pair[:1]) + 1]),
        ([0, pair[1]], free[: free.index(pair[1:]) + 1]),
    ]
    for stop, expected in stops:
        sequence = sample(engine, max_tokens=60, seed=2, stop=stop).sequences[0]
        assert (sequence.stop_reason, bytes(sequence.tokens.tolist())) == ("stop", expected)


def test_the_end_of_text_stops_by_default_only(engine: ToyEngine) -> None:
    """Without a stop the model's own end of text ends a sequence; an empty list lets it go on."""
    ended = sample(engine, max_tokens=3000, seed=4).sequences[0]
    assert (ended.stop_reason, int(ended.tokens[-1])) == ("stop", END_OF_TEXT)
    free = sample(engine, max_tokens=3000, seed=4, stop=[]).sequences[0]
    assert (free.stop_reason, len(free.tokens)) == ("length", 3000)


@pytest.mark.numeric
def test_prompts_are_scored(engine: ToyEngine) -> None:
    """Prompt logprobs and their top-k table agree with what training reports for
    the same tokens.
    """
    result = sample(
        engine, tokens=TOKENS, max_tokens=0, prompt_logprobs=True, topk_prompt_logprobs=512
    )
    one = TrainingExample(
        tokens=TOKENS[:-1], loss_inputs={"target_tokens": TOKENS[1:].astype(np.int64)}
    )
    trained = engine.forward_backward("a", [one], "cross_entropy", {}, backward=False).outputs[0][
        "logprobs"
    ]
    assert result.prompt_logprobs is not None
    assert_near(result.prompt_logprobs[1:], trained)
    assert result.topk_prompt is not None
    ids, logprobs = result.topk_prompt
    assert ids.shape == logprobs.shape == (5, 512)
    assert (ids[0] == 0).all()
    assert (logprobs[0] == np.float32(-99999.0)).all()
    place = int(np.flatnonzero(ids[1] == TOKENS[1])[0])
    assert logprobs[1, place] == near(result.prompt_logprobs[1])
    assert len(result.sequences[0].tokens) == 0


@pytest.mark.numeric
def test_chosen_tokens_of_a_prompt_are_scored(engine: ToyEngine) -> None:
    """Each target gets the log-probability that the whole table has for it, in the order asked,
    also twice.
    """
    targets = PromptTargets(positions=np.array([3, 1, 3]), tokens=np.array([7, 101, 7]))
    result = sample(
        engine,
        tokens=TOKENS,
        topk_prompt_logprobs=512,
        prompt_logprobs=True,
        prompt_targets=targets,
    )
    assert result.topk_prompt is not None
    table = dict(zip(result.topk_prompt[0][3].tolist(), result.topk_prompt[1][3].tolist()))
    assert result.target_logprobs is not None
    assert result.prompt_logprobs is not None
    assert result.target_logprobs.dtype == np.float32
    assert_near(result.target_logprobs[[0, 2]], [table[7]] * 2)
    assert result.target_logprobs[1] == near(result.prompt_logprobs[1])


def test_alternatives_of_a_prompt_follow_the_distribution(engine: ToyEngine) -> None:
    """At each position but the first, tokens are drawn as often as they are likely, whatever top_k
    says; 0 is greedy.
    """
    fields: dict[str, Any] = {
        "tokens": TOKENS,
        "prompt_alternatives": 4000,
        "topk_prompt_logprobs": 512,
        "seed": 3,
    }
    result = sample(engine, top_k=1, **fields)
    assert result.alternatives is not None
    assert result.topk_prompt is not None
    ids, logprobs = result.alternatives
    assert ids.shape == logprobs.shape == (4, 4000)
    likely, values = result.topk_prompt[0][1], result.topk_prompt[1][1]
    for token, value in zip(likely[:3], values[:3]):
        assert (ids[0] == token).mean() == share(math.exp(value), 4000)
        assert (logprobs[0][ids[0] == token] == value).all()
    greedy = sample(engine, temperature=0.0, **fields).alternatives
    assert greedy is not None
    assert (greedy[0] == result.topk_prompt[0][1:, :1]).all()


def test_questions_about_the_prompt_change_no_continuation(engine: ToyEngine) -> None:
    """The same seed gives the same tokens with and without alternatives, and the same alternatives
    again.
    """
    plain, asking = (
        sample(engine, tokens=TOKENS, max_tokens=20, prompt_alternatives=k) for k in (0, 3)
    )
    assert plain.sequences[0].tokens.tolist() == asking.sequences[0].tokens.tolist()
    again = sample(engine, tokens=TOKENS, max_tokens=1, prompt_alternatives=3)
    assert plain.alternatives is None
    assert asking.alternatives is not None
    assert again.alternatives is not None
    assert (asking.alternatives[0] == again.alternatives[0]).all()


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


@pytest.mark.numeric
def test_a_dimuon_step_goes_along_the_orthogonalised_momentum(engine: ToyEngine) -> None:
    """Each matrix moves by learning_rate * sqrt(rank), whatever the size of its gradient; one
    without gradient stays.
    """
    before = {name: tensor.copy() for name, tensor in engine._adapter("a").weights.tensors.items()}
    engine.forward_backward("a", [example()], "cross_entropy", {}, backward=True)
    engine.optim_step("a", Dimuon(learning_rate=0.02))
    after = engine._adapter("a").weights.tensors
    moved = {name: float(np.linalg.norm(after[name] - before[name])) for name in after}
    high = min(before["high.b"].shape)
    assert moved == {
        "high.a": 0.0,
        "low.a": 0.0,
        "high.b": near(0.02 * math.sqrt(high), before["high.b"].size, unit=FLOAT64),
        "low.b": near(0.02 * math.sqrt(SPEC.rank), before["low.b"].size, unit=FLOAT64),
    }


def test_dimuon_learns_and_goes_on_from_a_file(engine: ToyEngine, tmp_path: Path) -> None:
    """Steps lower the loss; saved and loaded with its momentum, the next steps are the same."""

    def train(name: str) -> float:
        loss = engine.forward_backward(
            name, [example()], "cross_entropy", {}, backward=True
        ).metrics["loss:sum"]
        engine.optim_step(name, Dimuon(learning_rate=0.005, grad_clip_norm=-1.0))
        return loss

    losses = [train("a") for _ in range(6)]
    assert losses[-1] < 0.7 * losses[0]
    engine.save("a", tmp_path, optimizer=True)
    engine.load("c", tmp_path, optimizer=True)
    assert [train("a"), train("a")] == [train("c"), train("c")]


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": -1.0},
        {"learning_rate": math.inf},
        {"beta1": 1.0},
        {"grad_clip_norm": -math.inf},
    ],
)
def test_impossible_dimuon_values_are_refused(engine: ToyEngine, change: dict[str, float]) -> None:
    """The error names the parameter."""
    with pytest.raises(EngineError, match=next(iter(change))):
        engine.optim_step("a", Dimuon(**{"learning_rate": 0.1, **change}))


# Mistakes


@pytest.mark.parametrize(
    ("loss_fn", "inputs", "said"),
    [
        ("ppo", {}, r"data\[0\]: loss_fn_inputs is missing advantages, logprobs"),
        ("cross_entropy", {"advantages": np.ones(5)}, "contains advantages"),
        ("cross_entropy", {"target_tokens": TARGETS[:4]}, r"target_tokens has shape \[4\]"),
        ("cross_entropy", {"weights": np.ones(4)}, r"weights has shape \[4\]"),
        ("cross_entropy", {"weights": [np.nan] * 5}, "weights contains a value that is not finite"),
        ("cross_entropy", {"target_tokens": TARGETS + 500}, "target_tokens contains token id"),
        ("importance_sampling", {"logprobs": [-1e4] * 5, "advantages": [1.0] * 5}, "not finite"),
        ("rope", {}, "unknown loss_fn 'rope'; this server has cross_entropy"),
    ],
)
def test_a_wrong_datum_is_named_and_changes_nothing(
    engine: ToyEngine, loss_fn: str, inputs: dict[str, Any], said: str
) -> None:
    """The error names datum and field, and no gradient has changed."""
    with pytest.raises(EngineError, match=said):
        engine.forward_backward("a", [example(**inputs)], loss_fn, {}, backward=True)
    assert engine._adapter("a").gradient is None


def test_weights_that_have_diverged_are_blamed(engine: ToyEngine) -> None:
    """A loss that is not finite is not blamed on data that are."""
    pairs = ((example(), "cross_entropy"), (rl_example(engine), "ppo"))
    weights = engine._adapter("a").weights
    engine._adapter("a").weights = attrs.evolve(
        weights,
        tensors={name: np.full_like(part, np.nan) for name, part in weights.tensors.items()},
    )
    for given, loss_fn in pairs:
        with pytest.raises(
            EngineError,
            match=r"^data\[0\]: the loss is not finite: the weights have probably diverged\. Lower",
        ):
            engine.forward_backward("a", [given], loss_fn, {}, backward=True)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"beta": 1.0}, "unknown loss_fn_config key 'beta'; ppo takes"),
        ({"clip_low_threshold": "x"}, "it must be a finite number"),
        ({"clip_low_threshold": 2.0}, "exceeds"),
    ],
)
def test_a_wrong_option_is_named(engine: ToyEngine, config: dict[str, Any], said: str) -> None:
    """Unknown keys, texts and impossible thresholds are refused."""
    with pytest.raises(EngineError, match=said):
        engine.forward_backward("a", [rl_example(engine)], "ppo", config, backward=True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokens": np.array([], np.int32)}, "the prompt is empty"),
        ({"tokens": np.array([512], np.int32)}, "token id 512"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"max_tokens": 10**6}, "exceeds the context length"),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": -0.1}, "top_p is -0.1"),
        ({"topk_prompt_logprobs": 513}, "topk_prompt_logprobs is 513"),
        ({"stop": [""]}, "empty stop string"),
        ({"weights": "not weights"}, "do not come from this engine"),
    ],
)
def test_a_wrong_sample_job_is_named(engine: ToyEngine, fields: dict[str, Any], said: str) -> None:
    """An impossible sample is refused with the parameter's name."""
    with pytest.raises(EngineError, match=said):
        sample(engine, **fields)


@pytest.mark.parametrize(
    ("length", "max_tokens", "said"),
    [
        (
            1,
            20,
            (
                "max_tokens is 20, which with a prompt of 1 token exceeds the context length of "
                "16; use max_tokens of at most 15"
            ),
        ),
        (
            6,
            11,
            (
                "max_tokens is 11, which with a prompt of 6 tokens exceeds the context length of "
                "16; use max_tokens of at most 10"
            ),
        ),
        (
            16,
            1,
            "the prompt has 16 tokens, which fills the context length of 16; shorten the prompt",
        ),
        (
            17,
            -1,
            "the prompt has 17 tokens, which exceeds the context length of 16; shorten the prompt",
        ),
    ],
)
def test_a_sample_that_does_not_fit_names_the_limit(
    length: int, max_tokens: int, said: str
) -> None:
    """The refusal says how much fits, or that the prompt is too long; a prompt that fills the
    context can be scored.
    """
    small = ToyEngine(max_context_length=16)
    with pytest.raises(EngineError, match=f"^{said}$"):
        sample(small, tokens=np.ones(length, np.int32), max_tokens=max_tokens)
    assert sample(small, tokens=np.ones(16, np.int32), max_tokens=0)


@pytest.mark.parametrize("params", [{"learning_rate": math.nan}, {"beta1": 1.0}, {"eps": -1.0}])
def test_wrong_optimizer_parameters_are_named(engine: ToyEngine, params: dict[str, float]) -> None:
    """A step with impossible parameters is refused and changes nothing."""
    engine.forward_backward("a", [example()], "cross_entropy", {}, backward=True)
    with pytest.raises(EngineError, match=next(iter(params))):
        engine.optim_step("a", Adam(**params))
    assert engine._adapter("a").gradient is not None


def test_impossible_sizes_are_refused(engine: ToyEngine) -> None:
    """A rank or a vocabulary that cannot be is an error at creation."""
    for rank in (0, 100_000):
        with pytest.raises(EngineError, match="rank is"):
            engine.create_adapter("b", AdapterSpec(rank=rank))
    with pytest.raises(ValueError, match="vocabulary"):
        ToyEngine(vocabulary=1)


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", sorted(LOSS_FORMS))
def test_both_engines_compute_the_same_losses(loss_fn: str) -> None:
    """Terms and derivatives of torch tensors equal those of numpy arrays."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    logprobs = -rng.random(200)
    inputs = {"logprobs": logprobs + rng.normal(0, 0.5, 200), "advantages": rng.normal(0, 1, 200)}
    if LOSS_FORMS[loss_fn].sequence is not None:
        inputs[SEQUENCE_LOG_RATIO] = rng.normal(0, 0.5, 200)
    options = LOSS_FORMS[loss_fn].config
    found = LOSSES[loss_fn](np, logprobs, inputs, options)
    tensors = {name: torch.tensor(value) for name, value in inputs.items()}
    for here, there in zip(
        found, LOSSES[loss_fn](torch, torch.tensor(logprobs), tensors, options), strict=True
    ):
        assert_near(here, there, 10, unit=FLOAT64)


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", sorted({*LOSS_FORMS} - {"cispo", "gspo", "stable_reinforce"}))
def test_slopes_are_the_derivatives_of_the_terms(loss_fn: str) -> None:
    """The slope of each term is torch's gradient, where no factor counts as constant."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    leaf = torch.tensor(-rng.random(200), requires_grad=True)
    inputs = {
        "logprobs": leaf.detach() + torch.tensor(rng.normal(0, 0.5, 200)),
        "advantages": torch.tensor(rng.normal(0, 1, 200)),
    }
    terms, slopes = LOSSES[loss_fn](torch, leaf, inputs, LOSS_FORMS[loss_fn].config)
    terms.sum().backward()
    assert_near(slopes, leaf.grad, 10, unit=FLOAT64)
