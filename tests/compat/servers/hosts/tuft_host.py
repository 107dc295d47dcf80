"""Start TuFT with its Hugging Face training model, without Ray actors and without vLLM:
`tuft_host.py MODEL PORT FOLDER KEY`.

What TuFT would run in Ray actors on GPUs runs on threads of this process. In place of vLLM's
engine, which needs a GPU, stands `torch_engine.py`; the code of TuFT that prepares requests for it
and reads its outputs is TuFT's.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch_engine import LoRARequest, TorchEngine

MODEL, PORT, FOLDER, KEY = (
    Path(sys.argv[1]),
    int(sys.argv[2]),
    Path(sys.argv[3]).resolve(),
    sys.argv[4],
)


class Actor:
    """An object on its own thread and loop, called as a Ray actor: `actor.method.remote()`."""

    def __init__(self, target: object) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def __getattr__(self, name: str) -> types.SimpleNamespace:
        method = getattr(self._target, name)

        def remote(*args: object, **kwargs: object) -> asyncio.Future[Any]:
            work = asyncio.run_coroutine_threadsafe(completed(method, *args, **kwargs), self._loop)
            return asyncio.wrap_future(work)

        return types.SimpleNamespace(remote=remote)


async def completed(method: Callable[..., Any], *args: object, **kwargs: object) -> object:
    """Call a method, and await its result if it is a coroutine."""
    answer = method(*args, **kwargs)
    return await answer if inspect.isawaitable(answer) else answer


def replace_vllm() -> None:
    """Give TuFT the one class of vLLM that it imports outside the engine."""
    for name in ("vllm", "vllm.lora", "vllm.lora.request"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["vllm.lora.request"].LoRARequest = LoRARequest  # type: ignore[attr-defined]


def ignore_gpu_memory() -> None:
    """Make torch take the one call about a GPU's memory that fails where there is no GPU."""
    import torch

    torch.cuda.reset_peak_memory_stats = lambda device=None: None


def main() -> None:
    """Serve until the process is ended."""
    import uvicorn

    replace_vllm()
    ignore_gpu_memory()
    from tuft.backends.hf_training_model import HFTrainingModel
    from tuft.backends.sampling_backend import VLLMSamplingBackend
    from tuft.config import AppConfig, ModelConfig
    from tuft.server import create_root_app

    HFTrainingModel.get_actor = classmethod(lambda cls, config: Actor(cls(config)))
    VLLMSamplingBackend._create_engine = lambda self, config: Actor(
        TorchEngine(str(config.model_path), config.max_model_len)
    )
    model = ModelConfig(
        model_name=MODEL.name, model_path=MODEL, max_model_len=1024, max_lora_rank=16, max_loras=32
    )
    config = AppConfig(
        checkpoint_dir=FOLDER / "checkpoints",
        supported_models=[model],
        authorized_users={KEY: "user"},
    )
    config.ensure_directories()
    config.check_validity()
    uvicorn.run(create_root_app(config), host="127.0.0.1", port=PORT)


main()
