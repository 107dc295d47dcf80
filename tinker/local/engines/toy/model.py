"""The toy's frozen model, two softmaxes over the digits of the next token, and its files."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.arrays import Tensors
from tinker.local.engines.inputs import Cells
from tinker.local.engines.protocol import EngineError, Float32

END_OF_TEXT = 256
BASE = 256
WIDTH = 64  # of the hidden state; 256 bytes are told apart well enough in 64 dimensions
BLOCK = 8192  # rows of one matrix product; bounds memory to some ten megabytes
LETTERS = " etaoinshrdlucmfwypvbgk,.\nTAISjxqz"  # by falling frequency
Float64: TypeAlias = NDArray[np.float64]


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


class BigramPass:
    """The log-probabilities of targets after the tokens of some data, each distinct pair computed once."""

    def __init__(self, net: Bigram, tensors: Tensors, scale: float, data: Sequence[Cells], targets: NDArray[np.int64]) -> None:
        last = np.concatenate([np.repeat(cells.tokens, cells.targets.shape[1]) for cells in data])
        distinct, places = np.unique(last * BASE * BASE + targets, return_inverse=True)
        self._net, self._places, self._pairs = net, places.reshape(-1), np.divmod(distinct, BASE * BASE)
        self._tensors, self._scale = tensors, scale
        self.logprobs: Float64 = net.logprobs(tensors, scale, *self._pairs)[self._places]

    def differentiate(self, slopes: Float64) -> Tensors:
        summed = cast("Float64", np.bincount(self._places, slopes, len(self._pairs[0])))
        return self._net.gradient(self._tensors, self._scale, *self._pairs, summed)


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
    update: Float64 = scale * tensors[f"{name}.a"] @ tensors[f"{name}.b"]
    return update


def _lora_slopes(tensors: Tensors, name: str, scale: float, slope: Float64) -> Tensors:
    down, up = tensors[f"{name}.a"], tensors[f"{name}.b"]
    return {f"{name}.a": scale * slope @ up.T, f"{name}.b": scale * down.T @ slope}


ADAPTER_FILE, OPTIMIZER_FILE = "toy_adapter.npz", "toy_optimizer.npz"
MAX_ADAPTER_NBYTES = 1 << 26


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
