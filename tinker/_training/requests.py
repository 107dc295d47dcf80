"""The requests of a training run that are one JSON body: what is sent, and what the result becomes.

Which model it is for and which number it carries is filled in when its turn has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker._http import SUBMIT, PreparedRequest, Purpose, Reply, Transport, Variant
from tinker._session import ResultSpec, json_only
from tinker._training.numbers import Numbers, RunTarget
from tinker.types.params import AdamParams, DimuonParams
from tinker.types.results import SaveWeightsExternalResponse, SaveWeightsForSamplerResponse, SaveWeightsResponse

T = TypeVar("T")

_LATER = ""  # in the place of the model's id, until it is known


class RunRequest(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request of a run. Where it ``changes_run``, its failure stops later ones until the user has the error."""

    operation: str
    build: Callable[..., Request[models.UntypedAPIFuture]]
    body: msgspec.Struct
    spec: ResultSpec[T]
    changes_run: bool = True
    is_numbered: bool = True
    sampler_numbers: Iterator[int] | None = None

    async def submit(self, transport: Transport, target: RunTarget, numbers: Numbers) -> Reply[models.UntypedAPIFuture]:
        """Send it under the next number, if it has one."""
        if not self.is_numbered:
            return await transport.send(self._fill(target, 0), SUBMIT)

        async def encode(send: Variant) -> PreparedRequest:
            return transport.prepare(self._fill(target, send.number), Purpose.SESSION)

        first = Variant(numbers.next)
        prepared = await encode(first)  # which waits for nothing, so that the number is the next one still
        numbers.take()
        return await transport.send_variant(first, prepared, encode, models.UntypedAPIFuture, numbers=numbers)

    def _fill(self, target: RunTarget, number: int) -> Request[models.UntypedAPIFuture]:
        """Return the request to a model, under a number."""
        filled: dict[str, object] = {"model_id": target.model_id}
        headers: dict[str, int] = {}
        if self.is_numbered:
            filled["seq_id"] = number
            headers["x_tinker_known_failure"] = target.known_failure
        if self.sampler_numbers is not None:
            filled["sampling_session_seq_id"] = next(self.sampler_numbers)
        return self.build(msgspec.structs.replace(self.body, **filled), **headers)


def optim_step(params: AdamParams | DimuonParams) -> RunRequest[models.OptimStepResponse]:
    """Describe an optimizer step."""
    adam = params if isinstance(params, AdamParams) else None
    other = params if isinstance(params, DimuonParams) else None
    return RunRequest(
        operation="optim_step",
        build=training_api.optim_step,
        body=models.OptimStepRequest(model_id=_LATER, adam_params=adam, optimizer_params=other),
        spec=json_only("OptimStep", models.OptimStepResponse),
    )


def save_state(
    name: str, ttl_seconds: int | None, overwrite: bool, user_metadata: Mapping[str, str] | None
) -> RunRequest[SaveWeightsResponse]:
    """Describe a save of weights and optimizer state."""
    return RunRequest(
        operation="save_state",
        build=weights_api.save_weights,
        body=models.SaveWeightsRequest(
            model_id=_LATER, path=name, ttl_seconds=ttl_seconds, overwrite=overwrite, user_metadata=_strings(user_metadata)
        ),
        spec=ResultSpec("SaveWeights", models.SaveWeightsResponse, lambda answer: SaveWeightsResponse(path=answer.path)),
        changes_run=False,
    )


def save_weights_for_sampler(
    name: str, ttl_seconds: int | None, user_metadata: Mapping[str, str] | None
) -> RunRequest[SaveWeightsForSamplerResponse]:
    """Describe a save of weights to sample from."""
    return RunRequest(
        operation="save_weights_for_sampler",
        build=weights_api.save_weights_for_sampler,
        body=models.SaveWeightsForSamplerRequest(
            model_id=_LATER, path=name, ttl_seconds=ttl_seconds, user_metadata=_strings(user_metadata)
        ),
        spec=ResultSpec(
            "SaveWeightsForSampler",
            models.SaveWeightsForSamplerResponseInternal,
            lambda answer: SaveWeightsForSamplerResponse(path=_present(answer.path, "path")),
        ),
        changes_run=False,
    )


def save_for_sampling_session(kind: models.SamplingClientKind, sampler_numbers: Iterator[int]) -> RunRequest[str]:
    """Describe a save of weights under no name; the result is the id of a sampling session on them."""
    return RunRequest(
        operation="save_weights_and_get_sampling_client",
        build=weights_api.save_weights_for_sampler,
        body=models.SaveWeightsForSamplerRequest(model_id=_LATER, kind=kind),
        spec=ResultSpec(
            "SaveWeightsForSampler",
            models.SaveWeightsForSamplerResponseInternal,
            lambda answer: _present(answer.sampling_session_id, "sampling_session_id"),
        ),
        changes_run=False,
        sampler_numbers=sampler_numbers,
    )


def save_weights_external(
    name: str, ttl_seconds: int | None, recipients: Sequence[str] | None
) -> RunRequest[SaveWeightsExternalResponse]:
    """Describe a save of weights as files to download."""
    return RunRequest(
        operation="save_weights_external",
        build=weights_api.save_weights_external,
        body=models.SaveWeightsExternalRequest(
            model_id=_LATER, path=name, ttl_seconds=ttl_seconds, age_encryption_recipients=recipients
        ),
        spec=ResultSpec(
            "SaveWeightsExternal",
            models.SaveWeightsExternalResponseInternal,
            lambda answer: SaveWeightsExternalResponse(path=_present(answer.path, "path")),
        ),
        changes_run=False,
    )


def load_state(
    operation: str, path: str, weights_access_token: str | None, *, with_optimizer: bool
) -> RunRequest[models.LoadWeightsResponse]:
    """Describe a load of saved weights."""
    body = models.LoadWeightsRequest(path=path, optimizer=with_optimizer, weights_access_token=weights_access_token)
    return RunRequest(
        operation=operation,
        build=weights_api.load_weights,
        body=body,
        spec=json_only("LoadWeights", models.LoadWeightsResponse),
    )


def unload_model() -> RunRequest[models.UnloadModelResponse]:
    """Describe the end of a run; it carries no number."""
    return RunRequest(
        operation="unload_model",
        build=training_api.unload_model,
        body=models.UnloadModelRequest(model_id=_LATER),
        spec=json_only("UnloadModel", models.UnloadModelResponse),
        changes_run=False,
        is_numbered=False,
    )


def _strings(metadata: Mapping[str, str] | None) -> dict[str, str] | None:
    return None if metadata is None else dict(metadata)


def _present(value: str | None, field: str) -> str:
    if value is None:
        raise ValueError(f"the server's response is missing {field}")
    return value
