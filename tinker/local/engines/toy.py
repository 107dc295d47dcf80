"""The engine without torch: a bigram model in numpy with LoRA matrices, exact gradients and real
sampling.

Imported by its own path, and only where it is used.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines import PACKAGED_FOLDER, TOY_MODEL, arrays, protocol
from tinker.local.engines.arrays import (
    ArrayAdapter,
    ArrayEngine,
    ArrayWeights,
    DecodingRun,
    Tensors,
    TokenWeights,
    Work,
)
from tinker.local.engines.protocol import (
    AdapterSpec,
    Cells,
    EngineError,
    Float32,
    SampleJob,
    SampleResult,
)

# The toy's frozen model, two softmaxes over the digits of the next token, and its files.

END_OF_TEXT = 256
BASE = 256
WIDTH = 64  # of the hidden state; 256 bytes are told apart well enough in 64 dimensions
BLOCK = 8192  # rows of one matrix product; bounds memory to some ten megabytes
LETTERS = " etaoinshrdlucmfwypvbgk,.\nTAISjxqz"  # by falling frequency
Float64: TypeAlias = NDArray[np.float64]


class Bigram:
    """The frozen model: features of a token, and the two softmaxes over the digits
    of the next one.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._highs = -(-vocabulary // BASE)
        rng = np.random.default_rng(20)
        self._of_high = rng.standard_normal((self._highs, WIDTH))
        self._of_low = rng.standard_normal((BASE, WIDTH))
        self._high = rng.standard_normal((WIDTH, self._highs)) * 0.02
        self._low = rng.standard_normal((WIDTH, BASE)) * 0.1
        self._high_bias = np.full(self._highs, -20.0)
        self._high_bias[:2] = [0.0, -4.0][: self._highs]
        self._low_bias = np.zeros((self._highs, BASE))
        self._low_bias[0] = -12.0
        self._low_bias[0, list(LETTERS.encode())] = -0.12 * np.arange(len(LETTERS))
        self._low_bias[1:2, 1:] = -12.0
        self._low_bias.reshape(-1)[vocabulary:] = -np.inf

    def fresh(self, rank: int, seed: int) -> Tensors:
        """Draw LoRA matrices that change nothing yet."""
        rng = np.random.default_rng(abs(seed))
        return {
            "high.a": rng.standard_normal((WIDTH, rank)),
            "high.b": np.zeros((rank, self._highs)),
            "low.a": rng.standard_normal((WIDTH, rank)),
            "low.b": np.zeros((rank, BASE)),
        }

    def logprobs(
        self,
        tensors: Tensors,
        scale: float,
        last: NDArray[np.int64],
        following: NDArray[np.int64],
    ) -> Float64:
        """Compute the log-probability of ``following[i]`` after ``last[i]``."""
        high, low = self._matrices(tensors, scale)
        out = np.empty(len(last))
        for part in _iterate_blocks(len(last)):
            digits, rest = np.divmod(following[part], BASE)
            state = self._state(last[part])
            rows = np.arange(len(digits))
            out[part] = arrays.log_softmax(state @ high + self._high_bias)[rows, digits]
            out[part] += arrays.log_softmax(self._low_logits(state, digits, low))[rows, rest]
        return out

    def gradient(
        self,
        tensors: Tensors,
        scale: float,
        last: NDArray[np.int64],
        following: NDArray[np.int64],
        slopes: Float64,
    ) -> Tensors:
        """Compute the gradient of the sum of ``slopes[i]`` times the log-probability of
        ``following[i]`` after ``last[i]``.
        """
        high, low = self._matrices(tensors, scale)
        high_slope, low_slope = np.zeros_like(high), np.zeros_like(low)
        for part in _iterate_blocks(len(last)):
            digits, rest = np.divmod(following[part], BASE)
            state = self._state(last[part])
            high_slope += state.T @ _logit_slopes(
                state @ high + self._high_bias, digits, slopes[part]
            )
            lifted = state + self._of_high[digits]
            low_slope += lifted.T @ _logit_slopes(
                self._low_logits(state, digits, low), rest, slopes[part]
            )
        return {
            **_lora_slopes(tensors, "high", scale, high_slope),
            **_lora_slopes(tensors, "low", scale, low_slope),
        }

    def row(self, tensors: Tensors, scale: float, last: int) -> Float32:
        """Compute the log-probability of every token after ``last``."""
        high, low = self._matrices(tensors, scale)
        state = self._state(np.array([last]))
        digits = arrays.log_softmax(state @ high + self._high_bias)[0]
        rest = arrays.log_softmax(self._low_logits(state, np.arange(self._highs), low))
        cells: Float64 = (digits[:, None] + rest).reshape(-1)[: self._vocabulary]
        return cells.astype(np.float32)

    def _state(self, tokens: NDArray[np.int64]) -> Float64:
        digits, rest = np.divmod(tokens, BASE)
        return np.where(digits[:, None] > 0, self._of_high[digits], 0.0) + self._of_low[rest]

    def _low_logits(self, state: Float64, digits: NDArray[np.int64], low: Float64) -> Float64:
        return (state + self._of_high[digits]) @ low + self._low_bias[digits]

    def _matrices(self, tensors: Tensors, scale: float) -> tuple[Float64, Float64]:
        return self._high + _lora_update(tensors, "high", scale), self._low + _lora_update(
            tensors, "low", scale
        )


class BigramPass:
    """The log-probabilities of targets after the tokens of some data, each distinct pair computed
    once.
    """

    def __init__(
        self,
        net: Bigram,
        tensors: Tensors,
        scale: float,
        data: Sequence[Cells],
        targets: NDArray[np.int64],
    ) -> None:
        last = np.concatenate([np.repeat(cells.tokens, cells.targets.shape[1]) for cells in data])
        distinct, places = np.unique(last * BASE * BASE + targets, return_inverse=True)
        self._net, self._tensors, self._scale = net, tensors, scale
        self._places, self._pairs = places.reshape(-1), np.divmod(distinct, BASE * BASE)
        self.logprobs: Float64 = net.logprobs(tensors, scale, *self._pairs)[self._places]

    def differentiate(self, slopes: Float64) -> Tensors:
        summed = cast("Float64", np.bincount(self._places, slopes, len(self._pairs[0])))
        return self._net.gradient(self._tensors, self._scale, *self._pairs, summed)


def _iterate_blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))


