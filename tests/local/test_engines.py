"""What every engine does alike: the toy, the one in numpy and the one of torch, the last two with
one small random Llama.

``test_toy_engine``, ``test_numpy_engine`` and ``test_torch_engine`` have what is particular to each.
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from support.engine_inputs import (
    SMOOTH,
    SPEC,
    VOCABULARY,
    Heard,
    as_array,
    compute,
    fail_to_hear,
    finish,
    gradient_of,
    logprobs_of,
    make_data,
    make_datum,
    make_job,
    make_text,
    make_tokens,
    nudge,
    only,
    sample,
    tokens_of,
    weights_of,
)
from support.tiny_models import sample_jobs, write_tiny_llama
from support.tolerances import (
    FLOAT32,
    FLOAT64,
    assert_near,
    near,
    share,
    terms_of_gradient,
    terms_of_pass,
    tolerance,
)

from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    PromptTargets,
    SampleJob,
    shape_logits,
)
from tinker.local.engines.toy import ToyEngine

CONTEXT = 128


@pytest.fixture(scope="session")
def open_kind(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """Return what opens an engine of a kind, once."""

    @cache
    def open_kind(kind: str) -> Any:
        if kind == "toy":
            return ToyEngine(vocabulary=VOCABULARY, max_context_length=CONTEXT)
        for needed in ("torch", "transformers", "peft"):
            pytest.importorskip(needed)
        folder = write_tiny_llama(tmp_path_factory.mktemp("models") / kind)
        if kind == "numpy":
            from tinker.local.engines.numpy import NumpyEngine

            return NumpyEngine(folder)
        from tinker.local.engines.torch import TorchEngine

        return TorchEngine(folder, device="cpu", share_passes=True)

    return open_kind


@pytest.fixture(params=["toy", "numpy", "torch"])
def engine(request: pytest.FixtureRequest, open_kind: Callable[[str], Any]) -> Iterator[Any]:
    """Yield each engine with two fresh adapters, ``a`` and ``b``."""
    engine = open_kind(request.param)
    engine.create_adapter("a", SPEC)
    engine.create_adapter("b", AdapterSpec(rank=2, seed=8, train_unembed=False))
    yield engine
    for name in "abc":
        engine.drop_adapter(name)


def unit_of(engine: Any) -> float:
    """Return what the numbers of an engine's weights are rounded to."""
    return FLOAT64 if isinstance(engine, ToyEngine) else FLOAT32


def terms_of(engine: Any, length: int) -> int:
    """Return how many terms a log-probability is made of; the toy's is summed in float64."""
    return 5 if isinstance(engine, ToyEngine) else terms_of_pass(length)


def on_policy(engine: Any, loss_fn: str, drift: Any, **inputs: Any) -> Any:
    """Make a datum of five tokens that was sampled by today's weights, but for a drift."""
    one = make_datum(5, loss_fn, **inputs)
    one.loss_inputs["logprobs"][:] = logprobs_of(engine, "a", one) + np.float32(drift)
    return one


# Losses and gradients


@pytest.mark.numeric
def test_a_fresh_adapter_is_the_base_model(engine: Any) -> None:
    """Before the first step the logprobs of an adapter are those of the base model, whatever it
    changes.
    """
    base, *fresh = (
        sample(engine, 9, weights=weights, prompt_logprobs=True).prompt_logprobs
        for weights in (None, engine.snapshot("a"), engine.snapshot("b"))
    )
    for logprobs in fresh:
        np.testing.assert_array_equal(logprobs, base)


def test_adapters_do_not_affect_each_other_or_the_base(engine: Any) -> None:
    """Training one adapter, its output head included, leaves the other adapter and the base model
    as they were.
    """

    def measured() -> list[Any]:
        return [
            sample(engine, 9, weights=weights, prompt_logprobs=True).prompt_logprobs
            for weights in (None, engine.snapshot("b"))
        ]

    nudge(engine, "b")
    before = measured()
    nudge(engine, "a")
    np.testing.assert_array_equal(before, measured())


def clip(value: Any, low: float = 0.8, high: float = 1.2) -> Any:
    return np.minimum(np.maximum(value, low), high)


