"""The protocols of an engine, the checks of what it is given, and the token losses."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker._basics.checks import find_float32_fault
from tinker._version import __version__
from tinker_records import suggest, suggest_loss

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]
log: logging.Logger = logging.getLogger("tinker.local")


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


@contextmanager
def explain(what: str, *others: type[Exception]) -> Generator[None]:
    """Raise an EngineError of the block, or one of these errors, as one that begins with
    ``what``.
    """
    kinds: tuple[type[Exception], ...] = (EngineError, *others)
    try:
        yield
    except kinds as error:
        raise EngineError(f"{what}: {error}") from error


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
        raise EngineError(
            f"{file} has format {found}, and this version of tinker, {__version__}, reads formats "
            f"up to {FILE_FORMAT}; use the version that wrote it"
        )


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
    """A call of :meth:`Engine.forward_backward` with ``backward`` that is about to come."""

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
    """One step of the optimizer in :mod:`tinker.local.engines.arrays`. ``grad_clip_norm`` 0 and
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
    def needs_table(self) -> bool:
        """Return whether it wants to know of other tokens than those of its prompt."""
        return (
            self.topk_prompt_logprobs != 0
            or self.prompt_alternatives != 0
            or self.prompt_targets is not None
        )

    @property
    def shapes_logits(self) -> bool:
        """Return whether the logits change before the temperature, ``top_k`` and ``top_p`` see
        them.
        """
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        return penalties != (0, 0, 1) or self.min_p > 0 or self.min_tokens > 0


Weights = TypeVar("Weights")


def find_weights(job: SampleJob, kind: type[Weights]) -> Weights | None:
    """Return the weights to sample from; None is the base model. Raises EngineError for those of
    another engine.
    """
    if job.weights is not None and not isinstance(job.weights, kind):
        raise EngineError("the weights to sample from do not come from this engine")
    return job.weights


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


