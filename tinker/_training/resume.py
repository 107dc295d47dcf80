"""A training run from saved weights on a server that cannot create a model by loading: create a fitting one, then load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import msgspec
from tinker_wire import models
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api

from tinker._http import SUBMIT
from tinker._session import Expected, json_only
from tinker.types.paths import ParsedCheckpointTinkerPath

if TYPE_CHECKING:
    from tinker._runtime import Runtime
    from tinker._session import Started
    from tinker._training.numbers import Numbers
    from tinker.training_client import TrainingClient

LOADED: Expected[models.LoadWeightsResponse] = json_only("LoadWeights", models.LoadWeightsResponse)
CREATED: Expected[models.CreateModelResponse] = json_only("CreateModel", models.CreateModelResponse)


@attrs.frozen
class _Origin:
    """What the weights were trained on."""

    base_model: str
    lora: models.LoraConfig


async def create_then_load(
    runtime: Runtime, client: TrainingClient, started: Started, numbers: Numbers, body: models.LoadWeightsRequest
) -> str:
    """The id of a new model that holds the weights; the load is the run's first request."""
    origin = await _origin(runtime, body.path)
    assert body.model_seq_id is not None
    create = models.CreateModelRequest(
        session_id=started.session_id,
        model_seq_id=body.model_seq_id,
        base_model=body.base_model or origin.base_model,
        user_metadata=body.user_metadata,
        lora_config=origin.lora,
        optimizer_config=body.optimizer_config or models.AdamOptimizerConfig(),
    )
    model_id = (await started.submit(training_api.create_model(create), CREATED, client)).model_id
    load = msgspec.structs.replace(
        body,
        session_id=None,
        model_seq_id=None,
        base_model=None,
        user_metadata=None,
        optimizer_config=None,
        model_id=model_id,
        seq_id=numbers.take(),
    )
    await started.submit(weights_api.load_weights(load), LOADED, client)
    return model_id


async def _origin(runtime: Runtime, path: str) -> _Origin:
    """Asked of the checkpoint; of its training run on servers that do not know the former."""
    transport = runtime.transport
    info = await transport.send_optional(weights_api.weights_info(models.WeightsInfoRequest(tinker_path=path)), SUBMIT)
    if info is None:
        run_id = ParsedCheckpointTinkerPath.from_tinker_path(path).training_run_id
        run = (await transport.send(training_api.get_training_run(training_run_id=run_id), SUBMIT)).value
        return _Origin(run.base_model, models.LoraConfig(rank=run.lora_rank or DEFAULT_RANK))
    lora = models.LoraConfig(
        rank=info.lora_rank or DEFAULT_RANK,
        train_unembed=info.train_unembed is not False,
        train_mlp=info.train_mlp is not False,
        train_attn=info.train_attn is not False,
    )
    return _Origin(info.base_model, lora)


# What the SDKs take where nobody says.
DEFAULT_RANK = 32
