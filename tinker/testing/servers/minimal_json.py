"""The common part of the servers for clients of late 2025: JSON, and the operations that all of them have."""

from __future__ import annotations

from tinker.local.profiles import JSONObject, Profile
from tinker.testing.servers.rewriting import drop_fields, drop_later, keep_fields, offer_only, require_fields

_OPTIONAL = ("forward", "get_sampler", "healthz", "session_heartbeat", "telemetry", "unload_model")
_LATER = ("delete_checkpoint", "list_checkpoints", "list_training_runs")


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
    absent=offer_only(*_OPTIONAL, without=_LATER),
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
        "asample": drop_later,
    },
    answers={
        "asample": drop_fields("sample_sequence_ids"),
        "get_sampler": drop_fields("tokenizer_id"),
        "get_server_capabilities": _write_capabilities,
    },
)
