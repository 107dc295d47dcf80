"""Checks of what engines are given: the inputs and options of each loss, in one form; optimizer
steps; sample jobs.

Numpy only; knows no formula.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tinker._checks import find_float32_fault
from tinker.local.engines.protocol import (
    Adam,
    Dimuon,
    EngineError,
    Float32,
    PlacedImage,
    SampleJob,
    TrainingExample,
)
from tinker_records import suggest, suggest_loss

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
    limits = {"vocabulary": vocabulary, "longest": longest}
    return (
        form,
        options,
        [
            check_datum(index, example, loss_fn, form, **limits)
            for index, example in enumerate(data)
        ],
    )


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
    given = {key: value for key, value in example.loss_inputs.items() if key != "target_tokens"}
    cells = {key: _check_cells(f"{where}: {key}", value, shape) for key, value in given.items()}
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
    for name, value in attrs.asdict(params).items():
        # there, below 0 means off too
        low = -math.inf if isinstance(params, Dimuon) and name == "grad_clip_norm" else 0
        high, limit = (1, "below 1") if name.startswith("beta") else (math.inf, "finite")
        if not (low <= value < high and math.isfinite(value)):
            raise EngineError(f"{name} is {value}; it must be at least 0 and {limit}")
    if fault := find_float32_fault(attrs.asdict(params)):
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
            most = (
                f"it must be 0 to {limit} for {what}, as an answer has "
                f"at most {MAX_ALTERNATIVES} such tokens"
            )
            raise EngineError(f"{name} is {k}; {most}")


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
