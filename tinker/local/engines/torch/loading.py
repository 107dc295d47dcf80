"""The model and its tokenizer: where they come from, and what they are called."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers

from tinker.local.engines import PACKAGED_FOLDER, PACKAGED_MODEL


def public_name(source: str) -> str:
    """Return the packaged model's own name, the last part of a directory, or any other source as it is."""
    if Path(source) == PACKAGED_FOLDER:
        return PACKAGED_MODEL
    return Path(source).resolve().name if Path(source).is_dir() else source


def directory_names(source: str) -> frozenset[str]:
    """Return the names of a directory besides its last part: the path as it was given, and the absolute one."""
    folder = Path(source)
    if not folder.is_dir() or folder == PACKAGED_FOLDER:
        return frozenset()
    return frozenset({source, str(folder), str(folder.absolute()), str(folder.resolve())})


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


def load_model(source: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    with _silence_transformers():
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(source, torch_dtype=dtype)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source)
    return model.to(device).eval(), tokenizer


def end_of_text_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    ids: set[int] = set()
    for source in (model.config.get_text_config(), model.generation_config, tokenizer):
        value = getattr(source, "eos_token_id", None)
        ids |= set(value) if isinstance(value, (list, tuple)) else {value} if value is not None else set()
    return frozenset(ids)