def _logit_slopes(logits: Float64, chosen: NDArray[np.int64], slopes: Float64) -> Float64:
    out: Float64 = -np.exp(arrays.log_softmax(logits)) * slopes[:, None]
    out[np.arange(len(chosen)), chosen] += slopes
    return out


def _lora_update(tensors: Tensors, name: str, scale: float) -> Float64:
    return scale * tensors[f"{name}.a"] @ tensors[f"{name}.b"]


def _lora_slopes(tensors: Tensors, name: str, scale: float, slope: Float64) -> Tensors:
    down, up = tensors[f"{name}.a"], tensors[f"{name}.b"]
    return {f"{name}.a": scale * slope @ up.T, f"{name}.b": scale * down.T @ slope}


ADAPTER_FILE, OPTIMIZER_FILE = "toy_adapter.npz", "toy_optimizer.npz"
MAX_ADAPTER_NBYTES = 1 << 26


def check_archive(path: Path) -> None:
    """Raise EngineError for a file that is no archive of arrays, or one that unpacks to more than
    any adapter.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            nbytes = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise EngineError(f"{path.name} cannot be read: it is missing or damaged") from error
    if nbytes > MAX_ADAPTER_NBYTES:
        raise EngineError(f"{path.name} unpacks to more than {MAX_ADAPTER_NBYTES} bytes")


def read_arrays(path: Path, names: set[str]) -> dict[str, NDArray[np.float64]]:
    """Read the arrays of a file; nothing in it is executed. Raises EngineError when it is missing
    or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EngineError(
            f"the checkpoint was not written by this engine: {path.name}: {error}"
        ) from error


MAX_RANK = 1024
# probabilities kept for each set of weights: 32 MB, and three times that of cumulative ones
CACHED_CELLS = 2**23
DistributionKey: TypeAlias = tuple[int, float, int, float]


@attrs.frozen(eq=False)
class Distributions:
    """What was computed from weights so far: log-probabilities after a token, and what to draw
    from.
    """

    rows: dict[int, Float32] = attrs.field(factory=lambda: dict[int, Float32]())
    cumulative: dict[DistributionKey, TokenWeights] = attrs.field(
        factory=lambda: dict[DistributionKey, TokenWeights]()
    )


