"""The protocols of an engine, in numpy arrays and plain values: a trainer, a sampler, and both in
one.

A trainer owns one frozen base model and any number of LoRA adapters over it; a sampler draws tokens
from the same model with snapshots of their weights. Neither knows of HTTP, sessions, futures or the
wire.

An :class:`Engine` is both. The server calls it from a single worker thread, so it needs no locks of
its own. A sampler that is elsewhere is a second object with a thread of its own: training and
sampling then run at once, and each fails by itself. It reads the weights that the trainer saves.
What computes in other processes raises any exception but EngineError when they fail: the request
fails as the server's fault, and the next one is tried again.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker._version import __version__

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]


class EngineImage(Protocol):
    """An image that an engine has read, opaque to everything else."""

    @property
    def tokens(self) -> Int32:
        """Return the token ids that represent it."""
        ...


@attrs.frozen(kw_only=True, eq=False)
class PlacedImage:
    """An image in an input, represented by ``tokens[start:end]``."""

    start: int
    image: EngineImage

    @property
    def end(self) -> int:
        """Return the position behind it."""
        return self.start + len(self.image.tokens)


class ImageReader(Protocol):
    """Reads images for one model. Used in the thread of its trainer or sampler."""

    def read(self, data: bytes, image_format: str) -> EngineImage:
        """Read an image file. Raises EngineError, with a message for the user, if it is not an
        image of that format.
        """
        ...


class EngineError(Exception):
    """The request is wrong in a way only the engine can see; the user reads the message (category
    ``user``).
    """


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation failed, on any device: the same request would fail again."""
    text = str(error).lower()
    is_torch = isinstance(error, RuntimeError) and (
        "out of memory" in text or "can't allocate memory" in text
    )
    return is_torch or isinstance(error, MemoryError)


# of the files of an adapter; those of an earlier version without a number are the same
FILE_FORMAT = 1


def check_format(file: str, found: int) -> None:
    """Raise EngineError for a file of a format that a newer version of this package has written."""
    if found > FILE_FORMAT:
        known = f"this version of tinker, {__version__}, reads formats up to {FILE_FORMAT}"
        raise EngineError(f"{file} has format {found}, and {known}; use the version that wrote it")


LORA_ALPHA = 32.0  # where a request names none


@attrs.frozen(kw_only=True)
class AdapterSpec:
    """A LoRA adapter to create. ``seed`` None means: the engine picks one.

    ``target_modules`` are ends of names of modules, of those that the switches leave; None means
    all of these.
    """

    rank: int = 32
    seed: int | None = None
    train_unembed: bool = True
    train_mlp: bool = True
    train_attn: bool = True
    lora_alpha: float = LORA_ALPHA
    target_modules: Sequence[str] | None = None

    @property
    def scale(self) -> float:
        """Return the factor of the adapter's update."""
        return self.lora_alpha / self.rank


@attrs.frozen(kw_only=True, eq=False)
class TrainingExample:
    """One datum: ``tokens`` of length N, and loss inputs whose first dimension is N
    (``target_tokens`` may be ``[N, K]``).

    ``images`` are in the order of their places.
    """

    tokens: Int32
    loss_inputs: Mapping[str, NDArray[np.generic]]
    images: Sequence[PlacedImage] = ()


@attrs.frozen(kw_only=True, eq=False)
class LossResult:
    """``outputs[i]`` holds the arrays of datum i (``logprobs`` at least); ``metrics`` keys are
    ``name:reduction``.
    """

    outputs: list[dict[str, Float32]]
    metrics: dict[str, float]


@attrs.frozen(kw_only=True, eq=False)
class ExpectedLoss:
    """A call of :meth:`TrainingEngine.forward_backward` with ``backward`` that is about to come."""

    adapter_id: str
    data: Sequence[TrainingExample]
    loss_fn: str
    config: Mapping[str, float | str]


@attrs.frozen(kw_only=True)
class Adam:
    """One optimizer step. ``grad_clip_norm`` 0 means no clipping; weight decay is decoupled
    (AdamW).
    """

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@attrs.frozen(kw_only=True)
class Dimuon:
    """One step of the optimizer in :mod:`tinker.local.engines.dimuon`. ``grad_clip_norm`` 0 and
    less mean no clipping.
    """

    learning_rate: float
    beta1: float = 0.9
    grad_clip_norm: float = 0.0


@attrs.frozen(kw_only=True, eq=False)
class PromptTargets:
    """Tokens to score: ``tokens[i]`` at prompt position ``positions[i]``, which is at least 1. In
    any order, also twice.
    """

    positions: NDArray[np.int64]
    tokens: NDArray[np.int64]


