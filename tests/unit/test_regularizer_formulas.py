"""Every formula of ``tinker.regularizers`` beside numpy, its gradient beside differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.tolerances import FLOAT64, assert_near, near, near_slope

pytest.importorskip("torch")

import torch

import tinker
from tinker.regularizers import ConstantWeight, DecayWeight, LinearWeight, WarmUpWeight, regularized
from tinker.regularizers._terms import (
    JS,
    KL,
    L1,
    L2,
    Consistency,
    ElasticNet,
    Entropy,
    GradientPenalty,
    LossInput,
    Orthogonality,
)

Array = NDArray[np.float64]
STEP = 1e-6
SEEDS = st.integers(0, 2**32 - 1)


@attrs.frozen
class Batch:
    """Random log-probabilities, those of a reference, and a mask that keeps at least one."""

    parts: list[Array]
    references: list[Array]
    masks: list[Array]
    data: list[tinker.Datum]

    @property
    def size(self) -> int:
        """Return how many log-probabilities there are."""
        return sum(part.size for part in self.parts)


def log_softmax(values: Array) -> Array:
    return np.asarray(values - np.log(np.exp(values).sum(-1, keepdims=True)))


def make_batch(seed: int, *, rows: bool, ragged: bool = True) -> Batch:
    """Create a few datums of a few tokens, with ``rows`` a few candidates for each."""
    rng = np.random.default_rng(seed)
    lengths = (
        rng.integers(1, 5, size=rng.integers(1, 4))
        if ragged
        else np.full(rng.integers(2, 4), rng.integers(2, 5))
    )
    width = (int(rng.integers(2, 5)),) if rows else ()
    batch = Batch([], [], [], [])
    for length in lengths:
        shape = (int(length), *width)
        for parts in (batch.parts, batch.references):
            parts.append(
                log_softmax(rng.normal(size=shape) * 2)
                if rows
                else -rng.uniform(0.05, 4, size=shape)
            )
        batch.masks.append((rng.random(int(length)) < 0.6).astype(float))
    batch.masks[0][0] = 1.0
    for reference, mask in zip(batch.references, batch.masks, strict=True):
        inputs = {
            "target_tokens": np.zeros(reference.shape, np.int64),
            "ref": reference.astype(np.float32),
            "mask": mask,
        }
        batch.data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints([0] * len(reference)), loss_fn_inputs=inputs
            )
        )
        reference[:] = reference.astype(np.float32)  # the types that a datum can hold
    return batch


def evaluate(term: Any, batch: Batch) -> tuple[float, list[Array], dict[str, float]]:
    """Return value, gradient and metrics of the term, in double precision."""
    leaves = [torch.tensor(part, dtype=torch.float64, requires_grad=True) for part in batch.parts]
    value, metrics = term(batch.data, leaves)
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    return (
        value.item(),
        [np.zeros(p.shape) if g is None else g.numpy() for g, p in zip(gradients, batch.parts)],
        metrics,
    )


def differentiate(function: Callable[[list[Array]], float], parts: list[Array]) -> list[Array]:
    """Return the gradient by central differences."""
    gradients = [np.zeros_like(part) for part in parts]
    for index, part in enumerate(parts):
        for cell in np.ndindex(part.shape):
            sides = []
            for sign in (1, -1):
                moved = [one.copy() for one in parts]
                moved[index][cell] += sign * STEP
                sides.append(function(moved))
            gradients[index][cell] = (sides[0] - sides[1]) / (2 * STEP)
    return gradients


def hold(
    term: Any, batch: Batch, expected: Callable[[list[Array]], float], largest: float = 1.0
) -> dict[str, float]:
    """Check that the term has the value of the function, and the gradient by finite differences.

    ``largest`` is the size of what is added up, where parts cancel each other.
    """
    value, gradients, metrics = evaluate(term, batch)
    size = max(largest, abs(value)) * batch.size
    assert value == near(expected(batch.parts), batch.size, size, FLOAT64)
    for found, wanted in zip(gradients, differentiate(expected, batch.parts), strict=True):
        assert found == near_slope(wanted, STEP, batch.size, size)
    assert all(type(number) is float for number in metrics.values())
    return metrics  # type: ignore[no-any-return]


def kept(parts: list[Array], masks: list[Array] | None) -> list[float]:
    """Return the unmasked numbers one by one."""
    found = []
    for index, part in enumerate(parts):
        for token in range(len(part)):
            if masks is None or masks[index][token] != 0:
                found += [float(one) for one in np.atleast_1d(part[token])]
    return found


def kept_rows(parts: list[Array], masks: list[Array] | None) -> list[list[float]]:
    """Return the unmasked rows."""
    return [
        [float(one) for one in row]
        for index, part in enumerate(parts)
        for token, row in enumerate(part)
        if masks is None or masks[index][token] != 0
    ]


def together(values: list[float], reduction: str) -> float:
    return sum(values) if reduction == "sum" else sum(values) / len(values)


each_reduction = pytest.mark.parametrize("reduction", ["sum", "mean"])
each_mask = pytest.mark.parametrize("mask", [None, "mask"])
few = settings(max_examples=10, deadline=None)

# -------------------------------------------------------------------------------------------- norms


@each_reduction
@each_mask
@pytest.mark.parametrize("target", ["logprobs", "probs"])
@few
@given(seed=SEEDS, rows=st.booleans())
def test_norms(seed: int, rows: bool, target: Any, mask: Any, reduction: Any) -> None:
    """L1, L2 and the elastic net are computed over all unmasked values of all datums."""
    batch = make_batch(seed, rows=rows)
    masks = batch.masks if mask else None

    def values(parts: list[Array]) -> list[float]:
        return [math.exp(x) if target == "probs" else x for x in kept(parts, masks)]

    common: Any = {"target": target, "mask": mask, "reduction": reduction}
    found = hold(
        L1(**common), batch, lambda parts: together([abs(x) for x in values(parts)], reduction)
    )
    assert found == {"mean": near(np.mean(np.abs(values(batch.parts))), batch.size, unit=FLOAT64)}
    found = hold(
        L2(**common), batch, lambda parts: together([x * x for x in values(parts)], reduction)
    )
    assert found == {
        "mean": near(np.mean(np.square(values(batch.parts))), batch.size, unit=FLOAT64),
        "center": 0.0,
    }
    hold(
        ElasticNet(l1_ratio=0.3, **common),
        batch,
        lambda parts: together([0.3 * abs(x) + 0.7 * x * x for x in values(parts)], reduction),
    )


@each_reduction
@each_mask
@few
@given(seed=SEEDS, rows=st.booleans())
def test_centers(seed: int, rows: bool, mask: Any, reduction: Any) -> None:
    """L2 is taken from a number, the mean of unmasked values, or an input, and clipped."""
    batch = make_batch(seed, rows=rows)
    masks = batch.masks if mask else None
    common: Any = {"mask": mask, "reduction": reduction}

    def from_mean(parts: list[Array]) -> float:
        values = kept(parts, masks)
        return together([(x - sum(values) / len(values)) ** 2 for x in values], reduction)

    def from_input(parts: list[Array]) -> float:
        pairs = zip(kept(parts, masks), kept(batch.references, masks), strict=True)
        return together([(x - c) ** 2 for x, c in pairs], reduction)

    def cut(parts: list[Array]) -> float:
        return together([min(max(x + 1.5, -0.7), 0.7) ** 2 for x in kept(parts, masks)], reduction)

    mean = near(np.mean(kept(batch.parts, masks)), batch.size, unit=FLOAT64)
    assert hold(L2(center="mean", **common), batch, from_mean)["center"] == mean
    assert (
        "center" not in hold(L2(center=LossInput("ref"), **common), batch, from_input)
        or len(kept(batch.parts, masks)) == 1
    )
    if all(
        abs(abs(x + 1.5) - 0.7) > 1e-4 for x in kept(batch.parts, masks)
    ):  # away from the edge, where the derivative does not exist
        hold(L2(center=-1.5, clip=0.7, **common), batch, cut)


def test_inputs_are_measured_and_train_nothing() -> None:
    """An input as the target gives its value, and no gradient."""
    batch = make_batch(3, rows=False)
    leaves = [torch.tensor(part, requires_grad=True) for part in batch.parts]
    value, _ = L1(target=LossInput("ref"))(batch.data, leaves)
    assert float(value.detach()) == near(
        sum(abs(x) for x in kept(batch.references, None)), batch.size
    )
    assert not value.requires_grad


# ------------------------------------------------------------------------------------ distributions


def divergence(ours: list[float], theirs: list[float]) -> float:
    return sum(
        math.exp(p) * (p - q) for p, q in zip(ours, theirs, strict=True) if math.exp(p) > 1e-10
    )


def shannon(ours: list[float], theirs: list[float]) -> float:
    middle = [math.log((math.exp(p) + math.exp(q)) / 2) for p, q in zip(ours, theirs, strict=True)]
    return 0.5 * divergence(ours, middle) + 0.5 * divergence(theirs, middle)


@each_reduction
@each_mask
@few
@given(seed=SEEDS)
def test_distances_of_distributions(seed: int, mask: Any, reduction: Any) -> None:
    """KL in its directions, Jensen-Shannon and consistency by KL are computed per row."""
    batch = make_batch(seed, rows=True)
    masks = batch.masks if mask else None
    references = kept_rows(batch.references, masks)

    def by(function: Callable[[list[float], list[float]], float]) -> Callable[[list[Array]], float]:
        return lambda parts: together(
            [function(*one) for one in zip(kept_rows(parts, masks), references, strict=True)],
            reduction,
        )

    def symmetric(a: list[float], b: list[float]) -> float:
        return (divergence(a, b) + divergence(b, a)) / 2

    common: Any = {"mask": mask, "reduction": reduction}
    metrics = hold(KL("ref", **common), batch, by(divergence))
    rows = [divergence(*one) for one in zip(kept_rows(batch.parts, masks), references, strict=True)]
    assert metrics == near(
        {"mean": np.mean(rows), "min": min(rows), "max": max(rows)}, batch.size, 5.0, FLOAT64
    )
    hold(KL("ref", direction="forward", **common), batch, by(divergence))
    hold(KL("ref", direction="reverse", **common), batch, by(lambda a, b: divergence(b, a)))
    hold(KL("ref", direction="symmetric", **common), batch, by(symmetric))
    hold(JS("ref", **common), batch, by(shannon))
    hold(Consistency("ref", metric="kl", **common), batch, by(symmetric))


@each_reduction
@each_mask
@few
@given(seed=SEEDS)
def test_estimates(seed: int, mask: Any, reduction: Any) -> None:
    """Of one log-probability per token KL is k1, k2 or k3, and entropy the mean surprise."""
    batch = make_batch(seed, rows=False)
    masks = batch.masks if mask else None
    references = kept(batch.references, masks)
    formulas: dict[Any, Callable[[float], float]] = {
        "k1": lambda d: d,
        "k2": lambda d: d * d / 2,
        "k3": lambda d: math.exp(-d) - 1 + d,
        None: lambda d: math.exp(-d) - 1 + d,
    }
    common: Any = {"mask": mask, "reduction": reduction}
    for estimator, formula in formulas.items():

        def expected(parts: list[Array], formula: Callable[[float], float] = formula) -> float:
            return together(
                [formula(x - q) for x, q in zip(kept(parts, masks), references, strict=True)],
                reduction,
            )

        hold(KL("ref", estimator=estimator, **common), batch, expected)

    def surprise(parts: list[Array]) -> float:
        return together([-x for x in kept(parts, masks)], reduction)

    hold(Entropy(estimator="mean", **common), batch, surprise)
    hold(
        Entropy(estimator="mean", mode="maximize", **common), batch, lambda parts: -surprise(parts)
    )
    value, gradients, _ = evaluate(Entropy(**common), batch)
    assert value == near(surprise(batch.parts), batch.size, unit=FLOAT64)
    _, slopes, _ = evaluate(Entropy(estimator="mean", **common), batch)
    for gradient, slope, part in zip(gradients, slopes, batch.parts, strict=True):
        assert_near(gradient, slope * part, 2, unit=FLOAT64)


@few
@given(seed=SEEDS)
def test_expected_gradients_of_estimates(seed: int) -> None:
    """On average the gradients of k2, k3 and the entropy score are exact, and that of k1 is 0."""
    rng = np.random.default_rng(seed)
    logits, reference = rng.normal(size=4), log_softmax(rng.normal(size=4))

    def exact(function: Callable[[Array], float]) -> Array:
        return differentiate(lambda parts: function(log_softmax(parts[0])), [logits])[0]

    def on_average(term: Any) -> Array:
        """Return the expected gradient by the logits, over tokens drawn with these logits."""
        logprobs, total = log_softmax(logits), np.zeros(4)
        for token in range(4):
            inputs = {"target_tokens": [token], "ref": reference[[token]].astype(np.float64)}
            data = [
                tinker.Datum(model_input=tinker.ModelInput.from_ints([0]), loss_fn_inputs=inputs)
            ]
            leaf = torch.tensor(logprobs[[token]], requires_grad=True)
            value, _ = term(data, [leaf])
            (slope,) = torch.autograd.grad(value, [leaf])
            total += (
                math.exp(logprobs[token]) * float(slope) * (np.eye(4)[token] - np.exp(logprobs))
            )
        return total

    def kl(ours: Array, theirs: Array) -> float:
        return float((np.exp(ours) * (ours - theirs)).sum())

    def close(wanted: Array) -> Any:
        # Four products of log-probabilities, each made of an exponential, the sum of four, a
        # logarithm and two differences.
        return near_slope(wanted, STEP, 4 * 8, 20.0)

    assert on_average(KL("ref", estimator="k1")) == close(np.zeros(4))
    assert on_average(KL("ref", estimator="k2")) == close(exact(lambda lp: kl(lp, reference)))
    assert on_average(KL("ref", estimator="k3")) == close(exact(lambda lp: kl(reference, lp)))
    assert on_average(Entropy()) == close(exact(lambda lp: -float((np.exp(lp) * lp).sum())))
    assert on_average(Entropy(estimator="mean")) == close(np.zeros(4))


@each_reduction
@each_mask
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
@pytest.mark.parametrize("normalize", [False, True])
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS)
def test_entropy_of_distributions(
    seed: int, normalize: bool, temperature: float, mask: Any, reduction: Any
) -> None:
    """The entropy of each row, at a temperature and normalized, can be lowered or raised."""
    batch = make_batch(seed, rows=True)
    masks = batch.masks if mask else None

    def entropy(row: list[float]) -> float:
        if temperature != 1.0:
            scaled = [one / temperature for one in row]
            total = math.log(sum(math.exp(one) for one in scaled))
            row = [one - total for one in scaled]
        found = -sum(math.exp(one) * one for one in row)
        return found / math.log(len(row)) if normalize else found

    def expected(parts: list[Array]) -> float:
        return together([entropy(row) for row in kept_rows(parts, masks)], reduction)

    common: Any = {
        "mask": mask,
        "reduction": reduction,
        "temperature": temperature,
        "normalize": normalize,
    }
    hold(Entropy(**common), batch, expected)
    metrics = hold(Entropy(mode="maximize", **common), batch, lambda parts: -expected(parts))
    assert metrics["max"] >= metrics["mean"] >= metrics["min"] > 0


def test_a_temperature_is_that_of_the_candidates_that_count() -> None:
    """With a temperature, entropy is of the candidates that the mask keeps, adding up to one."""
    batch = make_batch(1, rows=True)
    batch.masks[:] = [np.zeros(part.shape) for part in batch.parts]
    batch.masks[0][0, :2] = 1.0
    batch.data[:] = [
        tinker.Datum(datum.model_input, {**datum.loss_fn_inputs, "mask": mask})
        for datum, mask in zip(batch.data, batch.masks, strict=True)
    ]

    def expected(parts: list[Array]) -> float:
        row = log_softmax(parts[0][0, :2] / 2.0)
        return -float((np.exp(row) * row).sum())

    hold(Entropy(temperature=2.0, mask="mask"), batch, expected)


@each_reduction
@each_mask
@few
@given(seed=SEEDS, rows=st.booleans())
def test_consistency(seed: int, rows: bool, mask: Any, reduction: Any) -> None:
    """Consistency is the squared or absolute difference of tokens, or a cosine of datums."""
    batch = make_batch(seed, rows=rows)
    masks = batch.masks if mask else None
    references = kept(batch.references, masks)

    def cosine(parts: list[Array]) -> float:
        found = []
        for index, part in enumerate(parts):
            only = None if masks is None else [masks[index]]
            a, b = kept([part], only), kept([batch.references[index]], only)
            if a:
                lengths = [max(math.sqrt(sum(x * x for x in one)), 1e-8) for one in (a, b)]
                found.append(
                    1 - sum(x * y for x, y in zip(a, b, strict=True)) / (lengths[0] * lengths[1])
                )
        return together(found, reduction)

    def by(function: Callable[[float, float], float]) -> Callable[[list[Array]], float]:
        return lambda parts: together(
            [function(*one) for one in zip(kept(parts, masks), references, strict=True)], reduction
        )

    common: Any = {"mask": mask, "reduction": reduction}
    hold(Consistency("ref", **common), batch, by(lambda a, b: (a - b) ** 2))
    hold(Consistency("ref", metric="l1", **common), batch, by(lambda a, b: abs(a - b)))
    hold(Consistency("ref", metric="cosine", **common), batch, cosine)


def test_impossible_tokens() -> None:
    """A candidate of probability 0 gives finite values and gradients."""
    ours, theirs = np.log([[0.5, 0.5, 1e-30]]), np.log([[0.5, 1e-300, 0.5]])
    ours[0, 2] = -np.inf
    inputs = {"target_tokens": np.zeros((1, 3), np.int64), "mask": np.ones(1)}
    data = [tinker.Datum(model_input=tinker.ModelInput.from_ints([0]), loss_fn_inputs=inputs)]
    terms: list[Any] = [KL([theirs], direction=d) for d in ("forward", "reverse", "symmetric")] + [
        JS([theirs]),
        Entropy(),
    ]  # type: ignore[arg-type]
    for term in terms:
        value, gradients, _ = evaluate(term, Batch([ours], [theirs], [], data))
        assert math.isfinite(value), term
        assert np.isfinite(gradients[0]).all(), term
    assert evaluate(KL([theirs]), Batch([ours], [theirs], [], data))[0] == near(0.5 * 100)


def test_tiny_values_add_nothing() -> None:
    """Tiny probabilities add nothing to a divergence, and still smaller ones none to an entropy."""
    data = [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints([0]), loss_fn_inputs={"target_tokens": [[0]]}
        )
    ]
    for logprob, divergence, entropy in (
        (-24.0, 0.0, 24 * math.exp(-24)),
        (-22.0, -22 * math.exp(-22), 22 * math.exp(-22)),
    ):
        batch = Batch([np.array([[logprob]])], [], [], data)
        assert evaluate(KL([np.zeros((1, 1))]), batch)[0] == near(divergence, 3, unit=FLOAT64)
        assert evaluate(Entropy(), batch)[0] == near(entropy, 3, unit=FLOAT64)
    assert evaluate(Entropy(), Batch([np.array([[-51.0]])], [], [], data))[0] == 0.0


@pytest.mark.parametrize("term", [KL("ref", direction="reverse"), JS("ref"), Consistency("ref", metric="kl"), Entropy(normalize=True)])  # fmt: skip
def test_unusable_data_of_a_direct_call(term: Any) -> None:
    """A term that is called by itself refuses datums whose shape it cannot use."""
    batch = make_batch(1, rows=False)
    with pytest.raises(ValueError, match="target_tokens of shape"):
        term(batch.data, [torch.tensor(part) for part in batch.parts])


def test_sparse_targets() -> None:
    """Of sparse targets only the stored candidates count."""
    targets = tinker.TensorData([5, 6, 7], "int64", [2, 3], [0, 2, 3], [0, 2, 1])
    reference = np.log(np.full((2, 3), 0.25))
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints([1, 2]), loss_fn_inputs={"target_tokens": targets}
    )
    leaf = torch.tensor(np.log([[0.5, 0.9, 0.25], [0.9, 0.125, 0.9]]), requires_grad=True)
    value, _ = KL([reference], reduction="sum")([datum], [leaf])
    assert float(value.detach()) == near(
        0.5 * math.log(2) + 0.25 * math.log(1) + 0.125 * math.log(0.5), 6, 1.0, FLOAT64
    )
    value, _ = L1()([datum], [leaf])
    assert float(value.detach()) == near(
        -math.log(0.5) - math.log(0.25) - math.log(0.125), 3, unit=FLOAT64
    )


# ----------------------------------------------------------------------------------------- geometry


@pytest.mark.parametrize("axis", ["rows", "sequence", "vocabulary"])
@pytest.mark.parametrize("mode", ["soft", "hard", "spectral"])
@pytest.mark.parametrize("normalize", [True, False])
@settings(max_examples=3, deadline=None)
@given(seed=SEEDS, rows=st.booleans())
def test_orthogonality(seed: int, rows: bool, normalize: bool, mode: Any, axis: Any) -> None:
    """Orthogonality sums the products of all pairs of rows, along each axis."""
    batch = make_batch(seed, rows=rows, ragged=False)

    def matrix(parts: list[Array]) -> Array:
        if not rows:
            return np.array(parts) if axis == "rows" else np.array(parts).T
        if axis == "sequence":
            return np.hstack(parts)
        return np.vstack(parts) if axis == "rows" else np.vstack(parts).T

    def expected(parts: list[Array]) -> float:
        lines = [
            line / max(np.sqrt((line**2).sum()), 1e-8) if normalize else line
            for line in matrix(parts)
        ]
        total, trace = 0.0, 0.0
        for i, a in enumerate(lines):
            for j, b in enumerate(lines):
                product = float((a * b).sum())
                trace += product if i == j else 0.0
                if i != j:
                    total += product**2
                elif mode == "hard":
                    total += (product - 1) ** 2
        return total + ((trace - len(lines)) ** 2 if mode == "spectral" else 0.0)

    # with those of the diagonal, which a sum over all takes away again
    products = matrix(batch.parts) @ matrix(batch.parts).T
    largest = max(1.0, float(np.square(products).sum()))
    metrics = hold(
        Orthogonality(mode=mode, normalize=normalize, axis=axis), batch, expected, largest
    )
    assert metrics["rows"] == len(matrix(batch.parts))


@pytest.mark.parametrize(("axis", "equal"), [("rows", 1), ("sequence", 0), ("vocabulary", 1)])
def test_the_sides_of_a_matrix(axis: Any, equal: int) -> None:
    """Datums [N, K] need the same length or width along the axis, and no more."""
    for changed in (0, 1):
        shapes = [[3, 2], [3, 2]]
        shapes[1][changed] = 4
        data = [
            tinker.Datum(
                tinker.ModelInput.from_ints([0] * shape[0]),
                {"target_tokens": np.zeros(shape, np.int64)},
            )
            for shape in shapes
        ]
        logprobs = [torch.zeros(shape) for shape in shapes]
        if changed == equal:
            with pytest.raises(
                ValueError, match=r"data\[1\] has target_tokens of shape .*: not a matrix"
            ):
                Orthogonality(axis=axis)(data, logprobs)
        else:
            rows = {"rows": 7.0, "sequence": 3.0, "vocabulary": 2.0}[axis]
            assert Orthogonality(axis=axis)(data, logprobs)[1]["rows"] == rows


def cubes(data: Any, logprobs: Any) -> Any:
    return sum((part**3).sum() for part in logprobs), {}


@few
@given(seed=SEEDS, rows=st.booleans())
def test_gradient_penalty(seed: int, rows: bool) -> None:
    """The penalty is a loss's gradient norm, at the log-probabilities or towards a reference."""
    batch = make_batch(seed, rows=rows)
    share = float(np.random.default_rng(7).random())

    def penalty(points: list[Array], target: float) -> float:
        return (math.sqrt(sum((3 * x**2) ** 2 for x in kept(points, None))) - target) ** 2

    def between(parts: list[Array]) -> float:
        mixed = [share * a + (1 - share) * b for a, b in zip(parts, batch.references, strict=True)]
        return penalty(mixed, 0.5)

    hold(GradientPenalty(cubes), batch, lambda parts: penalty(parts, 1.0))
    mixing = GradientPenalty(cubes, mode="interpolated", reference="ref", target_norm=0.5, seed=7)
    assert hold(mixing, batch, between)["share"] == share
    assert evaluate(mixing, batch)[2]["share"] != share  # drawn again


