"""The tokenizers that commands load by name: one that the hub does not give is told at once."""

from __future__ import annotations

import importlib.util
import logging
from typing import TYPE_CHECKING, Any

from tinker.cli.errors import CommandFailed

if TYPE_CHECKING:
    from tinker._tokenizers import TokenizerSource

_CACHED_FILES = ("tokenizer_config.json", "tokenizer.json", "config.json")  # one of which a tokenizer has


def load_tokenizer(named: TokenizerSource | str) -> Any:
    """Load a tokenizer. CommandFailed for one that is neither here nor can be fetched; the hub is asked once."""
    from tinker._tokenizers import find_absence, is_of_hub, load, resolve

    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)  # each attempt that its client repeats
    source = resolve("", named) if isinstance(named, str) else named
    if is_of_hub(source) and importlib.util.find_spec("huggingface_hub") is not None:
        absence = find_absence(source.name, _CACHED_FILES, kind="tokenizer", revision=source.revision)
        if absence is not None:
            raise CommandFailed(f"cannot load the tokenizer {source.name!r}: {absence}; give a directory")
    return load(source)
