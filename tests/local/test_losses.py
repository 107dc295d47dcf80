"""The loss formulas and the checks of one datum, without a model."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.tolerances import FLOAT64, assert_near, near

pytest.importorskip("torch")

import torch

from tinker.local.engines.protocol import (
    LOSS_FORMS,
    LOSSES,
    SEQUENCE_LOG_RATIO,
    Cells,
    EngineError,
    TrainingExample,
    add_sequence_ratios,
    check_datum,
    resolve_loss,
)


def example(tokens: list[int] | None = None, **inputs: object) -> TrainingExample:
    ids = np.array(tokens if tokens is not None else [1, 2, 3], np.int32)
    return TrainingExample(
        tokens=ids, loss_inputs={name: np.asarray(value) for name, value in inputs.items()}
    )


def prepared(datum: TrainingExample, name: str) -> Cells:
    return check_datum(4, datum, name, LOSS_FORMS[name], vocabulary=10, longest=8)


def terms(
    name: str, config: dict[str, float], now: float, then: float, advantage: float
) -> tuple[float, float]:
    """Return the term of one token and its derivative by the token's logprob."""
    _, options = resolve_loss(name, config)
    inputs = {
        "logprobs": torch.tensor([then], dtype=torch.float64),
        "advantages": torch.tensor([advantage], dtype=torch.float64),
    }
    value, slope = LOSSES[name](torch, torch.tensor([now], dtype=torch.float64), inputs, options)
    return value.item(), slope.item()


CASES = [
    (-1.0, -1.5, 2.0),
    (-1.0, -1.5, -2.0),
    (-2.0, -1.0, 3.0),
    (-2.0, -1.0, -3.0),
    (-1.0, -1.05, 0.5),
]


@pytest.mark.parametrize(("now", "then", "advantage"), CASES)
def test_gspo_clips_the_ratio_of_the_sequence(now: float, then: float, advantage: float) -> None:
    """GSPO is PPO with the mean log-ratio of the marked tokens; each token's gradient follows its
    log-probability.
    """
    cells = prepared(
        example(
            target_tokens=[2, 3, 4], logprobs=[9.0, then, then - 0.3], advantages=[0.0, advantage, -advantage],
            sequence_ratio_mask=[0.0, 1.0, 1.0],
        ),
        "gspo",
    )  # fmt: skip
    form, options = resolve_loss("gspo", {})
    logprobs = torch.tensor([-5.0, now, now - 0.1]).double()
    (cells,) = add_sequence_ratios([cells], form, [logprobs.numpy()[:, None]])
    inputs = {
        name: torch.from_numpy(values[:, 0]).double() for name, values in cells.inputs.items()
    }
    found, slopes = LOSSES["gspo"](torch, logprobs, inputs, options)
    ratio = math.exp(((now - then) + (now - 0.1 - (then - 0.3))) / 2)
    bound = min(max(ratio, 0.8), 1.2)
    # the log-probabilities of a datum are float32, and as large as 3 in an exponent
    size = 3 * ratio * abs(advantage)
    for index, one in enumerate((0.0, advantage, -advantage)):
        assert found[index].item() == near(-min(ratio * one, bound * one), 3, size)
        slope = -ratio * one if ratio * one <= bound * one else 0.0
        assert slopes[index].item() == near(slope, 3, size)


@pytest.mark.parametrize("beta", [None, 0.3])
def test_dro_adds_a_quadratic_penalty(beta: float | None) -> None:
    """DRO is -(logprob * advantage - beta / 2 * (now - then)^2), with beta 0.05 by default."""
    strength = 0.05 if beta is None else beta
    expected = -(-1.0 * 2.0 - 0.5 * strength * 0.25), -(2.0 - strength * 0.5)
    assert terms("dro", {} if beta is None else {"beta": beta}, -1.0, -1.5, 2.0) == near(
        expected, 6, unit=FLOAT64
    )


def test_weights_and_mask_multiply() -> None:
    """A reinforcement loss takes weights, a mask, or both; both are multiplied."""
    datum = example(
        target_tokens=[2, 3, 4],
        logprobs=[0, 0, 0],
        advantages=[1, 1, 1],
        weights=[2, 2, 2],
        mask=[0, 1, 1],
    )
    assert prepared(datum, "ppo").weights.tolist() == [[0], [2], [2]]


