"""The work of requests on models, losses, samples and checkpoints, between the handlers and the engine."""

from __future__ import annotations

from tinker.local.operations.creation import NewModel, adapter_spec, check_rank, creation_step
from tinker.local.operations.descriptions import (
    describe_checkpoints,
    describe_model,
    list_runs,
    public_checkpoint,
    summarize_session,
    to_string_map,
)
from tinker.local.operations.loads import load_into_model, load_into_new_model
from tinker.local.operations.lookup import check_ttl, find_addressed, find_checkpoint, require_checkpoint
from tinker.local.operations.loss_requests import (
    LOSS_SETTINGS,
    LossRequest,
    check_custom_loss,
    check_loss,
    compute_loss,
    decode_datum,
    prepare_data,
)
from tinker.local.operations.model_inputs import read_input
from tinker.local.operations.optimizers import optimizer_config, optimizer_family, step_params
from tinker.local.operations.samples import count_prompt_tokens, count_tokens, to_job, to_response
from tinker.local.operations.saves import Save
from tinker.local.operations.search import search_records
from tinker.local.operations.streams import EVENT_STREAM, STREAM_HEADERS, TokenStream, check_sample, check_stream
from tinker.local.operations.uploads import finish_upload, open_upload

__all__ = [
    "EVENT_STREAM",
    "LOSS_SETTINGS",
    "LossRequest",
    "NewModel",
    "STREAM_HEADERS",
    "Save",
    "TokenStream",
    "adapter_spec",
    "check_custom_loss",
    "check_loss",
    "check_rank",
    "check_sample",
    "check_stream",
    "check_ttl",
    "compute_loss",
    "count_prompt_tokens",
    "count_tokens",
    "creation_step",
    "decode_datum",
    "describe_checkpoints",
    "describe_model",
    "find_addressed",
    "find_checkpoint",
    "finish_upload",
    "list_runs",
    "load_into_model",
    "load_into_new_model",
    "open_upload",
    "prepare_data",
    "optimizer_config",
    "optimizer_family",
    "public_checkpoint",
    "require_checkpoint",
    "search_records",
    "step_params",
    "summarize_session",
    "read_input",
    "to_job",
    "to_response",
    "to_string_map",
]
