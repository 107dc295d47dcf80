"""What engines do in numpy: sequences and their draws, and the training of adapters."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines import protocol
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Cells,
    Continuation,
    Dimuon,
    EngineError,
    Float32,
    Int32,
    LocalEngine,
    LossForm,
    LossMetrics,
    LossResult,
    SampleJob,
    SampleResult,
    TrainingExample,
)
from tinker.types.results import EMPTY_LOGPROB

M = TypeVar("M")
STEPS = 8
# The quintic of Muon: its slope at 0 makes small singular values grow fast, and it maps [0, 1.2]
# into about [0.7, 1.2].
LINEAR, CUBIC, QUINTIC = 3.4445, -4.7750, 2.0315


def newton_schulz(matrix: M) -> M:
    """Return each matrix with its singular values brought near 1; zero stays zero."""
    start: Any = matrix
    tall = start.shape[-2] > start.shape[-1]
    x = _scale_to_one(start.swapaxes(-1, -2) if tall else start)
    for _ in range(STEPS):
        gram = x @ x.swapaxes(-1, -2)
        x = LINEAR * x + (CUBIC * gram + QUINTIC * (gram @ gram)) @ x
    return cast("M", x.swapaxes(-1, -2) if tall else x)


def orthogonal_direction(momentum: M) -> M:
    """Return the orthogonalised momentum; the Frobenius norm of each matrix is sqrt(min(rows,
    columns)).
    """
    p: Any = newton_schulz(momentum)
    return cast("M", _scale_to_one(p) * math.sqrt(min(p.shape[-2:])))


def _scale_to_one(matrices: Any) -> Any:
    """Return the matrices with a Frobenius norm of 1 each, or 0."""
    norms = (matrices * matrices).sum((-2, -1), keepdims=True) ** 0.5
    return matrices / (norms + (norms == 0))


# Batches of rows of different lengths, with little padding.

REAL_SHARE = 0.8  # of the cells of a batch, at least; the rest is padding
FREE_PADDING = 64  # cells of padding that cost less than one more pass over the weights


def is_alike(lengths: Sequence[int], free: int = FREE_PADDING) -> bool:
    """Return whether rows of these lengths, padded to the longest, need little padding."""
    real, padded = sum(lengths), len(lengths) * max(lengths)
    return real >= REAL_SHARE * padded or padded - real <= free


def split_batches(lengths: Sequence[int], cells: int) -> Iterator[list[int]]:
    """Yield batches of indices, the shortest rows first, with little padding and at most ``cells``,
    or with one row.
    """

    def fits(batch: list[int]) -> bool:
        chosen = [lengths[index] for index in batch]
        return len(chosen) * max(chosen) <= cells and is_alike(chosen)

    return split_where(sorted(range(len(lengths)), key=lengths.__getitem__), fits)


def split_where(order: list[int], fits: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Yield consecutive batches that fit; an item that does not fit alone goes alone."""
    batch: list[int] = []
    for index in order:
        if batch and not fits([*batch, index]):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


Decode: TypeAlias = Callable[[Sequence[int]], str]
# cumulated weights to draw from, and the token of each
TokenWeights: TypeAlias = tuple[NDArray[np.float64], Int32]
NOISE_BLOCK = 64
INCOMPLETE = "\ufffd"  # the decoding of a part of a character
# tokens a stop string may begin before: a character split over tokens, a dropped leading space
WIDEST_CHARACTER = 8
LEAST_TOP_P = 1e-12  # takes the likeliest token alone, as 0 does
DIVERGED = (
    "the model's probabilities are not finite: training has diverged; use a lower learning rate"
)
BROKEN = (
    "the base model's probabilities are not finite: its files have weights that are NaN or infinite"
)


