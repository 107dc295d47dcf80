"""A server that validates as the classes of SDK 0.25 do: unknown fields are refused, absent ones written as null."""

from __future__ import annotations

from typing import cast

from tinker_wire import models

from tinker.local.errors import APIProblem
from tinker.local.profiles import JSONObject, Profile, Rewrite
from tinker.testing.servers.rewriting import LATER_SAMPLE_FIELDS


def _forbid(*unknown: str) -> Rewrite:
    """Refuse a body that has one of these fields, whatever is in it."""

    def rewrite(body: JSONObject) -> JSONObject:
        extra = [
            {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
            for name in unknown
            if name in body
        ]
        if extra:
            raise APIProblem(422, cast("models.JSONValue", extra))
        return body

    return rewrite


def _add_null_type(*bodies: JSONObject) -> JSONObject:
    """Return the last argument with a ``type`` that is null, as such a server writes every absent field."""
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
