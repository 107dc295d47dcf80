"""The model that a command takes where none is named, and the one that was meant by a name that is none."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tinker.cli.errors import CommandFailed, say

if TYPE_CHECKING:
    from tinker.service_client import ServiceClient


def first_sampleable(models: Sequence[Any]) -> str:
    """Return the first model that can be sampled. CommandFailed where the server offers none."""
    for entry in models:
        if entry.model_name is not None and entry.sampleable is not False:
            return str(entry.model_name)
    raise CommandFailed("The server offers no model to sample from", "Give a checkpoint with --model.")


SAMPLED_CHECKPOINT = "give its path as the model: tinker://RUN/sampler_weights/NAME"
TRAINED_CHECKPOINT = "give its path: --from tinker://RUN/weights/NAME"


@contextmanager
def explain_refusal(service: ServiceClient, model: str, checkpoint_advice: str = SAMPLED_CHECKPOINT) -> Generator[None]:
    """Explain the refusal of a sampling client: a training checkpoint, the model that was meant, how to name a checkpoint."""
    from tinker.errors import APIStatusError, RequestFailedError
    from tinker_records import find_closest

    try:
        yield
    except (APIStatusError, RequestFailedError) as error:
        if model.startswith("tinker://") and "/weights/" in model:
            advice = f"To save weights that can be sampled, run: tinker checkpoint create --from {model} --sampler"
            raise CommandFailed(f"{model} is a training checkpoint, which cannot be sampled", advice) from error
        names = [one.model_name for one in service.get_server_capabilities().supported_models if one.model_name]
        closest = None if model in names else find_closest(model, names)
        if closest is not None and closest not in "\n".join([say(error), *getattr(error, "__notes__", ())]):
            error.add_note(f"Did you mean {closest}?")
        if closest is None and names and model not in names and "://" not in model:
            error.add_note(f"To use a checkpoint, {checkpoint_advice}; `tinker checkpoint list` shows the paths.")
        raise
