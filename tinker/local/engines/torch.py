"""The engine that trains: a transformers model with LoRA adapters, real gradients, AdamW, and batched sampling.

Owns the model and every adapter's weights, gradients and optimizer state. Checks of the data are in ``examples``,
the formulas in ``losses``, the LoRA weights in ``lora``, the sampling loop in ``decoding``, the files in
``adapter_files``. Runs in the server's one worker thread.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import math
import os
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

# Waiting OpenMP threads sleep instead of spinning. On a machine whose cores are busy, spinning takes them from the threads
# that are waited for: the quickstart then took 242 s instead of 47 s. Read when torch is first imported; a value that is
# already set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import attrs
import numpy as np
import torch
import transformers

from tinker.local.engines import PACKAGED_MODEL, adapter_files, dimuon
from tinker.local.engines.decoding import Run, check_job, generate, runs_of
from tinker.local.engines.examples import (
    CLIP,
    Cells,
    LossForm,
    check_datum,
    check_prompt_wishes,
    check_step,
    loss_options,
)
from tinker.local.engines.lora import LoraSlots, LoraWeights
from tinker.local.engines.losses import TERMS, Terms
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    Example,
    Float32,
    Int32,
    LossResult,
    PromptTargets,
    Sampled,
    SampleJob,
    SampleResult,
)

MAX_LOGITS = 2**27  # cells of one micro-batch: half a gigabyte in float32, whatever the vocabulary
MAX_MICRO_BATCH_TOKENS = 2**13
MAX_SAMPLING_TOKENS = 2**16  # prompt and continuation of all rows sampled together; bounds the key-value cache
EMPTY_CELL = -99999.0  # the wire's logprob for "nothing here"


def default_model_path() -> Path:
    """The tiny model that comes with the package."""
    return Path(str(resources.files("tinker.local") / "base_model"))


@attrs.define(eq=False)
class Adapter:
    """What one training run owns. ``gradient`` is None until something has accumulated."""

    weights: LoraWeights
    optimizer: torch.optim.AdamW
    gradient: list[torch.Tensor] | None = None

    @classmethod
    def of(cls, weights: LoraWeights) -> Adapter:
        return cls(weights, torch.optim.AdamW(weights.tensors.values()))


class TorchEngine:
    """Trains and samples LoRA adapters over ``model``: a directory, a hub name, or the packaged ``tinker/babble``.

    ``device`` None means the first GPU, else the CPU. ``dtype`` None means float32 on the CPU and bfloat16 on a GPU;
    adapters are always float32. Loading prints nothing.
    """

    def __init__(self, model: str | Path, *, device: str | None = None, dtype: torch.dtype | None = None) -> None:
        source = str(default_model_path()) if str(model) == PACKAGED_MODEL else str(model)
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = dtype or (torch.float32 if place.type == "cpu" else torch.bfloat16)
        self._source, self._name, self._aliases = source, _public_name(source), _paths(source)
        self._model, self._tokenizer = _load(source, place, kind)
        self._slots = LoraSlots(self._model)
        self._adapters: dict[str, Adapter] = {}
        self._vocabulary = int(self._model.config.get_text_config().vocab_size)
        self._end_of_text = _end_of_text_ids(self._model, self._tokenizer)

    @property
    def base_model(self) -> str:
        return self._name

    @property
    def aliases(self) -> frozenset[str]:
        return self._aliases

    @property
    def tokenizer_id(self) -> str:
        return str(Path(self._source).resolve()) if Path(self._source).is_dir() else self._source

    @property
    def max_context_length(self) -> int:
        return int(getattr(self._model.config.get_text_config(), "max_position_embeddings", 2048))

    @property
    def losses(self) -> frozenset[str]:
        return frozenset(TERMS)

    # Adapters

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = Adapter.of(self._slots.fresh(attrs.evolve(spec, seed=seed), seed))

    def drop_adapter(self, adapter_id: str) -> None:
        self._adapters.pop(adapter_id, None)

    def snapshot(self, adapter_id: str) -> LoraWeights:
        return self._adapter(adapter_id).weights.frozen_copy()

    def load_snapshot(self, directory: Path) -> LoraWeights:
        return adapter_files.read_weights(directory, self._slots, self._name)

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        adapter_files.write_weights(directory, self._slots, adapter.weights, self._name)
        if optimizer:
            state = {name: adapter.optimizer.state[t] for name, t in adapter.weights.tensors.items()}
            adapter_files.write_optimizer(directory, state)

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        adapter = Adapter.of(adapter_files.read_weights(directory, self._slots, self._name))
        if optimizer:
            for name, values in adapter_files.read_optimizer(directory).items():
                adapter.optimizer.state[adapter.weights.tensors[name]] = {
                    key: value.to("cpu" if key == "step" else self._model.device, copy=True) for key, value in values.items()
                }
        self._adapters[adapter_id] = adapter
        return adapter.weights.spec

    def _adapter(self, adapter_id: str) -> Adapter:
        if adapter_id not in self._adapters:
            raise EngineError(f"no adapter {adapter_id!r} on this server")
        return self._adapters[adapter_id]

    # Training

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[Example],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        adapter = self._adapter(adapter_id)
        form, options = loss_options(loss_fn, config)
        limits = {"vocabulary": self._vocabulary, "longest": self.max_context_length}
        checked = [check_datum(index, example, loss_fn, form, **limits) for index, example in enumerate(data)]
        parameters = list(adapter.weights.tensors.values()) if backward else []
        gradient = [torch.zeros_like(parameter) for parameter in parameters]
        outputs: dict[int, Float32] = {}
        tally = Tally(form, options)
        with self._slots.worn(adapter.weights), torch.set_grad_enabled(backward):
            for indices in self._micro_batches([len(datum.tokens) for datum in checked]):
                total = self._losses(indices, checked, TERMS[loss_fn], options, outputs, tally)
                if backward and total is not None:
                    for part, more in zip(gradient, torch.autograd.grad(total, parameters)):
                        part.add_(more)
        if backward:
            adapter.gradient = _accumulated(adapter.gradient, gradient)
        return LossResult(outputs=[{"logprobs": outputs[index]} for index in range(len(data))], metrics=tally.metrics())

    def _losses(
        self,
        indices: list[int],
        checked: list[Cells],
        terms_of: Terms,
        options: Mapping[str, float],
        outputs: dict[int, Float32],
        tally: Tally,
    ) -> torch.Tensor | None:
        """Run one micro-batch: add to ``outputs`` and ``tally``, return the loss to differentiate (None: no weight)."""
        batch = [checked[index] for index in indices]
        targets = self._stacked([datum.targets for datum in batch])
        weights = self._stacked([datum.weights for datum in batch])
        logits = self._logits([datum.tokens for datum in batch])
        in_range = targets.clamp(0, self._vocabulary - 1)
        logprobs = logits.gather(2, in_range) - logits.logsumexp(dim=-1, keepdim=True)
        reported = logprobs.detach().masked_fill(in_range != targets, 0.0).cpu().numpy()
        for row, (index, datum) in enumerate(zip(indices, batch)):
            length, columns = datum.targets.shape
            outputs[index] = reported[row, :length, :columns].reshape(datum.shape)
        counted = weights != 0
        cells = {key: self._stacked([datum.inputs[key] for datum in batch])[counted] for key in batch[0].inputs}
        terms = terms_of(logprobs[counted], cells, options) * weights[counted]
        if not terms.isfinite().all():
            worst = indices[int(counted.nonzero()[~terms.isfinite()][0, 0])]
            raise EngineError(f"datum {worst}: the loss is not finite; check its logprobs, advantages and weights")
        tally.add(terms.detach(), logprobs[counted].detach(), cells)
        return terms.sum() if len(terms) else None

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        check_step(params)
        parameters = list(adapter.weights.tensors.values())
        gradient = adapter.gradient or [torch.zeros_like(parameter) for parameter in parameters]
        norm = _norm(gradient)
        if 0 < params.grad_clip_norm < norm:
            gradient = [part * (params.grad_clip_norm / norm) for part in gradient]
        if isinstance(params, Dimuon):
            _dimuon_step(adapter.optimizer, parameters, gradient, params)
        else:
            _adam_step(adapter.optimizer, parameters, gradient, params)
        adapter.gradient = None
        return {"grad_norm:mean": norm}

    # Sampling

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        for job in jobs:
            check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
            check_prompt_wishes(job, self._vocabulary)
        runs = [runs_of(job, self._end_of_text, self._decode) for job in jobs]
        prompts: dict[int, Prompt] = {}
        for weights, indices in _grouped(jobs):
            with self._slots.worn(weights):
                for batch in _sampling_batches([run for index in indices for run in runs[index]]):
                    generate(self._model, batch, pad=next(iter(self._end_of_text), 0))
                prompts.update(self._prompts(jobs, [i for i in indices if _asks_about_prompt(jobs[i])]))
        done = [[run.sampled() for run in of_job] for of_job in runs]
        return [prompts.get(index, Prompt()).result(sequences) for index, sequences in enumerate(done)]

    @torch.no_grad()
    def _prompts(self, jobs: Sequence[SampleJob], wanted: list[int]) -> Iterator[tuple[int, Prompt]]:
        for batch in self._micro_batches([len(jobs[index].tokens) for index in wanted]):
            chosen = [wanted[place] for place in batch]
            logits = self._logits([jobs[index].tokens.astype(np.int64) for index in chosen])
            for row, index in enumerate(chosen):
                table = torch.log_softmax(logits[row, : len(jobs[index].tokens) - 1], dim=-1).cpu()
                yield index, Prompt.of(jobs[index], table)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    # Batches

    def _logits(self, rows: Sequence[np.ndarray[Any, np.dtype[np.int64]]]) -> torch.Tensor:
        """Float32 logits ``[rows, longest, vocabulary]``. Padding is on the right, where a causal model never looks."""
        tokens = self._stacked([row[:, None] for row in rows])[:, :, 0]
        logits: torch.Tensor = self._model(input_ids=tokens, use_cache=False).logits
        return logits.float()

    def _stacked(self, arrays: Sequence[np.ndarray[Any, Any]]) -> torch.Tensor:
        """``[N, K]`` arrays as one ``[B, longest N, largest K]`` tensor on the device, filled up with zeros."""
        shape = (len(arrays), max(len(array) for array in arrays), max(array.shape[1] for array in arrays))
        out = np.zeros(shape, arrays[0].dtype)
        for row, array in enumerate(arrays):
            out[row, : array.shape[0], : array.shape[1]] = array
        return torch.from_numpy(out).to(self._model.device)

    def _micro_batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices of items of like length, so many that the padded batch stays within the limits (at least one)."""
        limit = min(MAX_MICRO_BATCH_TOKENS, MAX_LOGITS // self._vocabulary)
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        return _bounded(order, lambda batch: len(batch) * lengths[batch[-1]] <= limit)


@attrs.frozen(kw_only=True, eq=False)
class Prompt:
    """What a job wants to know about its prompt; the fields of the same names in a result."""

    prompt_logprobs: Float32 | None = None
    topk_prompt: tuple[Int32, Float32] | None = None
    target_logprobs: Float32 | None = None
    alternatives: tuple[Int32, Float32] | None = None

    @classmethod
    def of(cls, job: SampleJob, table: torch.Tensor) -> Prompt:
        """``table`` holds the log-probabilities of every token at every position but the first."""
        return cls(
            prompt_logprobs=_own(job, table) if job.prompt_logprobs else None,
            topk_prompt=_topk_rows(table, job.topk_prompt_logprobs) if job.topk_prompt_logprobs else None,
            target_logprobs=None if job.prompt_targets is None else _scored(job.prompt_targets, table),
            alternatives=_alternatives(job, table) if job.prompt_alternatives else None,
        )

    def result(self, sequences: list[Sampled]) -> SampleResult:
        """The result of the job, with what it sampled."""
        return SampleResult(sequences=sequences, **attrs.asdict(self, recurse=False))


@attrs.define
class Tally:
    """The metrics of one call, over all cells that teach something."""

    form: LossForm
    options: Mapping[str, float]
    loss: float = 0.0
    tokens: int = 0
    clipped: int = 0
    ratio: tuple[float, float] | None = None

    def add(self, terms: torch.Tensor, logprobs: torch.Tensor, cells: Mapping[str, torch.Tensor]) -> None:
        """Count the cells of one micro-batch that have a weight."""
        self.loss += float(terms.sum(dtype=torch.float64))
        counted = slice(None) if self.form.factor is None else cells[self.form.factor] != 0
        self.tokens += len(terms[counted])
        if "logprobs" in cells:
            self._compare(torch.exp(logprobs - cells["logprobs"])[counted])

    def _compare(self, ratios: torch.Tensor) -> None:
        """Note how much likelier tokens are now than when they were sampled."""
        if not len(ratios):
            return
        low, high = float(ratios.min()), float(ratios.max())
        self.ratio = (min(low, self.ratio[0]), max(high, self.ratio[1])) if self.ratio else (low, high)
        if self._clips:
            low, high = self.options["clip_low_threshold"], self.options["clip_high_threshold"]
            self.clipped += int(((ratios < low) | (ratios > high)).sum())

    @property
    def _clips(self) -> bool:
        return self.options.keys() == CLIP.keys()

    def metrics(self) -> dict[str, float]:
        """``tokens`` counts the cells that teach something, ``clipped`` those whose ratio lay outside the thresholds."""
        metrics = {"loss:sum": self.loss, "tokens:sum": float(self.tokens)}
        if self.ratio:
            metrics |= {"ratio:min": self.ratio[0], "ratio:max": self.ratio[1]}
        return metrics | {"clipped:sum": float(self.clipped)} if self._clips else metrics


def _accumulated(before: list[torch.Tensor] | None, gradient: list[torch.Tensor]) -> list[torch.Tensor]:
    if not math.isfinite(_norm(gradient)):
        raise EngineError("the gradient is not finite; nothing was accumulated")
    return gradient if before is None else [a + b for a, b in zip(before, gradient)]


def _norm(tensors: list[torch.Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])))