Formula = Callable[[Any, Any, Any, Any], Any]
#: The terms of each loss by the log-probabilities now and then, the ratio, and the advantages.
FORMULAS: dict[str, Formula] = {
    "importance_sampling": lambda now, then, ratio, gain: -ratio * gain,
    "ppo": lambda now, then, ratio, gain: -np.minimum(ratio * gain, clip(ratio) * gain),
    "cispo": lambda now, then, ratio, gain: -clip(ratio) * now * gain,
    "gspo": lambda now, then, ratio, gain: -np.minimum(ratio * gain, clip(ratio) * gain),
    "dro": lambda now, then, ratio, gain: -(now * gain - 0.5 * 0.05 * (now - then) ** 2),
    "stable_reinforce": lambda now, then, ratio, gain: (
        -np.minimum(ratio, 2.0) * now * gain + 0.05 * (now - then) ** 2
    ),
}


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", FORMULAS)
def test_losses_have_their_documented_values(engine: Any, loss_fn: str) -> None:
    """The sums over tokens follow the published formulas, with the default options; gspo has one
    ratio, the geometric mean of the marked ones.
    """
    one = on_policy(engine, loss_fn, [0.0, 0.5, -1.5, 0.5, -0.5], advantages=[1, 2, -1, -2, 0.5])
    now, then = (
        np.asarray(values, np.float64)
        for values in (logprobs_of(engine, "a", one), one.loss_inputs["logprobs"])
    )
    ratio = np.exp(now - then)
    if loss_fn == "gspo":
        marked = one.loss_inputs["sequence_ratio_mask"] != 0
        ratio[:] = math.exp((now - then)[marked].mean())
    gain = one.loss_inputs["advantages"]
    config = {"kl_coeff": 0.1} if loss_fn == "stable_reinforce" else {}
    metrics = compute(engine, "a", [one], loss_fn, config, backward=False).metrics
    # the log-probabilities are rounded, in the exponent and beside it
    size = float((np.maximum(ratio, 1) * now * now * np.abs(gain)).sum())
    assert metrics["loss:sum"] == near(
        FORMULAS[loss_fn](now, then, ratio, gain).sum(), terms_of(engine, 5), size
    )
    assert metrics["tokens:sum"] == 5
    if loss_fn == "dro":
        return
    extremes = near((ratio.min(), ratio.max()), terms_of(engine, 5), size)
    assert (metrics["ratio:min"], metrics["ratio:max"]) == extremes
    if loss_fn == "stable_reinforce":
        assert metrics["truncated_reinforce/clipped:sum"] == (ratio > 2).sum() == 1
    if loss_fn == "ppo":
        wide = {"clip_low_threshold": 0.1, "clip_high_threshold": 10.0}
        unclipped = compute(engine, "a", [one], "ppo", wide, backward=False).metrics
        assert unclipped["loss:sum"] == near(-(ratio * gain).sum(), terms_of(engine, 5), size)
        assert (unclipped["clipped:sum"], metrics["clipped:sum"] > 0) == (0, True)


