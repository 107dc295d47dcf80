"""Parameters of models, optimizers and samples; requests; and the paths of checkpoints."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, cast

import attrs
import msgspec
import msgspec.structs
from tinker_wire import limits, models
from tinker_wire.models import AdamOptimizerConfig as AdamOptimizerConfig
from tinker_wire.models import DimuonOptimizerConfig as DimuonOptimizerConfig
from tinker_wire.models import OptimizerConfig as OptimizerConfig

from tinker._basics.checks import find_float32_fault, warn
from tinker.types._values import AttrsValue, convert_numbers, np
from tinker.types.model_input import Datum, ModelInput
from tinker.types.tensor_data import TensorData
from tinker_records import Record, RecordType, advise, is_misspelled

CheckpointType: TypeAlias = Literal["training", "sampler", "external"]
ModelID: TypeAlias = str
RequestID: TypeAlias = str

_TYPES: dict[str, CheckpointType] = {
    "weights": "training",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
SCHEME = "tinker://"


@attrs.frozen(kw_only=True)
class ParsedCheckpointTinkerPath(AttrsValue):
    """Parts of a checkpoint path.

    Attributes:
        tinker_path: The whole path, ``tinker://<training run>/<kind>/<name>``.
        training_run_id: The id of the training run.
        checkpoint_type: ``training``, ``sampler`` or ``external``, according to the kind.
        checkpoint_id: The rest of the path, ``<kind>/<name>``.
    """

    tinker_path: str
    training_run_id: str
    checkpoint_type: CheckpointType
    checkpoint_id: str

    @classmethod
    def from_tinker_path(cls, tinker_path: str) -> ParsedCheckpointTinkerPath:
        """Parse a path.

        Args:
            tinker_path: The path, ``tinker://<training run>/<kind>/<name>``.

        Returns:
            The parts of the path.

        Raises:
            ValueError: The text lacks the scheme, a run, a known kind or a name.

        >>> ParsedCheckpointTinkerPath.from_tinker_path("tinker://run/weights/0001").checkpoint_id
        'weights/0001'
        """
        parts = tinker_path.removeprefix(SCHEME).split("/")
        if not tinker_path.startswith(SCHEME) or len(parts) != 3 or parts[1] not in _TYPES:
            kinds = "|".join(_TYPES)
            raise ValueError(
                f"{tinker_path!r} is not the path of a checkpoint; expected {SCHEME}<training "
                f"run>/<{kinds}>/<name>"
            )
        return cls(
            tinker_path=tinker_path,
            training_run_id=parts[0],
            checkpoint_type=_TYPES[parts[1]],
            checkpoint_id=f"{parts[1]}/{parts[2]}",
        )


_RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (limits.SAMPLING_PARAMS_MAX_TOKENS_MINIMUM, math.inf),
    "temperature": (limits.SAMPLING_PARAMS_TEMPERATURE_MINIMUM, math.inf),
    "top_k": (limits.SAMPLING_PARAMS_TOP_K_MINIMUM, math.inf),
    "top_p": (limits.SAMPLING_PARAMS_TOP_P_MINIMUM, limits.SAMPLING_PARAMS_TOP_P_MAXIMUM),
    "min_p": (limits.SAMPLING_PARAMS_MIN_P_MINIMUM, limits.SAMPLING_PARAMS_MIN_P_MAXIMUM),
    "presence_penalty": (
        limits.SAMPLING_PARAMS_PRESENCE_PENALTY_MINIMUM,
        limits.SAMPLING_PARAMS_PRESENCE_PENALTY_MAXIMUM,
    ),
    "frequency_penalty": (
        limits.SAMPLING_PARAMS_FREQUENCY_PENALTY_MINIMUM,
        limits.SAMPLING_PARAMS_FREQUENCY_PENALTY_MAXIMUM,
    ),
}
_EXTENSIONS = frozenset(
    {
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "json_schema",
        "priority",
    }
)


class _NamesChecked(RecordType):
    """Turn a misspelled argument into a TypeError that suggests the right name, or where to put a
    parameter of some servers.
    """

    if not TYPE_CHECKING:  # the signature is that of the fields

        def __call__(cls, *args: object, **values: object) -> object:
            __tracebackhide__ = True
            if args:
                first = cls.__struct_fields__[0]
                raise TypeError(
                    f"{cls.__name__} takes no positional arguments: write "
                    f"{cls.__name__}({first}=...)"
                )
            return super().__call__(**_keep_fields(cls, values))


class _Params(Record, frozen=True, metaclass=_NamesChecked):
    """Base of parameters, whose names are checked wherever they come from."""

    @classmethod
    def _of_fields(cls, fields: dict[str, Any]) -> Self:
        return super()._of_fields(_keep_fields(cls, fields))

    def _replace(self, update: dict[str, Any]) -> Self:
        return super()._replace(_keep_fields(type(self), update))


def _keep_fields(kind: type[Record], values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that a type has. TypeError for another name; SamplingParams ignores one
    unless it is misspelled.
    """
    __tracebackhide__ = True
    known = {*kind.__struct_fields__, kind.__struct_config__.tag_field}
    for name in values.keys() - known:
        is_ignored = "extra" in known and not is_misspelled(name, kind.__struct_fields__)
        advice = advise(
            kind.__name__, name, kind.__struct_fields__, verb="ignores" if is_ignored else "has no"
        )
        if not is_ignored:
            raise TypeError(advice)
        if advice.endswith("."):  # which names all fields
            advice += (
                " For a parameter that only some servers support: "
                f"{kind.__name__}(extra={{{name!r}: ...}})"
            )
        _warn_once(advice)
    return {name: value for name, value in values.items() if name in known}


