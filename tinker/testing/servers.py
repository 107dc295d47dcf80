"""The servers that the local server stands in for. ``Settings(profile=...)`` and
``tinker serve --profile`` take their names.

``skyrl`` is SkyRL's server of August 2026; ``minimal-json`` is the common part of the servers for
clients of late 2025; ``strict`` validates as the classes of SDK 0.25 do; ``plain-json`` reads JSON
only, and fails on anything else.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

import numpy as np
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.call import (
    OFFICIAL,
    APIProblem,
    IdScheme,
    JSONObject,
    Profile,
    Rewrite,
    unprocessable,
)
from tinker.local.engines.protocol import (
    LOSSES,
    TrainingExample,
    add_sequence_ratios,
    check_datum,
    resolve_loss,
)
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

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


_LATER_OPTIONAL = (
    "forward",
    "get_sampler",
    "healthz",
    "session_heartbeat",
    "telemetry",
    "unload_model",
)
_LATER = ("delete_checkpoint", "list_checkpoints", "list_training_runs")
MINIMAL_JSON = Profile(
    name="minimal-json",
    absent=offer_only(*_LATER_OPTIONAL, without=_LATER),
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


_LOSS_OPTIONS: Mapping[str, frozenset[str]] = {
    "cross_entropy": frozenset(),
    "importance_sampling": frozenset(),
    "ppo": frozenset({"clip_low_threshold", "clip_high_threshold", "value_clip"}),
    "gspo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
    "cispo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
    "ppo_critic": frozenset({"value_clip"}),
    "dppo": frozenset({"delta_low", "delta_high"}),
}
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:8]}"


def _read_create_model(body: JSONObject) -> JSONObject:
    require_fields(body, "session_id", "base_model", "lora_config")
    config = rewrite_field(body, "lora_config", keep_fields("rank", "seed"))
    return {
        **drop_fields("optimizer_config")(config),
        "model_seq_id": body.get("model_seq_id") or 0,
    }


def _write_create_model(asked: JSONObject, answer: JSONObject) -> JSONObject:
    kept, config = (
        keep_fields("model_id", "request_id")(answer),
        {"seed": None, **asked["lora_config"]},
    )
    return {**kept, "status": "created", "base_model": asked["base_model"], "lora_config": config}


def _read_optim_step(body: JSONObject) -> JSONObject:
    require_fields(body, "model_id", "adam_params")
    return drop_fields("optimizer_params")(
        rewrite_field(body, "adam_params", drop_fields("grad_clip_norm"))
    )


def _check_path(body: JSONObject) -> JSONObject:
    if body.get("path") is not None and not _NAME.fullmatch(str(body["path"])):
        raise unprocessable(
            "path", f"String should match pattern '^{_NAME.pattern}$'", "string_pattern_mismatch"
        )
    return body


def _read_save(body: JSONObject) -> JSONObject:
    return drop_fields("ttl_seconds", "overwrite", "user_metadata")(
        _check_path(require_fields(body, "model_id", "path"))
    )


def _read_save_for_sampler(body: JSONObject) -> JSONObject:
    if not body.get("path") and (
        body.get("sampling_session_seq_id") is None or body.get("seq_id") is None
    ):
        raise unprocessable(
            "", "Either 'path' or both 'sampling_session_seq_id' and 'seq_id' must be provided"
        )
    return drop_fields("ttl_seconds", "user_metadata", "kind")(_check_path(body))


def _read_load(body: JSONObject) -> JSONObject:
    kept = keep_fields("model_id", "path", "seq_id", "optimizer", required=("model_id", "path"))
    return {"optimizer": True, **kept(body)}


def _write_saved_path(result: JSONObject) -> JSONObject:
    """Drop the kind from the path of named sampler weights."""
    path = result.get("path")
    return result if path is None else {**result, "path": path.replace("/sampler_weights/", "/")}


def _expand_short_path(body: JSONObject) -> JSONObject:
    """Expand ``tinker://<model>/<name>``, the short form of a sampler checkpoint's path."""
    short = re.fullmatch(r"tinker://([^/]+)/([^/]+)", str(body.get("model_path")))
    return (
        body
        if short is None
        else {**body, "model_path": f"tinker://{short[1]}/sampler_weights/{short[2]}"}
    )


def _read_sampling_session(body: JSONObject) -> JSONObject:
    if (body.get("base_model") is None) == (body.get("model_path") is None):
        raise APIProblem(400, "Exactly one of base_model or model_path must be provided")
    return _expand_short_path(body)