class ToyEngine(ArrayEngine):
    """Trains and samples a two-softmax bigram model of ``vocabulary`` token ids."""

    def __init__(
        self,
        *,
        vocabulary: int = 32_768,
        max_context_length: int = 32_768,
        base_model: str = TOY_MODEL,
    ) -> None:
        if not 2 <= vocabulary <= BASE * BASE:
            raise ValueError(f"vocabulary must be 2 to {BASE * BASE}, got {vocabulary}")
        super().__init__()
        self.base_model: str = base_model
        self.tokenizer_id: str = str(PACKAGED_FOLDER)  # of bytes: token ids below 256 are bytes
        self.max_context_length: int = max_context_length
        self.adapter_files: frozenset[str] = frozenset({ADAPTER_FILE})
        self._vocabulary = vocabulary
        self._net = Bigram(vocabulary)
        self._base = ArrayWeights(AdapterSpec(rank=1), self._net.fresh(1, 0))
        self._distributions: WeakKeyDictionary[ArrayWeights, Distributions] = WeakKeyDictionary()

    # Adapters

    def _create(self, spec: AdapterSpec, seed: int) -> ArrayAdapter:
        if not 1 <= spec.rank <= MAX_RANK:
            raise EngineError(f"rank is {spec.rank}; it must be 1 to {MAX_RANK}")
        if spec.target_modules is not None:
            raise EngineError("target_modules: the toy model has no modules to choose from")
        return ArrayAdapter(ArrayWeights(spec, self._net.fresh(spec.rank, seed)))

    def load_snapshot(self, directory: Path) -> ArrayWeights:
        found = read_arrays(directory / ADAPTER_FILE, {"about", *self._base.tensors})
        try:
            about = json.loads(str(found.pop("about")))
            protocol.check_format(ADAPTER_FILE, int(about.get("format", protocol.FILE_FORMAT)))
            vocabulary, spec = about["vocabulary"], AdapterSpec(**about["spec"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{ADAPTER_FILE} does not say what it contains: it is damaged"
            ) from error
        if vocabulary != self._vocabulary:
            raise EngineError(
                f"the checkpoint has {vocabulary} token ids, this model {self._vocabulary}"
            )
        return ArrayWeights(spec, found)

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        weights, moments = adapter.weights, adapter.moments
        about = json.dumps(
            {
                "format": protocol.FILE_FORMAT,
                "vocabulary": self._vocabulary,
                "spec": attrs.asdict(weights.spec),
            }
        )
        content = {"about": np.array(about), **weights.tensors}
        np.savez(directory / ADAPTER_FILE, allow_pickle=False, **content)
        if optimizer:
            zeros = arrays.zeros_like(weights.tensors)
            kept = {
                "first": moments.get("momentum", moments.get("exp_avg", zeros)),
                "second": moments.get("exp_avg_sq", zeros),
            }
            steps = max((int(count) for count in moments.get("step", {}).values()), default=0)
            named = {
                f"{moment}.{name}": value
                for moment, one in kept.items()
                for name, value in one.items()
            }
            content = {"steps": np.array(steps), **named}
            np.savez(directory / OPTIMIZER_FILE, allow_pickle=False, **content)

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        weights, moments = self.load_snapshot(directory), dict[str, Tensors]()
        if optimizer:
            moments = self._read_moments(directory / OPTIMIZER_FILE)
        self._adapters[adapter_id] = ArrayAdapter(weights, moments)
        return weights.spec

    def _read_moments(self, file: Path) -> dict[str, Tensors]:
        """Read the moments, which are those of either optimizer: the file does not say of which."""
        if not file.exists():
            raise EngineError(protocol.NO_OPTIMIZER)
        names = self._base.tensors
        state = read_arrays(
            file,
            {"steps", *(f"{moment}.{name}" for moment in ("first", "second") for name in names)},
        )
        first, second = (
            {name: state[f"{moment}.{name}"] for name in names} for moment in ("first", "second")
        )
        counts = {name: np.array(state["steps"], np.float32) for name in names}
        return {"step": counts, "exp_avg": first, "exp_avg_sq": second, "momentum": first}

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Check the file, which describes its adapter itself, and copy it."""
        check_archive(source / ADAPTER_FILE)
        found = self.load_snapshot(source)
        wanted = {name: tensor.shape for name, tensor in self._net.fresh(spec.rank, 0).items()}
        if (
            found.spec.rank != spec.rank
            or {name: tensor.shape for name, tensor in found.tensors.items()} != wanted
        ):
            raise EngineError(
                f"{ADAPTER_FILE} contains an adapter of another shape than one of rank {spec.rank}"
            )
        if not all(
            tensor.dtype.kind == "f" and np.isfinite(tensor).all()
            for tensor in found.tensors.values()
        ):
            raise EngineError(f"{ADAPTER_FILE} must contain only finite numbers")
        shutil.copyfile(source / ADAPTER_FILE, directory / ADAPTER_FILE)

    # Training

    def _batches(self, lengths: Sequence[int]) -> Iterable[Sequence[int]]:
        return [range(len(lengths))] if lengths else []

    def _run(
        self, weights: ArrayWeights, data: Sequence[Cells], targets: NDArray[np.int64]
    ) -> BigramPass:
        return BigramPass(self._net, weights.tensors, weights.spec.scale, data, targets)

    # Sampling

    def open_batch(self, limit: int) -> ToyBatch:
        """Make an empty batch, which runs one job at each step."""
        return ToyBatch(self)

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        """Sample every job to its end. Raises EngineError naming the job's fault."""
        return [self._sample(work) for work in [self._start(job) for job in jobs]]

    def _start(self, job: SampleJob) -> Work:
        protocol.check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        return arrays.start_work(job, frozenset({END_OF_TEXT}), decode_bytes)

    def _sample(self, work: Work) -> SampleResult:
        weights = protocol.find_weights(work.job, ArrayWeights) or self._base
        work.scores = work.scores or self._score_prompt(weights, work.job)
        for run in work.runs:
            while not run.is_over:
                row = self._row(weights, run.last)
                arrays.extend(run, row, row, self._distribution(weights, run))
        outcome = work.outcome()
        assert outcome is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _score_prompt(self, weights: ArrayWeights, job: SampleJob) -> SampleResult:
        """Score a prompt; the log-probabilities of all tokens, which are many, are made for one
        position after the other.
        """
        scorer, tokens = arrays.PromptScorer(job), job.tokens.astype(np.int64)
        own = self._net.logprobs(
            weights.tensors, weights.spec.scale, tokens[:-1], tokens[1:]
        ).astype(np.float32)
        if not job.needs_table:
            scorer.add(own, None)
        else:
            for place, last in enumerate(tokens[:-1].tolist()):
                scorer.add(own[place : place + 1], self._row(weights, last)[None])
        return scorer.result()

    def _row(self, weights: ArrayWeights, last: int) -> Float32:
        """Compute the log-probability of every token after ``last``, alone, so that no batch
        decides its rounding.
        """
        rows = self._distributions.setdefault(weights, Distributions()).rows
        if last not in rows:
            if len(rows) * self._vocabulary >= CACHED_CELLS:
                rows.clear()
            rows[last] = self._net.row(weights.tensors, weights.spec.scale, last)
        return rows[last]

    def _distribution(self, weights: ArrayWeights, run: DecodingRun) -> TokenWeights | None:
        """Return what to draw the next token from; None where the tokens of the run change it."""
        job, known = run.job, self._distributions.setdefault(weights, Distributions()).cumulative
        if job.shapes_logits:
            return None
        key = (run.last, job.temperature, job.top_k, job.top_p)
        if key not in known:
            if len(known) * self._vocabulary >= CACHED_CELLS:
                known.clear()
            known[key] = arrays.find_distribution(self._row(weights, run.last), job)
        return known[key]


def decode_bytes(tokens: Sequence[int]) -> str:
    """Return the text of bytes; a token that is none is no character."""
    return bytes(token if token < END_OF_TEXT else 0xFF for token in tokens).decode(
        errors="replace"
    )


class ToyBatch:
    """A SampleBatch of a toy engine: each step runs one job to its end, in the order of arrival."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine
        self._jobs: dict[object, SampleJob] = {}

    @property
    def tokens(self) -> int:
        return sum(
            job.num_samples * (len(job.tokens) + job.max_tokens) for job in self._jobs.values()
        )

    def add(self, ticket: object, job: SampleJob) -> None:
        self._jobs[ticket] = job

    def drop(self, ticket: object) -> None:
        self._jobs.pop(ticket, None)

    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        ticket = next(iter(self._jobs))
        try:
            return [(ticket, self._engine.sample([self._jobs.pop(ticket)])[0])]
        except Exception as error:  # noqa: BLE001 - the error of one job must not touch the others
            return [(ticket, error)]


__all__ = ["END_OF_TEXT", "ToyEngine"]
