"""The engine that trains: a transformers model with LoRA adapters, real gradients, AdamW, and
batched sampling.

Owns the model and every adapter's weights, gradients and optimizer state. Checks of the data are in
``inputs``, the formulas in ``losses``, the LoRA weights in ``lora``, the samples in progress in
``sampling``, the files in ``adapter_files``. Runs in the server's one worker thread.
"""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only) (torch and transformers are typed in part only,
# and torch's functions of many tensors are public under private names)

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary

import attrs
import torch
from transformers.cache_utils import DynamicCache

from tinker.local.engines.adapter_files import Moments, PeftEngine, read_weights
from tinker.local.engines.dimuon import orthogonal_direction
from tinker.local.engines.inputs import WEIGHTS_DIVERGED, check_data, check_job, check_step
from tinker.local.engines.lora import LoraFactors
from tinker.local.engines.losses import LOSSES
from tinker.local.engines.opening import (
    DeviceMap,
    DType,
    Placement,
    Quantize,
    Recompute,
    directory_names,
    find_source,
    public_name,
)
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    ExpectedLoss,
    ImageReader,
    LossResult,
    SampleJob,
    TrainingExample,
)
from tinker.local.engines.runs import DIVERGED, FOREIGN_WEIGHTS, Work, start_work
from tinker.local.engines.torch.loading import end_of_text_ids, find_place, load_model
from tinker.local.engines.torch.lora import LoraWeights, TorchTargets
from tinker.local.engines.torch.memory import MemoryReturn, find_trim, release_memory
from tinker.local.engines.torch.mixture import Mixer, Mixture, join_stack, split_stack
from tinker.local.engines.torch.passes import LossPlan, LossRun, SplitModel, Trainer, run_joined
from tinker.local.engines.torch.proof import find_infinity, find_reader, prove
from tinker.local.engines.torch.sampling import Parts, Prefixes, TorchBatch

# The state of a training run, and optimizer steps.


@attrs.define(eq=False)
class TorchAdapter:
    """The state of one training run, which a step replaces as a whole; ``gradient`` is None until
    one has been accumulated.

    ``moments`` are the optimizer's, by their names; each list is in the order of the weights. Empty
    before the first step.
    """

    weights: LoraWeights
    moments: Mapping[str, list[torch.Tensor]] = attrs.field(
        factory=lambda: dict[str, list[torch.Tensor]]()
    )
    gradient: list[torch.Tensor] | None = None

    def find_moments(self, name: str) -> list[torch.Tensor]:
        """Return the moments of that name; zeros before the first step."""
        return self.moments.get(name) or [
            torch.zeros_like(tensor) for tensor in self.weights.tensors.values()
        ]


def accumulate(
    before: list[torch.Tensor] | None, gradient: list[torch.Tensor]
) -> list[torch.Tensor]:
    if not math.isfinite(gradient_norm(gradient)):
        raise EngineError(f"the gradient is not finite: {WEIGHTS_DIVERGED}")
    return gradient if before is None else [a + b for a, b in zip(before, gradient)]


def gradient_norm(tensors: list[torch.Tensor]) -> float:
    norms = [torch.linalg.vector_norm(tensor) for tensor in tensors]
    return float(
        torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    )


@torch.no_grad()
def step_adam(adapter: TorchAdapter, gradient: list[torch.Tensor], params: Adam) -> TorchAdapter:
    """Return the adapter after a step of AdamW, as ``torch.optim`` computes it; the given one stays
    as it is.
    """
    before: list[torch.Tensor] = list(adapter.weights.tensors.values())
    counts = adapter.moments.get("step") or [torch.tensor(0.0) for _ in before]
    count = float(counts[0]) + 1
    first = torch._foreach_lerp(adapter.find_moments("exp_avg"), gradient, 1 - params.beta1)
    second = torch._foreach_mul(adapter.find_moments("exp_avg_sq"), params.beta2)
    torch._foreach_addcmul_(second, gradient, gradient, 1 - params.beta2)
    scale = torch._foreach_sqrt(second)
    torch._foreach_div_(scale, math.sqrt(1 - params.beta2**count))
    torch._foreach_add_(scale, params.eps)
    after = torch._foreach_mul(before, 1 - params.learning_rate * params.weight_decay)
    torch._foreach_addcdiv_(after, first, scale, -params.learning_rate / (1 - params.beta1**count))
    moments = {
        "step": [one + 1 for one in counts],
        "exp_avg": list(first),
        "exp_avg_sq": list(second),
    }
    return TorchAdapter(adapter.weights.replace(after), moments)


