"""Tokenizers by id: resolved, loaded once in a process, shared by all clients."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_loaded: dict[str, PreTrainedTokenizerBase] = {}
_locks: dict[str, threading.Lock] = {}
_registry = threading.Lock()

# Llama 3 tokenizers need a licence click on the hub; this copy does not.
_LLAMA3_MIRROR = "thinkingmachineslabinc/meta-llama-3-instruct-tokenizer"
# The models of our own server, which no hub has; their tokenizer comes with the package.
_PACKAGED = frozenset({"tinker/babble", "tinker/toy"})
_PACKAGED_TOKENIZER = Path(__file__).with_name("local") / "base_model"


def resolve(model_name: str, tokenizer_id: str | None) -> str:
    """The tokenizer to load: ``tokenizer_id`` without its revision if the server named one, else derived from the model."""
    if tokenizer_id:
        return tokenizer_id.partition(":")[0]
    name = model_name.partition(":")[0]
    if name in _PACKAGED:
        return str(_PACKAGED_TOKENIZER)
    if name.startswith("meta-llama/Llama-3"):
        return _LLAMA3_MIRROR
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) == 3 and parts[0] else name


def load(tokenizer_id: str) -> PreTrainedTokenizerBase:
    """The tokenizer, from a directory or the hub; threads that ask for the same one at once wait for one load."""
    with _registry:
        lock = _locks.setdefault(tokenizer_id, threading.Lock())
    with lock:
        if tokenizer_id not in _loaded:
            _loaded[tokenizer_id] = _from_pretrained(tokenizer_id)
        return _loaded[tokenizer_id]


def _from_pretrained(tokenizer_id: str) -> PreTrainedTokenizerBase:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ImportError("get_tokenizer needs transformers. Install it with: pip install 'tinker[tokenizers]'") from None
    automatic: Any = AutoTokenizer
    return cast("PreTrainedTokenizerBase", automatic.from_pretrained(tokenizer_id, use_fast=True))