def _adam_step(
    optimizer: torch.optim.AdamW, parameters: list[torch.nn.Parameter], gradient: list[torch.Tensor], params: Adam
) -> None:
    optimizer.param_groups[0].update(
        lr=params.learning_rate,
        betas=(params.beta1, params.beta2),
        eps=params.eps,
        weight_decay=params.weight_decay,
    )
    for parameter, part in zip(parameters, gradient):
        parameter.grad = part
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def _dimuon_step(
    optimizer: torch.optim.AdamW, parameters: list[torch.nn.Parameter], gradient: list[torch.Tensor], params: Dimuon
) -> None:
    """AdamW is not asked; its state only keeps the momentum, so that it is saved and loaded as Adam's is."""
    for parameter, part in zip(parameters, gradient):
        state = optimizer.state[parameter]
        before = state.get("momentum", torch.zeros_like(parameter))
        state["momentum"] = momentum = params.beta1 * before + (1 - params.beta1) * part
        parameter.sub_(params.learning_rate * dimuon.direction(momentum))


def _asks_about_prompt(job: SampleJob) -> bool:
    wishes = job.prompt_logprobs, job.topk_prompt_logprobs, job.prompt_alternatives, job.prompt_targets is not None
    return any(wishes)


def _grouped(jobs: Sequence[SampleJob]) -> list[tuple[LoraWeights | None, list[int]]]:
    """Indices of the jobs which share weights, in order of first appearance."""
    groups: dict[int, tuple[LoraWeights | None, list[int]]] = {}
    for index, job in enumerate(jobs):
        if job.weights is not None and not isinstance(job.weights, LoraWeights):
            raise EngineError("the weights to sample from do not come from this engine")
        groups.setdefault(id(job.weights), (job.weights, []))[1].append(index)
    return list(groups.values())