@torch.no_grad()
def step_dimuon(
    adapter: TorchAdapter, gradient: list[torch.Tensor], params: Dimuon
) -> TorchAdapter:
    """Return the adapter after a step; the given one stays as it is."""
    before = adapter.find_moments("momentum")
    momentum = [
        params.beta1 * old + (1 - params.beta1) * part
        for old, part in zip(before, gradient, strict=True)
    ]
    directions = _find_directions(
        dict(zip(adapter.weights.tensors, momentum)), adapter.weights.experts
    )
    after = [
        weight - params.learning_rate * directions[name]
        for name, weight in adapter.weights.tensors.items()
    ]
    return TorchAdapter(adapter.weights.replace(after), {"momentum": momentum})


def _find_directions(
    momenta: Mapping[str, torch.Tensor], experts: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Return the direction of each matrix; in a stack of experts, that of each expert's matrix."""
    found: dict[str, torch.Tensor] = {}
    for down in (name for name in momenta if ".lora_A." in name):
        up, key = down.replace(".lora_A.", ".lora_B."), down.rpartition(".lora_")[0]
        pair = momenta[down], momenta[up]
        if key in experts:
            first, second = split_stack(*pair, experts[key])
            found[down], found[up] = join_stack(
                orthogonal_direction(first), orthogonal_direction(second)
            )
        else:
            found[down], found[up] = map(orthogonal_direction, pair)
    return found


log: logging.Logger = logging.getLogger("tinker.local")


class TorchEngine(PeftEngine[TorchAdapter]):
    """Trains and samples LoRA adapters over ``model``: a directory, a hub name, or the packaged
    ``tinker/babble``.

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
        quantize: Quantize | None = None,
        recompute: Recompute = "auto",
        share_passes: bool = False,
    ) -> None:
        place = find_place(
            Placement(
                device=device,
                dtype=dtype,
                device_map=device_map,
                quantize=quantize,
                recompute=recompute,
            )
        )
        source = find_source(model)
        super().__init__()
        self.base_model: str = public_name(source)
        self.aliases: frozenset[str] = directory_names(source)
        self.tokenizer_id: str = str(Path(source).resolve()) if Path(source).is_dir() else source
        self._model, self._tokenizer = load_model(source, place)
        text = self._model.config.get_text_config()
        self.max_context_length: int = int(getattr(text, "max_position_embeddings", 2048))
        targets = self._targets = TorchTargets(self._model)
        self._adopt = targets.adopt
        if targets.left_out:
            log.info("%s: no adapter changes %s", self.base_model, targets.describe_left_out())
        proof = prove(self._model)
        self._fault: str | None = proof.fault
        if proof.fault is not None:
            log.warning("%s trains and cannot be sampled: %s", self.base_model, proof.fault)
        self._memory = MemoryReturn(find_trim())
        self._vocabulary = int(text.vocab_size)
        self._end_of_text = end_of_text_ids(self._model, self._tokenizer)
        self._finite: WeakKeyDictionary[LoraWeights, bool] = WeakKeyDictionary()
        self._split = split = SplitModel(self._model)
        self._expected: dict[str, LossRun] = {}
        self._trainer = Trainer(self._model, split, recompute)
        self.shares_passes: bool = share_passes and split.is_split and recompute != "always"
        mixer = Mixer(self._model, targets.all)
        self._parts = Parts(self._model, split, mixer, Prefixes(), self._start)
        self._parts.has_rows, self._parts.keeps_prefixes = proof.has_rows, proof.keeps_prefixes
        self.image_reader: ImageReader | None = find_reader(
            self._model, source, self.max_context_length
        )

    # Adapters

    def _assemble(self, spec: AdapterSpec, factors: LoraFactors, moments: Moments) -> TorchAdapter:
        weights = self._adopt(spec, factors)
        taken: dict[str, list[torch.Tensor]] = {}
        for key, by_name in moments.items():
            for name, weight in weights.tensors.items():
                device = torch.device("cpu") if key == "step" else weight.device
                taken.setdefault(key, []).append(torch.tensor(by_name[name], device=device))
        return TorchAdapter(weights, taken)

    def _take_apart(self, adapter: TorchAdapter) -> tuple[AdapterSpec, LoraFactors, Moments]:
        tensors = adapter.weights.tensors
        moments = {
            key: _to_arrays(dict(zip(tensors, one, strict=True)))
            for key, one in adapter.moments.items()
        }
        return adapter.weights.spec, _to_arrays(tensors), moments

    def snapshot(self, adapter_id: str) -> LoraWeights:
        return self._adapter(adapter_id).weights.freeze_copy()

    def load_snapshot(self, directory: Path) -> LoraWeights:
        return self._adopt(*read_weights(directory, self._targets, self.base_model))

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
            mixture = Mixture.make([adapter.weights])
            with (
                self._blame(),
                self._parts.mixer.activate(mixture),
                torch.set_grad_enabled(backward),
            ):
                done = self._trainer.run(plan)
        if backward:
            with self._blame():
                adapter.gradient = accumulate(adapter.gradient, done.gradient)
        return LossResult(
            outputs=[{"logprobs": done.outputs[index]} for index in range(len(data))],
            metrics=done.metrics,
        )

    @contextmanager
    def _blame(self) -> Generator[None]:
        """Name the base model's weight where not training has diverged, but that weight is not
        finite.
        """
        try:
            yield
        except EngineError as error:
            if WEIGHTS_DIVERGED in str(error) and (fault := find_infinity(self._model)) is not None:
                raise EngineError(fault) from error
            raise

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        self._expected = {}
        if len(calls) < 2 or not self.shares_passes:
            return
        try:
            adapters = [self._adapter(call.adapter_id) for call in calls]
            parts = [
                (one.weights, self._plan(one, call, backward=True))
                for one, call in zip(adapters, calls)
            ]
            with torch.set_grad_enabled(True):
                runs = run_joined(self._split, self._parts.mixer, parts)
        except Exception as error:  # noqa: BLE001 - each call is computed alone then, and fails alone
            log.debug("losses are computed one by one: %s", error)
            release_memory(self._model.device)
        else:
            self._expected = {
                call.adapter_id: run for call, run in zip(calls, runs) if run is not None
            }

    def _plan(self, adapter: TorchAdapter, call: ExpectedLoss, *, backward: bool) -> LossPlan:
        limits = {"vocabulary": self._vocabulary, "longest": self.max_context_length}
        form, options, checked = check_data(call.data, call.loss_fn, call.config, **limits)
        parameters = list(adapter.weights.tensors.values()) if backward else []
        return LossPlan(checked, form, options, LOSSES[call.loss_fn], parameters, self._vocabulary)

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        check_step(params)
        gradient = adapter.gradient or [
            torch.zeros_like(tensor) for tensor in adapter.weights.tensors.values()
        ]
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

    def _start(self, job: SampleJob) -> Work:
        check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        if self._fault is not None and job.max_tokens:
            raise EngineError(
                f"{self.base_model} trains and scores, but cannot be sampled here: {self._fault}"
            )
        if job.weights is not None and not isinstance(job.weights, LoraWeights):
            raise EngineError(FOREIGN_WEIGHTS)
        if job.weights is not None and not self._is_finite(job.weights):
            raise EngineError(DIVERGED)
        return start_work(job, self._end_of_text, self._decode)

    def _is_finite(self, weights: LoraWeights) -> bool:
        """Return whether these weights are finite, so that they can share a pass with others;
        computed once.
        """
        if weights not in self._finite:
            self._finite[weights] = weights.is_finite()
        return self._finite[weights]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def _to_arrays(tensors: Mapping[str, torch.Tensor]) -> LoraFactors:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
