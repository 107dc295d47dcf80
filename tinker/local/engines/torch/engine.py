"""The engine that trains a model of transformers with LoRA adapters, and how it is loaded."""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

import attrs
import torch
import transformers
from torch.nn import functional
from transformers.cache_utils import DynamicCache

from tinker._basics.installation import install_command
from tinker._tokenizers import open_tokenizer, refuse_code
from tinker.local.engines import (
    DeviceMap,
    DType,
    Placement,
    Quantize,
    Recompute,
    find_ends,
    find_source,
    protocol,
)
from tinker.local.engines.adapters import LoraFactors, Moments, PeftEngine, read_weights
from tinker.local.engines.arrays import (
    DIVERGED,
    Work,
    orthogonal_direction,
    start_work,
)
from tinker.local.engines.protocol import (
    Adam,
    AdapterSpec,
    Dimuon,
    EngineError,
    ExpectedLoss,
    SampleJob,
    TrainingExample,
    log,
)
from tinker.local.engines.torch import lora
from tinker.local.engines.torch.lora import LoraWeights, MemoryReturn, Mixer, Mixture, TorchTargets
from tinker.local.engines.torch.passes import LossPlan, LossRun, SplitModel, Trainer, run_joined
from tinker.local.engines.torch.proof import find_infinity, find_reader, prove
from tinker.local.engines.torch.sampling import Parts, Prefixes, TorchBatch

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch is typed in part only)


MOST_NAMES = 4  # in a message
_IMAGE_CLASSES: Any = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
# new in transformers 5
CLASSES_WITH_TOWERS: Any = getattr(transformers, "MODEL_FOR_MULTIMODAL_LM_MAPPING", _IMAGE_CLASSES)


@attrs.frozen
class TorchPlace:
    """A device of this machine, the numbers of the model, and how transformers spreads and
    quantizes it, where it does.
    """

    device: torch.device
    dtype: torch.dtype
    device_map: str | None = None
    quantize: Quantize | None = None


def find_place(placement: Placement) -> TorchPlace:
    """Find the device. Raises ValueError, in one sentence, for one that this
    machine does not have.
    """
    device = torch.device(
        placement.device.replace("auto", "cuda" if torch.cuda.is_available() else "cpu")
    )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' is not available: this torch build finds no Apple GPU")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {placement.device!r} is not available: this torch finds "
            f"{torch.cuda.device_count()} CUDA GPUs"
        )
    name = (
        placement.dtype
        if placement.dtype != "auto"
        else "bfloat16"
        if device.type == "cuda"
        else "float32"
    )
    return TorchPlace(device, getattr(torch, name), placement.device_map, placement.quantize)


def find_devices() -> list[str]:
    """Return the devices that a model can be on here, the CPU first.

    >>> find_devices()[0]
    'cpu'
    """
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


@contextmanager
def _silence_transformers() -> Generator[None]:
    """Suppress progress bars and notices of transformers inside; its settings are restored."""
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


def check_kind(config: Any, source: str) -> None:
    """Raise ValueError where transformers has no language model of this kind, or its quantization
    is not supported.
    """
    if (
        type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        and _find_class_with_tower(config) is None
    ):
        raise ValueError(
            f"{source} is not supported: its kind, {config.model_type}, is not a causal language "
            "model in transformers "
            f"{transformers.__version__}, nor one that reads images or sound as well as text"
        )
    method = _find_method(config)
    # transformers writes out the numbers of the last one
    if method not in (None, BITSANDBYTES, "mxfp4"):
        raise ValueError(
            f"{source} is not supported: it is quantized ({method}); give the model in bfloat16, "
            "float16 or float32"
        )


def _find_class_with_tower(config: Any) -> Any | None:
    """Return the class of a checkpoint that has a tower for images or sound beside its language
    model; None for others.

    That class is loaded even where only its text is read, because other programs look for adapters
    by the names it has. Of one that puts several models together, and speaks, that is the class of
    the model that writes.
    """
    found: Any = CLASSES_WITH_TOWERS.get(type(config), None)
    if found is None or getattr(config, "is_encoder_decoder", False):
        return None
    if found.forward is torch.nn.Module.forward:
        parts = (
            CLASSES_WITH_TOWERS.get(type(getattr(config, name)), None)
            for name in config.sub_configs
        )
        return next(filter(None, parts), None)
    has_other = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    is_meant = not has_other or found.__name__ in (config.architectures or (found.__name__,))
    return found if is_meant else None


