"""The passes of a training call: micro-batches through the body of the model, and their states
through its head in parts.

The gradient of each part of the head is there before the next part begins, so that only one part's
logits exist at a time. A call that runs out of memory is repeated in smaller micro-batches.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false
# (torch and transformers are typed in part only)

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import attrs
import numpy as np
import torch
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from tinker.local.engines import Recompute, protocol
from tinker.local.engines.arrays import split_batches
from tinker.local.engines.protocol import (
    Cells,
    EngineError,
    Float32,
    LossForm,
    LossMetrics,
    TokenLoss,
)
from tinker.local.engines.torch.images import (
    ImageRow,
    ImageStates,
    are_in_line,
    find_positions,
    insert_images,
)
from tinker.local.engines.torch.lora import LoraWeights, Mixer, Mixture, free_bytes, release_memory

# The head of a model apart from its body, so that the logits of a long sequence never exist all at
# once.
#
# The head is computed by the model's own forward, whose body is made to answer with the states that
# are there already: what a family does to its logits (a cap, a scale) is done to every part of
# them. A model where that does not give the same logits is computed as a whole.

# of one pass through the head on a CPU: 64 MB, and about four times that while adapters are added
CHUNK_CELLS = 2**24
FAST_CHUNK_CELLS = 4 * CHUNK_CELLS  # on an accelerator, which needs more work at once to be busy
# of several rows that are in one pass, where the head is not computed in parts
WHOLE_LOGITS = 2**27
PROBE = 4  # tokens
# the name of the argument, and its name before transformers 5.24
CACHE, OLDER_CACHE = "cache", "past_key_values"


@attrs.frozen(eq=False)
class Passed:
    """The output of a pass: ``states`` ``[rows, tokens, size]`` for the head, the last ``logits``
    of each row, the cache.
    """

    states: torch.Tensor
    logits: torch.Tensor
    cache: Any


class SplitModel:
    """A model, in its two parts. ``is_split``: whether it could be taken apart; else its states are
    its logits.
    """

    def __init__(self, model: Any) -> None:
        self._model: Any = model
        self._body: Any = getattr(model, getattr(model, "base_model_prefix", ""), None)
        self._takes: Collection[str] = inspect.signature(model.forward).parameters
        self._cache_name = CACHE if CACHE in self._takes else OLDER_CACHE
        model.get_output_embeddings().register_forward_pre_hook(_fold)
        self.is_split: bool = False
        self.is_split = self._can_split()

    def run(self, images: ImageStates | None = None, cache: Any = None, **inputs: Any) -> Passed:
        """Compute the states of every position, behind those of ``cache``; ``images`` are in some
        of them.
        """
        if not self.is_split:
            with insert_images(self._model, images):
                output = self._model(**inputs, **{self._cache_name: cache})
            return Passed(output.logits, output.logits[:, -1], output.get(self._cache_name))
        with _note_outputs(self._body) as seen, insert_images(self._model, images):
            output = self._model(**inputs, **{self._cache_name: cache}, logits_to_keep=1)
        return Passed(seen[0].last_hidden_state, output.logits[:, -1], output.get(self._cache_name))

    def advance(self, cache: Any, **inputs: Any) -> torch.Tensor:
        """Compute the logits ``[rows, vocabulary]`` after one more token of each row of a cache."""
        return cast(
            "torch.Tensor", self._model(**inputs, **{self._cache_name: cache}).logits[:, -1]
        )

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the float32 logits of these states."""
        if not self.is_split:
            return states.float()
        places = torch.zeros(states.shape[:2], dtype=torch.long, device=states.device)
        with replace_forward(
            self._body, lambda *args, **kwargs: self._answer(last_hidden_state=states)
        ):
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
                parts = [
                    self.logits(seen[0].last_hidden_state[:, part])
                    for part in (slice(0, 1), slice(1, None))
                ]
            return bool(
                torch.allclose(
                    torch.cat(parts, dim=1), whole, rtol=0, atol=0.02 * float(whole.abs().max())
                )
            )
        except Exception:  # noqa: BLE001 - whatever an unknown model does, it is computed as a whole then
            return False