_warn_once = cache(warn)


#: The least value of a number of an optimizer, and what it is below; others are only finite.
_STEP_RANGES = {
    "learning_rate": (0.0, math.inf),
    "beta1": (0.0, 1.0),
    "beta2": (0.0, 1.0),
    "eps": (0.0, math.inf),
}


class _StepParams(_Params, frozen=True):
    """Base of the parameters of an optimizer step, with which a step can be made."""

    def __post_init__(self) -> None:
        __tracebackhide__ = True
        convert_numbers(self)
        for name, value in (numbers := msgspec.structs.asdict(self)).items():
            what = f"{type(self).__name__}.{name} must be"
            least, below = _STEP_RANGES.get(name, (-math.inf, math.inf))
            if not math.isfinite(value):
                raise ValueError(f"{what} finite, got {value}")
            if not least <= value < below:
                upper = "" if below == math.inf else f" and below {below:g}"
                raise ValueError(f"{what} at least {least:g}{upper}, got {value}")
        if fault := find_float32_fault(numbers):
            raise ValueError(f"{type(self).__name__}.{fault}")


class AdamParams(_StepParams, models.AdamParams, frozen=True):
    """Parameters of one Adam step with decoupled weight decay.

    Raises ValueError if a value cannot be read as a number or is out of range.

    Attributes:
        learning_rate (float): The learning rate, 0 or more, 1e-4 by default.
        beta1 (float): The decay of the first moment, from 0 to below 1, 0.9 by default.
        beta2 (float): The decay of the second moment, from 0 to below 1, 0.95 by default.
        eps (float): The term that keeps the denominator from zero, 0 or more, 1e-12 by default.
        weight_decay (float): The decoupled weight decay, 0 by default.
        grad_clip_norm (float): The maximum global norm of the gradient. 0, the default, disables
            clipping.
    """


class DimuonParams(_StepParams, models.DimuonParams, frozen=True):
    """Parameters of one Dimuon step. Raises ValueError if a value cannot be read as a number or is
    out of range.

    Attributes:
        learning_rate (float): The learning rate, 0 or more.
        grad_clip_norm (float): The maximum global norm of the gradient. 0, the default, or less
            disables clipping.
        beta1 (float): The momentum, from 0 to below 1, 0.9 by default.
    """