@pytest.mark.numeric
def test_the_loss_divided_by_the_weights_does_not_depend_on_them(engine: Any) -> None:
    """A tenth of the weights is a tenth of the loss and of `weights:sum`; the tokens are as many."""
    one = make_datum(5, "ppo")
    whole, tenth = (
        compute(
            engine,
            "a",
            [
                attrs.evolve(
                    one,
                    loss_inputs={
                        "target_tokens": one.loss_inputs["target_tokens"],
                        "weights": np.full(5, weight, np.float32),
                    },
                )
            ],
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
def test_metrics_leave_out_what_teaches_nothing(engine: Any, loss_fn: str) -> None:
    """On policy, with prompt positions of logprob 0 and advantage 0, every counted ratio is 1 and
    nothing is clipped.
    """
    one = on_policy(engine, loss_fn, 0)
    rounding = tolerance(terms_of(engine, 5), float(np.abs(one.loss_inputs["logprobs"]).max()))
    for name in ("logprobs", "advantages"):
        one.loss_inputs[name][:2] = 0.0
    metrics = compute(engine, "a", [one], loss_fn).metrics
    assert metrics["tokens:sum"] == 3
    assert (metrics["ratio:min"], metrics["ratio:max"]) == near((1.0, 1.0), magnitude=rounding)
    assert metrics.get("clipped:sum") == (None if loss_fn == "importance_sampling" else 0.0)
    one.loss_inputs["advantages"][:] = 0.0
    metrics = compute(engine, "a", [one], loss_fn).metrics
    assert metrics.pop("clipped:sum", 0.0) == 0.0
    assert metrics == {"loss:sum": 0.0, "tokens:sum": 0.0, "weights:sum": 0.0}


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", sorted(FORMULAS.keys() - {"gspo"}))
def test_the_gap_between_sampler_and_trainer_is_a_metric(engine: Any, loss_fn: str) -> None:
    """The mean and the largest difference of both log-probabilities are metrics, over the tokens
    that the metrics count.
    """
    one = on_policy(engine, loss_fn, [0, 0.25, -0.5, 0, 0], advantages=np.ones(5, np.float32))
    metrics = compute(engine, "a", [one], loss_fn).metrics
    gaps = metrics["sampler_logprob_gap:mean"], metrics["sampler_logprob_gap:max"]
    assert gaps == near(
        (0.15, 0.5), terms_of(engine, 5), float(np.abs(one.loss_inputs["logprobs"]).max())
    )
    assert "sampler_logprob_gap:mean" not in compute(engine, "a", make_data(5)).metrics


def test_dro_counts_what_has_no_advantage(engine: Any) -> None:
    """Tokens without an advantage count in dro, because of its penalty."""
    drifting = make_datum(5, "dro", logprobs=np.zeros(5), advantages=np.zeros(5))
    metrics = compute(engine, "a", [drifting], "dro").metrics
    assert metrics["tokens:sum"] == 5
    assert metrics["loss:sum"] > 0


@pytest.mark.numeric
def test_weights_and_masks_scale_terms_and_silence_the_rest(engine: Any) -> None:
    """A position of weight zero has no effect, whatever its value; an impossible target is reported
    with logprob 0.
    """
    weights = np.array([1.0, 0.0, 1.0, 2.0, 0.5], np.float32)
    one = make_datum(5, weights=weights, target_tokens=[1, -100, 3, 4, 5])
    result = compute(engine, "a", [one])
    logprobs = result.outputs[0]["logprobs"]
    assert (logprobs[1], logprobs.dtype) == (0.0, np.float32)
    assert result.metrics["loss:sum"] == near(-float(logprobs @ weights), 5)
    masked = make_datum(5, "ppo", mask=np.zeros(5, np.float32))
    assert compute(engine, "a", [masked], "ppo").metrics["loss:sum"] == 0.0


@pytest.mark.numeric
def test_a_loss_is_the_sum_over_data_and_targets(engine: Any) -> None:
    """Data of unlike lengths, one of them with several targets for each position, have the outputs
    and the gradient of one call for each datum and target; a loss alone adds nothing.
    """
    nudge(engine, "a")
    wide = make_datum(6, columns=3)
    columns = [
        attrs.evolve(wide, loss_inputs={name: v[:, at] for name, v in wide.loss_inputs.items()})
        for at in range(3)
    ]
    data = make_data(9, 4, 12, 1)
    outputs = compute(engine, "a", [wide, *data]).outputs
    together = gradient_of(engine, "a")
    engine._adapter("a").gradient = None
    found = [compute(engine, "a", [one]).outputs[0]["logprobs"] for one in (*columns, *data)]
    compute(engine, "a", data, backward=False)
    assert [one["logprobs"].shape for one in outputs] == [(6, 3), (9,), (4,), (12,), (1,)]
    assert_near(outputs[0]["logprobs"], np.stack(found[:3], axis=1), terms_of(engine, 12))
    for one, alone in zip(outputs[1:], found[3:], strict=True):
        assert_near(one["logprobs"], alone, terms_of(engine, 12))
    terms = 2 * 44 if isinstance(engine, ToyEngine) else terms_of_gradient(12, 44)
    for name, part in gradient_of(engine, "a").items():
        assert_near(together[name], part, terms, unit=unit_of(engine), name=name)


# Optimizers


@pytest.mark.numeric
def test_steps_follow_adam(engine: Any) -> None:
    """Two steps with clipping and decoupled weight decay match the textbook; a step clears the
    gradient, and one without counts it as zero.
    """
    params = Adam(
        learning_rate=0.1, beta1=0.8, beta2=0.9, eps=1e-3, weight_decay=0.5, grad_clip_norm=0.01
    )
    values = {name: part.astype(np.float64) for name, part in weights_of(engine, "a").items()}
    first, second = (dict.fromkeys(values, np.float64(0)) for _ in range(2))
    for step in (1, 2):
        gradient, norm = dict.fromkeys(values, np.float64(0)), 0.0
        if step == 1:
            compute(engine, "a", make_data(5))
            gradient = {
                name: part.astype(np.float64) for name, part in gradient_of(engine, "a").items()
            }
            norm = math.sqrt(sum(float((part**2).sum()) for part in gradient.values()))
            assert norm > 0.01
        found = engine.optim_step("a", params)["grad_norm:mean"]
        size = sum(part.size for part in values.values())
        assert found == near(norm, size, unit=unit_of(engine))
        for name, part in gradient.items():
            clipped = part * min(1, 0.01 / (norm or 1))
            first[name] = 0.8 * first[name] + 0.2 * clipped
            second[name] = 0.9 * second[name] + 0.1 * clipped**2
            direction = first[name] / (1 - 0.8**step)
            direction = direction / (np.sqrt(second[name] / (1 - 0.9**step)) + 1e-3)
            values[name] = values[name] * (1 - 0.1 * 0.5) - 0.1 * direction
    for name, value in values.items():
        assert_near(weights_of(engine, "a")[name], value, size, unit=unit_of(engine), name=name)


NO_FLOAT32 = r"^\w+( [/*] .*)? is \S+, which is .* float32, the type of the weights$"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        *(
            (Adam(**{name: value}), f"^{name} is {value}; it must be at least 0 and finite$")
            for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm")
            for value in (-1.0, math.inf, math.nan)
        ),
        (Adam(beta1=1.0), "^beta1 is 1.0; it must be at least 0 and below 1$"),
        (Adam(beta2=1.0), "^beta2 is 1.0; it must be at least 0 and below 1$"),
        (Dimuon(learning_rate=-1.0), "^learning_rate is -1.0"),
        (Dimuon(learning_rate=math.inf), "^learning_rate is inf"),
        (Dimuon(learning_rate=0.1, beta1=1.0), "^beta1 is 1.0"),
        (Dimuon(learning_rate=0.1, grad_clip_norm=-math.inf), "^grad_clip_norm is -inf"),
        (Adam(learning_rate=1e300), NO_FLOAT32),
        (Adam(learning_rate=3.4028235e38), NO_FLOAT32),
        (Adam(learning_rate=1e-60), NO_FLOAT32),
        (Adam(eps=1e39), NO_FLOAT32),
        (Adam(eps=1e-60), NO_FLOAT32),
        (Adam(weight_decay=1e300), NO_FLOAT32),
        (Adam(beta1=1 - 1e-12), NO_FLOAT32),
        (Adam(beta2=1 - 1e-9), NO_FLOAT32),
        (Adam(beta2=1e-60), NO_FLOAT32),
        (Adam(grad_clip_norm=1e300), NO_FLOAT32),
        (Adam(grad_clip_norm=1e-60), NO_FLOAT32),
        (Adam(learning_rate=1e30, weight_decay=1e30), NO_FLOAT32),
        (Adam(learning_rate=1e38, beta1=0.9999), NO_FLOAT32),
        (Dimuon(learning_rate=1e300), NO_FLOAT32),
        (Dimuon(learning_rate=1.0, beta1=1 - 1e-12), NO_FLOAT32),
        (Dimuon(learning_rate=1.0, grad_clip_norm=1e-60), NO_FLOAT32),
    ],
    ids=repr,
)
def test_an_impossible_step_is_refused_and_changes_nothing(
    engine: Any, step: Any, said: str
) -> None:
    """The error names the parameter that is out of range, or infinite, 0, or for a beta 1, in the
    type of the weights.
    """
    compute(engine, "a", make_data(5))
    gradient = engine._adapter("a").gradient
    with pytest.raises(EngineError, match=said):
        engine.optim_step("a", step)
    assert engine._adapter("a").gradient is gradient