# ----------------------------------------------------------------------------------- losses by name


def formula(name: str, x: float, q: float, a: float, fixed: float) -> float:
    """Return the formula for one token; ``fixed`` is the ratio where it is a constant."""
    ratio = math.exp(x - q)
    if name == "cross_entropy":
        return -x
    if name == "importance_sampling":
        return -ratio * a
    if name == "ppo":
        return -min(ratio * a, min(max(ratio, 0.9), 1.3) * a)
    if name == "cispo":
        return -min(max(fixed, 0.9), 1.3) * x * a
    return -(x * a - 0.5 * 0.2 * (x - q) ** 2)


@pytest.mark.parametrize("name", ["cross_entropy", "importance_sampling", "ppo", "cispo", "dro"])
@few
@given(seed=SEEDS)
def test_losses_by_name(seed: int, name: str) -> None:
    """Each loss is the sum of its formula times the weights, with the matching gradient."""
    batch = make_batch(seed, rows=False)
    rng = np.random.default_rng(seed)
    data, sampled, advantages, weights = [], [], [], []
    for part in batch.parts:
        sampled.append((part + rng.normal(size=part.shape) * 0.4).astype(np.float32))
        advantages.append(rng.normal(size=part.shape).astype(np.float32))
        weights.append(rng.choice([0.0, 0.5, 1.0], size=part.shape).astype(np.float32))
        inputs = {"target_tokens": np.zeros(part.shape, np.int64), "weights": weights[-1]}
        if name != "cross_entropy":
            inputs |= {"logprobs": sampled[-1], "advantages": advantages[-1]}
        data.append(
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints([0] * len(part)), loss_fn_inputs=inputs
            )
        )

    def expected(parts: list[Array]) -> float:
        total = 0.0
        for index, part in enumerate(parts):
            for token, x in enumerate(part):
                q, a = float(sampled[index][token]), float(advantages[index][token])
                fixed = math.exp(batch.parts[index][token] - q)
                total += float(weights[index][token]) * formula(name, float(x), q, a, fixed)
        return total

    config = {"ppo": {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3}, "dro": {"beta": 0.2}}
    config["cispo"] = config["ppo"]
    loss, gradients, metrics = regularized(name, [], loss_fn_config=config.get(name)).fn(
        data, batch.parts
    )  # type: ignore[arg-type,misc]
    # of ratios, advantages and log-probabilities of a few each, rounded to float32
    size = 20.0 * batch.size
    assert loss == metrics["base/loss"] == near(expected(batch.parts), batch.size, size)
    for found, wanted in zip(gradients, differentiate(expected, batch.parts), strict=True):
        assert_near(found, wanted, batch.size, size)


# ---------------------------------------------------------------------------------------- schedules


@given(
    step=st.integers(0, 1000),
    steps=st.integers(1, 100),
    start=st.floats(0, 10),
    end=st.floats(0, 10),
)
def test_schedules(step: int, steps: int, start: float, end: float) -> None:
    """Weights follow the line or curve named by the schedule, and stay within its ends."""
    on_line = start + (end - start) * min(step, steps) / steps
    assert LinearWeight(start, end, steps)(step) == near(on_line, 4, start + end, FLOAT64)
    assert WarmUpWeight(end, steps)(step) == near(end * min(step, steps) / steps, 3, unit=FLOAT64)
    assert ConstantWeight(start)(step) == start
    assert DecayWeight(start, steps)(step) == near(
        start * 2 ** (-step / steps), 9, magnitude=1e-300, unit=FLOAT64
    )
    floor = min(start, end)
    assert DecayWeight(max(start, end), steps, floor)(step) >= floor * (1 - 1e-12)
