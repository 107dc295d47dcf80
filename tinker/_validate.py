"""Checks of arguments on the user's line, before anything is sent or numbered."""

from __future__ import annotations

import concurrent.futures
import math
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Never, cast, get_args

from tinker_wire import limits
from tinker_wire.models import (
    AccessScope,
    AdamOptimizerConfig,
    DimuonOptimizerConfig,
    ListedLossFnType,
    OptimizerConfig,
)

from tinker._basics.checks import check_count, read_integer, warn
from tinker._basics.shown import clean
from tinker.errors import APIStatusError, RequestFailedError
from tinker.types._values import np
from tinker.types.model_input import Datum, EncodedTextChunk, ModelInput
from tinker.types.params import SCHEME, AdamParams, DimuonParams
from tinker.types.tensor_data import dimensions
from tinker_records import LOSSES_OF_METHODS, find_closest, suggest, suggest_loss

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tinker._basics.events import Observer

# Of each loss whose definition is public, the inputs it needs and all it knows; a loss not named
# here may have any.
LOSS_INPUTS: Mapping[str, tuple[frozenset[str], frozenset[str]]] = {
    loss: (
        frozenset(inputs["required"]),
        frozenset(inputs["required"]) | frozenset(inputs["optional"]),
    )
    for loss, inputs in limits.LOSS_FN_TYPE_INPUTS.items()
}
_TARGETS_DTYPE = limits.LOSS_FN_TYPE_INPUT_DTYPES["target_tokens"]
# A traced loss may take inputs that are not one value for each token; these are.
_ALIGNED_OF_CUSTOM = frozenset({"target_tokens", "weights"})
IGNORED_LABEL = -100  # of transformers
EXPLAIN_LABEL = (
    f"{IGNORED_LABEL}, which marks labels of transformers; a token that is not "
    "learned has the weight 0"
)
# Log-probabilities may be minus infinity, of tokens that a sampler left out.
_ALWAYS_FINITE = frozenset({"weights", "advantages"})