def _read_sample(body: JSONObject) -> JSONObject:
    body = rewrite_field(body, "sampling_params", _read_sampling_params)
    if ":" in str(body.get("sampling_session_id")):
        raise APIProblem(
            400, "sampling_session_id must not contain ':' (the routing-key delimiter)"
        )
    asked = drop_later(_expand_short_path(body))
    asked["prompt_logprobs"] = bool(
        asked.get("prompt_logprobs") or asked.get("topk_prompt_logprobs")
    )
    return asked


def _read_sampling_params(params: JSONObject) -> JSONObject:
    """Check the parameters, and read an empty list of stops as none."""
    if isinstance(params.get("stop"), str):
        raise unprocessable("sampling_params.stop", "Input should be a valid list", "list_type")
    if params.get("max_tokens") is None:
        raise APIProblem(400, "max_tokens is currently required")
    if isinstance(params["max_tokens"], int) and params["max_tokens"] <= 0:
        raise APIProblem(400, "max_tokens must be a positive number")
    return {**params, "stop": params.get("stop") or None}


def _read_poll(body: JSONObject) -> JSONObject:
    require_fields(body, "request_id")
    try:
        return {**body, "request_id": str(int(body["request_id"]))}
    except ValueError as error:
        raise APIProblem(500, "Internal Server Error") from error


def _write_future(_: JSONObject, answer: JSONObject) -> JSONObject:
    request_id = answer["request_id"]
    return {"future_id": request_id, "status": "pending", "request_id": request_id}


def _write_info(_: JSONObject, answer: JSONObject) -> JSONObject:
    base, rank = answer["model_name"], answer["lora_rank"]
    data = {"base_model": base, "lora_config": {"rank": rank, "seed": None}, "model_name": base}
    return {"model_id": answer["model_id"], "status": "created", "model_data": data}


def _write_run(_: JSONObject, run: JSONObject) -> JSONObject:
    kept = keep_fields("training_run_id", "base_model", "lora_rank")(run)
    unset = dict.fromkeys(("last_checkpoint", "last_sampler_checkpoint", "user_metadata"))
    time = run["last_request_time"].removesuffix("Z")
    return {
        **kept,
        **unset,
        "model_owner": "default",
        "is_lora": True,
        "corrupted": False,
        "last_request_time": time,
    }


def _write_runs(asked: JSONObject, answer: JSONObject) -> JSONObject:
    return {**answer, "training_runs": [_write_run(asked, run) for run in answer["training_runs"]]}


def _write_checkpoints(_: JSONObject, answer: JSONObject) -> JSONObject:
    kept = map(
        keep_fields("checkpoint_id", "checkpoint_type", "time", "tinker_path"),
        answer["checkpoints"],
    )
    bare = [{**one, "checkpoint_id": one["checkpoint_id"].partition("/")[2]} for one in kept]
    return {"checkpoints": [{**one, "time": one["time"].removesuffix("Z")} for one in bare]}


def _write_capabilities(asked: JSONObject, answer: JSONObject) -> JSONObject:
    return {**write_names(asked, answer), "supported_loss_fns": sorted(_LOSS_OPTIONS)}


def _rewrite_problem(problem: APIProblem) -> APIProblem:
    """Drop the code, and the header that says that repeating does not help; clients of SkyRL repeat
    conflicts for minutes.
    """
    headers = {name: value for name, value in problem.headers.items() if name != "x-should-retry"}
    plain = APIProblem(problem.status, problem.detail, headers)
    plain.code = None
    return plain


def _check_loss(loss_fn: str, config: Mapping[str, float | str], data: Sequence[Any]) -> None:
    place = "forward_backward_input"
    allowed = _LOSS_OPTIONS.get(loss_fn)
    if allowed is None:
        raise unprocessable(
            f"{place}.loss_fn",
            f"Input should be one of {', '.join(_LOSS_OPTIONS)}",
            "literal_error",
        )
    if unknown := sorted(config.keys() - allowed):
        known = f"Allowed keys: {sorted(allowed)}" if allowed else "It accepts none"
        raise unprocessable(
            place, f"Invalid loss_fn_config keys for loss_fn='{loss_fn}': {unknown}. {known}."
        )
    for datum in data:
        if any(tensor.sparse_crow_indices is not None for tensor in datum.loss_fn_inputs.values()):
            raise APIProblem(
                422,
                "Invalid proto forward_backward body: Sparse loss_fn_input "
                "tensors are not supported",
            )


