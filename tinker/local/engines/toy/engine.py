"""The toy engine, with the methods that the server calls.

For tests and for machines without torch. The next token depends on the last one only. A token id is written as two
digits of base 256, and the model is two softmaxes of at most 256 cells, one for each digit; so a vocabulary of tens of
thousands costs kilobytes, and every distribution is exact and sums to one. Ids below 256 are bytes, 256 ends a text.
The untrained model babbles English letters. Runs in the server's one worker thread.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias
from weakref import WeakKeyDictionary

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker.local.engines.arrays import ArrayAdapter, ArrayEngine, ArrayWeights, Tensors, find_weights, zeros_like
from tinker.local.engines.inputs import NO_OPTIMIZER, Cells, check_job
from tinker.local.engines.opening import PACKAGED_FOLDER, TOY_MODEL
from tinker.local.engines.protocol import (
    FILE_FORMAT,
    AdapterSpec,
    EngineError,
    Float32,
    SampleJob,
    SampleResult,
    check_format,
)
from tinker.local.engines.runs import (
    DecodingRun,
    PromptScorer,
    TokenWeights,
    Work,
    extend,
    find_distribution,
    needs_table,
    start_work,
)
from tinker.local.engines.toy.model import (
    ADAPTER_FILE,
    BASE,
    END_OF_TEXT,
    OPTIMIZER_FILE,
    Bigram,
    BigramPass,
    check_archive,
    read_arrays,
    write_arrays,
)

MAX_RANK = 1024
CACHED_CELLS = 2**23  # probabilities kept for each set of weights: 32 MB, and three times that of cumulative ones
DistributionKey: TypeAlias = tuple[int, float, int, float]


@attrs.frozen(eq=False)
class Distributions:
    """What was computed from weights so far: log-probabilities after a token, and what to draw from."""

    rows: dict[int, Float32] = attrs.field(factory=lambda: dict[int, Float32]())
    cumulative: dict[DistributionKey, TokenWeights] = attrs.field(factory=lambda: dict[DistributionKey, TokenWeights]())


class ToyEngine(ArrayEngine):
    """Trains and samples a two-softmax bigram model of ``vocabulary`` token ids."""

    def __init__(self, *, vocabulary: int = 32_768, max_context_length: int = 32_768, base_model: str = TOY_MODEL) -> None:
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
            check_format(ADAPTER_FILE, int(about.get("format", FILE_FORMAT)))
            vocabulary, spec = about["vocabulary"], AdapterSpec(**about["spec"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"{ADAPTER_FILE} does not say what it contains: it is damaged") from error
        if vocabulary != self._vocabulary:
            raise EngineError(f"the checkpoint has {vocabulary} token ids, this model {self._vocabulary}")
        return ArrayWeights(spec, found)

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        weights, moments = adapter.weights, adapter.moments
        about = json.dumps({"format": FILE_FORMAT, "vocabulary": self._vocabulary, "spec": attrs.asdict(weights.spec)})
        write_arrays(directory / ADAPTER_FILE, {"about": np.array(about), **weights.tensors})
        if optimizer:
            zeros = zeros_like(weights.tensors)
            kept = {"first": moments.get("momentum", moments.get("exp_avg", zeros)), "second": moments.get("exp_avg_sq", zeros)}
            steps = max((int(count) for count in moments.get("step", {}).values()), default=0)
            named = {f"{moment}.{name}": value for moment, one in kept.items() for name, value in one.items()}
            write_arrays(directory / OPTIMIZER_FILE, {"steps": np.array(steps), **named})

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        weights, moments = self.load_snapshot(directory), dict[str, Tensors]()
        if optimizer:
            moments = self._read_moments(directory / OPTIMIZER_FILE)
        self._adapters[adapter_id] = ArrayAdapter(weights, moments)
        return weights.spec

    def _read_moments(self, file: Path) -> dict[str, Tensors]:
        """Read the moments, which are those of either optimizer: the file does not say of which."""
        if not file.exists():
            raise EngineError(NO_OPTIMIZER)
        names = self._base.tensors
        state = read_arrays(file, {"steps", *(f"{moment}.{name}" for moment in ("first", "second") for name in names)})
        first, second = ({name: state[f"{moment}.{name}"] for name in names} for moment in ("first", "second"))
        counts = {name: np.array(state["steps"], np.float32) for name in names}
        return {"step": counts, "exp_avg": first, "exp_avg_sq": second, "momentum": first}

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Check the file, which describes its adapter itself, and copy it."""
        check_archive(source / ADAPTER_FILE)
        found = self.load_snapshot(source)
        wanted = {name: tensor.shape for name, tensor in self._net.fresh(spec.rank, 0).items()}
        if found.spec.rank != spec.rank or {name: tensor.shape for name, tensor in found.tensors.items()} != wanted:
            raise EngineError(f"{ADAPTER_FILE} contains an adapter of another shape than one of rank {spec.rank}")
        if not all(tensor.dtype.kind == "f" and np.isfinite(tensor).all() for tensor in found.tensors.values()):
            raise EngineError(f"{ADAPTER_FILE} must contain only finite numbers")
        shutil.copyfile(source / ADAPTER_FILE, directory / ADAPTER_FILE)

    # Training

    def _batches(self, lengths: Sequence[int]) -> Iterable[Sequence[int]]:
        return [range(len(lengths))] if lengths else []

    def _run(self, weights: ArrayWeights, data: Sequence[Cells], targets: NDArray[np.int64]) -> BigramPass:
        return BigramPass(self._net, weights.tensors, weights.spec.scale, data, targets)

    # Sampling

    def open_batch(self, limit: int) -> ToyBatch:
        """Make an empty batch, which runs one job at each step."""
        return ToyBatch(self)

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        """Sample every job to its end. Raises EngineError naming the job's fault."""
        return [self._sample(work) for work in [self._start(job) for job in jobs]]

    def _start(self, job: SampleJob) -> Work:
        check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        return start_work(job, frozenset({END_OF_TEXT}), decode_bytes)

    def _weights(self, job: SampleJob) -> ArrayWeights:
        return find_weights(job) or self._base

    def _sample(self, work: Work) -> SampleResult:
        weights = self._weights(work.job)
        work.scores = work.scores or self._score_prompt(weights, work.job)
        for run in work.runs:
            while not run.is_over:
                row = self._row(weights, run.last)
                extend(run, row, row, self._distribution(weights, run))
        outcome = work.outcome()
        assert outcome is not None
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _score_prompt(self, weights: ArrayWeights, job: SampleJob) -> SampleResult:
        """Score a prompt; the log-probabilities of all tokens, which are many, are made for one position after the other."""
        scorer, tokens = PromptScorer(job), job.tokens.astype(np.int64)
        own = self._net.logprobs(weights.tensors, weights.spec.scale, tokens[:-1], tokens[1:]).astype(np.float32)
        if not needs_table(job):
            scorer.add(own, None)
        else:
            for place, last in enumerate(tokens[:-1].tolist()):
                scorer.add(own[place : place + 1], self._row(weights, last)[None])
        return scorer.result()

    def _row(self, weights: ArrayWeights, last: int) -> Float32:
        """Compute the log-probability of every token after ``last``, alone, so that no batch decides its rounding."""
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
            known[key] = find_distribution(self._row(weights, run.last), job)
        return known[key]


def decode_bytes(tokens: Sequence[int]) -> str:
    """Return the text of bytes; a token that is none is no character."""
    return bytes(token if token < END_OF_TEXT else 0xFF for token in tokens).decode(errors="replace")


class ToyBatch:
    """A SampleBatch of a toy engine: each step runs one job to its end, in the order of arrival."""

    def __init__(self, engine: ToyEngine) -> None:
        self._engine = engine
        self._jobs: dict[object, SampleJob] = {}

    @property
    def tokens(self) -> int:
        return sum(job.num_samples * (len(job.tokens) + job.max_tokens) for job in self._jobs.values())

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