@pytest.mark.parametrize("rate", [3.4e38, 1e-45, 0.0])
def test_numbers_that_float32_holds_are_taken(engine: Any, rate: float) -> None:
    """The largest and the smallest numbers of float32 are numbers with which a step is made."""
    engine.optim_step("a", Adam(learning_rate=rate, beta1=0.0, eps=rate, weight_decay=0.5))
    engine.optim_step("b", Dimuon(learning_rate=rate, beta1=1 - 1e-7))


@pytest.mark.numeric
def test_a_dimuon_step_goes_along_the_orthogonalised_momentum(engine: Any) -> None:
    """Each matrix moves by learning_rate * sqrt(rank), whatever the size of its gradient; one
    without gradient stays.
    """
    before = {name: part.copy() for name, part in weights_of(engine, "a").items()}
    compute(engine, "a", make_data(6, 4))
    gradient = gradient_of(engine, "a")
    engine.optim_step("a", Dimuon(learning_rate=0.02, beta1=0.5))
    for name, part in weights_of(engine, "a").items():
        rank = min(part.shape) if gradient[name].any() else 0
        moved, rounding = np.linalg.norm(part - before[name]), float(np.linalg.norm(part))
        expected = near(0.02 * math.sqrt(rank), part.size, rounding, unit_of(engine))
        assert float(moved) == expected, name
    assert {bool(part.any()) for part in gradient.values()} == {True, False}


# Adapters on disk and in memory


@pytest.mark.parametrize(
    "step",
    [
        Adam(learning_rate=0.01, weight_decay=0.1, grad_clip_norm=0.1),
        Dimuon(learning_rate=0.005, grad_clip_norm=-1.0),
    ],
    ids=["adam", "dimuon"],
)
def test_a_saved_adapter_goes_on_as_if_nothing_had_happened(
    engine: Any, tmp_path: Path, step: Any
) -> None:
    """With the optimizer the losses, norms and weights of ten steps are the same, bit for bit, and
    the loss falls; without it they begin with the same loss and go on otherwise.
    """

    def go_on(name: str) -> list[float]:
        found: list[float] = []
        for _ in range(10):
            found.append(compute(engine, name, make_data(12, 7)).metrics["loss:sum"])
            found.append(engine.optim_step(name, step)["grad_norm:mean"])
        return found

    go_on("a")
    engine.save("a", tmp_path, optimizer=True)
    assert engine.load("b", tmp_path, optimizer=True) == SPEC
    assert engine.load("c", tmp_path, optimizer=False) == SPEC
    expected, bare = go_on("a"), go_on("c")
    assert expected[-2] < expected[0]
    assert go_on("b") == expected != bare
    assert bare[0] == expected[0]
    first, second = (weights_of(engine, name) for name in "ab")
    assert all(np.array_equal(part, second[name]) for name, part in first.items())


