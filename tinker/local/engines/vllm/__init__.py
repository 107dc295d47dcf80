"""vLLM as a sampler, over HTTP: started here, or running elsewhere."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from tinker.local.engines.opening import Placement
from tinker.local.engines.protocol import Engine
from tinker.local.engines.vllm.replica import Replica, VLLMProcess
from tinker.local.engines.vllm.sampler import VLLMSampler

# of the vLLM that is started here, where its arguments do not say otherwise
MAX_RANK, MAX_ADAPTERS = 32, 4


def open_vllm(
    open_engine: Callable[[], Engine],
    urls: Sequence[str],
    arguments: str,
    placement: Placement,
    root: Path,
) -> VLLMSampler:
    """Return the sampler of an engine, which is open: the vLLMs at these URLs, or without any one
    that is started here.

    Raises OSError where none answers, or one serves another model.
    """
    engine = open_engine()
    names = [engine.base_model, engine.tokenizer_id, *engine.aliases]
    if urls:
        return VLLMSampler(
            lambda: [Replica(url, names) for url in urls],
            engine.adapter_files,
            root,
            fixes_base=False,
        )
    dtype, is_cpu = _find_dtype(placement)
    process = VLLMProcess(
        _write_arguments(engine, dtype, arguments),
        root / f"vllm-{Path(engine.base_model).name}.log",
    )
    return VLLMSampler(
        lambda: [Replica(process.url, names, process)],
        engine.adapter_files,
        root,
        fixes_base=is_cpu,
    )


def _find_dtype(placement: Placement) -> tuple[str, bool]:
    """Return the trainer's data type, which its sampler should share, and whether
    it is on the CPU.
    """
    from tinker.local.engines.torch.loading import find_place

    place = find_place(placement)
    return str(place.dtype).removeprefix("torch."), place.device.type == "cpu"


def _write_arguments(engine: Engine, dtype: str, more: str) -> list[str]:
    options = {
        "--served-model-name": engine.base_model,
        "--dtype": dtype,
        "--max-lora-rank": str(MAX_RANK),
        "--max-loras": str(MAX_ADAPTERS),
        "--max-logprobs": "-1",
        "--scheduling-policy": "priority",
    }
    flat = [part for pair in options.items() for part in pair]
    return [engine.tokenizer_id, *flat, "--enable-lora", "--enable-scale-out", *shlex.split(more)]