def _rewrite_loss_output(
    output: ForwardBackwardOutput,
    examples: Sequence[TrainingExample],
    loss_fn: str,
    config: Mapping[str, float | str],
) -> ForwardBackwardOutput:
    """Rename the metrics, drop ``loss:sum``, and add the loss of every token beside its
    log-probability.
    """
    total = output.metrics["loss:sum"]
    metrics = {"total_loss:sum": total, "num_tokens:sum": output.metrics["tokens:sum"]}
    if loss_fn != "cross_entropy":
        metrics["pg_loss:sum"] = total
    form, options = resolve_loss(loss_fn, config)
    fields = [
        {
            **fields,
            "elementwise_loss": _elementwise_loss(
                index, example, fields["logprobs"], loss_fn, form, options
            ),
        }
        for index, (example, fields) in enumerate(
            zip(examples, output.loss_fn_outputs, strict=True)
        )
    ]
    return ForwardBackwardOutput("scalar", fields, metrics)


def _elementwise_loss(
    index: int,
    example: TrainingExample,
    logprobs: TensorData,
    loss_fn: str,
    form: Any,
    options: Any,
) -> TensorData:
    cells = check_datum(index, example, loss_fn, form, vocabulary=2**31, longest=2**31)
    values = logprobs.to_numpy().reshape(cells.weights.shape).astype(np.float64)
    (cells,) = add_sequence_ratios([cells], form, [values])
    inputs = {name: values.astype(np.float64) for name, values in cells.inputs.items()}
    with np.errstate(all="ignore"):  # cells without a weight may hold anything
        terms, _ = LOSSES[loss_fn](np, values, inputs, options)
        weighted = np.where(cells.weights != 0, terms * cells.weights, 0.0)
    return TensorData.from_numpy(weighted.reshape(cells.shape).astype(np.float32))


_OPTIONAL = (
    "client_config",
    "forward",
    "get_checkpoint_archive",
    "get_sampler",
    "healthz",
    "session_heartbeat",
    "telemetry",
    "unload_model",
)
_ABSENT = offer_only(*_OPTIONAL)
#: Operations that answer with a future of its form.
_FUTURES = [
    name
    for name, one in OPERATIONS.items()
    if one.result and name not in (*_ABSENT, "create_model", "unload_model")
]
#: Paths that its route for deleting a checkpoint matches, with another method or another name.
_ODD_STATUSES = {
    "publish_checkpoint": 405,
    "unpublish_checkpoint": 422,
    "set_checkpoint_ttl": 405,
    "get_external_weights_urls": 405,
}
SKYRL = Profile(
    name="skyrl",
    hold_seconds=300.0,
    absent=_ABSENT | _ODD_STATUSES,
    ids=IdScheme(
        session=lambda: _new_id("session"),
        model=lambda session_id, number: _new_id("model"),
        sampler=lambda session_id, number: _new_id("sampling"),
        by_number=False,
    ),
    numbered_requests=True,
    announces_size=False,
    pending_status=408,
    pending_body=lambda _: {"detail": "Timeout waiting for result"},
    failed_status=400,
    ordered=False,
    loads_first_only=True,
    check_loss=_check_loss,
    loss_output=_rewrite_loss_output,
    reused_number=lambda _: APIProblem(409, "Training request sequence number was reused"),
    rewrite_problem=_rewrite_problem,
    requests={
        "create_model": _read_create_model,
        "optim_step": _read_optim_step,
        "save_weights": _read_save,
        "save_weights_for_sampler": _read_save_for_sampler,
        "load_weights": _read_load,
        "create_sampling_session": _read_sampling_session,
        "asample": _read_sample,
        "retrieve_future": _read_poll,
    },
    answers={
        **dict.fromkeys(_FUTURES, _write_future),
        "client_config": keep_fields("pjwt_auth_enabled"),
        "create_model": _write_create_model,
        "get_info": _write_info,
        "get_sampler": drop_fields("tokenizer_id"),
        "get_server_capabilities": _write_capabilities,
        "list_training_runs": _write_runs,
        "get_training_run": _write_run,
        "list_checkpoints": _write_checkpoints,
        "weights_info": keep_fields("base_model", "is_lora", "lora_rank"),
    },
    results={
        models.OptimStepResponse: keep_fields("metrics"),
        models.LoadWeightsResponse: keep_fields("type"),
        models.SaveWeightsForSamplerResponseInternal: _write_saved_path,
    },
)


__all__ = ["PROFILES"]

PROFILES: Mapping[str, Profile] = {
    profile.name: profile for profile in (OFFICIAL, SKYRL, MINIMAL_JSON, STRICT, PLAIN_JSON)
}
