"""The model and its tokenizer: source, name and device."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false
# (torch is typed in part only)

from __future__ import annotations

import importlib
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import attrs
import torch
import transformers
from torch.nn import functional

from tinker._installation import install_command
from tinker._tokenizers import open_tokenizer, refuse_code
from tinker.local.engines.opening import Placement, Quantize, find_ends
from tinker.local.engines.torch.lora import STACKS
from tinker.local.engines.torch.memory import find_trim

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
        if any(name.endswith(STACKS) and one.dim() == 3 for name, one in model.named_parameters()):
            log.warning(
                "%s: the experts of each layer are in one tensor, which is not quantized", source
            )
        if (trim := find_trim()) is not None:
            trim(0)  # of what the matrices took before
    return model.eval(), tokenizer


# Matrices in four or eight bits.

BITSANDBYTES = "bitsandbytes"
log: logging.Logger = logging.getLogger("tinker.local")


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
    matrix: torch.Tensor = state.CB.to(dtype).mul_(state.SCB[:, None] / 127)
    return matrix


def end_of_text_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    return find_ends(model.config.get_text_config(), model.generation_config, tokenizer)