def _check_complete(source: str, report: Mapping[str, Any]) -> None:
    """Raise ValueError, with names, where some weights of a model were not read: transformers draws
    them at random.
    """
    lacking = sorted(report["missing_keys"])
    lacking += [
        f"{name} of shape {list(shape)}, not {list(given)}"
        for name, given, shape in sorted(report["mismatched_keys"])
    ]
    if lacking:
        more = f" and {len(lacking) - MOST_NAMES} more" if len(lacking) > MOST_NAMES else ""
        raise ValueError(
            f"{source} lacks weights of its model: {', '.join(lacking[:MOST_NAMES])}{more}; give "
            "the whole language model, not "
            "a reward or embedding model"
        )


def load_model(source: str, place: TorchPlace) -> tuple[Any, Any]:
    """Load model and tokenizer. Raises ValueError for files that lack weights or a tokenizer, or
    need code of their own.

    So it does when a model that is spread over devices does not fit them.
    """
    with _silence_transformers(), refuse_code(source):
        config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=False)
        check_kind(config, source)
        kind: Any = _find_class_with_tower(config) or transformers.AutoModelForCausalLM
        options: dict[str, Any] = (
            {} if place.device_map is None else {"device_map": place.device_map}
        )
        options |= {
            "output_loading_info": True,
            "ignore_mismatched_sizes": True,
            "trust_remote_code": False,
        }
        if is_quantized := place.quantize is not None or _find_method(config) == BITSANDBYTES:
            options = {
                "device_map": {"": place.device},
                **options,
                **_quantize(config, source, place),
            }
        loaded: Any = kind.from_pretrained(source, dtype=place.dtype, **options)
        model, report = loaded
        _check_complete(source, report)
        tokenizer = open_tokenizer(source)
    if place.device_map is None:
        model = model.to(place.device)
    elif any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"{source} does not fit the memory of this machine's devices; parts of it would be "
            "loaded for each step"
        )
    if is_quantized:
        _compute_alike(model, place.dtype)
        if any(
            name.endswith(lora.STACKS) and one.dim() == 3 for name, one in model.named_parameters()
        ):
            log.warning(
                "%s: the experts of each layer are in one tensor, which is not quantized", source
            )
        if (trim := lora.find_trim()) is not None:
            trim(0)  # of what the matrices took before
    return model.eval(), tokenizer


# Matrices in four or eight bits.

BITSANDBYTES = "bitsandbytes"


def _find_method(config: Any) -> str | None:
    """Return how the weights of a model are stored quantized, None if they are not."""
    settings = getattr(config, "quantization_config", None)
    return (
        str(settings.get("quant_method", "its quantization_config has no quant_method"))
        if settings
        else None
    )


def _quantize(config: Any, source: str, place: TorchPlace) -> dict[str, Any]:
    """Return the options that quantize a model as it is loaded; none for one that is stored so.

    Raises ValueError for both, and ImportError where packages are missing.
    """
    if missing := [name for name in (BITSANDBYTES, "accelerate") if find_spec(name) is None]:
        raise ImportError(
            f"{source} in four or eight bits needs {', '.join(missing)}: "
            f"{install_command('quantize')}"
        )
    if place.quantize is None:
        return {}
    if (method := _find_method(config)) is not None:
        raise ValueError(f"{source} is quantized already ({method}); leave out quantize")
    four_bits = {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    }
    make: Any = transformers.BitsAndBytesConfig
    return {
        "quantization_config": make(
            **four_bits if place.quantize == "nf4" else {"load_in_8bit": True}
        )
    }


def _compute_alike(model: Any, dtype: torch.dtype) -> None:
    """Let quantized matrices compute alike with a gradient and without one, and whatever else is in
    the batch.

    By itself bitsandbytes computes differently without a gradient, in bfloat16 on some CPUs, and
    rounds inputs of matrices of eight bits to eight bits too, but for columns that depend on all
    rows.
    """
    layers: Any = importlib.import_module("bitsandbytes.nn")
    for module in model.modules():
        if isinstance(module, layers.Linear4bit):
            module.compute_dtype, module.support_avx512bf16_for_cpu = dtype, False
        elif isinstance(module, layers.Linear8bitLt):
            module.init_8bit_state()
            # inside of what moves inputs between devices
            name = "_old_forward" if hasattr(module, "_hf_hook") else "forward"
            setattr(module, name, partial(_multiply, module))


def _multiply(module: Any, inputs: torch.Tensor) -> torch.Tensor:
    product: torch.Tensor = _Int8Product.apply(inputs, module.state)  # type: ignore[no-untyped-call]
    return product if module.bias is None else product + module.bias