def test_a_folder_that_does_not_fit_is_refused(engine: Any, tmp_path: Path) -> None:
    """An optimizer that was not saved, and a folder without an adapter, are errors that say so, for
    training and for sampling.
    """
    engine.save("a", tmp_path, optimizer=False)
    with pytest.raises(EngineError, match="no optimizer state; load it without"):
        engine.load("b", tmp_path, optimizer=True)
    said = r"the checkpoint (was not written by this engine|cannot be read \(FileNotFoundError\))"
    with pytest.raises(EngineError, match=said):
        engine.load("b", tmp_path / "none", optimizer=False)
    with pytest.raises(EngineError, match=said):
        engine.load_snapshot(tmp_path / "none")


def test_snapshots_do_not_move(engine: Any, tmp_path: Path) -> None:
    """Later steps and the end of the adapter leave a snapshot as it was, and one that was read from
    a file is the same.
    """

    def drawn(weights: object) -> list[Any]:
        one = only(engine, weights=weights, max_tokens=20)
        return [one.tokens.tolist(), one.logprobs.tolist()]

    nudge(engine, "a")
    frozen = engine.snapshot("a")
    engine.save("a", tmp_path, optimizer=False)
    before = drawn(frozen)
    nudge(engine, "a")
    moved = drawn(engine.snapshot("a"))
    for _ in range(2):
        engine.drop_adapter("a")
    assert drawn(frozen) == drawn(engine.load_snapshot(tmp_path)) == before != moved
    for use in (engine.snapshot, lambda name: engine.optim_step(name, SMOOTH)):
        with pytest.raises(EngineError, match="no adapter 'a'"):
            use("a")


def test_seeds_decide_adapters(engine: Any) -> None:
    """The same seed starts with the same matrices, another seed with others; a seed is drawn where
    none is given.
    """

    def first(seed: int | None) -> Any:
        engine.create_adapter("c", attrs.evolve(SPEC, seed=seed))
        return np.concatenate([part.ravel() for part in weights_of(engine, "c").values()])

    assert np.array_equal(first(7), first(7))
    assert not np.array_equal(first(7), first(8))
    assert not np.array_equal(first(None), first(None))
    assert engine._adapter("c").weights.spec.seed is not None
    with pytest.raises(EngineError, match="rank is 0"):
        engine.create_adapter("c", AdapterSpec(rank=0))


# Samples


def test_a_seed_decides_whatever_else_is_in_the_batch(engine: Any) -> None:
    """A job draws what it draws alone, whatever other prompts, lengths and adapters join or leave;
    its samples differ, and those without a seed each time.
    """
    nudge(engine, "a", "b")
    weights = [None, engine.snapshot("a"), engine.snapshot("b")]
    jobs = [
        make_job(1 + 9 * at, weights=weights[at % 3], max_tokens=5 + 4 * at, seed=at, num_samples=2)
        for at in range(5)
    ]
    alone = [tokens_of(sample_jobs(engine, [job])[0]) for job in jobs]
    batch, done = engine.open_batch(2**16), dict[Any, Any]()
    for number, job in enumerate(jobs):
        batch.add(number, job)
        batch.add("gone", jobs[3])
        done.update(batch.step())
        batch.drop("gone")
        batch.drop("unknown")
        done.update({} if number in done else batch.step())
    done.update(finish(batch, len(jobs) - len(done)) if len(done) < len(jobs) else {})
    done.pop("gone", None)
    assert [tokens_of(done[number]) for number in range(5)] == alone
    assert alone[1][0] != alone[1][1]
    assert batch.tokens == 0
    assert tokens_of(sample(engine, seed=None)) != tokens_of(sample(engine, seed=None))


def test_a_listener_is_handed_each_token(engine: Any) -> None:
    """A listener gets the result's tokens in order, the last one with the reason, and can end one
    of several jobs, or fail it.
    """
    heard, bored, deaf = Heard(), Heard(lambda heard: len(heard.tokens[0]) < 2), Heard(fail_to_hear)
    batch = engine.open_batch(2**16)
    for listener in (heard, bored, deaf, None):
        batch.add(listener, make_job(num_samples=1 + (listener is heard), listener=listener))
    done = finish(batch, 4)
    assert [heard.tokens[index] for index in (0, 1)] == tokens_of(done[heard])
    assert heard.ends == {at: one.stop_reason for at, one in enumerate(done[heard].sequences)}
    assert [len(one) for one in (*bored.tokens.values(), *tokens_of(done[bored]))] == [2, 2]
    assert str(done[deaf]) == "not for me"
    assert tokens_of(done[None]) == tokens_of(sample(engine))