WRONG = {
    "model_input has 0 tokens": ("cross_entropy", example([], target_tokens=[])),
    "model_input has 9 tokens": ("cross_entropy", example([1] * 9, target_tokens=[1] * 9)),
    "model_input contains token id 10": (
        "cross_entropy",
        example([1, 10, 2], target_tokens=[1, 2, 3]),
    ),
    "is missing target_tokens": ("cross_entropy", example(weights=[1, 1, 1])),
    "is missing advantages": ("ppo", example(target_tokens=[1, 2, 3], logprobs=[0, 0, 0])),
    "contains reward": ("cross_entropy", example(target_tokens=[1, 2, 3], reward=[1, 1, 1])),
    "target_tokens has shape [2]": ("cross_entropy", example(target_tokens=[1, 2])),
    "target_tokens has shape [3, 1]": (
        "importance_sampling",
        example(
            target_tokens=[[1], [2], [3]], logprobs=[[0], [0], [0]], advantages=[[0], [0], [0]]
        ),
    ),
    "weights has shape [3, 1]": (
        "cross_entropy",
        example(target_tokens=[1, 2, 3], weights=[[1], [1], [1]]),
    ),
    "logprobs has shape [2]": (
        "ppo",
        example(target_tokens=[1, 2, 3], logprobs=[0, 0], advantages=[1, 1, 1]),
    ),
    "sequence_ratio_mask marks no token": (
        "gspo",
        example(
            target_tokens=[1, 2, 3],
            logprobs=[0, 0, 0],
            advantages=[1, 1, 1],
            sequence_ratio_mask=[0, 0, 0],
        ),
    ),
    "is missing sequence_ratio_mask": (
        "gspo",
        example(target_tokens=[1, 2, 3], logprobs=[0, 0, 0], advantages=[1, 1, 1]),
    ),
    "target_tokens contains token id 99": (
        "gspo",
        example(
            target_tokens=[1, 99, 3],
            logprobs=[0, 0, 0],
            advantages=[1, 1, 1],
            sequence_ratio_mask=[0, 1, 0],
            weights=[1, 0, 1],
        ),
    ),
    "target_tokens contains token id -1": ("cross_entropy", example(target_tokens=[1, -1, 3])),
    "weights contains a value that is not finite": (
        "cross_entropy",
        example(target_tokens=[1, 2, 3], weights=[1, np.nan, 1]),
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_a_wrong_datum_is_named(fault: str) -> None:
    """Every check names the datum's index, the field and the wrong value."""
    name, datum = WRONG[fault]
    with pytest.raises(EngineError) as caught:
        prepared(datum, name)
    assert str(caught.value).startswith("data[4]: ")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("name", "config", "fault"),
    [
        ("rope", {}, "unknown loss_fn 'rope'"),
        ("cross_entropy", {"beta": 1.0}, "unknown loss_fn_config key 'beta'"),
        ("dro", {"beta": "big"}, "it must be a finite number"),
        ("dro", {"beta": math.inf}, "it must be a finite number"),
        ("ppo", {"clip_low_threshold": 1.5}, "clip_low_threshold exceeds clip_high_threshold"),
        ("ppo", {"clip_high_threshold": -0.5}, "it must be at least 0"),
        ("stable_reinforce", {"kl_coeff": -0.1}, "it must be at least 0"),
    ],
)
def test_a_wrong_loss_or_option_is_named(
    name: str, config: dict[str, float | str], fault: str
) -> None:
    """Unknown names and unusable values are refused with the name in the message."""
    with pytest.raises(EngineError, match=fault):
        resolve_loss(name, config)


@pytest.mark.parametrize(("name", "key"), [("dro", "beta"), ("ppo", "clip_low_threshold")])
def test_options_that_may_be_negative(name: str, key: str) -> None:
    """An option without a lower bound is taken below 0 too."""
    assert resolve_loss(name, {key: -0.5})[1][key] == -0.5


@pytest.mark.numeric
@pytest.mark.parametrize("loss_fn", sorted(LOSS_FORMS))
def test_both_engines_compute_the_same_losses(loss_fn: str) -> None:
    """Terms and derivatives of torch tensors equal those of numpy arrays."""
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
    rng = np.random.default_rng(0)
    leaf = torch.tensor(-rng.random(200), requires_grad=True)
    inputs = {
        "logprobs": leaf.detach() + torch.tensor(rng.normal(0, 0.5, 200)),
        "advantages": torch.tensor(rng.normal(0, 1, 200)),
    }
    terms, slopes = LOSSES[loss_fn](torch, leaf, inputs, LOSS_FORMS[loss_fn].config)
    terms.sum().backward()
    assert_near(slopes, leaf.grad, 10, unit=FLOAT64)