class Stops:
    """Stop conditions: the given texts, the given ids, or by default the model's
    end-of-text ids.
    """

    def __init__(self, job: SampleJob, end_of_text: frozenset[int], decode: Decode) -> None:
        self._texts, self._first = (
            [piece for piece in job.stop or () if isinstance(piece, str)],
            job.min_tokens,
        )
        self._ids = (
            end_of_text
            if job.stop is None
            else frozenset(piece for piece in job.stop if isinstance(piece, int))
        )
        self._longest = max((len(text.encode()) for text in self._texts), default=0)
        self._decode = decode

    def is_reached(self, tokens: list[int]) -> bool:
        """Return whether the last of these tokens completes a stop."""
        if tokens[-1] in self._ids or not self._texts:
            return tokens[-1] in self._ids
        recent = tokens[max(self._first, len(tokens) - self._longest - WIDEST_CHARACTER) :]
        tail = self._decode(recent)
        if self._in_text(tail) or INCOMPLETE not in tail[-self._longest :]:
            return self._in_text(tail)
        # A run of byte tokens that is no text as a whole, such as one that begins within a
        # character, is no text in any part.
        return any(
            self._in_text(self._decode(recent[-size:])) for size in range(1, self._longest + 1)
        )

    def _in_text(self, tail: str) -> bool:
        return any(text in tail for text in self._texts)


@attrs.define(eq=False)
class DecodingRun:
    """One sequence being generated. ``noise`` is drawn as it is used; ``error`` is the failure that
    ends its job.
    """

    job: SampleJob
    stops: Stops
    noise: Iterator[float]
    index: int = 0
    tokens: list[int] = attrs.field(factory=lambda: list[int]())
    logprobs: list[float] = attrs.field(factory=lambda: list[float]())
    topk_ids: list[NDArray[np.int32]] = attrs.field(factory=lambda: list[NDArray[np.int32]]())
    topk_logprobs: list[NDArray[np.float32]] = attrs.field(
        factory=lambda: list[NDArray[np.float32]]()
    )
    stop_reason: str | None = None
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        """Return whether it draws no further token."""
        return self.stop_reason is not None or self.error is not None

    @property
    def length(self) -> int:
        """Return how many tokens it has, the prompt's included."""
        return len(self.job.tokens) + len(self.tokens)

    @property
    def last(self) -> int:
        """Return the last token it has."""
        return self.tokens[-1] if self.tokens else int(self.job.tokens[-1])

    def history(self) -> Int32:
        """Return the prompt and the drawn tokens."""
        return (
            np.concatenate([self.job.tokens, np.array(self.tokens, np.int32)])
            if self.tokens
            else self.job.tokens
        )

    def end(self) -> None:
        """Stop generating."""
        self.stop_reason = self.stop_reason or "length"

    def take(self, token: int, logprob: float) -> None:
        """Append a drawn token, and pass it to the listener of the job; a probability that is not
        finite, and a failure of the listener, are the error of this run.
        """
        try:
            if not math.isfinite(logprob):
                raise EngineError(BROKEN if self.job.weights is None else DIVERGED)
            self.tokens.append(token)
            self.logprobs.append(logprob)
            if self.stops.is_reached(self.tokens):
                self.stop_reason = "stop"
            elif len(self.tokens) >= self.job.max_tokens:
                self.stop_reason = "length"
            listener, reason = self.job.listener, self.stop_reason
            if listener is not None and not listener.take(self.index, token, logprob, reason):
                self.end()
        except Exception as error:  # noqa: BLE001 - it fails this run and no other
            self.error = error

    def add_likeliest(self, ids: NDArray[np.int64], logprobs: NDArray[np.float32]) -> None:
        """Add the likeliest tokens at the next position."""
        self.topk_ids.append(ids.astype(np.int32))
        self.topk_logprobs.append(logprobs)

    def continuation(self) -> Continuation:
        shape = (len(self.topk_ids), self.job.topk_sample_logprobs)
        ids = np.array(self.topk_ids, np.int32).reshape(shape)
        return Continuation(
            tokens=np.array(self.tokens, np.int32),
            logprobs=np.array(self.logprobs, np.float32),
            stop_reason=self.stop_reason or "length",
            topk=(ids, np.array(self.topk_logprobs, np.float32).reshape(shape))
            if shape[1]
            else None,
        )


def draw_noise(source: np.random.Generator) -> Iterator[float]:
    """Yield numbers between 0 and 1, some at a time, so that a job with a high limit holds no more
    than it uses.
    """
    while True:
        yield from source.random(NOISE_BLOCK).tolist()


