"""The model and its tokenizer: source, name and device."""

# pyright: reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# (torch is typed in part only)

from __future__ import annotations

import importlib
import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import attrs
import torch
import transformers
from torch.nn import functional

from tinker._installation import install_command
from tinker.local.engines.opening import Placement, Quantize, find_ends
from tinker.local.engines.torch.images import reads_images
from tinker.local.engines.torch.lora import STACKS
from tinker.local.engines.torch.memory import find_trim


@attrs.frozen
class TorchPlace:
    """A device of this machine, the numbers of the model, and how transformers spreads and quantizes it, where it does."""

    device: torch.device
    dtype: torch.dtype
    device_map: str | None = None
    quantize: Quantize | None = None


def find_place(placement: Placement) -> TorchPlace:
    """Find the device. Raises ValueError, in one sentence, for one that this machine does not have."""
    device = torch.device(_choose_device() if placement.device == "auto" else placement.device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ValueError("device 'mps' is not available: this torch build finds no Apple GPU")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {placement.device!r} is not available: this torch finds {torch.cuda.device_count()} CUDA GPUs"
        )
    name = placement.dtype if placement.dtype != "auto" else "bfloat16" if device.type == "cuda" else "float32"
    return TorchPlace(device, getattr(torch, name), placement.device_map, placement.quantize)


def _choose_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


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
    """Raise ValueError where transformers has no causal language model of this kind, or its quantization is not supported."""
    is_own = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if not is_own and not reads_images(config) and type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{source} is not supported: its kind, {config.model_type}, is not a causal language model in transformers "
            f"{transformers.__version__}; of models that read images, only those of the Qwen families are run here"
        )
    method = _find_method(config)
    if method not in (None, BITSANDBYTES, "mxfp4"):  # transformers writes out the numbers of the last one
        raise ValueError(
            f"{source} is not supported: it is quantized ({method}); give the model in bfloat16, float16 or float32"
        )


def _is_with_tower(config: Any) -> bool:
    """Return whether a checkpoint's class has a vision tower as well as a language model.

    That class is loaded even where its images are not read, because other programs look for adapters by the names it has.
    """
    kind: Any = transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    return kind is not None and (reads_images(config) or kind.__name__ in (config.architectures or ()))


def load_model(source: str, place: TorchPlace) -> tuple[Any, Any]:
    """Load model and tokenizer. Raises ValueError when a model that is spread over devices does not fit them."""
    with _silence_transformers():
        config = transformers.AutoConfig.from_pretrained(source)
        check_kind(config, source)
        kind = transformers.AutoModelForImageTextToText if _is_with_tower(config) else transformers.AutoModelForCausalLM
        options: dict[str, Any] = {} if place.device_map is None else {"device_map": place.device_map}
        if is_quantized := place.quantize is not None or _find_method(config) == BITSANDBYTES:
            options = {"device_map": {"": place.device}, **options, **_quantize(config, source, place)}
        model: Any = kind.from_pretrained(source, dtype=place.dtype, **options)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
    if place.device_map is None:
        model = model.to(place.device)
    elif any(parameter.is_meta for parameter in model.parameters()):
        raise ValueError(
            f"{source} does not fit the memory of this machine's devices; parts of it would be loaded for each step"
        )
    if is_quantized:
        _compute_alike(model, place.dtype)
        if any(name.endswith(STACKS) and one.dim() == 3 for name, one in model.named_parameters()):
            log.warning("%s: the experts of each layer are in one tensor, which is not quantized", source)
        if (trim := find_trim()) is not None:
            trim(0)  # of what the matrices took before
    return model.eval(), tokenizer


# Matrices in four or eight bits.

BITSANDBYTES = "bitsandbytes"
log: logging.Logger = logging.getLogger("tinker.local")


def _find_method(config: Any) -> str | None:
    """Return how the weights of a model are stored quantized, None if they are not."""
    method = (getattr(config, "quantization_config", None) or {}).get("quant_method")
    return None if method is None else str(method)


def _quantize(config: Any, source: str, place: TorchPlace) -> dict[str, Any]:
    """Return the options that quantize a model as it is loaded; none for one that is stored so.

    Raises ValueError for both, and ImportError where packages are missing.
    """
    if missing := [name for name in (BITSANDBYTES, "accelerate") if find_spec(name) is None]:
        raise ImportError(f"{source} in four or eight bits needs {', '.join(missing)}: {install_command('quantize')}")
    if place.quantize is None:
        return {}
    if (method := _find_method(config)) is not None:
        raise ValueError(f"{source} is quantized already ({method}); leave out quantize")
    four_bits = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    make: Any = transformers.BitsAndBytesConfig
    return {"quantization_config": make(**four_bits if place.quantize == "nf4" else {"load_in_8bit": True})}


def _compute_alike(model: Any, dtype: torch.dtype) -> None:
    """Let quantized matrices compute alike with a gradient and without one, and whatever else is in the batch.

    By itself bitsandbytes computes differently without a gradient, in bfloat16 on some CPUs, and rounds inputs of matrices of
    eight bits to eight bits too, but for columns that depend on all rows.
    """
    layers: Any = importlib.import_module("bitsandbytes.nn")
    for module in model.modules():
        if isinstance(module, layers.Linear4bit):
            module.compute_dtype, module.support_avx512bf16_for_cpu = dtype, False
        elif isinstance(module, layers.Linear8bitLt):
            module.init_8bit_state()
            name = "_old_forward" if hasattr(module, "_hf_hook") else "forward"  # inside of what moves inputs between devices
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
