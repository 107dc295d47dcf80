"""The common part of the servers for clients of late 2025: JSON, and the operations that all of them have."""

from __future__ import annotations

from tinker_wire.operations import OPERATIONS

from tinker.local.profiles import JSONObject, Profile
from tinker.testing.servers.rewriting import LATER_SAMPLE_FIELDS, drop_fields, keep_fields, require_fields

_OFFERED = frozenset(
    (
        "healthz",
        "create_session",
        "session_heartbeat",
        "get_server_capabilities",
        "telemetry",
        "create_model",
        "unload_model",
        "get_info",
        "forward",
        "forward_backward",
        "optim_step",
        "save_weights",
        "save_weights_for_sampler",
        "load_weights",
        "weights_info",
        "get_training_run",
        "create_sampling_session",
        "get_sampler",
        "asample",
        "retrieve_future",
    )
)


def _read_load(body: JSONObject) -> JSONObject:
    require_fields(body, "model_id", "path")
    return keep_fields("model_id", "seq_id", "path", "optimizer", "type")(body)


def _write_capabilities(_: JSONObject, answer: JSONObject) -> JSONObject:
    return {"supported_models": [{"model_name": model["model_name"]} for model in answer["supported_models"]]}


def _read_optim_step(body: JSONObject) -> JSONObject:
    require_fields(body, "model_id", "adam_params")
    return drop_fields("optimizer_params")(body)


MINIMAL_JSON = Profile(
    name="minimal-json",
    absent={name: 404 for name in OPERATIONS if name not in _OFFERED},
    protobuf=False,
    announces_size=False,
    pending_status=408,
    pending_body=keep_fields("queue_state", "detail"),
    requests={
        "create_model": drop_fields("optimizer_config"),
        "optim_step": _read_optim_step,
        "load_weights": _read_load,
        "save_weights": drop_fields("overwrite", "ttl_seconds", "user_metadata"),
        "save_weights_for_sampler": drop_fields("kind", "ttl_seconds", "user_metadata"),
        "asample": drop_fields(*LATER_SAMPLE_FIELDS),
    },
    answers={
        "asample": drop_fields("sample_sequence_ids"),
        "get_sampler": drop_fields("tokenizer_id"),
        "get_server_capabilities": _write_capabilities,
    },
)