class LoraConfig(_Params, models.LoraConfig, frozen=True):
    """Configuration of a LoRA adapter: its rank, and the parts of the model that it adapts.

    Raises ValueError if a value cannot be read as a number or is out of range.

    Attributes:
        rank (int): The rank of the adapter's matrices.
        seed (int | None): The seed of the adapter's initial weights. If None, the default, the
            server chooses.
        train_unembed (bool): Whether the output layer gets an adapter, True by default.
        train_mlp (bool): Whether MLP layers and experts get an adapter, True by default.
        train_attn (bool): Whether attention layers get an adapter, True by default.
        lora_alpha (float | None): The scale: the update is multiplied by ``lora_alpha / rank``.
            None, the default, means 32. It is an extension, as is ``target_modules``: the local
            server has them, and other servers ignore or reject them.
        target_modules (Sequence[str] | None): The modules that get an adapter, of those that the
            switches leave, each as the end of a module's name such as ``"q_proj"``. None, the
            default, means all.
    """

    def __post_init__(self) -> None:
        __tracebackhide__ = True
        if self.target_modules == "all-linear":  # as PEFT has it
            raise ValueError(
                "LoraConfig.target_modules must be a list of names; leave it out "
                "for all linear layers"
            )
        convert_numbers(self)
        if self.lora_alpha is not None and not 0 < self.lora_alpha < math.inf:
            raise ValueError(
                f"LoraConfig.lora_alpha must be above 0 and finite, got {self.lora_alpha}"
            )
        if self.target_modules is not None and not self.target_modules:
            raise ValueError(
                "LoraConfig.target_modules must be a list of names, or None for all "
                "modules; it is empty"
            )

    def _field_values(self) -> dict[str, Any]:
        return _hide_unset(super()._field_values(), {"lora_alpha", "target_modules"})


class SamplingParams(_Params, models.SamplingParams, frozen=True, kw_only=True):
    """Parameters of sampling.

    Raises ValueError if a value cannot be read as a number or is out of range, or a stop has the
    wrong type.

    Attributes:
        max_tokens (int | None): The maximum number of tokens. None, the default, samples to the end
            of the context.
        seed (int | None): The seed of the sampling. If None, the default, the server chooses.
        stop (str | Sequence[str] | Sequence[int] | None): A string, strings, or token ids at which
            to stop, instead of the model's end-of-text token. None, the default, stops at that
            token; an empty list never stops.
        temperature (float): The temperature, 1 by default. 0 always takes the most likely token.
        top_k (int): The number of most likely tokens to choose from. -1, the default, means all.
        top_p (float): The probability mass of most likely tokens to choose from, 1 by default.
        min_p (float | None): Leaves out tokens less likely than this part of the most likely one, 0
            to 1. An extension, as are the penalties: the local server has it, and other servers
            ignore or reject it. None, the default, is not sent.
        presence_penalty (float | None): Subtracted from the logit of each token that the sample
            contains, -2 to 2.
        frequency_penalty (float | None): Subtracted from it once for each time that the sample
            contains the token, -2 to 2.
        repetition_penalty (float | None): Divides the positive logits of all tokens of prompt and
            sample, and multiplies the negative ones, more than 0.
        json_schema (Mapping[str, Any] | None): A JSON schema that the text of the sample follows,
            such as that of a pydantic model. An empty one allows any JSON value. An extension: the
            local server follows it where vLLM samples.
        priority (int | None): Where samples wait for their turn, those with the lowest number begin
            first; 0 by default. An extension of the local server.
        extra (Mapping[str, Any] | None): Other parameters that only some servers support, as JSON
            values by name. Optional. Servers ignore or reject unknown parameters; the local server
            ignores them.

    >>> SamplingParams(max_tokens=8, temperature=0, stop=["\\n"]).temperature
    0.0
    >>> SamplingParams(max_tokens=8, min_p=0.05, extra={"bad_words": ["no"]}).extra
    {'bad_words': ['no']}
    """

    extra: dict[str, Any] | None = None
    # the wire's record, whose decoder cannot tell lists of texts from lists of ids, has Any
    if TYPE_CHECKING:
        stop: str | Sequence[str] | Sequence[int] | None = None
    _shown_types: ClassVar[Mapping[str, object]] = {
        "stop": str | Sequence[str] | Sequence[int] | None
    }

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "stop", _stops(self.stop))
        extra = _extra(self.extra)
        for name in _EXTENSIONS & extra.keys():  # where they stood before they were arguments
            msgspec.structs.force_setattr(self, name, extra.pop(name))
        msgspec.structs.force_setattr(self, "extra", extra or None)
        convert_numbers(self)
        _check_ranges(self)
        if self.json_schema is not None:
            _check_json("json_schema", self.json_schema)

    def _field_values(self) -> dict[str, Any]:
        return _hide_unset(super()._field_values(), {"extra", *_EXTENSIONS})