class _Int8Product(torch.autograd.Function):
    """A product with a matrix of eight bits, which is written out for that long only."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, state: Any) -> torch.Tensor:
        ctx.state = state
        return functional.linear(inputs, _write_out(state, inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0] @ _write_out(ctx.state, grads[0].dtype), None


def _write_out(state: Any, dtype: torch.dtype) -> torch.Tensor:
    return cast("torch.Tensor", state.CB.to(dtype).mul_(state.SCB[:, None] / 127))


# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only) (torch and transformers are typed in part only,
# and torch's functions of many tensors are public under private names)


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
        raise EngineError(f"the gradient is not finite: {protocol.WEIGHTS_DIVERGED}")
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
            first, second = lora.split_stack(*pair, experts[key])
            found[down], found[up] = lora.join_stack(
                orthogonal_direction(first), orthogonal_direction(second)
            )
        else:
            found[down], found[up] = map(orthogonal_direction, pair)
    return found


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
        super().__init__(model)
        source = find_source(model)
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
        self._memory = MemoryReturn(lora.find_trim())
        self._vocabulary = int(text.vocab_size)
        self._end_of_text = find_ends(text, self._model.generation_config, self._tokenizer)
        self._finite: WeakKeyDictionary[LoraWeights, bool] = WeakKeyDictionary()
        self._split = split = SplitModel(self._model)
        self._expected: dict[str, LossRun] = {}
        self._trainer = Trainer(self._model, split, recompute)
        self.shares_passes: bool = share_passes and split.is_split and recompute != "always"
        mixer = Mixer(self._model, targets.all)
        self._parts = Parts(self._model, split, mixer, Prefixes(), self._start)
        self._parts.has_rows, self._parts.keeps_prefixes = proof.has_rows, proof.keeps_prefixes
        self.image_reader: protocol.ImageReader | None = find_reader(
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
    ) -> protocol.LossResult:
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
        return protocol.LossResult(
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
            if (
                protocol.WEIGHTS_DIVERGED in str(error)
                and (fault := find_infinity(self._model)) is not None
            ):
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
            lora.release_memory(self._model.device)
        else:
            self._expected = {
                call.adapter_id: run for call, run in zip(calls, runs) if run is not None
            }

    def _plan(self, adapter: TorchAdapter, call: ExpectedLoss, *, backward: bool) -> LossPlan:
        form, options, checked = protocol.check_data(
            call.data,
            call.loss_fn,
            call.config,
            vocabulary=self._vocabulary,
            longest=self.max_context_length,
        )
        parameters = list(adapter.weights.tensors.values()) if backward else []
        return LossPlan(
            checked, form, options, protocol.LOSSES[call.loss_fn], parameters, self._vocabulary
        )

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        adapter = self._adapter(adapter_id)
        protocol.check_step(params)
        gradient = adapter.gradient or [
            torch.zeros_like(tensor) for tensor in adapter.weights.tensors.values()
        ]
        norm = gradient_norm(gradient)
        if 0 < params.grad_clip_norm < norm:
            gradient = [part * (params.grad_clip_norm / norm) for part in gradient]
        self._adapters[adapter_id] = (
            step_dimuon(adapter, gradient, params)
            if isinstance(params, Dimuon)
            else step_adam(adapter, gradient, params)
        )
        self._memory.count_step()
        return {"grad_norm:mean": norm}

    # Sampling

    def open_batch(self, limit: int) -> TorchBatch:
        """Make an empty batch of samples that together hold about ``limit`` tokens."""
        return TorchBatch(self._parts, DynamicCache(config=self._parts.config), limit)

    def _start(self, job: SampleJob) -> Work:
        protocol.check_job(job, vocabulary=self._vocabulary, longest=self.max_context_length)
        if self._fault is not None and job.max_tokens:
            raise EngineError(
                f"{self.base_model} trains and scores, but cannot be sampled here: {self._fault}"
            )
        weights = protocol.find_weights(job, LoraWeights)
        if weights is not None and not self._is_finite(weights):
            raise EngineError(DIVERGED)
        return start_work(job, self._end_of_text, self._decode)

    def _is_finite(self, weights: LoraWeights) -> bool:
        """Return whether these weights are finite, so that they can share a pass with others;
        computed once.
        """
        if weights not in self._finite:
            self._finite[weights] = all(
                bool(one.isfinite().all()) for one in weights.tensors.values()
            )
        return self._finite[weights]

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))


def _to_arrays(tensors: Mapping[str, torch.Tensor]) -> LoraFactors:
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
