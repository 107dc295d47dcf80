"""The toy's frozen model, two softmaxes over the digits of the next token; its adapters, their steps and their files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.inputs import Cells
from tinker.local.engines.protocol import Adam, AdapterSpec, Dimuon, EngineError, Float32, Int32, SampleJob

END_OF_TEXT = 256
BASE = 256
WIDTH = 64  # of the hidden state; 256 bytes are told apart well enough in 64 dimensions
BLOCK = 8192  # rows of one matrix product; bounds memory to some ten megabytes
LETTERS = " etaoinshrdlucmfwypvbgk,.\nTAISjxqz"  # by falling frequency
Float64: TypeAlias = NDArray[np.float64]
Tensors: TypeAlias = dict[str, Float64]


class Bigram:
    """The frozen model: features of a token, and the two softmaxes over the digits of the next one."""

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

    def logprobs(self, tensors: Tensors, scale: float, last: NDArray[np.int64], following: NDArray[np.int64]) -> Float64:
        """Compute the log-probability of ``following[i]`` after ``last[i]``."""
        high, low = self._matrices(tensors, scale)
        out = np.empty(len(last))
        for part in _iterate_blocks(len(last)):
            digits, rest = np.divmod(following[part], BASE)
            state = self._state(last[part])
            rows = np.arange(len(digits))
            out[part] = _log_softmax(state @ high + self._high_bias)[rows, digits]
            out[part] += _log_softmax(self._low_logits(state, digits, low))[rows, rest]
        return out

    def gradient(
        self, tensors: Tensors, scale: float, last: NDArray[np.int64], following: NDArray[np.int64], slopes: Float64
    ) -> Tensors:
        """Compute the gradient of the sum of ``slopes[i]`` times the log-probability of ``following[i]`` after ``last[i]``."""
        high, low = self._matrices(tensors, scale)
        high_slope, low_slope = np.zeros_like(high), np.zeros_like(low)
        for part in _iterate_blocks(len(last)):
            digits, rest = np.divmod(following[part], BASE)
            state = self._state(last[part])
            high_slope += state.T @ _logit_slopes(state @ high + self._high_bias, digits, slopes[part])
            lifted = state + self._of_high[digits]
            low_slope += lifted.T @ _logit_slopes(self._low_logits(state, digits, low), rest, slopes[part])
        return {**_lora_slopes(tensors, "high", scale, high_slope), **_lora_slopes(tensors, "low", scale, low_slope)}

    def row(self, tensors: Tensors, scale: float, last: int) -> Float32:
        """Compute the log-probability of every token after ``last``."""
        high, low = self._matrices(tensors, scale)
        state = self._state(np.array([last]))
        digits = _log_softmax(state @ high + self._high_bias)[0]
        rest = _log_softmax(self._low_logits(state, np.arange(self._highs), low))
        cells: Float64 = (digits[:, None] + rest).reshape(-1)[: self._vocabulary]
        return cells.astype(np.float32)

    def _state(self, tokens: NDArray[np.int64]) -> Float64:
        digits, rest = np.divmod(tokens, BASE)
        return np.where(digits[:, None] > 0, self._of_high[digits], 0.0) + self._of_low[rest]

    def _low_logits(self, state: Float64, digits: NDArray[np.int64], low: Float64) -> Float64:
        return (state + self._of_high[digits]) @ low + self._low_bias[digits]

    def _matrices(self, tensors: Tensors, scale: float) -> tuple[Float64, Float64]:
        return self._high + _lora_update(tensors, "high", scale), self._low + _lora_update(tensors, "low", scale)


@attrs.frozen(eq=False)
class TokenPairs:
    """The distinct (last token, next token) pairs of a call, and for each cell the place of its pair among them."""

    last: NDArray[np.int64]
    following: NDArray[np.int64]
    places: NDArray[np.int64]
    known: NDArray[np.bool_]

    @classmethod
    def collect(cls, checked: Sequence[Cells], vocabulary: int) -> TokenPairs:
        """Collect the pairs. Targets out of range (their weight is zero) count as token 0 and are not ``known``."""
        last = np.concatenate([np.repeat(cells.tokens, cells.targets.shape[1]) for cells in checked])
        targets = np.concatenate([cells.targets.reshape(-1) for cells in checked])
        known = (targets >= 0) & (targets < vocabulary)
        codes = last * BASE * BASE + np.where(known, targets, 0)
        distinct, places = np.unique(codes, return_inverse=True)
        first, second = np.divmod(distinct, BASE * BASE)
        return cls(first, second, places.reshape(-1), known)


def _iterate_blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))


def _log_softmax(logits: Float64) -> Float64:
    shifted: Float64 = logits - logits.max(axis=1, keepdims=True)
    return shifted - cast("Float64", np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def _logit_slopes(logits: Float64, chosen: NDArray[np.int64], slopes: Float64) -> Float64:
    out = -np.exp(_log_softmax(logits)) * slopes[:, None]
    out[np.arange(len(chosen)), chosen] += slopes
    return out


def _lora_update(tensors: Tensors, name: str, scale: float) -> Float64:
    down, up = tensors[f"{name}.a"], tensors[f"{name}.b"]
    return np.multiply(down @ up, scale)


def _lora_slopes(tensors: Tensors, name: str, scale: float, slope: Float64) -> Tensors:
    down, up = tensors[f"{name}.a"], tensors[f"{name}.b"]
    return {f"{name}.a": scale * slope @ up.T, f"{name}.b": scale * down.T @ slope}


def has_stopped(tokens: list[int], job: SampleJob) -> bool:
    """Return whether the last token completed a stop: an id, or a text among the bytes generated."""
    if job.stop is None:
        return tokens[-1] == END_OF_TEXT
    return any(_ends_with(tokens[job.min_tokens :], piece) for piece in job.stop)


def _ends_with(tokens: list[int], piece: str | int) -> bool:
    if isinstance(piece, int):
        return tokens[-1:] == [piece]
    wanted = list(piece.encode())
    return tokens[-len(wanted) :] == wanted


def cumulative_distribution(row: Float32, job: SampleJob) -> tuple[Float64, Int32]:
    """Return the likeliest token alone at temperature 0; else the cumulated rest after top_k and then top_p."""
    if job.temperature == 0:
        return np.ones(1), np.array([row.argmax()], np.int32)
    ids = np.arange(len(row), dtype=np.int32)
    if job.top_k >= 1 or job.top_p < 1:
        ids = np.argsort(-row, kind="stable").astype(np.int32)[: job.top_k if job.top_k >= 1 else None]
    scores = row[ids].astype(np.float64)
    cumulative = np.exp((scores - scores.max()) / job.temperature).cumsum()
    if job.top_p < 1:
        kept = int(cumulative.searchsorted(job.top_p * float(cumulative[-1]))) + 1
        cumulative, ids = cumulative[:kept], ids[:kept]
    return cumulative, ids


ADAPTER_FILE, OPTIMIZER_FILE = "toy_adapter.npz", "toy_optimizer.npz"
MAX_ADAPTER_NBYTES = 1 << 26


@attrs.define(eq=False)
class ToyAdapter:
    """The state of one training run. ``gradient`` is None until one has been accumulated."""

    spec: AdapterSpec
    tensors: Tensors
    first: Tensors
    second: Tensors
    steps: int = 0
    gradient: Tensors | None = None

    @classmethod
    def create(cls, spec: AdapterSpec, tensors: Tensors) -> ToyAdapter:
        return cls(spec, tensors, zeros_like(tensors), zeros_like(tensors))


def zeros_like(tensors: Tensors) -> Tensors:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}


def step_adam(adapter: ToyAdapter, gradient: Tensors, params: Adam) -> ToyAdapter:
    """Return the adapter after a step; the given one stays as it is."""
    steps, tensors, first, second = adapter.steps + 1, Tensors(), Tensors(), Tensors()
    for name, tensor in adapter.tensors.items():
        part = gradient[name]
        first[name] = params.beta1 * adapter.first[name] + (1 - params.beta1) * part
        second[name] = params.beta2 * adapter.second[name] + (1 - params.beta2) * part**2
        rate = params.learning_rate / (1 - params.beta1**steps)
        scale = np.sqrt(second[name] / (1 - params.beta2**steps)) + params.eps
        step = np.divide(first[name], scale, out=np.zeros_like(scale), where=scale > 0)
        tensors[name] = tensor * (1 - params.learning_rate * params.weight_decay) - rate * step
    return ToyAdapter(adapter.spec, tensors, first, second, steps)


def step_dimuon(adapter: ToyAdapter, gradient: Tensors, params: Dimuon) -> ToyAdapter:
    """Return the adapter after a step; the given one stays as it is."""
    first = {name: params.beta1 * adapter.first[name] + (1 - params.beta1) * part for name, part in gradient.items()}
    tensors = {
        name: tensor - params.learning_rate * orthogonal_direction(first[name]) for name, tensor in adapter.tensors.items()
    }
    return ToyAdapter(adapter.spec, tensors, first, adapter.second, adapter.steps + 1)


def moment_names(tensors: Tensors) -> set[str]:
    return {f"{moment}.{name}" for moment in ("first", "second") for name in tensors}


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    np.savez(path, allow_pickle=False, **dict(arrays))


def check_archive(path: Path) -> None:
    """Raise EngineError for a file that is no archive of arrays, or one that unpacks to more than any adapter."""
    try:
        with zipfile.ZipFile(path) as archive:
            nbytes = sum(member.file_size for member in archive.infolist())
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise EngineError(f"{path.name} cannot be read: it is missing or damaged") from error
    if nbytes > MAX_ADAPTER_NBYTES:
        raise EngineError(f"{path.name} unpacks to more than {MAX_ADAPTER_NBYTES} bytes")


def read_arrays(path: Path, names: set[str]) -> dict[str, NDArray[np.float64]]:
    """Read the arrays of a file; nothing in it is executed. Raises EngineError when it is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in names}
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise EngineError(f"the checkpoint was not written by this engine: {path.name}: {error}") from error
