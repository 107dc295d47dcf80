"""Functions that profiles are made of: changes of the JSON bodies of requests and answers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import cast

from tinker_wire.operations import OPERATIONS

from tinker.local.errors import unprocessable
from tinker.local.profiles import JSONObject, Rewrite

#: Operations that every server has.
REQUIRED = frozenset(name for name, operation in OPERATIONS.items() if not operation.optional)


def drop_fields(*fields: str, required: Collection[str] = ()) -> Callable[..., JSONObject]:
    """Return a function of objects: the last one without these fields. It refuses one that lacks a
    ``required`` field.
    """
    return lambda *bodies: {
        key: value
        for key, value in require_fields(bodies[-1], *required).items()
        if key not in fields
    }


def keep_fields(*fields: str, required: Collection[str] = ()) -> Callable[..., JSONObject]:
    """Return a function of objects: the last one with these fields alone. It refuses one that lacks
    a ``required`` field.
    """
    return lambda *bodies: {
        key: value for key, value in require_fields(bodies[-1], *required).items() if key in fields
    }


def rewrite_field(body: JSONObject, field: str, rewrite: Rewrite) -> JSONObject:
    """Return the body with one field rewritten, where that is an object."""
    value = body.get(field)
    return {**body, field: rewrite(cast("JSONObject", value))} if isinstance(value, dict) else body


def require_fields(body: JSONObject, *fields: str) -> JSONObject:
    """Return the body, and refuse one that lacks one of these fields."""
    for field in fields:
        if body.get(field) is None:
            raise unprocessable(field, "Field required", "missing")
    return body


def offer_only(*optional: str, without: Collection[str] = ()) -> dict[str, int]:
    """Return the operations that a server lacks, with the status 404: those it offers are the
    required and these.
    """
    offered = (REQUIRED - set(without)) | set(optional)
    return {name: 404 for name in OPERATIONS if name not in offered}


LATER_SAMPLE_FIELDS = (
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "record_stability_info",
)
drop_later: Callable[..., JSONObject] = drop_fields(*LATER_SAMPLE_FIELDS)


def write_names(_: JSONObject, answer: JSONObject) -> JSONObject:
    """Return the models that a server offers by their names alone."""
    return {
        "supported_models": [
            {"model_name": model["model_name"]} for model in answer["supported_models"]
        ]
    }