def _fold(head: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Lay states out row after row for the head.

    The states of some columns still have the strides of all of them. For those torch computes one
    product for each row, and copies the weight of the head for it, which in bfloat16 takes most of
    the time of a step.
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
    """Yield parts of so many positions, each with about ``cells`` logits in all rows together, one
    position at least.
    """
    width = max(1, cells // (rows * vocabulary))
    return (slice(start, min(start + width, count)) for start in range(0, count, width))


class _TargetLogprobs(torch.autograd.Function):
    """Log-probabilities of some tokens. Its gradient takes one table of the size of the logits;
    autograd's takes several.
    """

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


@attrs.frozen(eq=False)
class LossPlan:
    """A loss computation: ``data``, ``loss``, and the ``parameters`` to differentiate by (none: no
    gradient).
    """

    data: Sequence[Cells]
    form: LossForm
    options: Mapping[str, float]
    loss: TokenLoss
    parameters: list[torch.nn.Parameter]
    vocabulary: int


@attrs.define(eq=False)
class Flat:
    """The cells of a micro-batch, padding included, one after the other: ``targets`` and
    ``weights`` are ``[cells, K]``.
    """

    indices: list[int]
    length: int
    targets: torch.Tensor
    weights: torch.Tensor
    inputs: Mapping[str, torch.Tensor]

    @classmethod
    def make(cls, indices: list[int], batch: Sequence[Cells], device: torch.device) -> Flat:
        inputs = {
            key: _flatten([datum.inputs[key] for datum in batch], device) for key in batch[0].inputs
        }
        targets, weights = (
            _flatten([getattr(datum, key) for datum in batch], device)
            for key in ("targets", "weights")
        )
        return cls(indices, len(targets) // len(batch), targets, weights, inputs)


class LossRun:
    """A plan on its way: ``outputs`` and ``gradient`` are complete when every micro-batch was
    added.
    """

    def __init__(self, split: SplitModel, plan: LossPlan, logits_cells: int) -> None:
        self._split, self._plan, self._cells = split, plan, logits_cells
        self._tally = LossMetrics(torch, plan.form, plan.options)
        self.gradient: list[torch.Tensor] = [
            torch.zeros_like(parameter) for parameter in plan.parameters
        ]
        self.outputs: dict[int, Float32] = {}

    @property
    def metrics(self) -> dict[str, float]:
        """Return the metrics of all that was added."""
        return self._tally.metrics()

    def add(self, indices: list[int], device: torch.device) -> None:
        """Compute a micro-batch. Raises EngineError naming the first datum whose loss is not
        finite.
        """
        tokens = stack([self._plan.data[index].tokens[:, None] for index in indices], device)[
            :, :, 0
        ]
        images, positions = self._place_images(indices, tokens)
        states = self._split.run(images, input_ids=tokens, use_cache=False, **positions).states
        states = states.reshape(1, -1, states.shape[-1])
        upstream = self.add_states(indices, states)
        if upstream is not None:
            self.add_gradient(
                torch.autograd.grad(states, self._plan.parameters, upstream, allow_unused=True)
            )

    def add_states(self, indices: list[int], states: torch.Tensor) -> torch.Tensor | None:
        """Compute the loss behind states ``[1, cells, size]``; returns its gradient by them, None
        where none is wanted.
        """
        data = [self._plan.data[index] for index in indices]
        batch = Flat.make(indices, self._compare_sequences(data, states), states.device)
        upstream = (
            torch.zeros_like(states) if self._plan.parameters and states.requires_grad else None
        )
        found = [self._add_part(states, batch, part, upstream) for part in self._parts(states)]
        rows = torch.cat(found).reshape(len(indices), batch.length, -1).cpu().numpy()
        for row, index in enumerate(indices):
            datum = self._plan.data[index]
            length, columns = datum.targets.shape
            self.outputs[index] = rows[row, :length, :columns].reshape(datum.shape)
        return upstream

    def _parts(self, states: torch.Tensor) -> Iterator[slice]:
        return split_positions(states.shape[1], 1, self._plan.vocabulary, self._cells)

    def _compare_sequences(self, data: Sequence[Cells], states: torch.Tensor) -> Sequence[Cells]:
        """Return the data with the ratio of each sequence, if the loss has one; takes an extra pass
        through the head.
        """
        if self._plan.form.sequence is None:
            return data
        targets = stack([datum.targets for datum in data], states.device).flatten(0, 1)
        with torch.no_grad():
            parts = [
                self._find_logprobs(states[:, part], targets[part])[0].to(states.device)
                for part in self._parts(states)
            ]
        rows = torch.cat(parts).reshape(len(data), -1).cpu().numpy()
        now = [row[: len(datum.targets)] for row, datum in zip(rows, data, strict=True)]
        return protocol.add_sequence_ratios(data, self._plan.form, now)

    def _find_logprobs(
        self, states: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities of targets ``[cells, K]``, and which of them are tokens of
        the model.
        """
        logits = self._split.logits(states)[0]
        targets = targets.to(logits.device)
        in_range = targets.clamp(0, self._plan.vocabulary - 1)
        return target_logprobs(logits, in_range), in_range == targets

    def _place_images(
        self, indices: list[int], tokens: torch.Tensor
    ) -> tuple[ImageStates | None, dict[str, torch.Tensor]]:
        """Return the states of the images of a micro-batch, and the positions of its tokens where
        it has some.
        """
        batch = [self._plan.data[index] for index in indices]
        images = ImageStates.collect(
            [ImageRow(datum.images, 0) for datum in batch], slice(0, tokens.shape[1]), tokens.device
        )
        if are_in_line(placed for datum in batch for placed in datum.images):
            return images, {}
        found = [find_positions(datum.images, tokens.shape[1]) for datum in batch]
        return images, {"position_ids": torch.from_numpy(np.stack(found, axis=1)).to(tokens.device)}

    def _add_part(
        self, states: torch.Tensor, batch: Flat, part: slice, upstream: torch.Tensor | None
    ) -> torch.Tensor:
        """Compute the loss of some cells, and its gradient: into ``upstream`` for their states.
        Returns log-probabilities.
        """
        leaf = states[:, part].detach().requires_grad_(upstream is not None)
        logprobs, known = self._find_logprobs(leaf, batch.targets[part])
        slopes = self._find_slopes(logprobs.detach(), batch, part)
        if slopes is not None and logprobs.requires_grad:
            leaves = [] if upstream is None else [leaf]
            grads = torch.autograd.grad(
                logprobs, [*leaves, *self._plan.parameters], slopes, allow_unused=True
            )
            if upstream is not None:
                upstream[:, part] = grads[0]
            self.add_gradient(grads[len(leaves) :])
        return logprobs.detach().masked_fill(~known, 0.0).to(states.device)

    def _find_slopes(self, logprobs: torch.Tensor, batch: Flat, part: slice) -> torch.Tensor | None:
        """Count the terms of some cells; return the derivative of the loss by each log-probability
        (None: no weight).
        """
        weights = batch.weights[part].to(logprobs.device)
        counted = weights != 0
        cells = {
            key: value[part].to(logprobs.device)[counted] for key, value in batch.inputs.items()
        }
        terms, slopes = self._plan.loss(torch, logprobs[counted], cells, self._plan.options)
        terms = terms * weights[counted]
        if not terms.isfinite().all():
            worst = part.start + int(counted.nonzero()[~terms.isfinite()][0, 0])
            datum = batch.indices[worst // batch.length]
            are_finite = bool(logprobs[counted].isfinite().all())
            raise EngineError(
                f"data[{datum}]: {protocol.explain_infinite_loss(self._plan.form, are_finite)}"
            )
        self._tally.add(terms.double(), logprobs[counted], weights[counted], cells)
        return (
            torch.zeros_like(logprobs).masked_scatter_(counted, slopes * weights[counted])
            if len(terms)
            else None
        )

    def add_gradient(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Add to the gradient by the parameters; None is none."""
        for total, more in zip(self.gradient, grads, strict=True):
            if more is not None:
                total.add_(more)


def stack(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> torch.Tensor:
    """Stack ``[N, K]`` arrays to one ``[B, longest N, largest K]`` tensor on the device, filled up
    with zeros.
    """
    shape = (
        len(arrays),
        max(len(array) for array in arrays),
        max(array.shape[1] for array in arrays),
    )
    out = np.zeros(shape, arrays[0].dtype)
    for row, array in enumerate(arrays):
        out[row, : array.shape[0], : array.shape[1]] = array
    return torch.from_numpy(out).to(device)


def _flatten(arrays: Sequence[np.ndarray[Any, Any]], device: torch.device) -> torch.Tensor:
    return stack(arrays, device).flatten(0, 1)


def run_joined(
    split: SplitModel, mixer: Mixer, parts: Sequence[tuple[LoraWeights, LossPlan]]
) -> list[LossRun | None]:
    """Compute plans of several adapters, whose data have one shape, in one pass through the body;
    None for one that fails.
    """
    device = mixer.device
    tokens = torch.cat(
        [
            stack([datum.tokens[:, None] for datum in plan.data], device)[:, :, 0]
            for _, plan in parts
        ]
    )
    with mixer.activate(
        Mixture.put_side_by_side([weights for weights, _ in parts], len(tokens) // len(parts))
    ):
        states = split.run(input_ids=tokens, use_cache=False).states
    upstream, runs = torch.zeros_like(states), list[LossRun | None]()
    for (weights, plan), mine, given in zip(
        parts, states.chunk(len(parts)), upstream.chunk(len(parts)), strict=True
    ):
        run = LossRun(split, plan, chunk_cells(device))
        with mixer.activate(Mixture.make([weights])):
            mixer.choose_threads(len(plan.data) * mine.shape[1])
            try:
                found = run.add_states(
                    [*range(len(plan.data))], mine.reshape(1, -1, mine.shape[-1])
                )
            except EngineError:
                runs.append(None)
                continue
        runs.append(run)
        if found is not None:
            given.copy_(found.view_as(given))
    _share_gradient(states, upstream, parts, runs)
    return runs


def _share_gradient(
    states: torch.Tensor,
    upstream: torch.Tensor,
    parts: Sequence[tuple[LoraWeights, LossPlan]],
    runs: Sequence[LossRun | None],
) -> None:
    grads = iter(
        torch.autograd.grad(
            states,
            [one for _, plan in parts for one in plan.parameters],
            upstream,
            allow_unused=True,
        )
    )
    for (_, plan), run in zip(parts, runs, strict=True):
        mine = [next(grads) for _ in plan.parameters]
        if run is not None:
            run.add_gradient(mine)


SHARE = 0.5  # of the free memory; what a pass would keep beyond it is computed again


@contextmanager
def replace_forward(module: Any, forward: Callable[..., Any]) -> Generator[None]:
    """Replace the forward of a module inside the block."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


@contextmanager
def recompute_layers(model: Any, is_wanted: bool) -> Generator[None]:
    """Keep only the input of every layer in the passes inside the block. Results are the same."""
    layers = (
        [one for one in model.modules() if isinstance(one, GradientCheckpointingLayer)]
        if is_wanted
        else []
    )
    with ExitStack() as stack:
        for layer in layers:
            forward = functools.partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
            stack.enter_context(replace_forward(layer, forward))
        yield


def is_useful(model: Any, cells: int) -> bool:
    """Return whether the activations of this many tokens would take too much of the free memory."""
    free = free_bytes(model.device)
    return free is not None and estimate_bytes(model.config.get_text_config(), cells) > SHARE * free


def estimate_bytes(config: Any, cells: int) -> int:
    """Estimate the activation memory of this many tokens: inputs of norms and modules, some twice,
    in float32.
    """
    hidden, layers = (
        int(getattr(config, "hidden_size", 0)),
        int(getattr(config, "num_hidden_layers", 1)),
    )
    inner = getattr(config, "intermediate_size", None)
    width = inner if isinstance(inner, int) else 4 * hidden
    return 4 * cells * layers * (20 * hidden + 6 * width)


MAX_MICRO_BATCH_TOKENS = 2**13
SMALLER = 8  # times, when the memory did not suffice


@attrs.frozen
class PassLimits:
    """The size of a pass: tokens of a micro-batch, and logits of one pass through the head."""

    tokens: int
    logits: int
    recompute: Recompute

    def shrink(self, largest: int) -> PassLimits:
        """Return limits that take much less memory than a micro-batch of ``largest`` cells."""
        recompute: Recompute = "never" if self.recompute == "never" else "always"
        return PassLimits(max(1, largest // SMALLER), max(1, self.logits // SMALLER), recompute)


class Trainer:
    """Runs plans on one model. One that runs out of memory is retried in smaller parts, and so are
    later ones as large.
    """

    def __init__(self, model: Any, split: SplitModel, recompute: Recompute) -> None:
        self._model, self._split = model, split
        self._recompute: Recompute = recompute
        self.too_much: int | None = None  # cells of a micro-batch

    def run(self, plan: LossPlan) -> LossRun:
        """Compute a plan. Raises EngineError when even small micro-batches take too much memory."""
        most = MAX_MICRO_BATCH_TOKENS
        tokens = most if self._split.is_split else min(most, WHOLE_LOGITS // plan.vocabulary)
        limits = PassLimits(tokens, chunk_cells(self._model.device), self._recompute)
        largest = max(self._count_cells(plan, batch) for batch in self._batches(plan, limits))
        if self.too_much is None or largest < self.too_much:
            if (done := self._try(plan, limits)) is not None:
                return done
            self.too_much = largest
        if (done := self._try(plan, limits.shrink(largest))) is not None:
            return done
        longest = max(len(datum.tokens) for datum in plan.data)
        raise EngineError(
            f"out of memory on {self._model.device}, even in small parts: the longest datum has "
            f"{longest} tokens; send shorter ones"
        )

    def _batches(self, plan: LossPlan, limits: PassLimits) -> list[list[int]]:
        """Return indices of data of like length, so many that the padded batch stays within the
        limits (at least one).
        """
        return list(split_batches([len(datum.tokens) for datum in plan.data], limits.tokens))

    def _count_cells(self, plan: LossPlan, batch: list[int]) -> int:
        return len(batch) * max(len(plan.data[index].tokens) for index in batch)

    def _try(self, plan: LossPlan, limits: PassLimits) -> LossRun | None:
        """Compute a plan; None when the memory does not suffice. Nothing of a failed attempt is
        left then.
        """
        try:
            return self._compute(plan, limits)
        except Exception as error:
            if not protocol.is_out_of_memory(error):
                raise
        release_memory(self._model.device)
        return None

    def _compute(self, plan: LossPlan, limits: PassLimits) -> LossRun:
        run = LossRun(self._split, plan, limits.logits)
        for batch in self._batches(plan, limits):
            is_wanted = bool(plan.parameters) and limits.recompute != "never"
            if is_wanted and limits.recompute == "auto":
                is_wanted = is_useful(self._model, self._count_cells(plan, batch))
            with recompute_layers(self._model, is_wanted):
                run.add(batch, self._model.device)
        return run
