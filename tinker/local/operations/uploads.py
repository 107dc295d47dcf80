"""Adapters that clients bring: announced, sent to signed URLs, and made into checkpoints that can be trained on."""

from __future__ import annotations

import uuid

from tinker_wire import models

from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.errors import APIProblem, make_not_found
from tinker.local.operations.models import adapter_spec, check_spec, lora_config
from tinker.local.state import State
from tinker.local.storage.checkpoint_records import CheckpointRecord, checkpoint_path
from tinker.local.storage.uploads import AdapterUpload

CHECKPOINT_NAME = "uploaded"


def open_upload(
    state: State, engine: Engine, base_model: str, request: models.ExternalWeightsUploadStartRequest
) -> AdapterUpload:
    """Begin an upload. Raises APIProblem 400 for an adapter that cannot be, 429 when too many are under way."""
    spec = adapter_spec(request.lora_config)
    check_spec(state, spec)
    if not (spec.train_attn or spec.train_mlp or spec.train_unembed):
        raise APIProblem(400, "lora_config trains nothing: one of train_attn, train_mlp and train_unembed must be true")
    with state.lock() as shared:
        state.require_open()
        if not shared.uploads.has_room(state.settings.max_uploads):
            limit = f"max_uploads={state.settings.max_uploads}"
            raise APIProblem(429, f"too many uploads are under way ({limit})", {"retry-after": "10"})
        seconds = state.settings.link_seconds
        return shared.uploads.open(
            base_model, engine.base_model, spec, request.destination_project_id, engine.adapter_files, seconds
        )


async def finish_upload(state: State, upload_id: str) -> str:
    """Make a checkpoint of an upload and return its path, the same one each time."""
    upload = _find_open(state, upload_id)
    if upload.tinker_path is None:
        await state.run_in_engine(upload.engine_model, lambda engine: _import(state, upload, engine))
    assert upload.tinker_path is not None
    return upload.tinker_path


def _find_open(state: State, upload_id: str) -> AdapterUpload:
    with state.lock() as shared:
        upload = shared.uploads.find(upload_id)
    if upload is None:
        raise make_not_found("upload_not_found", upload_id)
    if upload.tinker_path is None and (missing := upload.missing):
        raise APIProblem(400, f"files of the upload are missing: {', '.join(missing)}")
    return upload


def _import(state: State, upload: AdapterUpload, engine: Engine) -> None:
    """Write the checkpoint, unless another request did so meanwhile. In the engine's thread.

    Files that the engine refuses are of no use: the upload is forgotten.
    """
    if upload.tinker_path is not None:
        return
    try:
        record = state.checkpoints.write(
            _record(state, upload, engine),
            lambda folder: engine.import_adapter(upload.folder, upload.spec, folder),
            overwrite=False,
        )
    except EngineError:
        with state.lock() as shared:
            shared.uploads.drop(upload)
        raise
    with state.lock() as shared:
        shared.uploads.finish(upload, record.path)
        shared.audit.record_checkpoint("checkpoint_created", record, "upload")


def _record(state: State, upload: AdapterUpload, engine: Engine) -> CheckpointRecord:
    run = str(uuid.uuid4())
    return CheckpointRecord(
        path=checkpoint_path(run, "weights", CHECKPOINT_NAME),
        training_run_id=run,
        kind="weights",
        name=CHECKPOINT_NAME,
        base_model=upload.base_model,
        engine_model=engine.base_model,
        lora_config=lora_config(upload.spec),
        created_at=state.now(),
        project_id=upload.project_id,
    )