class Engine(Sampler, Protocol):
    """A trainer that is its own sampler: one frozen base model with LoRA adapters, addressed by an
    id that the server chooses.

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


CLIP_DEFAULTS: Mapping[str, float] = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
# an input that the engine adds, for losses with one ratio for a whole datum
SEQUENCE_LOG_RATIO = "sequence_log_ratio"
_RL_INPUTS = frozenset({"logprobs", "advantages"})
NO_OPTIMIZER = "the checkpoint contains no optimizer state; load it without the optimizer"
WEIGHTS_DIVERGED = (
    "the weights have probably diverged. Lower the learning rate and continue "
    "from an earlier checkpoint"
)


@attrs.frozen(kw_only=True)
class LossForm:
    """The inputs of a loss besides ``target_tokens``, the inputs that scale its terms, and its
    options with defaults.

    ``factor`` names the input that multiplies every term. Where it is 0 nothing is learned, and
    metrics do not count the cell. ``sequence`` names the input that marks the cells over which the
    ratio of a whole datum is taken, ``clip_metric`` the metric that counts the ratios outside the
    thresholds.
    """

    inputs: frozenset[str] = _RL_INPUTS
    factor: str | None = "advantages"
    sequence: str | None = None
    masks: frozenset[str] = frozenset({"weights", "mask"})
    config: Mapping[str, float] = attrs.field(factory=lambda: dict[str, float]())
    clip_metric: str = "clipped:sum"
    many_targets: bool = False


LOSS_FORMS: Mapping[str, LossForm] = {
    "cross_entropy": LossForm(
        inputs=frozenset(), factor=None, masks=frozenset({"weights"}), many_targets=True
    ),
    "importance_sampling": LossForm(),
    "ppo": LossForm(config=CLIP_DEFAULTS),
    "cispo": LossForm(config=CLIP_DEFAULTS),
    "gspo": LossForm(
        inputs=_RL_INPUTS | {"sequence_ratio_mask"},
        sequence="sequence_ratio_mask",
        config=CLIP_DEFAULTS,
    ),
    # its penalty acts without an advantage, too
    "dro": LossForm(factor=None, config={"beta": 0.05}),
    "stable_reinforce": LossForm(
        factor=None,
        config={"clip_high_threshold": 2.0, "kl_coeff": 0.0},
        clip_metric="truncated_reinforce/clipped:sum",
    ),
}


@attrs.frozen(kw_only=True, eq=False)
class Cells:
    """A checked datum. All arrays but ``tokens`` are ``[N, K]``, K being 1 for targets ``[N]``;
    ``shape`` is theirs.
    """

    tokens: NDArray[np.int64]
    targets: NDArray[np.int64]
    weights: Float32
    inputs: Mapping[str, Float32]
    shape: tuple[int, ...]
    images: Sequence[PlacedImage] = ()


def resolve_loss(name: str, config: Mapping[str, float | str]) -> tuple[LossForm, dict[str, float]]:
    """Return the form of a loss and its options with defaults. Raises EngineError for an unknown
    name, option or value.
    """
    form = LOSS_FORMS.get(name)
    if form is None:
        raise EngineError(
            f"unknown loss_fn {name!r}; {suggest_loss('this server has', name, LOSS_FORMS)}"
        )
    for key, value in config.items():
        if key not in form.config:
            raise EngineError(
                f"unknown loss_fn_config key {key!r}; {suggest(f'{name} takes', key, form.config)}"
            )
        if isinstance(value, str) or not math.isfinite(value):
            raise EngineError(f"loss_fn_config {key!r} is {value!r}; it must be a finite number")
        if value < 0 and key in ("clip_high_threshold", "kl_coeff"):
            raise EngineError(f"loss_fn_config {key!r} is {value!r}; it must be at least 0")
    options = {**form.config, **{key: float(value) for key, value in config.items()}}
    if (
        form.config is CLIP_DEFAULTS
        and options["clip_low_threshold"] > options["clip_high_threshold"]
    ):
        raise EngineError(
            f"loss_fn_config of {name}: clip_low_threshold exceeds clip_high_threshold"
        )
    return form, options


def clip_bounds(options: Mapping[str, float]) -> tuple[float, float] | None:
    """Return the bounds that a loss with these options has for ratios; None for a
    loss without any.
    """
    if "clip_high_threshold" not in options:
        return None
    return options.get("clip_low_threshold", 0.0), options["clip_high_threshold"]


def check_data(
    data: Sequence[TrainingExample],
    loss_fn: str,
    config: Mapping[str, float | str],
    *,
    vocabulary: int,
    longest: int,
) -> tuple[LossForm, dict[str, float], list[Cells]]:
    """Return the form of a loss, its options, and every datum checked. Raises EngineError for the
    first fault.
    """
    form, options = resolve_loss(loss_fn, config)
    checked = [
        check_datum(index, example, loss_fn, form, vocabulary=vocabulary, longest=longest)
        for index, example in enumerate(data)
    ]
    return form, options, checked


def check_datum(
    index: int,
    example: TrainingExample,
    name: str,
    form: LossForm,
    *,
    vocabulary: int,
    longest: int,
) -> Cells:
    """Check datum ``index`` for the loss ``name``. EngineError names the datum and the field."""
    where, length = f"data[{index}]", len(example.tokens)
    if not 0 < length <= longest:
        raise EngineError(f"{where}: model_input has {length} tokens; it must have 1 to {longest}")
    check_tokens(f"{where}: model_input", example.tokens, vocabulary)
    _check_names(where, name, form, set(example.loss_inputs))
    shape = _check_target_shape(where, form, np.shape(example.loss_inputs["target_tokens"]), length)
    cells = {
        key: _check_cells(f"{where}: {key}", value, shape)
        for key, value in example.loss_inputs.items()
        if key != "target_tokens"
    }
    weights = np.ones((length, math.prod(shape[1:])), np.float32)
    for key in form.masks & cells.keys():
        weights = weights * cells[key]
    targets = (
        np.asarray(example.loss_inputs["target_tokens"]).astype(np.int64).reshape(weights.shape)
    )
    used = weights != 0
    if form.sequence is not None:
        if not cells[form.sequence].any():
            raise EngineError(f"{where}: {form.sequence} marks no token")
        used = used | (cells[form.sequence] != 0)
    check_tokens(f"{where}: target_tokens", np.where(used, targets, 0), vocabulary)
    return Cells(
        tokens=example.tokens.astype(np.int64),
        targets=targets,
        weights=weights,
        inputs={key: cells[key] for key in form.inputs},
        shape=shape,
        images=example.images,
    )


def add_sequence_ratios(
    data: Sequence[Cells], form: LossForm, logprobs: Sequence[NDArray[np.floating[Any]]]
) -> list[Cells]:
    """Return the data with the log-ratio of each datum, the mean over its marked cells, in the
    place of the marks.

    ``logprobs`` are those of the targets of each datum now. A loss without such a ratio gets the
    data as they are.
    """
    if form.sequence is None:
        return list(data)
    return [
        _with_sequence_ratio(cells, form.sequence, now)
        for cells, now in zip(data, logprobs, strict=True)
    ]


def _with_sequence_ratio(cells: Cells, sequence: str, logprobs: NDArray[np.floating[Any]]) -> Cells:
    marked = cells.inputs[sequence] != 0
    drift = (
        np.asarray(logprobs, np.float64).reshape(marked.shape)[marked]
        - cells.inputs["logprobs"][marked]
    )
    others = {name: value for name, value in cells.inputs.items() if name != sequence}
    ratios = np.full(marked.shape, drift.mean(), np.float32)
    return attrs.evolve(cells, inputs={**others, SEQUENCE_LOG_RATIO: ratios})


def check_tokens(what: str, tokens: NDArray[np.integer[Any]], vocabulary: int) -> None:
    """Raise EngineError for the first token id, by its position, that is not in the vocabulary."""
    wrong = np.argwhere((tokens < 0) | (tokens >= vocabulary))
    if wrong.size:
        found = f"token id {int(tokens[tuple(wrong[0])])} at position {int(wrong[0][0])}"
        raise EngineError(f"{what} contains {found}; ids run from 0 to {vocabulary - 1}")


def check_step(params: Adam | Dimuon) -> None:
    """Raise EngineError for the first parameter of an optimizer step that is out of range."""
    given = attrs.asdict(params)
    for name, value in given.items():
        # there, below 0 means off too
        low = -math.inf if isinstance(params, Dimuon) and name == "grad_clip_norm" else 0
        high, limit = (1, "below 1") if name.startswith("beta") else (math.inf, "finite")
        if not (low <= value < high and math.isfinite(value)):
            raise EngineError(f"{name} is {value}; it must be at least 0 and {limit}")
    if fault := find_float32_fault(given):
        raise EngineError(fault)


def explain_infinite_loss(form: LossForm, logprobs_are_finite: bool) -> str:
    """Explain a non-finite loss: blame the inputs only if the model's
    log-probabilities are finite.
    """
    if not logprobs_are_finite or not form.inputs:
        return f"the loss is not finite: {WEIGHTS_DIVERGED}"
    return (
        "the loss is not finite; check "
        f"its {', '.join(sorted(form.inputs, reverse=True))} and weights"
    )


def _check_names(where: str, name: str, form: LossForm, given: set[str]) -> None:
    required = {"target_tokens", *form.inputs}
    if missing := sorted(required - given):
        raise EngineError(
            f"{where}: loss_fn_inputs is missing {', '.join(missing)}, which {name} needs"
        )
    if unknown := sorted(given - required - form.masks):
        known = ", ".join([*sorted(required), *sorted(form.masks)])
        raise EngineError(
            f"{where}: loss_fn_inputs contains {', '.join(unknown)}; {name} takes {known}"
        )


def _check_target_shape(
    where: str, form: LossForm, shape: tuple[int, ...], length: int
) -> tuple[int, ...]:
    several = form.many_targets and len(shape) == 2 and shape[0] == length and shape[1] > 0
    if shape != (length,) and not several:
        needed = f"[{length}] or [{length}, K]" if form.many_targets else f"[{length}]"
        raise EngineError(f"{where}: target_tokens has shape {list(shape)}; it must be {needed}")
    return shape


def _check_cells(what: str, value: NDArray[np.generic], shape: tuple[int, ...]) -> Float32:
    if np.shape(value) != shape:
        raise EngineError(
            f"{what} has shape {list(np.shape(value))}; it must be "
            f"that of target_tokens, {list(shape)}"
        )
    cells = np.asarray(value, np.float32).reshape(shape[0], -1)
    if not np.isfinite(cells).all():
        raise EngineError(f"{what} contains a value that is not finite")
    return cells


#: Tokens with their log-probabilities, of one kind, in one answer: 32 MB of them, and ten times
#: that as JSON.
MAX_ALTERNATIVES = 2**22


def noise_seed(job: SampleJob) -> int:
    """Return the seed of a job as 64 bits; a random one where the job has none."""
    return secrets.randbits(64) if job.seed is None else job.seed & (2**64 - 1)


def check_job(job: SampleJob, *, vocabulary: int, longest: int) -> None:
    """Raise EngineError naming the first parameter that an engine with this vocabulary and context
    cannot serve.
    """
    if not len(job.tokens):
        raise EngineError("the prompt is empty; it must have at least one token")
    check_tokens("the prompt", job.tokens, vocabulary)
    _check_length(len(job.tokens), job.max_tokens, longest)
    for fault in _find_faults(job, vocabulary):
        raise EngineError(fault)
    if job.prompt_targets is not None:
        check_tokens("target_prompt_logprobs", job.prompt_targets.tokens, vocabulary)


def check_alternatives(job: SampleJob) -> None:
    """Raise EngineError when more tokens than MAX_ALTERNATIVES are asked for beside those of the
    prompt or the samples.
    """
    prompt, samples = len(job.tokens), job.num_samples * job.max_tokens
    for name, k, places, what in (
        ("prompt_alt_tokens_k", job.prompt_alternatives, prompt, f"a prompt of {prompt} tokens"),
        ("topk_prompt_logprobs", job.topk_prompt_logprobs, prompt, f"a prompt of {prompt} tokens"),
        (
            "topk_sample_logprobs",
            job.topk_sample_logprobs,
            samples,
            f"{job.num_samples} samples of {job.max_tokens} tokens",
        ),
    ):
        limit = MAX_ALTERNATIVES // max(1, places)
        if not 0 <= k <= limit:
            raise EngineError(
                f"{name} is {k}; it must be 0 to {limit} for {what}, as an answer has "
                f"at most {MAX_ALTERNATIVES} such tokens"
            )


def _check_length(prompt: int, max_tokens: int, longest: int) -> None:
    """Raise EngineError, saying what would fit, if prompt and sample exceed the context."""
    room = longest - prompt
    tokens = "1 token" if prompt == 1 else f"{prompt} tokens"
    if room < 0 or (room == 0 and max_tokens > 0):
        excess = "exceeds" if room < 0 else "fills"
        raise EngineError(
            f"the prompt has {tokens}, which {excess} the context length of "
            f"{longest}; shorten the prompt"
        )
    if max_tokens > room:
        total = (
            f"max_tokens is {max_tokens}, which with a prompt of {tokens} exceeds the context "
            f"length of {longest}"
        )
        raise EngineError(f"{total}; use max_tokens of at most {room}")


def shape_logits(job: SampleJob, drawn: Sequence[int], logits: Float32) -> None:
    """Apply the penalties to the logits of the next token, in place, and make those -inf that may
    not be drawn.
    """
    if len(drawn) < job.min_tokens:
        logits[[stop for stop in job.stop or () if not isinstance(stop, str)]] = -math.inf
    seen = np.unique([*job.tokens.tolist(), *drawn])
    values = logits[seen]
    logits[seen] = np.where(
        values > 0, values / job.repetition_penalty, values * job.repetition_penalty
    )
    if drawn:
        ids, counts = np.unique(drawn, return_counts=True)
        logits[ids] -= job.presence_penalty + job.frequency_penalty * counts
    if job.min_p > 0 and job.temperature > 0:
        logits[logits < logits.max() + job.temperature * math.log(job.min_p)] = -math.inf


def _find_faults(job: SampleJob, vocabulary: int) -> Iterator[str]:
    if job.num_samples < 1:
        yield f"num_samples is {job.num_samples}; it must be at least 1"
    if job.max_tokens < 0:
        yield f"max_tokens is {job.max_tokens}; it must be at least 0"
    if not 0 <= job.temperature < math.inf:
        yield f"temperature is {job.temperature}; it must be 0 (greedy) or more"
    if job.top_k < -1:
        yield f"top_k is {job.top_k}; it must be -1 (all tokens) or at least 1"
    if not 0 <= job.top_p <= 1:
        yield f"top_p is {job.top_p}; it must be from 0 to 1"
    if not 0 <= job.min_p <= 1:
        yield f"min_p is {job.min_p}; it must be from 0 to 1"
    for name, penalty in (("presence", job.presence_penalty), ("frequency", job.frequency_penalty)):
        if not -2 <= penalty <= 2:
            yield f"{name}_penalty is {penalty}; it must be from -2 to 2"
    if not 0 < job.repetition_penalty < math.inf:
        yield f"repetition_penalty is {job.repetition_penalty}; it must be more than 0"
    if job.json_schema is not None:
        yield (
            "json_schema needs vLLM (`tinker serve --sampler vllm`), and a "
            "prompt without images and scores"
        )
    for name, k in (
        ("topk_prompt", job.topk_prompt_logprobs),
        ("topk_sample", job.topk_sample_logprobs),
    ):
        if not 0 <= k <= vocabulary:
            yield f"{name}_logprobs is {k}; it must be 0 to {vocabulary}"
    if "" in (job.stop or ()):
        yield "an empty stop string would end every sequence at once"


Array: TypeAlias = Any  # of ``xp``
CellInputs: TypeAlias = Mapping[str, Array]
LossOptions: TypeAlias = Mapping[str, float]
TokenLoss: TypeAlias = Callable[[Any, Array, CellInputs, LossOptions], tuple[Array, Array]]
SAMPLER_GAP = "sampler_logprob_gap"


def ratio(xp: Any, logprobs: Array, inputs: CellInputs) -> Array:
    """Compute how much likelier each token, or its whole sequence, is now than when it was sampled;
    infinite on overflow.
    """
    with np.errstate(over="ignore"):
        return xp.exp(inputs.get(SEQUENCE_LOG_RATIO, logprobs - inputs["logprobs"]))


def _clip(ratios: Array, options: LossOptions) -> Array:
    return ratios.clip(options["clip_low_threshold"], options["clip_high_threshold"])


def _cross_entropy(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    return -logprobs, xp.full_like(logprobs, -1.0)


def _importance_sampling(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    gain = ratio(xp, logprobs, inputs) * inputs["advantages"]
    return -gain, -gain


def _ppo(xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions) -> tuple[Array, Array]:
    ratios, advantages = ratio(xp, logprobs, inputs), inputs["advantages"]
    free, held = ratios * advantages, _clip(ratios, options) * advantages
    return -xp.minimum(free, held), xp.where(free <= held, -free, 0.0)


def _cispo(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    factor = _clip(ratio(xp, logprobs, inputs), options) * inputs["advantages"]
    return -factor * logprobs, -factor


def _dro(xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions) -> tuple[Array, Array]:
    drift, beta = logprobs - inputs["logprobs"], options["beta"]
    return -(logprobs * inputs["advantages"] - 0.5 * beta * drift**2), -(
        inputs["advantages"] - beta * drift
    )


def _reinforce(
    xp: Any, logprobs: Array, inputs: CellInputs, options: LossOptions
) -> tuple[Array, Array]:
    factor = (
        ratio(xp, logprobs, inputs).clip(max=options["clip_high_threshold"]) * inputs["advantages"]
    )
    drift, strength = logprobs - inputs["logprobs"], options["kl_coeff"]
    return -factor * logprobs + 0.5 * strength * drift**2, -factor + strength * drift


LOSSES: Mapping[str, TokenLoss] = {
    "cross_entropy": _cross_entropy,
    "importance_sampling": _importance_sampling,
    "ppo": _ppo,
    "cispo": _cispo,
    "gspo": _ppo,
    "dro": _dro,
    "stable_reinforce": _reinforce,
}
assert LOSSES.keys() == LOSS_FORMS.keys()


@attrs.define
class LossMetrics:
    """The metrics of one call, over all cells that teach something."""

    xp: Any
    form: LossForm
    options: LossOptions
    loss: float = 0.0
    tokens: int = 0
    weights: float = 0.0
    clipped: int = 0
    ratio: tuple[float, float] | None = None
    gap: tuple[float, float] = (0.0, 0.0)

    def add(self, terms: Array, logprobs: Array, weights: Array, cells: CellInputs) -> None:
        """Count cells that have a weight; their terms have double precision."""
        self.loss += float(terms.sum())
        counted = slice(None) if self.form.factor is None else cells[self.form.factor] != 0
        self.tokens += len(terms[counted])
        self.weights += float(weights[counted].sum())
        if "logprobs" in cells:
            gaps = self.xp.abs(logprobs - cells["logprobs"])
            self._compare(ratio(self.xp, logprobs, cells)[counted], gaps[counted])

    def _compare(self, ratios: Array, gaps: Array) -> None:
        """Update the range of the ratios, the count of clipped ones, and the sum and the largest of
        the gaps.
        """
        if not len(ratios):
            return
        low, high = float(ratios.min()), float(ratios.max())
        self.ratio = (
            (min(low, self.ratio[0]), max(high, self.ratio[1])) if self.ratio else (low, high)
        )
        self.gap = self.gap[0] + float(gaps.sum()), max(self.gap[1], float(gaps.max()))
        if (bounds := clip_bounds(self.options)) is not None:
            self.clipped += int(((ratios < bounds[0]) | (ratios > bounds[1])).sum())

    def metrics(self) -> dict[str, float]:
        """Return the metrics. ``clipped`` counts the cells whose ratio lay outside the thresholds.

        ``sampler_logprob_gap`` is how far each log-probability is from the one that the sampler
        gave, in nats.
        """
        metrics = {
            "loss:sum": self.loss,
            "tokens:sum": float(self.tokens),
            "weights:sum": self.weights,
        }
        if self.ratio:
            metrics |= {
                "ratio:min": self.ratio[0],
                "ratio:max": self.ratio[1],
                f"{SAMPLER_GAP}:mean": self.gap[0] / self.tokens,
                f"{SAMPLER_GAP}:max": self.gap[1],
            }
        has_bounds = clip_bounds(self.options) is not None
        return metrics | {self.form.clip_metric: float(self.clipped)} if has_bounds else metrics