def read_batch(data: Sequence[Datum], loss_fn: str, operation: str) -> list[Datum]:
    """Return the data as a list. TypeError for something else, such as one Datum, and for a loss
    that is not a name.
    """
    __tracebackhide__ = True
    if isinstance(data, Datum):
        raise TypeError("data must be a list of Datum, got one Datum: write [datum]")
    if isinstance(data, str) and not isinstance(loss_fn, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError("data must be a list of Datum, got str: are data and loss_fn swapped?")
    if isinstance(data, (str, Mapping)) or not isinstance(data, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"data must be a list of Datum, got {type(data).__name__}")
    if not isinstance(loss_fn, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        own = (
            'the logprobs of forward(data, "cross_entropy")'
            if operation == "forward"
            else "forward_backward_custom"
        )
        advice = f"; for your own function, use {own}" if callable(loss_fn) else ""
        raise TypeError(f"loss_fn must be the name of a loss, got {type(loss_fn).__name__}{advice}")
    return list(data)


#: How a datum is made of what was given in its place, by the first key of a row of a dataset.
_MAKERS = {
    "": "make one with tinker.data.from_tokens, or Datum(model_input=..., loss_fn_inputs=...)",
    "messages": "make one with tinker.data.from_messages(tokenizer, messages)",
    "prompt": "make one with tinker.data.from_completion(tokenizer, prompt, completion)",
}


def _how_to_make(given: object) -> str:
    key = next(iter(cast("Mapping[str, object]", given)), "") if isinstance(given, Mapping) else ""
    return _MAKERS.get(key, _MAKERS[""])


def check_data(data: Sequence[Datum], loss_fn: str) -> None:
    """Raise ValueError naming the datum index and the field; TypeError for something that is not a
    Datum.
    """
    __tracebackhide__ = True
    if len(data) == 0:
        raise ValueError("data is empty: pass at least one Datum")
    with np.errstate(over="ignore", invalid="ignore"):  # in `_check_values`
        for index, datum in enumerate(data):
            if not isinstance(datum, Datum):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(
                    f"data[{index}] must be a Datum, got {type(datum).__name__}: "
                    f"{_how_to_make(datum)}"
                )
            _check_names(index, datum.loss_fn_inputs.keys(), loss_fn)
            _check_shapes(index, datum, loss_fn)


def _check_names(index: int, names: Set[str], loss_fn: str) -> None:
    required, known = LOSS_INPUTS.get(loss_fn, (frozenset[str](), None))
    where = f"data[{index}].loss_fn_inputs"
    if not required <= names:
        missing = ", ".join(sorted(required - names))
        others = names - (known or names)
        given = f"; it has {', '.join(map(repr, sorted(others)))}" if others else ""
        if "labels" in others:
            given += (
                ". From labels: input_ids[:-1] is the input, labels[1:] are target_tokens, with "
                "weights 0 for -100"
            )
        meant = _suggest_inputs(others, required - names) or given
        raise ValueError(f"{where} is missing {missing}, which {loss_fn} needs{meant}")
    if known is not None and not names <= known:
        unknown = ", ".join(map(repr, sorted(names - known)))
        meant = _suggest_inputs(names - known, known - names)
        raise ValueError(
            f"{where}: {loss_fn} does not take {unknown}; it takes "
            f"{', '.join(sorted(known))}{meant}"
        )


def _suggest_inputs(unknown: Collection[str], absent: Collection[str]) -> str:
    """Return the names that were probably meant by those that the loss does not know."""
    pairs = [(name, find_closest(name, absent)) for name in sorted(unknown)]
    return "".join(
        f"; did you mean {closest!r} instead of {name!r}?" for name, closest in pairs if closest
    )


def _check_shapes(index: int, datum: Datum, loss_fn: str) -> None:
    length, is_known = input_length(datum.model_input), loss_fn in LOSS_INPUTS
    if length == 0:
        raise ValueError(f"data[{index}].model_input has no tokens")
    shapes = dict(zip(datum.loss_fn_inputs, map(dimensions, datum.loss_fn_inputs.values())))
    arrays = {name: tensor.values for name, tensor in datum.loss_fn_inputs.items()}
    targets = shapes["target_tokens"] if loss_fn == "cross_entropy" else None
    for name, shape in shapes.items():
        is_aligned = is_known or name in _ALIGNED_OF_CUSTOM or (loss_fn != "custom" and shape)
        if is_aligned and length is not None and shape[:1] != [length]:
            size = f"length {shape[0]}" if len(shape) == 1 else f"shape {shape}"
            raise ValueError(
                f"data[{index}].loss_fn_inputs[{name!r}] has {size}, "
                f"model_input has {length} tokens"
            )
        if is_known and shape != (expected := targets or shape[:1]):
            raise ValueError(
                f"data[{index}].loss_fn_inputs[{name!r}] has shape "
                f"{shape}; {loss_fn} takes {expected} here"
            )
        fault = _find_fault(name, datum.loss_fn_inputs[name].dtype, arrays[name])
        if fault is not None:
            raise ValueError(f"data[{index}].loss_fn_inputs[{name!r}] {fault}")


def _find_fault(name: str, dtype: str, array: NDArray[Any]) -> str | None:
    """Return what is wrong with the values of a loss input; None if nothing is."""
    values = array if array.ndim == 1 else array.ravel()
    if name == "target_tokens":
        if dtype != _TARGETS_DTYPE:
            return "must be integers, got floating-point numbers"
        # Labels of other libraries are -100 for a prompt or padding. To look at each would take as
        # long as to encode them.
        if values.size and (values[0] < 0 or values[-1] < 0):
            return "has negative token ids; to ignore a token, use a valid id with weight 0"
    elif dtype == "float32" and not math.isfinite(values.dot(values)):
        # much faster than to look at each
        if (wrong := np.isnan(values)).any():
            return f"contains NaN at position {wrong.argmax()}"
        if name in _ALWAYS_FINITE and (wrong := np.isinf(values)).any():
            return f"contains infinity at position {wrong.argmax()}"
    return None


def input_length(model_input: ModelInput) -> int | None:
    """Count the tokens of the input; None when an image does not say what it counts as."""
    try:
        return model_input.length
    except ValueError:
        return None


def check_context_lengths(data: Sequence[Datum], longest: int | None) -> None:
    """Raise ValueError for a datum of more tokens than the model takes; None is a number that is
    not known.
    """
    if longest is not None:
        for index, datum in enumerate(data):
            check_context_length(f"data[{index}].model_input", datum.model_input, longest)


def check_context_length(what: str, model_input: ModelInput, longest: int) -> None:
    """Raise ValueError for an input of more tokens than the model takes."""
    length = input_length(model_input)
    if length is not None and length > longest:
        raise ValueError(
            f"{what} has {length} tokens, but the model accepts at most {longest}, according to "
            "the server's capabilities. "
            "Shorten it, or omit it"
        )


def check_loss_config(config: Mapping[str, float | str] | None, loss_fn: str) -> None:
    """Raise TypeError unless it is a mapping, and every value a number, or text if the loss may
    have it; ValueError for nan.
    """
    if config is not None and not isinstance(config, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"loss_fn_config must be a mapping of names to values, got {type(config).__name__}"
        )
    for name, value in (config or {}).items():
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"loss_fn_config[{name!r}] must be a number or text, got {type(value).__name__}"
            )
        if isinstance(value, str) and loss_fn in LOSS_INPUTS:
            raise TypeError(f"loss_fn_config[{name!r}] must be a number, got text")
        if value != value:  # nan
            raise ValueError(f"loss_fn_config[{name!r}] is nan; it must be a number")


def warn_of_narrow_clipping(config: Mapping[str, float | str]) -> None:
    """Warn where the thresholds leave out 1, the ratio of an unchanged policy: they are bounds, not
    distances from it.
    """
    low, high = config.get("clip_low_threshold", 0.0), config.get("clip_high_threshold", math.inf)
    if not isinstance(low, str) and not isinstance(high, str) and not low <= 1 <= high:
        warn(
            "the thresholds are bounds of the ratio, and leave out 1: for an epsilon "
            "of 0.2 they are 0.8 and 1.2"
        )


def warn_of_unshifted_targets(datum: Datum) -> None:
    """Warn where the targets of the first datum equal its input, which is valid but
    seldom meant.
    """
    first, targets = datum.model_input.chunks, datum.loss_fn_inputs.get("target_tokens")
    if targets is not None and len(first) == 1 and isinstance(first[0], EncodedTextChunk):
        tokens = first[0].array
        if np.array_equal(tokens, targets.to_numpy()) and np.ptp(tokens):
            advice = "ModelInput.from_ints(tokens[:-1]) with target_tokens=tokens[1:]"
            warn(f"data[0]: the targets equal the input; each should be the next token: {advice}")


def warn_of_weights(data: Sequence[Datum]) -> None:
    """Warn where every weight of every datum is 0, of which some are valid as padding, or one of
    the first datum is -100.
    """
    first = data[0].loss_fn_inputs.get("weights")
    if first is not None and (first.values == IGNORED_LABEL).any():
        warn(f"data[0]: a weight is {EXPLAIN_LABEL}")
    for datum in data:
        weights = datum.loss_fn_inputs.get("weights")
        if weights is None or weights.values.any():
            return
    warn("every weight in data is 0, so nothing is learned; give the tokens to learn a weight of 1")


def check_loss(
    loss_fn: str, config: Mapping[str, float | str], known: Mapping[str, Sequence[str]] | None
) -> None:
    """Raise ValueError for a loss, or a setting of it, that the server does not have. ``known``
    None: it has not said.
    """
    if known is None:
        return
    if loss_fn not in known:
        raise ValueError(
            f"unknown loss_fn {loss_fn!r}; {suggest_loss('the server has', loss_fn, known)}"
        )
    for key in config:
        if key not in known[loss_fn]:
            raise ValueError(
                f"unknown loss_fn_config key {key!r}; "
                f"{suggest(f'{loss_fn} takes', key, known[loss_fn])}"
            )


def check_optim_params(params: AdamParams | DimuonParams | None) -> AdamParams | DimuonParams:
    """Return the parameters, which have checked their values. TypeError for anything else."""
    __tracebackhide__ = True
    if not isinstance(params, (AdamParams, DimuonParams)):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = "None" if params is None else type(params).__name__
        raise TypeError(
            "optim_step needs AdamParams or DimuonParams, "
            f"such as AdamParams(learning_rate=1e-4); got {got}"
        )
    return params


def check_base_model(base_model: str, advice: str) -> None:
    """Raise TypeError unless it is text, ValueError for a checkpoint; whether the model exists is
    for the server to say.
    """
    __tracebackhide__ = True
    if not isinstance(base_model, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        got = type(base_model).__name__
        raise TypeError(
            "base_model must be the name of a model, got "
            f"{got}; get_server_capabilities() lists the models"
        )
    if base_model.startswith(SCHEME):
        raise ValueError(
            f"base_model must be the name of a model, got the checkpoint {base_model!r}: {advice}"
        )


def check_rank(rank: object) -> None:
    """Raise TypeError for a whole configuration of LoRA, ours or PEFT's, or its fields."""
    __tracebackhide__ = True
    got = type(rank).__name__
    if isinstance(rank, Mapping) or hasattr(rank, "rank") or hasattr(rank, "r"):
        raise TypeError(
            f"rank must be an integer, got {got}: pass its fields as arguments, "
            "such as rank=8 (PEFT's r)"
        )


def check_optimizer(optimizer: OptimizerConfig | Mapping[str, object] | None) -> None:
    """Raise TypeError unless it is a kind of optimizer, as a value or as plain data, or None."""
    __tracebackhide__ = True
    if optimizer is not None and not isinstance(
        optimizer, (AdamOptimizerConfig, DimuonOptimizerConfig, Mapping)
    ):  # pyright: ignore[reportUnnecessaryIsInstance]
        unknown: Never = optimizer  # so that a new kind is an error of type checkers here
        raise TypeError(
            "optimizer must be AdamOptimizerConfig() or DimuonOptimizerConfig(), got "
            f"{type(unknown).__name__}"
        )


# An hour to ten years.
MIN_TTL_SECONDS, MAX_TTL_SECONDS = limits.TTL_SECONDS_MINIMUM, limits.TTL_SECONDS_MAXIMUM
ACCESS_SCOPES: tuple[str, ...] = get_args(AccessScope)


def read_ttl(ttl_seconds: int | None) -> int | None:
    """Return the seconds that a checkpoint may live; None is forever. ValueError for what is no
    such integer.
    """
    if ttl_seconds is None:
        return None
    try:
        seconds = read_integer("ttl_seconds", ttl_seconds)
    except TypeError:
        raise ValueError(
            f"ttl_seconds must be an integer (seconds) or None, got {ttl_seconds!r}"
        ) from None
    if not MIN_TTL_SECONDS <= seconds <= MAX_TTL_SECONDS:
        raise ValueError(
            f"ttl_seconds must be from {MIN_TTL_SECONDS} (an hour) to {MAX_TTL_SECONDS} (ten "
            f"years), got {seconds}"
        )
    return seconds


def read_keep_last(keep_last: int | None) -> int | None:
    """Return how many checkpoints are kept; None is all. TypeError or ValueError for what is no
    such integer.
    """
    if keep_last is not None:
        check_count("keep_last", keep_last, limits.SAVE_WEIGHTS_REQUEST_KEEP_LAST_MINIMUM)
    return None if keep_last is None else int(keep_last)


MAX_RECIPIENTS = limits.SAVE_WEIGHTS_EXTERNAL_REQUEST_AGE_ENCRYPTION_RECIPIENTS_MAX_ITEMS


def check_recipients(recipients: Sequence[str] | None) -> list[str] | None:
    """Return the public keys as a list; ValueError for more than there may be, or for one text
    instead of several.
    """
    if recipients is None:
        return None
    keys = list(recipients)
    if isinstance(recipients, str) or len(keys) > MAX_RECIPIENTS:
        raise ValueError(
            f"age_encryption_recipients must be a list of at most {MAX_RECIPIENTS} public keys"
        )
    return keys


def check_page(limit: int, offset: int) -> None:
    """Raise ValueError for a page that no list has."""
    if read_integer("limit", limit) < 1 or read_integer("offset", offset) < 0:
        raise ValueError(
            "limit must be at least 1 and offset not negative, got limit "
            f"{limit} and offset {offset}"
        )


def check_access_scope(access_scope: str) -> None:
    """Raise ValueError for a scope that does not exist."""
    if access_scope not in ACCESS_SCOPES:
        raise ValueError(
            f"access_scope must be one of {', '.join(ACCESS_SCOPES)}, got {access_scope!r}"
        )


def check_name(name: str) -> None:
    """Raise ValueError for a checkpoint name that cannot be one segment of a path."""
    if not isinstance(name, str) or not name or "/" in name:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"a checkpoint name must be a string without '/', got {name!r}")
    if name in (".", ".."):
        raise ValueError(
            f"a checkpoint cannot be named {name!r}: paths with it name another checkpoint"
        )
    if not name.strip() or clean(name) != name:
        raise ValueError(
            f"a checkpoint name must not be blank or have control characters, got {name!r}"
        )


def _suggest_path(saved: object) -> str:
    """Return how to get the path of a checkpoint from what a save returns."""
    if isinstance(saved, concurrent.futures.Future):
        return ": pass future.result().path"
    if hasattr(type(saved), "save_state"):
        return ": save its weights, and pass the path of the response"
    return ": pass response.path" if hasattr(saved, "path") else ""


def check_model_path(name: str, path: str, kind: str = "weights") -> None:
    """Raise ValueError unless the path has a scheme; which schemes exist is the server's business.
    TypeError for no text.
    """
    if not isinstance(path, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a string, got {type(path).__name__}{_suggest_path(path)}")
    if "://" not in path:
        advice = "; for a base model use base_model=" if kind == "sampler_weights" else ""
        if path.startswith(("/", ".", "~")):
            advice = "; to use an adapter in a folder, upload it with tinker.checkpoints.upload"
        raise ValueError(
            f"{name} must be a checkpoint path such as {SCHEME}<run>/{kind}/<name>, got "
            f"{path!r}{advice}"
        )


def check_observer(observer: Observer) -> Observer:
    """Return the observer. TypeError unless it can be called."""
    if not callable(observer):  # pyright: ignore[reportUnnecessaryComparison]
        raise TypeError(
            f"an observer must be a function of one event, got {type(observer).__name__}"
        )
    return observer


# Suggestions for names that a server refused, where the server makes none. Names of models and
# losses are the server's business, so a name that nobody here knows is sent; only a refusal is
# explained.

LOSSES: tuple[str, ...] = get_args(ListedLossFnType)


def explain_refused_loss(error: Exception, loss_fn: str) -> None:
    """Add a note with the closest known loss, or with that of a method, to an error that names this
    one.
    """
    if not isinstance(error, (APIStatusError, RequestFailedError)):
        return
    if (advice := LOSSES_OF_METHODS.get(loss_fn.lower())) is None:
        _add_suggestion(error, "loss function", loss_fn, LOSSES)
    elif loss_fn in str(error) and advice not in str(error):
        error.add_note(f"loss function {loss_fn!r}: {advice}")


@contextmanager
def explain_refused_models(base_model: str | None, known: Iterable[str]) -> Generator[None]:
    """Add a note with the closest known model to an error of the block that names this one."""
    try:
        yield
    except (APIStatusError, RequestFailedError) as error:
        if base_model is not None:
            _add_suggestion(error, "base model", base_model, known)
        raise


def _add_suggestion(error: Exception, what: str, name: str, known: Iterable[str]) -> None:
    """Add the known name that is closest to the refused one, unless the server has named it."""
    names = list(known)
    closest = None if name in names else find_closest(name, names)
    if closest is not None and name in str(error) and repr(closest) not in str(error):
        error.add_note(f"{what} {name!r}: did you mean {closest!r}?")