def _hide_unset(fields: dict[str, Any], names: Set[str]) -> dict[str, Any]:
    """Leave out extensions that are not set: what every server knows then looks as it does in the
    official client.
    """
    return {name: value for name, value in fields.items() if value is not None or name not in names}


def _check_ranges(params: SamplingParams) -> None:
    __tracebackhide__ = True
    for name, (least, most) in _RANGES.items():
        value: float | None = getattr(params, name)
        if value is not None and not least <= value <= most:
            allowed = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
            raise ValueError(f"SamplingParams.{name} must be {allowed}, got {value}")
    if params.repetition_penalty is not None and not params.repetition_penalty > 0:
        raise ValueError(
            f"SamplingParams.repetition_penalty must be above 0, got {params.repetition_penalty}"
        )


def _extra(extra: object) -> dict[str, Any]:
    """Return the parameters, which the caller may change later. TypeError or ValueError for what
    cannot be sent.
    """
    extra = {} if extra is None else extra
    if not isinstance(extra, Mapping):
        raise TypeError(
            f"SamplingParams.extra must be a mapping of names to values, got {type(extra).__name__}"
        )
    parameters = dict(cast("Mapping[object, Any]", extra))
    for name, value in parameters.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"SamplingParams.extra: a name must be a string, got {name!r}")
        if name in SamplingParams.__struct_fields__ and name not in _EXTENSIONS:
            raise ValueError(
                f"SamplingParams.extra must not contain {name!r}, which is an argument: "
                f"SamplingParams({name}=...)"
            )
        _check_json(f"extra[{name!r}]", value)
    return cast("dict[str, Any]", parameters)


def _check_json(name: str, value: object) -> None:
    import json

    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"SamplingParams.{name} cannot be sent as JSON: {error}") from None


def _stops(stop: object) -> str | list[str] | list[int] | None:
    if stop is None or isinstance(stop, str):
        return stop
    listed: Callable[[], object] | None = getattr(stop, "tolist", None)
    stops = stop if listed is None else listed()
    if not isinstance(stops, Sequence):
        raise ValueError(
            "SamplingParams.stop: expected a string, a list of strings or a list of token ids, got "
            f"{type(stop).__name__}"
        )
    items = cast("Sequence[object]", stops)
    if all(isinstance(item, str) for item in items):
        return cast("list[str]", list(items))
    if all(isinstance(item, (int, np.integer)) for item in items):
        return [int(cast("int", item)) for item in items]
    raise ValueError(f"SamplingParams.stop: expected only strings or only token ids, got {stop!r}")


LossFnType: TypeAlias = models.ListedLossFnType
OptimParams: TypeAlias = AdamParams | DimuonParams


def _datums(data: Iterable[object]) -> list[Datum]:
    return [Datum.model_validate(datum) for datum in data]


def _model_input(value: object) -> ModelInput:
    return ModelInput.model_validate(value)


def _sampling_params(value: object) -> SamplingParams:
    return SamplingParams.model_validate(value)


def _tensor(value: object) -> TensorData | None:
    return None if value is None else TensorData.model_validate(value)


@attrs.frozen
class ForwardBackwardInput(AttrsValue):
    """Data and loss of one computation.

    Attributes:
        data: The examples.
        loss_fn: The name of the loss.
        loss_fn_config: Settings of the loss. None means the server's defaults.
    """

    data: list[Datum] = attrs.field(converter=_datums)
    loss_fn: LossFnType
    loss_fn_config: Mapping[str, float | str] | None = None


def _loss_input(value: object) -> ForwardBackwardInput:
    return ForwardBackwardInput.model_validate(value)


@attrs.frozen
class ForwardBackwardRequest(AttrsValue):
    """Body of a ``forward_backward`` request."""

    forward_backward_input: ForwardBackwardInput = attrs.field(converter=_loss_input)
    model_id: str
    seq_id: int | None = None


@attrs.frozen
class ForwardRequest(AttrsValue):
    """Body of a ``forward`` request."""

    forward_input: ForwardBackwardInput = attrs.field(converter=_loss_input)
    model_id: str
    seq_id: int | None = None