class TokenListener(Protocol):
    """Is handed the tokens of one job as they are drawn, in the sampler's thread."""

    def take(self, index: int, token: int, logprob: float, stop_reason: str | None) -> bool:
        """Receive a token of the sample ``index``, the last one with its stop reason. Return False
        to end the job.
        """
        ...


@attrs.frozen(kw_only=True, eq=False)
class SampleJob:
    """``num_samples`` continuations of one prompt.

    ``weights`` is what :meth:`Engine.snapshot` or :meth:`Sampler.load_snapshot` returned, or None
    for the base model. The same ``seed``, weights and parameters give the same tokens, whatever
    else is in the batch. ``stop`` is text pieces, token ids, both, or None for the model's own end
    of text; an empty list disables every stop. The stop that ended a sequence is part of it. Of the
    first ``min_tokens`` tokens none is an id of ``stop``, and no text is looked for in them.
    ``topk_prompt_logprobs`` and ``topk_sample_logprobs`` 0 mean: not wanted. ``prompt_targets``
    None means: score none. ``prompt_alternatives`` tokens are drawn at each prompt position but the
    first, with replacement and at ``temperature``, from the whole distribution; they change nothing
    about the continuations. ``listener`` None means that only the result counts. A continuation
    that its listener ended is as long as it was then. ``images`` of the prompt are in the order of
    their places. ``json_schema`` None means: any text. ``priority`` is for samplers with a queue of
    their own: jobs with a lower one begin first.
    """

    tokens: Int32
    weights: object | None
    images: Sequence[PlacedImage] = ()
    num_samples: int = 1
    max_tokens: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    json_schema: Mapping[str, object] | None = None
    priority: int = 0
    seed: int | None = None
    stop: Sequence[str | int] | None = None
    min_tokens: int = 0
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    prompt_targets: PromptTargets | None = None
    prompt_alternatives: int = 0
    listener: TokenListener | None = None

    @property
    def shapes_logits(self) -> bool:
        """Return whether the logits change before the temperature, ``top_k`` and ``top_p`` see
        them.
        """
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0, 0, 1) or self.min_p > 0 or self.min_tokens > 0


@attrs.frozen(kw_only=True, eq=False)
class Continuation:
    """One continuation. ``stop_reason`` is ``stop`` or ``length``; ``topk`` is (ids, logprobs),
    both ``[len(tokens), k]``.
    """

    tokens: Int32
    logprobs: Float32
    stop_reason: str
    topk: tuple[Int32, Float32] | None = None


@attrs.frozen(kw_only=True, eq=False)
class SampleResult:
    """``prompt_logprobs[0]`` is NaN (nothing precedes it); ``topk_prompt`` is (ids, logprobs), both
    ``[len(prompt), k]``.

    Row 0 of ``topk_prompt`` holds the empty cell (0, -99999.0) of the wire. ``target_logprobs`` are
    those of the job's targets, in their order. ``alternatives`` is (ids, logprobs), both
    ``[len(prompt) - 1, k]``. Every log-probability is the model's own, at temperature 1 and over
    the whole vocabulary.
    """

    sequences: list[Continuation]
    prompt_logprobs: Float32 | None = None
    topk_prompt: tuple[Int32, Float32] | None = None
    target_logprobs: Float32 | None = None
    alternatives: tuple[Int32, Float32] | None = None


class SampleBatch(Protocol):
    """Samples in progress: jobs join and leave between two steps. Used in the sampler's thread."""

    @property
    def tokens(self) -> int:
        """Return how many tokens the samples hold now: prompts and drawn tokens."""
        ...

    def add(self, ticket: object, job: SampleJob) -> None:
        """Add a job that begins with the next step, identified by ``ticket``. Raises EngineError
        naming the job's fault.
        """

    def drop(self, ticket: object) -> None:
        """Take a job out, wherever it is; it draws no further token. A ticket that is unknown is
        ignored.
        """

    def step(self) -> list[tuple[object, SampleResult | Exception]]:
        """Advance the samples, by about a token, and return the jobs that ended, each with its
        result or failure.

        Where they run elsewhere, it may wait, briefly, for something to happen. An exception fails
        every job in the batch.
        """
        ...


class InputReader(Protocol):
    """A model that reads inputs."""

    @property
    def max_context_length(self) -> int:
        """Longest prompt plus continuation, in tokens."""
        ...

    @property
    def image_reader(self) -> ImageReader | None:
        """Return the image reader of the model; None if it takes text only."""
        ...