@attrs.define(eq=False)
class Work:
    """One job in progress; ``scores`` are None as long as its prompt is to be scored."""

    job: SampleJob
    runs: list[DecodingRun]
    scores: SampleResult | None

    def outcome(self) -> SampleResult | Exception | None:
        """Return its result or failure; None while it runs."""
        if (
            error := next((run.error for run in self.runs if run.error is not None), None)
        ) is not None:
            return error
        if self.scores is None or not all(run.is_over for run in self.runs):
            return None
        return attrs.evolve(self.scores, sequences=[run.continuation() for run in self.runs])


def start_work(job: SampleJob, end_of_text: frozenset[int], decode: Decode) -> Work:
    """Begin a job, with a run for each sample. Noise comes from (seed, sample index); without a
    seed, the job gets a random one.
    """
    seed, stops = protocol.noise_seed(job), Stops(job, end_of_text, decode)
    runs = [
        DecodingRun(job, stops, draw_noise(np.random.default_rng([seed, index])), index)
        for index in range(job.num_samples)
    ]
    for run in runs if job.max_tokens == 0 else ():
        run.end()
    is_scored = job.prompt_logprobs or job.needs_table
    return Work(job, runs, None if is_scored else SampleResult(sequences=[]))


# Draws from the logits of one position


def log_softmax(logits: Reals) -> Reals:
    """Compute the logarithms of the probabilities in the last dimension."""
    shifted: Reals = logits - logits.max(axis=-1, keepdims=True)
    return shifted - cast("Reals", np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def extend(
    run: DecodingRun, logits: Float32, logprobs: Float32, distribution: TokenWeights | None = None
) -> None:
    """Draw the next token of a run from its logits ``[vocabulary]``, or from a distribution that
    was made of them before.

    The log-probabilities are the model's own, at temperature 1 and over the whole vocabulary,
    whatever the run's parameters.
    """
    if run.job.topk_sample_logprobs:
        likeliest = find_likeliest(logprobs, run.job.topk_sample_logprobs)
        run.add_likeliest(likeliest, logprobs[likeliest])
    if run.job.shapes_logits:
        logits = logits.copy()
        protocol.shape_logits(run.job, run.tokens, logits)
    cumulative, ids = distribution or find_distribution(logits, run.job)
    place = int(np.searchsorted(cumulative, next(run.noise) * float(cumulative[-1]), side="right"))
    token = int(ids[min(place, len(ids) - 1)])
    run.take(token, float(logprobs[token]))


def find_distribution(logits: Float32, job: SampleJob) -> TokenWeights:
    """Return the cumulated weights to draw from, and the token of each; the likeliest token alone
    at temperature 0.

    Of the tokens, in order of their probability, ``top_k`` keeps the first ones. Of their sum,
    ``top_p`` keeps the tokens before which less than this share lies: always the likeliest. Ties go
    to the lower id.
    """
    if job.temperature == 0:
        return np.ones(1), np.array([logits.argmax()], np.int32)
    scores = logits.astype(np.float64)
    weights, ids = (
        np.exp((scores - scores.max()) / job.temperature),
        np.arange(len(scores), dtype=np.int32),
    )
    if job.top_k >= 1 or job.top_p < 1:
        order = np.argsort(-scores, kind="stable")[: job.top_k if job.top_k >= 1 else None]
        likeliest = weights[order]
        before = likeliest.cumsum() - likeliest
        ids = np.sort(
            order[before < max(job.top_p, LEAST_TOP_P) * likeliest.sum()]
            if job.top_p < 1
            else order
        ).astype(np.int32)
    return weights[ids].cumsum(), ids


def find_likeliest(logprobs: Float32, k: int) -> NDArray[np.int64]:
    """Return the k likeliest ids in the last dimension, the likeliest first; ties in the order of
    their ids.
    """
    ids = np.sort(
        np.argpartition(-logprobs, min(k, logprobs.shape[-1] - 1), axis=-1)[..., :k], axis=-1
    )
    order = np.argsort(-np.take_along_axis(logprobs, ids, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(ids, order, axis=-1)


# Scores of a prompt


class PromptScorer:
    """Collects the scores of one job from the log-probabilities at the positions of its prompt, as
    they are computed.
    """

    def __init__(self, job: SampleJob) -> None:
        self.job: SampleJob = job
        self._seen = 0
        self._own: list[Float32] = [np.full(1, np.nan, np.float32)]
        k = job.topk_prompt_logprobs
        self._likeliest = [(np.zeros((1, k), np.int32), np.full((1, k), EMPTY_LOGPROB, np.float32))]
        self._drawn = [
            (
                np.zeros((0, job.prompt_alternatives), np.int32),
                np.zeros((0, job.prompt_alternatives), np.float32),
            )
        ]
        count = 0 if job.prompt_targets is None else len(job.prompt_targets.tokens)
        self._chosen = np.zeros(count, np.float32)
        seed = [protocol.noise_seed(job), 0, 1]  # a separate stream of noise
        self._noise = np.random.default_rng(seed).random(
            (len(job.tokens) - 1, job.prompt_alternatives)
        )

    @property
    def following(self) -> Int32:
        """Return the tokens whose log-probabilities are still to come."""
        return self.job.tokens[self._seen + 1 :]

    def add(self, own: Float32, table: Float32 | None) -> None:
        """Add the log-probabilities of the next tokens, and where the job ``needs_table`` those of
        every token in their places.
        """
        job, start = self.job, self._seen
        self._seen += len(own)
        self._own.append(own)
        if table is None or not len(own):
            return
        if job.topk_prompt_logprobs:
            ids = find_likeliest(table, job.topk_prompt_logprobs)
            self._likeliest.append((ids.astype(np.int32), np.take_along_axis(table, ids, axis=-1)))
        if job.prompt_alternatives:
            self._drawn.append(
                _draw_alternatives(job.temperature, table, self._noise[start : self._seen])
            )
        if job.prompt_targets is not None:
            rows = job.prompt_targets.positions - 1 - start
            here = (rows >= 0) & (rows < len(table))
            self._chosen[here] = table[rows[here], job.prompt_targets.tokens[here]]

    def result(self) -> SampleResult:
        """Return the result of the job, without samples yet."""
        job = self.job
        return SampleResult(
            sequences=[],
            prompt_logprobs=np.concatenate(self._own) if job.prompt_logprobs else None,
            topk_prompt=_join_likeliest(self._likeliest) if job.topk_prompt_logprobs else None,
            target_logprobs=None if job.prompt_targets is None else self._chosen,
            alternatives=_join_likeliest(self._drawn) if job.prompt_alternatives else None,
        )


def _draw_alternatives(
    temperature: float, table: Float32, noise: NDArray[np.float64]
) -> tuple[Int32, Float32]:
    """Draw the alternatives of each row, one row at a time."""
    ids = np.empty(noise.shape, np.int64)
    for row, scores in enumerate(table.astype(np.float64) if temperature else ()):
        cumulative = np.exp((scores - scores.max()) / temperature).cumsum()
        ids[row] = cumulative.searchsorted(noise[row] * cumulative[-1], side="right").clip(
            max=len(scores) - 1
        )
    if temperature == 0:
        ids[:] = table.argmax(axis=-1, keepdims=True)
    return ids.astype(np.int32), np.take_along_axis(table, ids, axis=-1)


def _join_likeliest(parts: Sequence[tuple[Int32, Float32]]) -> tuple[Int32, Float32]:
    return np.concatenate([ids for ids, _ in parts]), np.concatenate(
        [values for _, values in parts]
    )


# The threads of numpy's matrix products: one, because those of OpenBLAS spin while they wait for
# one another.
#
# On a machine whose cores are busy, they take the cores from each other: the quickstart then takes
# five times as long with two.

# of the functions, and their endings: in wheels of numpy, and elsewhere
PREFIXES = {"scipy_openblas": "64_", "openblas": ""}


@contextmanager
def compute_in_one_thread() -> Generator[None]:
    """Compute matrix products in the thread that asks for them, inside the block; without OpenBLAS
    as the library likes.
    """
    get, put = _find_functions()
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


@functools.cache
def _find_functions() -> tuple[Callable[[], int], Callable[[int], object]]:
    """Return what gets and sets the number of threads."""
    for file in Path(np.__file__).parents[1].glob("numpy.libs/*openblas*"):
        library = ctypes.CDLL(str(file))
        for prefix, ending in PREFIXES.items():
            names = [f"{prefix}_{verb}_num_threads{ending}" for verb in ("get", "set")]
            if all(hasattr(library, name) for name in names):
                return getattr(library, names[0]), getattr(library, names[1])
    return lambda: 1, lambda count: None


Reals: TypeAlias = NDArray[Any]  # float32 or float64, as the model has them
Tensors: TypeAlias = Mapping[str, Reals]


@attrs.frozen(eq=False)
class ArrayWeights:
    """The factors of an adapter. They never change: a step makes new ones, so that a snapshot is a
    reference.
    """

    spec: AdapterSpec
    tensors: Tensors


@attrs.define(eq=False)
class ArrayAdapter:
    """The state of one training run. ``gradient`` is None until one has been accumulated;
    ``moments`` are the optimizer's.
    """

    weights: ArrayWeights
    moments: Mapping[str, Tensors] = attrs.field(factory=lambda: dict[str, Tensors]())
    gradient: Tensors | None = None


class Pass(Protocol):
    """The log-probabilities of the targets of some data, one after the other, and the gradient of
    their weighted sum.
    """

    logprobs: Reals

    def differentiate(self, slopes: Reals) -> Tensors:
        """Compute the gradient of the sum of ``slopes`` times the log-probabilities, by each factor
        of the adapter.
        """
        ...


def step_adam(adapter: ArrayAdapter, gradient: Tensors, params: Adam) -> ArrayAdapter:
    """Return the adapter after a step of AdamW, as ``torch.optim`` computes it; the given one stays
    as it is.
    """
    zeros = zeros_like(adapter.weights.tensors)
    counts = adapter.moments.get("step", dict.fromkeys(zeros, np.zeros((), np.float32)))
    first, second = (adapter.moments.get(name, zeros) for name in ("exp_avg", "exp_avg_sq"))
    moments: dict[str, dict[str, Reals]] = {"step": {}, "exp_avg": {}, "exp_avg_sq": {}}
    after: dict[str, Reals] = {}
    for name, weight in adapter.weights.tensors.items():
        slope, count = gradient[name], float(counts[name]) + 1
        mean = params.beta1 * first[name] + (1 - params.beta1) * slope
        square = params.beta2 * second[name] + (1 - params.beta2) * slope**2
        scale = np.sqrt(square) / math.sqrt(1 - params.beta2**count) + params.eps
        step = np.divide(mean, scale, out=np.zeros_like(scale), where=scale > 0)
        rate = params.learning_rate / (1 - params.beta1**count)
        after[name] = weight * (1 - params.learning_rate * params.weight_decay) - rate * step
        moments["step"][name] = np.array(count, np.float32)
        moments["exp_avg"][name], moments["exp_avg_sq"][name] = mean, square
    return ArrayAdapter(attrs.evolve(adapter.weights, tensors=after), moments)


def step_dimuon(adapter: ArrayAdapter, gradient: Tensors, params: Dimuon) -> ArrayAdapter:
    """Return the adapter after a step; the given one stays as it is."""
    before = adapter.moments.get("momentum", zeros_like(gradient))
    momentum = {
        name: params.beta1 * before[name] + (1 - params.beta1) * part
        for name, part in gradient.items()
    }
    after = {
        name: weight - params.learning_rate * orthogonal_direction(momentum[name])
        for name, weight in adapter.weights.tensors.items()
    }
    return ArrayAdapter(attrs.evolve(adapter.weights, tensors=after), {"momentum": momentum})


class ArrayEngine(LocalEngine[ArrayAdapter]):
    """An engine that trains in numpy."""

    max_context_length: int
    _vocabulary: int

    def _run(
        self, weights: ArrayWeights, data: Sequence[Cells], targets: NDArray[np.int64]
    ) -> Pass:
        """Compute the log-probabilities of the targets of some data, which are
        tokens of the model.
        """
        raise NotImplementedError

    def _batches(self, lengths: Sequence[int]) -> Iterable[Sequence[int]]:
        """Yield the indices of the data that go through the model together."""
        raise NotImplementedError

    def snapshot(self, adapter_id: str) -> ArrayWeights:
        return self._adapter(adapter_id).weights

    @compute_in_one_thread()
    @np.errstate(over="ignore", invalid="ignore")  # what is not finite is an error that says more
    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        adapter = self._adapter(adapter_id)
        form, options, checked = protocol.check_data(
            data, loss_fn, config, vocabulary=self._vocabulary, longest=self.max_context_length
        )
        metrics, gradient = LossMetrics(np, form, options), adapter.gradient
        outputs: dict[int, Float32] = {}
        for batch in self._batches([len(cells.tokens) for cells in checked]):
            cells = [checked[index] for index in batch]
            targets = np.concatenate([one.targets.reshape(-1) for one in cells])
            # the others have a weight of zero
            known = (targets >= 0) & (targets < self._vocabulary)
            done = self._run(adapter.weights, cells, np.where(known, targets, 0))
            slopes = find_slopes(loss_fn, form, metrics, dict(zip(batch, cells)), done.logprobs)
            if backward:
                more, before = done.differentiate(slopes), gradient
                gradient = more if before is None else {k: before[k] + more[k] for k in more}
            outputs.update(
                zip(batch, split(np.where(known, done.logprobs, 0).astype(np.float32), cells))
            )
        if backward and gradient is not None:
            if not math.isfinite(find_norm(gradient)):
                raise EngineError(f"the gradient is not finite: {protocol.WEIGHTS_DIVERGED}")
            adapter.gradient = gradient
        return LossResult(
            outputs=[{"logprobs": outputs[index]} for index in range(len(data))],
            metrics=metrics.metrics(),
        )

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        protocol.check_step(params)
        gradient = adapter.gradient or zeros_like(adapter.weights.tensors)
        norm = find_norm(gradient)
        if 0 < params.grad_clip_norm < norm:
            gradient = {
                name: part * (params.grad_clip_norm / norm) for name, part in gradient.items()
            }
        self._adapters[adapter_id] = (
            step_dimuon(adapter, gradient, params)
            if isinstance(params, Dimuon)
            else step_adam(adapter, gradient, params)
        )
        return {"grad_norm:mean": norm}


def find_slopes(
    loss_fn: str, form: LossForm, metrics: LossMetrics, data: Mapping[int, Cells], logprobs: Reals
) -> Reals:
    """Compute the derivative of the loss by each log-probability, and count the terms.

    ``data`` are by their index in the call, which the EngineError names if a term is not finite.
    """
    cells = protocol.add_sequence_ratios(
        list(data.values()), form, list(split(logprobs, list(data.values())))
    )
    weights = _join([one.weights for one in cells], logprobs)
    counted = weights != 0
    inputs = {
        key: _join([one.inputs[key] for one in cells], logprobs)[counted] for key in cells[0].inputs
    }
    terms, slopes = protocol.LOSSES[loss_fn](np, logprobs[counted], inputs, metrics.options)
    terms = terms * weights[counted]
    if not np.isfinite(terms).all() or not np.isfinite(slopes).all():
        wrong = np.flatnonzero(counted)[np.argmin(np.isfinite(terms) & np.isfinite(slopes))]
        owners = np.repeat(list(data), [one.targets.size for one in cells])
        explanation = protocol.explain_infinite_loss(
            form, bool(np.isfinite(logprobs[counted]).all())
        )
        raise EngineError(f"data[{owners[wrong]}]: {explanation}")
    metrics.add(terms.astype(np.float64), logprobs[counted], weights[counted], inputs)
    found = np.zeros_like(logprobs)
    found[counted] = slopes * weights[counted]
    return found


def find_norm(tensors: Tensors) -> float:
    """Return the norm of all tensors together."""
    return math.sqrt(sum(float((part.astype(np.float64) ** 2).sum()) for part in tensors.values()))


def split(values: Reals, data: Sequence[Cells]) -> Iterator[Reals]:
    """Cut values of all cells into those of each datum, in the shape of its targets."""
    at = 0
    for cells in data:
        yield values[at : at + cells.targets.size].reshape(cells.shape)
        at += cells.targets.size


def _join(parts: Sequence[Float32], like: Reals) -> Reals:
    return np.concatenate([part.reshape(-1) for part in parts]).astype(like.dtype)


def zeros_like(tensors: Tensors) -> dict[str, Reals]:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}