def test_draws_follow_the_distribution(engine: Any) -> None:
    """Frequencies of two thousand draws agree with the probabilities reported for them."""
    result = sample(engine, num_samples=2000, max_tokens=1, topk_sample_logprobs=3)
    drawn = np.array([one.tokens[0] for one in result.sequences])
    ids, logprobs = result.sequences[0].topk or ([], [])
    for token, logprob in zip(ids[0], logprobs[0], strict=True):
        assert (drawn == token).mean() == share(math.exp(logprob), 2000)


@pytest.mark.numeric
@pytest.mark.parametrize(
    "change",
    [{"temperature": 0.0}, {"temperature": 0.3}, {"top_k": 3}, {"top_p": 0.5}, {}],
    ids=str,
)
def test_logprobs_are_the_models_own(engine: Any, change: dict[str, Any]) -> None:
    """Whatever temperature, top_k and top_p, the reported logprobs are those of the plain model
    over all that was drawn before; without a temperature each token is the likeliest.
    """
    nudge(engine, "a")
    weights = engine.snapshot("a")
    long, asked = make_job(30), make_job(weights=weights, topk_sample_logprobs=1, **change)
    drawn = sample_jobs(engine, [long, asked])[1].sequences[0]
    assert (len(drawn.tokens), len(drawn.logprobs), drawn.stop_reason) == (12, 12, "length")
    assert (drawn.tokens.dtype, drawn.logprobs.dtype) == (np.int32, np.float32)
    whole = np.concatenate([asked.tokens, drawn.tokens])
    scored = sample(
        engine,
        tokens=whole,
        weights=weights,
        max_tokens=0,
        prompt_logprobs=True,
        topk_prompt_logprobs=1,
    )
    assert_near(drawn.logprobs, scored.prompt_logprobs[6:], terms_of(engine, 18))
    if change.get("temperature") == 0.0:
        assert drawn.topk[0][:, 0].tolist() == drawn.tokens.tolist()
        assert drawn.topk[1][:, 0].tolist() == drawn.logprobs.tolist()
        assert scored.topk_prompt[0][6:, 0].tolist() == drawn.tokens.tolist()


def test_top_k_and_top_p_cut_the_tail(engine: Any) -> None:
    """Only the k likeliest tokens, or the fewest that reach probability p, are ever drawn, and each
    of those is.
    """
    ids, logprobs = only(engine, max_tokens=1, topk_sample_logprobs=VOCABULARY).topk
    shares = np.exp(logprobs[0].astype(np.float64) / 3)
    shares /= shares.sum()
    nucleus = float(shares[:2].sum() + shares[2] / 2)
    for cut, kept in (
        ({"top_k": 2}, 2),
        ({"top_p": nucleus}, 3),
        ({"top_p": 0.0}, 1),
        ({"top_k": 1, "top_p": 0.99}, 1),
        ({"top_k": 3, "top_p": float((shares[0] + shares[1] / 2) / shares[:3].sum())}, 2),
    ):
        found = sample(engine, num_samples=300, max_tokens=1, temperature=3.0, **cut)
        assert {one[0] for one in tokens_of(found)} == set(ids[0][:kept].tolist())


def test_min_p_leaves_out_unlikely_tokens(engine: Any) -> None:
    """Every drawn token is at least that part as likely as the likeliest one, of the flattened
    distribution, and without a limit some are not.
    """

    def least(**changes: Any) -> float:
        drawn = only(engine, topk_sample_logprobs=1, max_tokens=60, **changes)
        return float(np.exp(drawn.logprobs - drawn.topk[1][:, 0]).min())

    assert least() < 0.5
    for also in ({}, {"top_k": 40}, {"top_p": 0.9}, {"seed": 3}):
        # of two log-probabilities near 5
        assert least(min_p=0.5, **also) >= 0.5 - tolerance(1, 5.0)
    assert least(min_p=0.5, temperature=2.0) >= 0.25 - tolerance(1, 5.0)


@pytest.mark.parametrize(
    "penalty", [{"frequency_penalty": 1.5}, {"presence_penalty": 2.0, "frequency_penalty": -0.5}]
)
def test_penalties_of_drawn_tokens(engine: Any, penalty: dict[str, float]) -> None:
    """Each greedy token is the likeliest one after the penalties, and the reported logprobs are
    those of the plain model.
    """
    beside = make_job(temperature=0.0, max_tokens=30)
    penalized = attrs.evolve(beside, **penalty, topk_sample_logprobs=VOCABULARY)
    plain, found = (result.sequences[0] for result in sample_jobs(engine, [beside, penalized]))
    assert found.topk is not None
    for at, token in enumerate(found.tokens.tolist()):
        row = np.empty(VOCABULARY)
        row[found.topk[0][at]] = found.topk[1][at]
        assert found.logprobs[at] == near(row[token])
        for drawn, count in collections.Counter(found.tokens[:at].tolist()).items():
            row[drawn] -= penalty.get("presence_penalty", 0)
            row[drawn] -= count * penalty["frequency_penalty"]
        assert token == row.argmax()
    alone = sample_jobs(engine, [beside])[0]
    assert tokens_of(alone) == [plain.tokens.tolist()] != [found.tokens.tolist()]


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