@attrs.frozen(kw_only=True)
class OptimStepRequest(AttrsValue):
    """Body of an ``optim_step`` request.

    ``adam_params`` and ``optimizer_params``, the names in the API, are also accepted.

    Attributes:
        optim_params: The parameters of the step.
    """

    optim_params: OptimParams
    model_id: str
    seq_id: int | None = None
    type: Literal["optim_step"] = "optim_step"

    def __init__(
        self,
        *,
        optim_params: OptimParams | None = None,
        model_id: str,
        seq_id: int | None = None,
        type: Literal["optim_step"] = "optim_step",
        adam_params: AdamParams | None = None,
        optimizer_params: OptimParams | None = None,
    ) -> None:
        given = [
            params for params in (optim_params, adam_params, optimizer_params) if params is not None
        ]
        if len(given) != 1:
            raise ValueError(
                f"OptimStepRequest takes one set of optimizer parameters, got {len(given)}"
            )
        fields = {
            "optim_params": _optim_params(given[0]),
            "model_id": model_id,
            "seq_id": seq_id,
            "type": type,
        }
        self.__attrs_init__(**fields)  # type: ignore[attr-defined]  # made by attrs, which mypy does not know

    @property
    def adam_params(self) -> AdamParams | None:
        """Return the parameters by their name on the wire and in older versions, where they are
        Adam's.
        """
        return self.optim_params if isinstance(self.optim_params, AdamParams) else None

    @property
    def optimizer_params(self) -> OptimParams | None:
        """Return the parameters by their name on the wire, where they are those of another
        optimizer.
        """
        return None if isinstance(self.optim_params, AdamParams) else self.optim_params

    def _field_values(self) -> dict[str, Any]:
        name = "adam_params" if isinstance(self.optim_params, AdamParams) else "optimizer_params"
        return {
            "model_id": self.model_id,
            "seq_id": self.seq_id,
            "type": self.type,
            name: self.optim_params,
        }


def _optim_params(value: object) -> OptimParams:
    if isinstance(value, (AdamParams, DimuonParams)):
        return value
    fields = cast("Mapping[str, Any]", value)
    return (
        DimuonParams.model_validate(fields)
        if fields.get("type") == "dimuon"
        else AdamParams.model_validate(fields)
    )


@attrs.frozen(kw_only=True)
class SampleRequest(AttrsValue):
    """Body of a sample request to a sampling session, a base model or a checkpoint."""

    num_samples: int = 1
    prompt: ModelInput = attrs.field(converter=_model_input)
    sampling_params: SamplingParams = attrs.field(converter=_sampling_params)
    base_model: str | None = None
    model_path: str | None = None
    sampling_session_id: str | None = None
    seq_id: int | None = None
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = 0
    topk_sample_logprobs: int = 0
    target_prompt_logprobs: TensorData | None = attrs.field(default=None, converter=_tensor)
    prompt_alt_tokens_k: int = 0
    prompt_logprobs_last_n: int | None = None
    record_stability_info: bool | None = None
    type: Literal["sample"] = "sample"


def instant(value: datetime.datetime | str) -> datetime.datetime:
    """Return a time with a time zone, from itself or RFC 3339 text; ValueError for
    anything else.
    """
    given = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(given, datetime.datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"expected a datetime or RFC 3339 text, got {type(given).__name__}")
    if given.tzinfo is None:
        raise ValueError(f"{given.isoformat()} needs a time zone, such as {given.isoformat()}Z")
    return given


@attrs.frozen(kw_only=True)
class GetBillingUsageRequest(AttrsValue):
    """Period of a billing query; both ends must have a time zone.

    Attributes:
        starting_on: The first hour, a datetime or RFC 3339 text.
        ending_before: The hour after the last one, in the same form. Must be later than
            ``starting_on``.
    """

    starting_on: datetime.datetime = attrs.field(converter=instant)
    ending_before: datetime.datetime = attrs.field(converter=instant)

    def __attrs_post_init__(self) -> None:
        if self.starting_on >= self.ending_before:
            raise ValueError(
                f"starting_on ({self.starting_on}) must be before ending_before "
                f"({self.ending_before})"
            )


@attrs.frozen(kw_only=True)
class GetCurrentCheckpointStorageUsageRequest(AttrsValue):
    """Which checkpoints to count.

    Attributes:
        project_id: The project of the checkpoints. None counts the checkpoints of all projects.
    """

    project_id: str | None = None
