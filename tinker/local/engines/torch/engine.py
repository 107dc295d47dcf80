"""The engine that trains: a transformers model with LoRA adapters, real gradients, AdamW, and batched sampling.

Owns the model and every adapter's weights, gradients and optimizer state. Checks of the data are in ``loss_inputs``,
the formulas in ``losses``, the LoRA weights in ``lora``, the sampling loop in ``decoding``, the files in
``adapter_files``. Runs in the server's one worker thread.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import torch

from tinker.local.engines import (
    PACKAGED_FOLDER,
    PACKAGED_MODEL,
    Adam,
    AdapterSpec,
    Cells,
    Dimuon,
    EngineError,
    Float32,
    LossResult,
    SampleJob,
    SampleResult,
    TrainingExample,
    check_data,
    check_job,
    check_step,
)
from tinker.local.engines.torch.adapter_files import read_optimizer, read_weights, write_optimizer, write_weights
from tinker.local.engines.torch.decoding import DecodingRun, generate, start_runs
from tinker.local.engines.torch.loading import directory_names, end_of_text_ids, load_model, public_name
from tinker.local.engines.torch.lora import LoraSlots, LoraWeights
from tinker.local.engines.torch.losses import TORCH_LOSSES, TorchLoss
from tinker.local.engines.torch.peft_files import PEFT_FILES, read_peft_adapter
from tinker.local.engines.torch.prompts import MAX_LOGITS, PromptScores, needs_prompt_scores
from tinker.local.engines.torch.training import LossMetrics, TorchAdapter, accumulate, gradient_norm, step_adam, step_dimuon

MAX_MICRO_BATCH_TOKENS = 2**13
MAX_SAMPLING_TOKENS = 2**16  # prompt and continuation of all rows sampled together; bounds the key-value cache


class TorchEngine:
    """Trains and samples LoRA adapters over ``model``: a directory, a hub name, or the packaged ``tinker/babble``.

    ``device`` None means the first GPU, else the CPU. ``dtype`` None means float32 on the CPU and bfloat16 on a GPU;
    adapters are always float32. Loading prints nothing.
    """

    def __init__(self, model: str | Path, *, device: str | None = None, dtype: torch.dtype | None = None) -> None:
        source = str(PACKAGED_FOLDER) if str(model) == PACKAGED_MODEL else str(model)
        torch_device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        kind = dtype or (torch.float32 if torch_device.type == "cpu" else torch.bfloat16)
        self._source, self._name, self._aliases = source, public_name(source), directory_names(source)
        self._model, self._tokenizer = load_model(source, torch_device, kind)
        self._slots = LoraSlots(self._model)
        self._adapters: dict[str, TorchAdapter] = {}
        self._vocabulary = int(self._model.config.get_text_config().vocab_size)
        self._end_of_text = end_of_text_ids(self._model, self._tokenizer)

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
        return frozenset(TORCH_LOSSES)

    # Adapters

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = TorchAdapter.create(self._slots.fresh(attrs.evolve(spec, seed=seed), seed))

    def drop_adapter(self, adapter_id: str) -> None:
        self._adapters.pop(adapter_id, None)

    def snapshot(self, adapter_id: str) -> LoraWeights:
        return self._adapter(adapter_id).weights.freeze_copy()

    def load_snapshot(self, directory: Path) -> LoraWeights:
        return read_weights(directory, self._slots, self._name)

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        write_weights(directory, self._slots, adapter.weights, self._name)
        if optimizer:
            state = {name: adapter.optimizer.state[t] for name, t in adapter.weights.tensors.items()}
            write_optimizer(directory, state)

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        adapter = TorchAdapter.create(read_weights(directory, self._slots, self._name))
        if optimizer:
            for name, values in read_optimizer(directory).items():
                adapter.optimizer.state[adapter.weights.tensors[name]] = {
                    key: value.to("cpu" if key == "step" else self._model.device, copy=True) for key, value in values.items()
                }
        self._adapters[adapter_id] = adapter
        return adapter.weights.spec

    @property
    def adapter_files(self) -> frozenset[str]:
        return PEFT_FILES

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Take PEFT's two files; see :mod:`tinker.local.engines.torch.peft_files`."""
        write_weights(directory, self._slots, read_peft_adapter(source, self._slots, spec), self._name)

    def _adapter(self, adapter_id: str) -> TorchAdapter:
        if adapter_id not in self._adapters:
            raise EngineError(f"no adapter {adapter_id!r} on this server")
        return self._adapters[adapter_id]

    # Training

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
        limits = {"vocabulary": self._vocabulary, "longest": self.max_context_length}
        form, options, checked = check_data(data, loss_fn, config, **limits)
        parameters = list(adapter.weights.tensors.values()) if backward else []
        gradient = [torch.zeros_like(parameter) for parameter in parameters]
        outputs: dict[int, Float32] = {}
        tally = LossMetrics(form, options)
        with self._slots.activate(adapter.weights), torch.set_grad_enabled(backward):
            for indices in self._micro_batches([len(datum.tokens) for datum in checked]):
                total = self._losses(indices, checked, TORCH_LOSSES[loss_fn], options, outputs, tally)
                if backward and total is not None:
                    for part, more in zip(gradient, torch.autograd.grad(total, parameters)):
                        part.add_(more)
        if backward:
            adapter.gradient = accumulate(adapter.gradient, gradient)
        return LossResult(outputs=[{"logprobs": outputs[index]} for index in range(len(data))], metrics=tally.metrics())

    def _losses(
        self,
        indices: list[int],
        checked: list[Cells],
        terms_of: TorchLoss,
        options: Mapping[str, float],
        outputs: dict[int, Float32],
        tally: LossMetrics,
    ) -> torch.Tensor | None:
        """Run one micro-batch: add to ``outputs`` and ``tally``, return the loss to differentiate (None: no weight)."""
        batch = [checked[index] for index in indices]
        targets = self._stack([datum.targets for datum in batch])
        weights = self._stack([datum.weights for datum in batch])
        logits = self._logits([datum.tokens for datum in batch])
        in_range = targets.clamp(0, self._vocabulary - 1)
        logprobs = logits.gather(2, in_range) - logits.logsumexp(dim=-1, keepdim=True)
        reported = logprobs.detach().masked_fill(in_range != targets, 0.0).cpu().numpy()
        for row, (index, datum) in enumerate(zip(indices, batch)):
            length, columns = datum.targets.shape
            outputs[index] = reported[row, :length, :columns].reshape(datum.shape)
        counted = weights != 0
        cells = {key: self._stack([datum.inputs[key] for datum in batch])[counted] for key in batch[0].inputs}
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
        norm = gradient_norm(gradient)
        if 0 < params.grad_clip_norm < norm:
            gradient = [part * (params.grad_clip_norm / norm) for part in gradient]
        if isinstance(params, Dimuon):
            step_dimuon(adapter.optimizer, parameters, gradient, params)
        else:
            step_adam(adapter.optimizer, parameters, gradient, params)
        adapter.gradient = None
        return {"grad_norm:mean": norm}

    # Sampling

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        for job in jobs:
            check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        runs = [start_runs(job, self._end_of_text, self._decode) for job in jobs]
        prompts: dict[int, PromptScores] = {}
        for weights, indices in _group_by_weights(jobs):
            with self._slots.activate(weights):
                for batch in _sampling_batches([run for index in indices for run in runs[index]]):
                    generate(self._model, batch, pad=next(iter(self._end_of_text), 0))
                prompts.update(self._prompts(jobs, [i for i in indices if needs_prompt_scores(jobs[i])]))
        done = [[run.continuation() for run in of_job] for of_job in runs]
        return [prompts.get(index, PromptScores()).result(sequences) for index, sequences in enumerate(done)]

    @torch.no_grad()
    def _prompts(self, jobs: Sequence[SampleJob], wanted: list[int]) -> Iterator[tuple[int, PromptScores]]:
        for batch in self._micro_batches([len(jobs[index].tokens) for index in wanted]):
            chosen = [wanted[index] for index in batch]
            logits = self._logits([jobs[index].tokens.astype(np.int64) for index in chosen])
            for row, index in enumerate(chosen):
                table = torch.log_softmax(logits[row, : len(jobs[index].tokens) - 1], dim=-1).cpu()
                yield index, PromptScores.compute(jobs[index], table)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    # Batches

    def _logits(self, rows: Sequence[np.ndarray[Any, np.dtype[np.int64]]]) -> torch.Tensor:
        """Compute float32 logits ``[rows, longest, vocabulary]``. A causal model never looks at the padding on the right."""
        tokens = self._stack([row[:, None] for row in rows])[:, :, 0]
        logits: torch.Tensor = self._model(input_ids=tokens, use_cache=False).logits
        return logits.float()

    def _stack(self, arrays: Sequence[np.ndarray[Any, Any]]) -> torch.Tensor:
        """Stack ``[N, K]`` arrays to one ``[B, longest N, largest K]`` tensor on the device, filled up with zeros."""
        shape = (len(arrays), max(len(array) for array in arrays), max(array.shape[1] for array in arrays))
        out = np.zeros(shape, arrays[0].dtype)
        for row, array in enumerate(arrays):
            out[row, : array.shape[0], : array.shape[1]] = array
        return torch.from_numpy(out).to(self._model.device)

    def _micro_batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Yield indices of items of like length, so many that the padded batch stays within the limits (at least one)."""
        limit = min(MAX_MICRO_BATCH_TOKENS, MAX_LOGITS // self._vocabulary)
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        return _split_batches(order, lambda batch: len(batch) * lengths[batch[-1]] <= limit)


def _group_by_weights(jobs: Sequence[SampleJob]) -> list[tuple[LoraWeights | None, list[int]]]:
    """Group the indices of the jobs by their weights, in order of first appearance."""
    groups: dict[int, tuple[LoraWeights | None, list[int]]] = {}
    for index, job in enumerate(jobs):
        if job.weights is not None and not isinstance(job.weights, LoraWeights):
            raise EngineError("the weights to sample from do not come from this engine")
        groups.setdefault(id(job.weights), (job.weights, []))[1].append(index)
    return list(groups.values())


def _sampling_batches(runs: list[DecodingRun]) -> Iterator[list[DecodingRun]]:
    length = [len(run.job.tokens) + run.job.max_tokens for run in runs]
    order = sorted(range(len(runs)), key=length.__getitem__)
    batches = _split_batches(order, lambda batch: len(batch) * length[batch[-1]] <= MAX_SAMPLING_TOKENS)
    return ([runs[index] for index in batch] for batch in batches)


def _split_batches(order: list[int], fits: Callable[[list[int]], bool]) -> Iterator[list[int]]:
    """Yield consecutive batches that fit; an item that does not fit alone goes alone."""
    batch: list[int] = []
    for index in order:
        if batch and not fits([*batch, index]):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
