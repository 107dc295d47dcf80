"""The engine that trains: a transformers model with LoRA adapters, real gradients, AdamW, and batched sampling.

Owns the model and every adapter's weights, gradients and optimizer state. Checks of the data are in ``inputs``,
the formulas in ``losses``, the LoRA weights in ``lora``, the samples in progress in ``sampling``, the files in
``adapter_files``. Runs in the server's one worker thread.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import attrs
import torch
from transformers.cache_utils import DynamicCache

from tinker.local.engines.inputs import check_data, check_job, check_step
from tinker.local.engines.losses import LOSSES
from tinker.local.engines.opening import PACKAGED_FOLDER, PACKAGED_MODEL, DeviceMap, DType, Placement, Recompute
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    ExpectedLoss,
    LocalEngine,
    LossResult,
    SampleJob,
    TrainingExample,
)
from tinker.local.engines.torch.adapters import (
    PEFT_FILES,
    TorchAdapter,
    accumulate,
    gradient_norm,
    read_optimizer,
    read_peft_adapter,
    read_weights,
    step_adam,
    step_dimuon,
    write_optimizer,
    write_weights,
)
from tinker.local.engines.torch.decoding import DecodingRun, start_runs
from tinker.local.engines.torch.head import SplitModel
from tinker.local.engines.torch.images import TorchImages, open_reader
from tinker.local.engines.torch.loading import directory_names, end_of_text_ids, find_place, load_model, public_name
from tinker.local.engines.torch.lora import LoraTargets, LoraWeights
from tinker.local.engines.torch.memory import MemoryReturn, find_trim, release_memory
from tinker.local.engines.torch.mixture import Mixer, Mixture
from tinker.local.engines.torch.passes import LossPlan, LossRun, Trainer, run_joined
from tinker.local.engines.torch.prefixes import Prefixes
from tinker.local.engines.torch.rows import DIVERGED, check_cache
from tinker.local.engines.torch.sampling import Parts, TorchBatch, can_continue

log: logging.Logger = logging.getLogger("tinker.local")


class TorchEngine(LocalEngine[TorchAdapter]):
    """Trains and samples LoRA adapters over ``model``: a directory, a hub name, or the packaged ``tinker/babble``.

    The options are those of :class:`Placement`; adapters are always float32. Loading prints
    nothing. Raises ValueError for a device that this machine does not have.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        device: str = "auto",
        dtype: DType = "auto",
        device_map: DeviceMap | None = None,
        recompute: Recompute = "auto",
        share_passes: bool = False,
    ) -> None:
        place = find_place(Placement(device=device, dtype=dtype, device_map=device_map, recompute=recompute))
        source = str(PACKAGED_FOLDER) if str(model) == PACKAGED_MODEL else str(model)
        super().__init__()
        self.base_model: str = public_name(source)
        self.aliases: frozenset[str] = directory_names(source)
        self.tokenizer_id: str = str(Path(source).resolve()) if Path(source).is_dir() else source
        self.adapter_files: frozenset[str] = PEFT_FILES
        self._model, self._tokenizer = load_model(source, place)
        text = self._model.config.get_text_config()
        self.max_context_length: int = int(getattr(text, "max_position_embeddings", 2048))
        self._targets = LoraTargets(self._model)
        if self._targets.left_out:
            log.info("%s: no adapter changes %s", self.base_model, self._targets.describe_left_out())
        self._memory = MemoryReturn(find_trim())
        self._vocabulary = int(text.vocab_size)
        self._end_of_text = end_of_text_ids(self._model, self._tokenizer)
        self._finite: WeakKeyDictionary[LoraWeights, bool] = WeakKeyDictionary()
        self._split = split = SplitModel(self._model)
        self._expected: dict[str, LossRun] = {}
        self._trainer = Trainer(self._model, split, recompute)
        self.shares_passes: bool = share_passes and split.is_split and recompute != "always"
        mixer = Mixer(self._model, self._targets.all)
        self._parts = Parts(self._model, split, mixer, Prefixes(), self._start_runs)
        self._parts.keeps_prefixes = can_continue(split, self._parts.config, self._model.device)
        self.image_reader: TorchImages | None = open_reader(self._model, source, self.max_context_length)
        check_cache(DynamicCache(config=self._parts.config), type(self._model).__name__)

    # Adapters

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = TorchAdapter(self._targets.fresh(attrs.evolve(spec, seed=seed), seed))

    def snapshot(self, adapter_id: str) -> LoraWeights:
        return self._adapter(adapter_id).weights.freeze_copy()

    def load_snapshot(self, directory: Path) -> LoraWeights:
        return read_weights(directory, self._targets, self.base_model)

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter. Gradients that no optimizer step has applied yet are not saved."""
        adapter = self._adapter(adapter_id)
        write_weights(directory, self._targets, adapter.weights, self.base_model)
        if optimizer:
            write_optimizer(directory, adapter)

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        weights = read_weights(directory, self._targets, self.base_model)
        self._adapters[adapter_id] = TorchAdapter(weights, read_optimizer(directory, weights) if optimizer else {})
        return weights.spec

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Take PEFT's two files; see :mod:`tinker.local.engines.torch.adapters`."""
        write_weights(directory, self._targets, read_peft_adapter(source, self._targets, spec), self.base_model)

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
        done = self._expected.pop(adapter_id, None) if backward else None
        if done is None:
            call = ExpectedLoss(adapter_id=adapter_id, data=data, loss_fn=loss_fn, config=config)
            plan = self._plan(adapter, call, backward=backward)
            with self._parts.mixer.activate(Mixture.make([adapter.weights])), torch.set_grad_enabled(backward):
                done = self._trainer.run(plan)
        if backward:
            adapter.gradient = accumulate(adapter.gradient, done.gradient)
        return LossResult(outputs=[{"logprobs": done.outputs[index]} for index in range(len(data))], metrics=done.metrics)

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        self._expected = {}
        if len(calls) < 2 or not self.shares_passes:
            return
        try:
            adapters = [self._adapter(call.adapter_id) for call in calls]
            parts = [(one.weights, self._plan(one, call, backward=True)) for one, call in zip(adapters, calls)]
            with torch.set_grad_enabled(True):
                runs = run_joined(self._split, self._parts.mixer, parts)
        except Exception as error:  # noqa: BLE001 - each call is computed alone then, and fails alone
            log.debug("losses are computed one by one: %s", error)
            release_memory(self._model.device)
        else:
            self._expected = {call.adapter_id: run for call, run in zip(calls, runs) if run is not None}

    def _plan(self, adapter: TorchAdapter, call: ExpectedLoss, *, backward: bool) -> LossPlan:
        limits = {"vocabulary": self._vocabulary, "longest": self.max_context_length}
        form, options, checked = check_data(call.data, call.loss_fn, call.config, **limits)
        parameters = list(adapter.weights.tensors.values()) if backward else []
        return LossPlan(checked, form, options, LOSSES[call.loss_fn], parameters, self._vocabulary)

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        check_step(params)
        gradient = adapter.gradient or [torch.zeros_like(tensor) for tensor in adapter.weights.tensors.values()]
        norm = gradient_norm(gradient)
        if 0 < params.grad_clip_norm < norm:
            gradient = [part * (params.grad_clip_norm / norm) for part in gradient]
        if isinstance(params, Dimuon):
            self._adapters[adapter_id] = step_dimuon(adapter, gradient, params)
        else:
            self._adapters[adapter_id] = step_adam(adapter, gradient, params)
        self._memory.count_step()
        return {"grad_norm:mean": norm}

    # Sampling

    def open_batch(self, limit: int) -> TorchBatch:
        """Make an empty batch of samples that together hold about ``limit`` tokens."""
        return TorchBatch(self._parts, DynamicCache(config=self._parts.config), limit)

    def _start_runs(self, job: SampleJob) -> list[DecodingRun]:
        check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        if job.weights is not None and not isinstance(job.weights, LoraWeights):
            raise EngineError("the weights to sample from do not come from this engine")
        if job.weights is not None and not self._is_finite(job.weights):
            raise EngineError(DIVERGED)
        return start_runs(job, self._end_of_text, self._decode)

    def _is_finite(self, weights: LoraWeights) -> bool:
        """Return whether these weights are finite, so that they can share a pass with others; computed once."""
        if weights not in self._finite:
            self._finite[weights] = weights.is_finite()
        return self._finite[weights]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))
