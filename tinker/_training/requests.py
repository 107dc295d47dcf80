"""The requests of a training run with one JSON body, and the conversion of their results.

Each is a function of the model's id and the number of the request, which are known when its turn
has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker._http import retry
from tinker._http.messages import PreparedRequest, Purpose
from tinker._http.submission import Variant
from tinker._http.transport import Reply, Transport
from tinker._session.results import ResultSpec, json_only
from tinker._training.order import Numbers, RunTarget
from tinker.types.params import AdamParams, DimuonParams
from tinker.types.results import (
    SaveWeightsExternalResponse,
    SaveWeightsForSamplerResponse,
    SaveWeightsResponse,
)

T = TypeVar("T")
Fill: TypeAlias = Callable[[RunTarget, int], Request[models.UntypedAPIFuture]]


class _NumberedBody(msgspec.Struct, frozen=True):
    """The body of a request to a model, under each number."""

    transport: Transport
    fill: Fill
    target: RunTarget

    async def write(self, variant: Variant) -> PreparedRequest:
        request = self.fill(self.target, variant.number)
        return self.transport.prepare(request, Purpose.SESSION)


class RunRequest(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request of a run. Where it ``changes_run``, its failure stops later ones until the user
    has the error.
    """

    operation: str
    fill: Fill
    spec: ResultSpec[T]
    changes_run: bool = True
    is_numbered: bool = True

    async def submit(
        self, transport: Transport, target: RunTarget, numbers: Numbers
    ) -> Reply[models.UntypedAPIFuture]:
        """Send it under the next number, if it has one."""
        if not self.is_numbered:
            return await transport.send(self.fill(target, 0), retry.SUBMIT)
        body, first = _NumberedBody(transport, self.fill, target), Variant(numbers.next)
        written = {first: await body.write(first)}
        return await transport.send_variant(
            Variant(next(numbers)), written, body, models.UntypedAPIFuture, numbers=numbers
        )


def optim_step(params: AdamParams | DimuonParams) -> RunRequest[models.OptimStepResponse]:
    """Describe an optimizer step."""

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        body = models.OptimStepRequest(
            model_id=target.model_id,
            seq_id=number,
            adam_params=params if isinstance(params, AdamParams) else None,
            optimizer_params=params if isinstance(params, DimuonParams) else None,
        )
        return training_api.optim_step(body, x_tinker_known_failure=target.known_failure)

    return RunRequest(
        operation="optim_step", fill=fill, spec=json_only("OptimStep", models.OptimStepResponse)
    )


def save_state(
    name: str,
    ttl_seconds: int | None,
    overwrite: bool,
    user_metadata: Mapping[str, str] | None,
    keep_last: int | None,
) -> RunRequest[SaveWeightsResponse]:
    """Describe a save of weights and optimizer state."""
    metadata = _strings(user_metadata)

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsRequest(
            model_id=target.model_id,
            seq_id=number,
            path=name,
            ttl_seconds=ttl_seconds,
            overwrite=overwrite,
            user_metadata=metadata,
            keep_last=keep_last,
        )
        return weights_api.save_weights(body, x_tinker_known_failure=target.known_failure)

    spec = ResultSpec(
        "SaveWeights",
        models.SaveWeightsResponse,
        lambda answer, _: SaveWeightsResponse(path=answer.path, type=answer.type),
    )
    return RunRequest(operation="save_state", fill=fill, spec=spec, changes_run=False)


def save_weights_for_sampler(
    name: str,
    ttl_seconds: int | None,
    user_metadata: Mapping[str, str] | None,
    keep_last: int | None,
) -> RunRequest[SaveWeightsForSamplerResponse]:
    """Describe a save of weights to sample from."""
    metadata = _strings(user_metadata)

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsForSamplerRequest(
            model_id=target.model_id,
            seq_id=number,
            path=name,
            ttl_seconds=ttl_seconds,
            user_metadata=metadata,
            keep_last=keep_last,
        )
        return weights_api.save_weights_for_sampler(
            body, x_tinker_known_failure=target.known_failure
        )

    spec = ResultSpec(
        "SaveWeightsForSampler",
        models.SaveWeightsForSamplerResponseInternal,
        lambda answer, _: SaveWeightsForSamplerResponse(
            path=_present(answer.path, "path"), type=answer.type
        ),
    )
    return RunRequest(operation="save_weights_for_sampler", fill=fill, spec=spec, changes_run=False)


def save_for_sampling_session(
    kind: models.SamplingClientKind, sampler_numbers: Iterator[int]
) -> RunRequest[str]:
    """Describe a save of weights under no name; the result is the id of a sampling
    session on them.
    """

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsForSamplerRequest(
            model_id=target.model_id,
            seq_id=number,
            sampling_session_seq_id=next(sampler_numbers),
            kind=kind,
        )
        return weights_api.save_weights_for_sampler(
            body, x_tinker_known_failure=target.known_failure
        )

    spec = ResultSpec(
        "SaveWeightsForSampler",
        models.SaveWeightsForSamplerResponseInternal,
        lambda answer, _: _present(answer.sampling_session_id, "sampling_session_id"),
    )
    return RunRequest(
        operation="save_weights_and_get_sampling_client", fill=fill, spec=spec, changes_run=False
    )


def save_weights_external(
    name: str, ttl_seconds: int | None, recipients: Sequence[str] | None
) -> RunRequest[SaveWeightsExternalResponse]:
    """Describe a save of weights as files to download."""

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        body = models.SaveWeightsExternalRequest(
            model_id=target.model_id,
            seq_id=number,
            path=name,
            ttl_seconds=ttl_seconds,
            age_encryption_recipients=recipients,
        )
        return weights_api.save_weights_external(body, x_tinker_known_failure=target.known_failure)

    spec = ResultSpec(
        "SaveWeightsExternal",
        models.SaveWeightsExternalResponseInternal,
        lambda answer, _: SaveWeightsExternalResponse(path=_present(answer.path, "path")),
    )
    return RunRequest(operation="save_weights_external", fill=fill, spec=spec, changes_run=False)


def load_state(
    operation: str, path: str, weights_access_token: str | None, *, with_optimizer: bool
) -> RunRequest[models.LoadWeightsResponse]:
    """Describe a load of saved weights."""

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        body = models.LoadWeightsRequest(
            model_id=target.model_id,
            seq_id=number,
            path=path,
            optimizer=with_optimizer,
            weights_access_token=weights_access_token,
        )
        return weights_api.load_weights(body, x_tinker_known_failure=target.known_failure)

    return RunRequest(
        operation=operation, fill=fill, spec=json_only("LoadWeights", models.LoadWeightsResponse)
    )


def unload_model() -> RunRequest[models.UnloadModelResponse]:
    """Describe the end of a run; it carries no number."""

    def fill(target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        return training_api.unload_model(models.UnloadModelRequest(model_id=target.model_id))

    spec = json_only("UnloadModel", models.UnloadModelResponse)
    return RunRequest(
        operation="unload_model", fill=fill, spec=spec, changes_run=False, is_numbered=False
    )


def _strings(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if metadata is None else dict(metadata)


def _present(value: str | None, field: str) -> str:
    if value is None:
        raise ValueError(f"the server's response is missing {field}")
    return value
