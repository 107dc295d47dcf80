"""Servers that are nobody's product: the common part of several, one that is strict, and one that
reads JSON only.
"""

from __future__ import annotations

from typing import cast

from tinker_wire import models

from tinker.local.errors import APIProblem
from tinker.local.profiles import JSONObject, Profile, Rewrite
from tinker.testing.servers.rewriting import (
    LATER_SAMPLE_FIELDS,
    drop_fields,
    drop_later,
    keep_fields,
    offer_only,
    write_names,
)

_OPTIONAL = ("forward", "get_sampler", "healthz", "session_heartbeat", "telemetry", "unload_model")
_LATER = ("delete_checkpoint", "list_checkpoints", "list_training_runs")
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
        "load_weights": keep_fields(
            "model_id", "seq_id", "path", "optimizer", "type", required=("model_id", "path")
        ),
        "save_weights": drop_fields("overwrite", "ttl_seconds", "user_metadata"),
        "save_weights_for_sampler": drop_fields("kind", "ttl_seconds", "user_metadata"),
        "asample": drop_later,
    },
    answers={
        "asample": drop_fields("sample_sequence_ids"),
        "get_sampler": drop_fields("tokenizer_id"),
        "get_server_capabilities": write_names,
    },
)


def _forbid(*unknown: str) -> Rewrite:
    """Refuse a body that has one of these fields, whatever is in it."""

    def rewrite(body: JSONObject) -> JSONObject:
        extra = [
            {
                "type": "extra_forbidden",
                "loc": ["body", name],
                "msg": "Extra inputs are not permitted",
            }
            for name in unknown
            if name in body
        ]
        if extra:
            raise APIProblem(422, cast("models.JSONValue", extra))
        return body

    return rewrite


def _add_null_type(*bodies: JSONObject) -> JSONObject:
    """Return the last argument with a ``type`` that is null, as such a server writes every absent
    field.
    """
    return {**bodies[-1], "type": None}


STRICT = Profile(
    name="strict",
    requests={
        "create_model": _forbid("optimizer_config"),
        "save_weights_for_sampler": _forbid("kind"),
        "asample": _forbid(*LATER_SAMPLE_FIELDS),
    },
    answers={"get_info": _add_null_type},
    results=dict.fromkeys(
        (
            models.LoadWeightsResponse,
            models.SaveWeightsResponse,
            models.SaveWeightsForSamplerResponseInternal,
            models.SaveWeightsExternalResponseInternal,
            models.UnloadModelResponse,
        ),
        _add_null_type,
    ),
)
PLAIN_JSON = Profile(
    name="plain-json",
    protobuf=False,
    announces_size=False,
    protobuf_problem=APIProblem(500, "Internal Server Error"),
)
