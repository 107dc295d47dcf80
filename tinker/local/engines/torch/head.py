"""The head of a model apart from its body, so that the logits of a long sequence never exist all at once.

The head is computed by the model's own forward, whose body is made to answer with the states that are there already: what a
family does to its logits (a cap, a scale) is done to every part of them. A model where that does not give the same logits is
computed as a whole.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import inspect
from collections.abc import Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import torch

from tinker.local.engines.torch.image_rows import ImageStates, insert_images
from tinker.local.engines.torch.memory import replace_forward

CHUNK_CELLS = 2**24  # of one pass through the head on a CPU: 64 MB, and about four times that while adapters are added
FAST_CHUNK_CELLS = 4 * CHUNK_CELLS  # on an accelerator, which needs more work at once to be busy
WHOLE_LOGITS = 2**27  # of several rows that are in one pass, where the head is not computed in parts
PROBE = 4  # tokens
CACHE, OLDER_CACHE = "cache", "past_key_values"  # the name of the argument, and its name before transformers 5.24


@attrs.frozen(eq=False)
class Passed:
    """The output of a pass: ``states`` ``[rows, tokens, size]`` for the head, the last ``logits`` of each row, the cache."""

    states: torch.Tensor
    logits: torch.Tensor
    cache: Any


class SplitModel:
    """A model, in its two parts. ``is_split``: whether it could be taken apart; else its states are its logits."""

    def __init__(self, model: Any) -> None:
        self._model: Any = model
        self._body: Any = getattr(model, getattr(model, "base_model_prefix", ""), None)
        self._takes: Collection[str] = inspect.signature(model.forward).parameters
        self._cache_name = CACHE if CACHE in self._takes else OLDER_CACHE
        model.get_output_embeddings().register_forward_pre_hook(_fold)
        self.is_split: bool = False
        self.is_split = self._can_split()

    def run(self, images: ImageStates | None = None, cache: Any = None, **inputs: Any) -> Passed:
        """Compute the states of every position, behind those of ``cache``; ``images`` are in some of them."""
        if not self.is_split:
            with insert_images(self._model, images):
                output = self._model(**inputs, **{self._cache_name: cache})
            return Passed(output.logits, output.logits[:, -1], output.get(self._cache_name))
        with _note_outputs(self._body) as seen, insert_images(self._model, images):
            output = self._model(**inputs, **{self._cache_name: cache}, logits_to_keep=1)
        return Passed(seen[0].last_hidden_state, output.logits[:, -1], output.get(self._cache_name))

    def advance(self, cache: Any, **inputs: Any) -> torch.Tensor:
        """Compute the logits ``[rows, vocabulary]`` after one more token of each row of a cache."""
        logits: torch.Tensor = self._model(**inputs, **{self._cache_name: cache}).logits[:, -1]
        return logits

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the float32 logits of these states."""
        if not self.is_split:
            return states.float()
        places = torch.zeros(states.shape[:2], dtype=torch.long, device=states.device)
        with replace_forward(self._body, lambda *args, **kwargs: self._answer(last_hidden_state=states)):
            logits: torch.Tensor = self._model(input_ids=places, use_cache=False).logits
        return logits.float()

    def _can_split(self) -> bool:
        """Try it with a few tokens."""
        if self._body is None or "logits_to_keep" not in self._takes:
            return False
        tokens = torch.arange(PROBE, device=self._model.device)[None]
        try:
            with torch.no_grad(), _note_outputs(self._body) as seen:
                whole = self._model(input_ids=tokens, use_cache=False).logits.float()
                self._answer, self.is_split = type(seen[0]), True
                parts = [self.logits(seen[0].last_hidden_state[:, part]) for part in (slice(0, 1), slice(1, None))]
            return bool(torch.allclose(torch.cat(parts, dim=1), whole, rtol=0, atol=0.02 * float(whole.abs().max())))
        except Exception:  # noqa: BLE001 - whatever an unknown model does, it is computed as a whole then
            return False


def _fold(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Lay states out row after row for the head.

    The states of some columns still have the strides of all of them. For those torch computes one product for each row,
    and copies the weight of the head for it, which in bfloat16 takes most of the time of a step.
    """
    states, *rest = inputs
    return states.flatten(0, -2).contiguous().view(states.shape), *rest


@contextmanager
def _note_outputs(module: Any) -> Generator[list[Any]]:
    """Yield the outputs of a module's passes inside the block."""
    seen: list[Any] = []

    def note(module: torch.nn.Module, inputs: object, output: object) -> None:
        seen.append(output)

    handle = module.register_forward_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


def chunk_cells(device: torch.device) -> int:
    """Return how many logits exist at once."""
    return CHUNK_CELLS if device.type == "cpu" else FAST_CHUNK_CELLS


def split_positions(count: int, rows: int, vocabulary: int, cells: int) -> Iterator[slice]:
    """Yield parts of so many positions, each with about ``cells`` logits in all rows together, one position at least."""
    width = max(1, cells // (rows * vocabulary))
    return (slice(start, min(start + width, count)) for start in range(0, count, width))


class _TargetLogprobs(torch.autograd.Function):
    """Log-probabilities of some tokens. Its gradient takes one table of the size of the logits; autograd's takes several."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        norms = logits.logsumexp(dim=-1, keepdim=True)
        ctx.save_for_backward(logits, targets, norms)
        return logits.gather(-1, targets) - norms

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets, norms = ctx.saved_tensors
        table = (logits - norms).exp_().mul_(-grads[0].sum(dim=-1, keepdim=True))
        return table.scatter_add_(-1, targets, grads[0]), None


def target_logprobs(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Compute the log-probability of each target ``[..., K]`` from logits ``[..., vocabulary]``."""
    logprobs: torch.Tensor = _TargetLogprobs.apply(logits, targets)  # type: ignore[no-untyped-call]
    return logprobs
