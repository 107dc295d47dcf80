"""The engine: adapters over a Llama in numpy, their losses with exact gradients, and batches of
samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from tinker.local.engines.adapter_files import Moments, PeftEngine, read_weights
from tinker.local.engines.arrays import (
    ArrayAdapter,
    ArrayEngine,
    ArrayWeights,
    Reals,
    Tensors,
    find_weights,
)
from tinker.local.engines.inputs import Cells, check_job
from tinker.local.engines.lora import LoraFactors, LoraTargets
from tinker.local.engines.numpy.llama import Gradient, Int64, Llama, Matrices, pad
from tinker.local.engines.numpy.sampling import NumpyBatch
from tinker.local.engines.opening import PACKAGED_MODEL, directory_names, find_source, public_name
from tinker.local.engines.protocol import AdapterSpec, SampleJob
from tinker.local.engines.runs import Work, log_softmax, split_batches, start_work

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# tokens that go through the model together, padding included; more are no faster, and take more
# memory
PASS_CELLS = 256


class LlamaPass:
    """A pass forward through the model, with all that the pass back needs. Every position has one
    target or more.
    """

    def __init__(
        self,
        model: Llama,
        matrices: Matrices,
        weights: ArrayWeights,
        data: Sequence[Cells],
        targets: Int64,
    ) -> None:
        self._model, self._gradient, self._targets = model, Gradient(matrices, weights), targets
        tokens, self._positions = pad([cells.tokens for cells in data])
        states, self._tapes = model.run(matrices, tokens, self._positions)
        lengths = np.array([len(cells.tokens) for cells in data])
        self._real = np.flatnonzero(self._positions < lengths[:, None])  # cells that are no padding
        self._states = states[self._real]
        self._table = log_softmax(model.find_logits(matrices, self._states))
        columns = np.repeat([cells.targets.shape[1] for cells in data], lengths)
        self._places = np.repeat(np.arange(len(self._real)), columns)  # the position of each target
        self.logprobs: Reals = self._table[self._places, targets]

    def differentiate(self, slopes: Reals) -> Tensors:
        # The log-probability of a target grows with its own logit, and falls with every logit by
        # the token's probability.
        by_logits = np.exp(self._table) * -np.bincount(self._places, slopes, len(self._table))[
            :, None
        ].astype(np.float32)
        np.add.at(by_logits, (self._places, self._targets), slopes)
        by_states = np.zeros((self._positions.size, self._states.shape[1]), np.float32)
        by_states[self._real] = self._model.pass_back_logits(
            self._states, by_logits, self._gradient
        )
        self._model.pass_back(self._tapes, self._positions, by_states, self._gradient)
        return self._gradient.by_factor


class NumpyEngine(ArrayEngine, PeftEngine[ArrayAdapter]):
    """Trains and samples LoRA adapters over the Llama in a directory, or the packaged
    ``tinker/babble``, on the CPU.
    """

    def __init__(self, model: str | Path = PACKAGED_MODEL) -> None:
        super().__init__()
        source = find_source(model)
        self._folder = folder = Path(source).resolve()
        self._model = Llama(folder)
        self.base_model: str = public_name(source)
        self.aliases: frozenset[str] = directory_names(source)
        self.tokenizer_id: str = str(folder)
        self.max_context_length: int = self._model.shape.longest
        self._vocabulary = self._model.shape.vocabulary
        self._targets = LoraTargets(self._model.shape.targets())
        self._matrices: WeakKeyDictionary[ArrayWeights, Matrices] = WeakKeyDictionary()
        self._end_of_text = _read_end_of_text(folder)

    def _assemble(self, spec: AdapterSpec, factors: LoraFactors, moments: Moments) -> ArrayAdapter:
        return ArrayAdapter(ArrayWeights(spec, factors), moments)

    def _take_apart(self, adapter: ArrayAdapter) -> tuple[AdapterSpec, LoraFactors, Moments]:
        return adapter.weights.spec, adapter.weights.tensors, adapter.moments

    def load_snapshot(self, directory: Path) -> ArrayWeights:
        return ArrayWeights(*read_weights(directory, self._targets, self.base_model))

    # Training

    def _batches(self, lengths: Sequence[int]) -> Iterable[Sequence[int]]:
        return split_batches(lengths, PASS_CELLS)

    def _run(self, weights: ArrayWeights, data: Sequence[Cells], targets: Int64) -> LlamaPass:
        return LlamaPass(self._model, self.adapt(weights), weights, data, targets)

    def adapt(self, weights: ArrayWeights | None) -> Matrices:
        """Return the model's matrices with an adapter's update, made once for each state of its
        weights.
        """
        if weights is None:
            return self._model.matrices
        if weights not in self._matrices:
            self._matrices[weights] = self._model.adapt(weights)
        return self._matrices[weights]

    # Sampling

    def open_batch(self, limit: int) -> NumpyBatch:
        """Make an empty batch of samples that together hold about ``limit`` tokens."""
        return NumpyBatch(self._model, self.adapt, self._start, limit)

    def _start(self, job: SampleJob) -> Work:
        check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        find_weights(job)
        return start_work(job, self._end_of_text, self._decode)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer  # needed where a stop is a text

        return Tokenizer.from_file(str(self._folder / "tokenizer.json"))

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(list(tokens), skip_special_tokens=False)


def _read_end_of_text(folder: Path) -> frozenset[int]:
    """Return the tokens that end a text, which a configuration has as a number, a list or not at
    all.
    """
    files = [folder / name for name in ("config.json", "generation_config.json")]
    found = [json.loads(file.read_bytes()).get("eos_token_id") for file in files if file.is_file()]
    return frozenset(
        int(token) for tokens in found for token in np.ravel([] if tokens is None else tokens)
    )
