"""The requests of a training run with one JSON body, and the conversion of their results.

The contract says what is in each. The model's id and the number of the request are known when its
turn has come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from tinker_wire import models, runs

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


class _NumberedBody(msgspec.Struct, frozen=True):
    """The body of a request to a model, under each number."""

    transport: Transport
    request: runs.RunRequest[Any]
    target: RunTarget

    async def write(self, variant: Variant) -> PreparedRequest:
        model_id, known = self.target.model_id, self.target.known_failure
        return self.transport.prepare(
            self.request.fill(model_id, variant.number, known), Purpose.SESSION
        )


class RunRequest(msgspec.Struct, Generic[T], frozen=True):
    """One request of a run. Where it ``changes_run``, its failure stops later ones until the user
    has the error.
    """

    operation: str
    request: runs.RunRequest[Any]
    spec: ResultSpec[T]
    changes_run: bool = True

    async def submit(
        self, transport: Transport, target: RunTarget, numbers: Numbers
    ) -> Reply[models.UntypedAPIFuture]:
        """Send it under the next number, if it has one."""
        if not self.request.is_numbered:
            return await transport.send(self.request.fill(target.model_id, 0, None), retry.SUBMIT)
        body, first = _NumberedBody(transport, self.request, target), Variant(numbers.next)
        written = {first: await body.write(first)}
        return await transport.send_variant(
            Variant(next(numbers)), written, body, models.UntypedAPIFuture, numbers=numbers
        )


def optim_step(params: AdamParams | DimuonParams) -> RunRequest[models.OptimStepResponse]:
    """Describe an optimizer step."""
    request = runs.optim_step(
        adam_params=params if isinstance(params, AdamParams) else None,
        optimizer_params=params if isinstance(params, DimuonParams) else None,
    )
    return RunRequest("optim_step", request, json_only(request.result))


def save_state(
    name: str,
    ttl_seconds: int | None,
    overwrite: bool,
    user_metadata: Mapping[str, str] | None,
    keep_last: int | None,
) -> RunRequest[SaveWeightsResponse]:
    """Describe a save of weights and optimizer state."""
    request = runs.save_weights(
        path=name,
        ttl_seconds=ttl_seconds,
        overwrite=overwrite,
        user_metadata=_strings(user_metadata),
        keep_last=keep_last,
    )
    spec = ResultSpec(
        request.result, lambda answer, _: SaveWeightsResponse(path=answer.path, type=answer.type)
    )
    return RunRequest("save_state", request, spec, changes_run=False)


def save_weights_for_sampler(
    name: str,
    ttl_seconds: int | None,
    user_metadata: Mapping[str, str] | None,
    keep_last: int | None,
) -> RunRequest[SaveWeightsForSamplerResponse]:
    """Describe a save of weights to sample from."""
    request = runs.save_weights_for_sampler(
        path=name,
        ttl_seconds=ttl_seconds,
        user_metadata=_strings(user_metadata),
        keep_last=keep_last,
    )
    spec = ResultSpec(
        request.result,
        lambda answer, _: SaveWeightsForSamplerResponse(
            path=_present(answer.path, "path"), type=answer.type
        ),
    )
    return RunRequest("save_weights_for_sampler", request, spec, changes_run=False)


def save_for_sampling_session(kind: models.SamplingClientKind, number: int) -> RunRequest[str]:
    """Describe a save of weights under no name; the result is the id of a sampling
    session on them, which has this number.
    """
    request = runs.save_weights_for_sampler(sampling_session_seq_id=number, kind=kind)
    spec = ResultSpec(
        request.result,
        lambda answer, _: _present(answer.sampling_session_id, "sampling_session_id"),
    )
    return RunRequest("save_weights_and_get_sampling_client", request, spec, changes_run=False)


def save_weights_external(
    name: str, ttl_seconds: int | None, recipients: Sequence[str] | None
) -> RunRequest[SaveWeightsExternalResponse]:
    """Describe a save of weights as files to download."""
    request = runs.save_weights_external(
        path=name, ttl_seconds=ttl_seconds, age_encryption_recipients=recipients
    )
    spec = ResultSpec(
        request.result,
        lambda answer, _: SaveWeightsExternalResponse(path=_present(answer.path, "path")),
    )
    return RunRequest("save_weights_external", request, spec, changes_run=False)


def load_state(
    operation: str, path: str, weights_access_token: str | None, *, with_optimizer: bool
) -> RunRequest[models.LoadWeightsResponse]:
    """Describe a load of saved weights."""
    request = runs.load_weights(
        path=path, optimizer=with_optimizer, weights_access_token=weights_access_token
    )
    return RunRequest(operation, request, json_only(request.result))


def unload_model() -> RunRequest[models.UnloadModelResponse]:
    """Describe the end of a run; it carries no number."""
    request = runs.unload_model()
    return RunRequest("unload_model", request, json_only(request.result), changes_run=False)


def _strings(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if metadata is None else dict(metadata)


def _present(value: str | None, field: str) -> str:
    if value is None:
        raise ValueError(f"the server's response is missing {field}")
    return value