def test_stops_end_a_sequence_and_stay_in_it(engine: Any) -> None:
    """A text ends the sequence where its bytes first appear, also in several tokens, an id where it
    is first drawn; both are its last tokens.
    """
    fields = {"temperature": 2.0, "max_tokens": 100}
    free = only(engine, **fields).tokens.tolist()
    text = bytes(token if token < 128 else 0 for token in free)
    place = next(at for at in range(10, 90) if all(32 < one < 127 for one in text[at : at + 2]))
    pair, unused = text[place : place + 2], next(one for one in range(128) if one not in free)
    ids = [free.index(one) + 1 for one in free[5:7]]
    for stop, length in (
        ([pair.decode()], text.index(pair) + 2),
        (["\x00never", pair.decode()], text.index(pair) + 2),
        ([free[5]], ids[0]),
        ([unused, free[6]], ids[1]),
    ):
        stopped = only(engine, **fields, stop=stop)
        assert (stopped.tokens.tolist(), stopped.stop_reason) == (free[:length], "stop")


def test_the_end_of_text_stops_by_default_only(engine: Any) -> None:
    """Without a stop the model's own end of text ends a sequence; an empty list lets it go on."""
    ends = make_datum(3, target_tokens=np.full(3, 256), weights=np.ones(3, np.float32))
    for _ in range(25):
        compute(engine, "a", [ends])
        engine.optim_step("a", Adam(learning_rate=0.02))
    asked = {"tokens": ends.tokens, "weights": engine.snapshot("a"), "temperature": 0.0}
    ended, free = (only(engine, **asked, max_tokens=4, stop=stop) for stop in (None, []))
    assert (ended.tokens.tolist(), ended.stop_reason) == ([256], "stop")
    assert (len(free.tokens), free.stop_reason) == (4, "length")


@pytest.mark.numeric
def test_prompts_are_scored(engine: Any) -> None:
    """Prompt logprobs and their table, from which targets are, agree with what training reports for
    the same tokens; the first token has none.
    """
    nudge(engine, "a")
    tokens, targets = make_tokens(9), np.array([[8, 2, 8], [5, 9, 5]])
    result = sample(
        engine,
        tokens=tokens,
        weights=engine.snapshot("a"),
        max_tokens=0,
        prompt_logprobs=True,
        topk_prompt_logprobs=VOCABULARY,
        prompt_targets=PromptTargets(positions=targets[0], tokens=targets[1]),
    )
    ids, logprobs = result.topk_prompt
    assert ids.shape == logprobs.shape == (9, VOCABULARY)
    assert (ids[0].tolist(), {*logprobs[0].tolist()}) == ([0] * VOCABULARY, {-99999.0})
    table = np.zeros((9, VOCABULARY), np.float32)
    np.put_along_axis(table, ids.astype(np.int64), logprobs, axis=1)
    trained = logprobs_of(engine, "a", make_text(tokens))
    assert np.isnan(result.prompt_logprobs).tolist() == [True] + [False] * 8
    assert_near(result.prompt_logprobs[1:], trained, terms_of(engine, 9))
    assert_near(table[np.arange(1, 9), tokens[1:]], trained, terms_of(engine, 9))
    assert result.target_logprobs.dtype == np.float32
    assert_near(result.target_logprobs, table[*targets], 2)
    assert tokens_of(result) == [[]]
    single = sample(engine, 1, prompt_logprobs=True, topk_prompt_logprobs=2)
    assert np.isnan(single.prompt_logprobs).tolist() == [True]


@pytest.mark.numeric
def test_alternatives_of_a_prompt_follow_the_distribution(engine: Any) -> None:
    """At each position but the first, tokens are drawn as often as they are likely, whatever top_k
    says; 0 is greedy, and no continuation changes.
    """
    asked = {"prompt_alternatives": 4000, "topk_prompt_logprobs": VOCABULARY, "top_k": 1}
    plain, drawn, again, greedy = sample_jobs(
        engine,
        [
            make_job(),
            make_job(prompt_alternatives=3),
            make_job(**asked),
            make_job(**asked, temperature=0.0),
        ],
    )
    assert (plain.alternatives, tokens_of(plain)) == (None, tokens_of(drawn))
    same = sample(engine, max_tokens=1, prompt_alternatives=3)
    assert (drawn.alternatives[0] == same.alternatives[0]).all()
    ids, logprobs = again.alternatives
    likely, values = again.topk_prompt
    assert ids.shape == logprobs.shape == (5, 4000)
    for token, value in zip(likely[1][:3], values[1][:3], strict=True):
        assert (ids[0] == token).mean() == share(math.exp(value), 4000)
        found = logprobs[0][ids[0] == token]
        assert_near(found, np.full_like(found, value), 2)
    assert (greedy.alternatives[0] == likely[1:, :1]).all()


# Mistakes


