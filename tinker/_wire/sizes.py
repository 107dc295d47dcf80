"""How large data will be as bodies, estimated without encoding them: by this, budgets and chunks are measured."""

from __future__ import annotations

from tinker.types.datum import Datum
from tinker.types.model_input import DmelChunk, EncodedTextChunk, ImageChunk, ModelInput
from tinker.types.tensor_data import wire_nbytes

# What a prompt token counts as in the sampling budgets: roughly its decimal digits and a comma.
_PROMPT_TOKEN_NBYTES = 10
_TRAINING_TOKEN_NBYTES = 4


def prompt_nbytes(prompt: ModelInput) -> int:
    """Return estimated bytes of a prompt as JSON."""
    return _input_nbytes(prompt, _PROMPT_TOKEN_NBYTES)


def datum_nbytes(datum: Datum) -> int:
    """Return estimated protobuf bytes of one datum."""
    tensors = sum(wire_nbytes(tensor) for tensor in datum.loss_fn_inputs.values())
    return _input_nbytes(datum.model_input, _TRAINING_TOKEN_NBYTES) + tensors


def _input_nbytes(model_input: ModelInput, token_nbytes: int) -> int:
    total = 0
    for chunk in model_input.chunks:
        if isinstance(chunk, EncodedTextChunk):
            total += token_nbytes * chunk.length
        elif isinstance(chunk, ImageChunk):
            total += len(chunk.data)
        else:
            total += len(chunk.dmel) if isinstance(chunk, DmelChunk) else len(chunk.location)
    return total
