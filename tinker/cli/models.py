"""The model that a command takes where none is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinker.cli.errors import CommandFailed


def first_sampleable(models: Sequence[Any]) -> str:
    """Return the first model that can be sampled. CommandFailed where the server offers none."""
    for entry in models:
        if entry.model_name is not None and entry.sampleable is not False:
            return str(entry.model_name)
    raise CommandFailed("The server offers no model to sample from", "Give a checkpoint with --model.")