@pytest.mark.parametrize(
    ("loss_fn", "config", "inputs", "said"),
    [
        ("cross_entropy", {}, {"weights": np.ones(4)}, r"weights has shape \[4\]"),
        ("ppo", {}, {"target_tokens": [258] * 5}, "target_tokens contains token id 258"),
        ("importance_sampling", {}, {"logprobs": [-1e4] * 5}, "the loss is not finite; check"),
        ("rope", {}, {}, "^unknown loss_fn 'rope'; this server has cross_entropy"),
        ("ppo", {"beta": 1.0}, {}, "^unknown loss_fn_config key 'beta'; ppo takes"),
    ],
)
def test_a_wrong_datum_is_named_and_changes_nothing(
    engine: Any, loss_fn: str, config: Any, inputs: dict[str, Any], said: str
) -> None:
    """The error names the second datum and the field, or the option, and no gradient has changed."""
    data = [make_datum(5, loss_fn), make_datum(5, loss_fn, **inputs)]
    compute(engine, "a", make_data(5))
    before = {name: part.copy() for name, part in gradient_of(engine, "a").items()}
    with pytest.raises(EngineError, match=said) as caught:
        compute(engine, "a", data, loss_fn, config)
    assert not inputs or str(caught.value).startswith("data[1]: ")
    for name, part in gradient_of(engine, "a").items():
        np.testing.assert_array_equal(part, before[name])


def test_a_too_long_datum_is_refused(engine: Any) -> None:
    """The context length bounds training too."""
    with pytest.raises(
        EngineError, match=r"data\[0\]: model_input has 129 tokens; it must have 1 to 128"
    ):
        compute(engine, "a", make_data(CONTEXT + 1))


def test_weights_that_have_diverged_are_blamed(engine: Any) -> None:
    """A loss that is not finite is not blamed on data that are; a sample of such weights fails
    alone.
    """
    size = np.nan if isinstance(engine, ToyEngine) else 1e30
    nudge(engine, "a")
    for part in engine._adapter("a").weights.tensors.values():
        as_array(part)[...] = size
    said = r"^data\[0\]: the loss is not finite: the weights have probably diverged\. Lower the"
    for loss_fn in ("cross_entropy", "ppo"):
        with pytest.raises(EngineError, match=said):
            compute(engine, "a", make_data(5, loss_fn=loss_fn), loss_fn)
    batch = engine.open_batch(2**16)
    batch.add("bad", make_job(weights=engine.snapshot("a")))
    batch.add("good", make_job())
    done = finish(batch, 2)
    assert "training has diverged; use a lower learning rate" in str(done["bad"])
    assert tokens_of(done["good"]) == tokens_of(sample(engine))


OVER = "exceeds the context length of 128; use max_tokens of at most"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tokens": np.array([], np.int32)}, "the prompt is empty"),
        ({"tokens": np.array([258], np.int32)}, "token id 258"),
        ({"max_tokens": -1}, "max_tokens is -1"),
        ({"length": 1, "max_tokens": 128}, f"^max_tokens is 128, .* prompt of 1 token {OVER} 127$"),
        ({"max_tokens": 123}, f"^max_tokens is 123, which with a prompt of 6 tokens {OVER} 122$"),
        ({"length": 128}, "^the prompt has 128 tokens, which fills the context .*; shorten the"),
        (
            {"length": 129, "max_tokens": -1},
            "^the prompt has 129 tokens, which exceeds the context length of 128; shorten the prompt$",
        ),
        ({"num_samples": 0}, "num_samples is 0"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"top_k": -2}, "top_k is -2"),
        ({"top_p": -0.1}, "top_p is -0.1"),
        ({"min_p": 1.1}, "min_p is 1.1; it must be from 0 to 1"),
        ({"presence_penalty": 2.1}, "presence_penalty is 2.1; it must be from -2 to 2"),
        ({"frequency_penalty": -2.1}, "frequency_penalty is -2.1; it must be from -2 to 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be more than 0"),
        ({"json_schema": {}}, "json_schema needs vLLM"),
        ({"topk_prompt_logprobs": 259}, "topk_prompt_logprobs is 259"),
        ({"topk_sample_logprobs": 259}, "topk_sample_logprobs is 259"),
        ({"stop": [""]}, "empty stop string"),
        ({"weights": object()}, "do not come from this engine"),
    ],
)
def test_a_wrong_sample_job_is_named(engine: Any, fields: dict[str, Any], said: str) -> None:
    """An impossible sample is refused with the parameter's name, one that does not fit with how
    much does.
    """
    with pytest.raises(EngineError, match=said):
        sample(engine, **fields)


def test_a_prompt_that_fills_the_context_is_scored(engine: Any) -> None:
    """Without a sample, a prompt may be as long as the context."""
    scored = sample(engine, CONTEXT, max_tokens=0, prompt_logprobs=True)
    assert len(scored.prompt_logprobs) == CONTEXT