def _sampling_batches(runs: list[Run]) -> Iterator[list[Run]]:
    length = [len(run.job.tokens) + run.job.max_tokens for run in runs]
    order = sorted(range(len(runs)), key=length.__getitem__)
    batches = _bounded(order, lambda batch: len(batch) * length[batch[-1]] <= MAX_SAMPLING_TOKENS)
    return ([runs[index] for index in batch] for batch in batches)


def _bounded(order: list[int], fits: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Consecutive batches which fit; an item that does not fit alone goes alone."""
    batch: list[int] = []
    for index in order:
        if batch and not fits([*batch, index]):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _own(job: SampleJob, table: torch.Tensor) -> Float32:
    own = table.gather(1, torch.from_numpy(job.tokens[1:].astype(np.int64))[:, None])[:, 0].numpy()
    return np.concatenate([[np.nan], own]).astype(np.float32)


def _scored(targets: PromptTargets, table: torch.Tensor) -> Float32:
    found: Float32 = table[torch.from_numpy(targets.positions - 1), torch.from_numpy(targets.tokens)].numpy()
    return found


def _alternatives(job: SampleJob, table: torch.Tensor) -> tuple[Int32, Float32]:
    """Draws from a stream of noise of their own. Some rows at a time: a cumulated row is twice as large as the table's."""
    seed = secrets.randbits(64) if job.seed is None else job.seed & (2**64 - 1)
    noise = torch.from_numpy(np.random.default_rng([seed, 0, 1]).random((len(table), job.prompt_alternatives)))
    ids = torch.empty(noise.shape, dtype=torch.long)
    rows = max(1, MAX_LOGITS // 16 // table.shape[1])
    for start in range(0, len(table), rows):
        block = slice(start, start + rows)
        if job.temperature == 0:
            ids[block] = table[block].argmax(dim=-1, keepdim=True)
        else:
            heights = torch.softmax(table[block].double() / job.temperature, dim=-1).cumsum(dim=-1)
            places = torch.searchsorted(heights, noise[block] * heights[:, -1:], right=True)
            ids[block] = places.clamp(max=table.shape[1] - 1)
    return ids.numpy().astype(np.int32), table.gather(1, ids).numpy()


def _topk_rows(table: torch.Tensor, k: int) -> tuple[Int32, Float32]:
    values, ids = table.topk(k, dim=-1)
    return (
        np.concatenate([np.zeros((1, k)), ids.numpy()]).astype(np.int32),
        np.concatenate([np.full((1, k), EMPTY_CELL), values.numpy()]).astype(np.float32),
    )


def _public_name(source: str) -> str:
    """Users see the packaged model under its own name, a directory under its last part, anything else as it is."""
    if Path(source) == default_model_path():
        return PACKAGED_MODEL
    return Path(source).resolve().name if Path(source).is_dir() else source


def _paths(source: str) -> frozenset[str]:
    """What a directory may be called besides its last part: the path as it was given, and the whole of it."""
    folder = Path(source)
    if not folder.is_dir() or folder == default_model_path():
        return frozenset()
    return frozenset({source, str(folder), str(folder.absolute()), str(folder.resolve())})


@contextmanager
def _quiet() -> Generator[None]:
    """No progress bars or notices of transformers inside; its settings are restored."""
    log: Any = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _load(source: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    with _quiet():
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, torch_dtype=dtype)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
    return model.to(device).eval(), tokenizer


def _end_of_text_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids: set[int] = set()
    for source in (model.config.get_text_config(), model.generation_config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        ids |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    return frozenset(ids)
