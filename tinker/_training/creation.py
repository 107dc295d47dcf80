"""How the model of a training run comes into being: new over a base model, or from saved weights.

A server that cannot create a model by loading gets a fitting new one, into which the weights are loaded.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api

from tinker._http import SUBMIT, statuses
from tinker._runtime import Runtime
from tinker._session import ResultSpec, SessionContext, json_only, suggest_models
from tinker._training.numbers import Numbers
from tinker.errors import APIStatusError
from tinker.futures import APIFuture
from tinker.types.params import LoraConfig, OptimizerConfig
from tinker.types.paths import ParsedCheckpointTinkerPath

CREATED: ResultSpec[models.CreateModelResponse] = json_only("CreateModel", models.CreateModelResponse)
LOADED: ResultSpec[models.LoadWeightsResponse] = json_only("LoadWeights", models.LoadWeightsResponse)
# The defaults of the SDKs.
DEFAULT_RANK = 32


class NewAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """A new adapter over a base model."""

    base_model: str
    lora: LoraConfig
    optimizer: OptimizerConfig | None
    user_metadata: dict[str, object] | None

    async def create(self, runtime: Runtime, numbers: Numbers, future: APIFuture[Any], context: SessionContext, /) -> str:
        """Create the model and return its id."""
        body = models.CreateModelRequest(
            session_id=context.session_id,
            model_seq_id=next(runtime.session.model_numbers),
            base_model=self.base_model,
            user_metadata=self.user_metadata,
            lora_config=self.lora,
            optimizer_config=self.optimizer or models.AdamOptimizerConfig(),
        )
        with suggest_models(self.base_model, runtime.server.known_models):
            return await _create(future, context, body)


@attrs.frozen(kw_only=True)
class SavedAdapter:
    """A model that starts from saved weights. ``optimizer`` is the kind of a fresh one."""

    path: str
    base_model: str | None = None
    user_metadata: dict[str, object] | None
    weights_access_token: str | None = attrs.field(default=None, repr=False)
    optimizer: OptimizerConfig | None = None
    with_optimizer: bool

    async def create(self, runtime: Runtime, numbers: Numbers, future: APIFuture[Any], context: SessionContext, /) -> str:
        """Create the model by loading, else create one and load into it; return its id."""
        number = next(runtime.session.model_numbers)
        body = models.LoadWeightsRequest(
            session_id=context.session_id,
            model_seq_id=number,
            base_model=self.base_model,
            user_metadata=self.user_metadata,
            path=self.path,
            optimizer=self.with_optimizer,
            optimizer_config=self.optimizer,
            weights_access_token=self.weights_access_token,
        )
        try:
            submission = await runtime.transport.send(weights_api.load_weights(body), SUBMIT)
        except APIStatusError as error:
            if not statuses.is_format_refused(error):
                raise
            if error.may_have_arrived:  # the server may have given the number to a model
                body = msgspec.structs.replace(body, model_seq_id=next(runtime.session.model_numbers))
            return await _create_then_load(runtime, numbers, future, context, body)
        loaded = await context.results.wait(submission, LOADED, future)
        return loaded.model_id or f"{context.session_id}:train:{number}"


Creation: TypeAlias = NewAdapter | SavedAdapter
"""Makes the model of a run; ``create`` may use numbers of the run for that."""


async def _create(future: APIFuture[Any], context: SessionContext, body: models.CreateModelRequest) -> str:
    return (await context.submit(training_api.create_model(body), CREATED, future)).model_id


async def _create_then_load(
    runtime: Runtime, numbers: Numbers, future: APIFuture[Any], context: SessionContext, body: models.LoadWeightsRequest
) -> str:
    """Return the id of a new model that holds the weights; the load is the run's first request."""
    base_model, lora = await _find_origin(runtime, body.path)
    assert body.model_seq_id is not None
    create = models.CreateModelRequest(
        session_id=context.session_id,
        model_seq_id=body.model_seq_id,
        base_model=body.base_model or base_model,
        user_metadata=body.user_metadata,
        lora_config=lora,
        optimizer_config=body.optimizer_config or models.AdamOptimizerConfig(),
    )
    model_id = await _create(future, context, create)
    load = models.LoadWeightsRequest(
        model_id=model_id,
        seq_id=numbers.take(),
        path=body.path,
        optimizer=body.optimizer,
        weights_access_token=body.weights_access_token,
    )
    await context.submit(weights_api.load_weights(load), LOADED, future)
    return model_id


async def _find_origin(runtime: Runtime, path: str) -> tuple[str, models.LoraConfig]:
    """Ask the checkpoint, or its training run on servers that do not know that, for the base model and the adapter."""
    transport = runtime.transport
    info = await transport.send_optional(weights_api.weights_info(models.WeightsInfoRequest(tinker_path=path)), SUBMIT)
    if info is None:
        run_id = ParsedCheckpointTinkerPath.from_tinker_path(path).training_run_id
        run = (await transport.send(training_api.get_training_run(training_run_id=run_id), SUBMIT)).value
        return run.base_model, models.LoraConfig(rank=run.lora_rank or DEFAULT_RANK)
    lora = models.LoraConfig(
        rank=info.lora_rank or DEFAULT_RANK,
        train_unembed=info.train_unembed is not False,
        train_mlp=info.train_mlp is not False,
        train_attn=info.train_attn is not False,
    )
    return info.base_model, lora
