"""Requests made of public types, each field from a value or from its plain form. The clients'
methods take their parts.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

import attrs

from tinker.types._values import AttrsValue
from tinker.types.datum import Datum
from tinker.types.model_input import ModelInput
from tinker.types.params import AdamParams, DimuonParams, LossFnType, OptimParams, SamplingParams
from tinker.types.tensor_data import TensorData


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
