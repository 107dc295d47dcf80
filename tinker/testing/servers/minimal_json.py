"""The common part of the servers for clients of late 2025: JSON, and the operations that all of them have."""

from __future__ import annotations

from tinker.local.profiles import JSONObject, Profile
from tinker.testing.servers.rewriting import drop_fields, drop_later, keep_fields, offer_only

_OPTIONAL = ("forward", "get_sampler", "healthz", "session_heartbeat", "telemetry", "unload_model")
_LATER = ("delete_checkpoint", "list_checkpoints", "list_training_runs")


def _write_capabilities(_: JSONObject, answer: JSONObject) -> JSONObject:
    return {"supported_models": [{"model_name": model["model_name"]} for model in answer["supported_models"]]}


MINIMAL_JSON = Profile(
    name="minimal-json",
    absent=offer_only(*_OPTIONAL, without=_LATER),
    protobuf=False,
    announces_size=False,
    pending_status=408,
    pending_body=keep_fields("queue_state", "detail"),
    requests={
        "create_model": drop_fields("optimizer_config"),
        "optim_step": drop_fields("optimizer_params", required=("model_id", "adam_params")),
        "load_weights": keep_fields("model_id", "seq_id", "path", "optimizer", "type", required=("model_id", "path")),
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