class TrainingEngine(InputReader, Protocol):
    """One frozen base model with LoRA adapters, addressed by an id that the server chooses.

    ``base_model``: the name users pass as ``base_model``. ``aliases``: Other names for the same
    model: the paths of the directory that it was loaded from. ``tokenizer_id``: what
    ``AutoTokenizer.from_pretrained`` loads on this machine: a directory or a hub name.
    ``shares_passes``: whether :meth:`expect_losses` does anything. ``adapter_files``: the names of
    the files that :meth:`import_adapter` reads.
    """

    base_model: str
    aliases: frozenset[str]
    tokenizer_id: str
    shares_passes: bool
    adapter_files: frozenset[str]

    @property
    def restarts(self) -> Sequence[int]:
        """Return how often each of its worker processes was started again; empty if it computes in
        this process.
        """
        ...

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        """Make a fresh adapter (initially the base model exactly) and its empty gradient and
        optimizer state.
        """

    def drop_adapter(self, adapter_id: str) -> None:
        """Forget an adapter; unknown ids are ignored. Snapshots taken from it live on."""

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> LossResult:
        """Compute the loss; with ``backward``, add its gradient to the one accumulated since the
        last optimizer step.

        Raises EngineError for an unknown loss, a missing input or a wrong shape, before any
        gradient changes.
        """
        ...

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        """Prepare these calls of different adapters, whose data have one shape, in one pass if that
        is cheaper.

        Each of them follows, or not, before anything else is asked of its adapter; its result is
        the one that it has alone. Without ``calls`` nothing is expected any longer.
        """

    def optim_step(self, adapter_id: str, params: Adam | Dimuon) -> dict[str, float]:
        """Apply the accumulated gradient (none accumulated counts as zero), clear it, and return
        metrics.

        One adapter takes steps of one optimizer only; the server sees to that.
        """
        ...

    def save(self, adapter_id: str, directory: Path, *, optimizer: bool) -> None:
        """Write the adapter (PEFT files where that applies) and, when asked, the optimizer state
        into an existing folder.
        """

    def load(self, adapter_id: str, directory: Path, *, optimizer: bool) -> AdapterSpec:
        """Create (or replace) an adapter from a folder written by :meth:`save` and return its
        specification.

        Without ``optimizer`` its optimizer state starts fresh. Raises EngineError when the folder
        does not fit the base model.
        """
        ...

    def import_adapter(self, source: Path, spec: AdapterSpec, directory: Path) -> None:
        """Read an adapter that was made elsewhere and write it into an existing folder as
        :meth:`save` does.

        Raises EngineError when the files are damaged, or do not fit the specification or the base
        model.
        """

    def close(self) -> None:
        """End what was started outside this process; it may have ended. Nothing else is called
        afterwards.
        """


class Sampler(InputReader, Protocol):
    """Samples of one base model, with or without an adapter. It may be elsewhere, and have limits
    other than the trainer's.
    """

    def load_snapshot(self, directory: Path) -> object:
        """Return the weights that a trainer saved in a folder, as a snapshot for sampling.

        A snapshot lives as long as a reference to it. The last one may be dropped in any thread, so
        a sampler that has to free something then (``weakref.finalize``) must not wait for anything
        there. The folder may be gone before.
        """
        ...

    def open_batch(self, limit: int) -> SampleBatch:
        """Make an empty batch of samples that together hold about ``limit`` tokens at most; one job
        may hold more.
        """
        ...

    def close(self) -> None:
        """End what was started outside this process; it may have ended. Nothing else is called
        afterwards.
        """


class Engine(TrainingEngine, Sampler, Protocol):
    """A trainer that is its own sampler."""

    def snapshot(self, adapter_id: str) -> object:
        """Freeze the adapter's present weights for the engine's own sampler; later steps do not
        change the snapshot.
        """
        ...


# What engines have in common: what most of them do not do, and their adapters by id.

Adapter = TypeVar("Adapter")


class BaseEngine:
    """An engine that takes only text, computes each loss alone and starts no process, unless its
    class says otherwise.
    """

    aliases: frozenset[str] = frozenset()
    image_reader: ImageReader | None = None
    shares_passes: bool = False

    @property
    def restarts(self) -> Sequence[int]:
        """Return nothing: no process is started again."""
        return ()

    def expect_losses(self, calls: Sequence[ExpectedLoss]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: all of it is in this process."""


class LocalEngine(BaseEngine, Generic[Adapter]):
    """The part of an engine that computes in the server's process: its adapters by id."""

    def __init__(self) -> None:
        self._adapters: dict[str, Adapter] = {}

    def create_adapter(self, adapter_id: str, spec: AdapterSpec) -> None:
        seed = secrets.randbits(31) if spec.seed is None else spec.seed
        self._adapters[adapter_id] = self._create(attrs.evolve(spec, seed=seed), seed)

    def drop_adapter(self, adapter_id: str) -> None:
        self._adapters.pop(adapter_id, None)

    def _adapter(self, adapter_id: str) -> Adapter:
        if adapter_id not in self._adapters:
            raise EngineError(f"no adapter {adapter_id!r} on this server")
        return self._adapters[adapter_id]

    def _create(self, spec: AdapterSpec, seed: int) -> Adapter:
        raise NotImplementedError
