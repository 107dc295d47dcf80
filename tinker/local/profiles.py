"""The servers that this one can pass for: what a client of theirs sees, as data and a few functions.

A profile changes requests before they are read and answers before they are sent, and says what does not exist. Behind it the
same server works. ``skyrl`` is SkyRL's server of August 2026; ``minimal-json`` is what the servers for clients of late 2025
have in common; ``strict`` validates as the classes of SDK 0.25 do; ``plain-json`` reads JSON only, and fails on anything else.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs
import msgspec
import numpy as np
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.engines.examples import check_datum, loss_options
from tinker.local.engines.protocol import Example
from tinker.local.engines.toy_losses import TERMS
from tinker.local.problem import Problem, exists, misfit
from tinker.types.results import ForwardBackwardOutput
from tinker.types.tensor_data import TensorData

Json: TypeAlias = dict[str, Any]
#: A body as it came, as it shall be read; raises Problem to refuse it.
Rewrite: TypeAlias = Callable[[Json], Json]
#: The body of a request (empty where there is none) and the answer to it, as the answer shall be sent.
Reshape: TypeAlias = Callable[[Json, Json], Json]


@attrs.frozen(kw_only=True)
class Names:
    """What things are called. ``by_number`` False means that a client's number of a model or sampler identifies nothing."""

    session: Callable[[], str] = lambda: str(uuid.uuid4())
    model: Callable[[str, int], str] = lambda session_id, number: f"{session_id}:train:{number}"
    sampler: Callable[[str, int], str] = lambda session_id, number: f"{session_id}:sample:{number}"
    by_number: bool = True


def _same_output(output: ForwardBackwardOutput, *_: object) -> ForwardBackwardOutput:
    return output


def _any_loss(*_: object) -> None:
    return None


def _reused(key: str) -> Problem:
    return exists(f"request {key!r} was submitted before with another body; use a new seq_id")


_NO_PROTOBUF = Problem(415, "this server reads application/json only")


@attrs.frozen(kw_only=True)
class Profile:
    """One server as its clients see it.

    ``hold_seconds``: how long a poll is held by default. ``absent``: operations that are not there, with the status of the
    answer. ``protobuf``: whether it is read and written. ``unread``: the answer to
    protobuf where it is not read. ``announces``: whether large results are announced by size.
    ``pending_status``: 200 says "try again" to clients that know it; 408 never does. ``pending``: the body of such a 408,
    made from the server's own. ``failed_status``: of the poll of a failed request; 200 sends category and text.
    ``numbered_requests``: whether request ids are whole numbers. ``ordered``: whether a model's requests run in the order of
    their numbers, or of their arrival. ``loads_first_only``: whether ``load_weights`` must be the
    first request of its model.

    ``requests`` and ``answers`` change JSON bodies by operation; ``results`` change those of ``retrieve_future`` by the
    result's type. ``check_loss`` refuses a loss (name, options, data); ``loss_output`` changes what was computed for one
    (output, examples, name, options). ``reused`` refuses a number that was used before; ``refusal`` changes any refusal.
    """

    name: str
    hold_seconds: float = 30.0
    absent: Mapping[str, int] = attrs.field(factory=lambda: dict[str, int]())
    names: Names = Names()
    numbered_requests: bool = False
    protobuf: bool = True
    unread: Problem = _NO_PROTOBUF
    announces: bool = True
    pending_status: int = 200
    pending: Rewrite = lambda body: body
    failed_status: int = 200
    ordered: bool = True
    loads_first_only: bool = False
    requests: Mapping[str, Rewrite] = attrs.field(factory=lambda: dict[str, Rewrite]())
    answers: Mapping[str, Reshape] = attrs.field(factory=lambda: dict[str, Reshape]())
    results: Mapping[type, Rewrite] = attrs.field(factory=lambda: dict[type, Rewrite]())
    check_loss: Callable[[str, Mapping[str, float | str], Sequence[Any]], None] = _any_loss
    loss_output: Callable[..., ForwardBackwardOutput] = _same_output
    reused: Callable[[str], Problem] = _reused
    refusal: Callable[[Problem], Problem] = lambda problem: problem

    def __str__(self) -> str:
        return self.name

    def rewritten(self, operation: str, content: bytes) -> bytes:
        """A JSON body as the server shall read it. Problem when the profile refuses it."""
        rewrite = self.requests.get(operation)
        return content if rewrite is None else _edited(content, rewrite)

    def reshaped(self, operation: str, asked: bytes, answer: bytes) -> bytes:
        """A JSON answer as the client shall get it."""
        reshape = self.answers.get(operation)
        return answer if reshape is None else _edited(answer, lambda body: reshape(_object(asked) or {}, body))

    def result(self, kind: type, content: bytes) -> bytes:
        """A result in JSON as the client shall get it."""
        rewrite = self.results.get(kind)
        return content if rewrite is None else _edited(content, rewrite)


def _edited(content: bytes, edit: Rewrite) -> bytes:
    """What is no JSON object is left for the reader to refuse."""
    body = _object(content)
    return content if body is None else msgspec.json.encode(edit(body))


def _object(content: bytes) -> Json | None:
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _without(*fields: str) -> Callable[..., Json]:
    """The last argument, an object, without these fields."""
    return lambda *bodies: {key: value for key, value in bodies[-1].items() if key not in fields}


def _only(*fields: str) -> Callable[..., Json]:
    """The last argument, an object, with these fields alone."""
    return lambda *bodies: {key: value for key, value in bodies[-1].items() if key in fields}


def _within(body: Json, field: str, rewrite: Rewrite) -> Json:
    """The body with one field of it rewritten, where that is an object."""
    value = body.get(field)
    return {**body, field: rewrite(cast("Json", value))} if isinstance(value, dict) else body


def _missing(body: Json, *fields: str) -> None:
    for field in fields:
        if body.get(field) is None:
            raise misfit(field, "Field required", "missing")


# SkyRL ---------------------------------------------------------------------------------------------------------------

_SKYRL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,255}")
_SKYRL_LOSSES: Mapping[str, frozenset[str]] = {
    "cross_entropy": frozenset(),
    "importance_sampling": frozenset(),
    "ppo": frozenset({"clip_low_threshold", "clip_high_threshold", "value_clip"}),
    "gspo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
    "cispo": frozenset({"clip_low_threshold", "clip_high_threshold"}),
    "ppo_critic": frozenset({"value_clip"}),
    "dppo": frozenset({"delta_low", "delta_high"}),
}


def _skyrl_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:8]}"


def _skyrl_loss(loss_fn: str, config: Mapping[str, float | str], data: Sequence[Any]) -> None:
    allowed = _SKYRL_LOSSES.get(loss_fn)
    if allowed is None:
        raise misfit("forward_backward_input.loss_fn", f"Input should be one of {', '.join(_SKYRL_LOSSES)}", "literal_error")
    if unknown := sorted(config.keys() - allowed):
        known = f"Allowed keys: {sorted(allowed)}" if allowed else "It accepts none"
        raise misfit("forward_backward_input", f"Invalid loss_fn_config keys for loss_fn='{loss_fn}': {unknown}. {known}.")
    for datum in data:
        if any(tensor.sparse_crow_indices is not None for tensor in datum.loss_fn_inputs.values()):
            raise Problem(422, "Invalid proto forward_backward body: Sparse loss_fn_input tensors are not supported")


def _skyrl_output(
    output: ForwardBackwardOutput, examples: Sequence[Example], loss_fn: str, config: Mapping[str, float | str]
) -> ForwardBackwardOutput:
    """Its names of the metrics, without ``loss:sum``; and the loss of every token beside its log-probability."""
    total = output.metrics["loss:sum"]
    metrics = {"total_loss:sum": total, "num_tokens:sum": output.metrics["tokens:sum"]}
    if loss_fn != "cross_entropy":
        metrics["pg_loss:sum"] = total
    form, options = loss_options(loss_fn, config)
    fields = [
        {**fields, "elementwise_loss": _elementwise(index, example, fields["logprobs"], loss_fn, form, options)}
        for index, (example, fields) in enumerate(zip(examples, output.loss_fn_outputs, strict=True))
    ]
    return ForwardBackwardOutput("scalar", fields, metrics)


def _elementwise(index: int, example: Example, logprobs: TensorData, loss_fn: str, form: Any, options: Any) -> TensorData:
    cells = check_datum(index, example, loss_fn, form, vocabulary=2**31, longest=2**31)
    inputs = {name: values.astype(np.float64) for name, values in cells.inputs.items()}
    values = logprobs.to_numpy().reshape(cells.weights.shape).astype(np.float64)
    with np.errstate(all="ignore"):  # cells without a weight may hold anything
        terms, _ = TERMS[loss_fn](values, inputs, options)
        weighted = np.where(cells.weights != 0, terms * cells.weights, 0.0)
    return TensorData.from_numpy(weighted.reshape(cells.shape).astype(np.float32))


def _skyrl_create_model(body: Json) -> Json:
    _missing(body, "session_id", "base_model", "lora_config")
    config = _within(body, "lora_config", _only("rank", "seed"))
    return {**_without("optimizer_config")(config), "model_seq_id": body.get("model_seq_id") or 0}


def _skyrl_created(asked: Json, answer: Json) -> Json:
    return {
        "model_id": answer["model_id"],
        "base_model": asked["base_model"],
        "lora_config": {"seed": None, **asked["lora_config"]},
        "status": "created",
        "request_id": answer["request_id"],
    }


def _skyrl_optim_step(body: Json) -> Json:
    _missing(body, "model_id", "adam_params")
    return _without("optimizer_params")(_within(body, "adam_params", _without("grad_clip_norm")))


def _skyrl_checked_name(body: Json) -> Json:
    if body.get("path") is not None and not _SKYRL_NAME.fullmatch(str(body["path"])):
        raise misfit("path", f"String should match pattern '^{_SKYRL_NAME.pattern}$'", "string_pattern_mismatch")
    return body


def _skyrl_save(body: Json) -> Json:
    _missing(body, "model_id", "path")
    return _without("ttl_seconds", "overwrite", "user_metadata")(_skyrl_checked_name(body))


def _skyrl_save_for_sampler(body: Json) -> Json:
    if not body.get("path") and (body.get("sampling_session_seq_id") is None or body.get("seq_id") is None):
        raise misfit("", "Either 'path' or both 'sampling_session_seq_id' and 'seq_id' must be provided")
    return _without("ttl_seconds", "user_metadata", "kind")(_skyrl_checked_name(body))


def _skyrl_load(body: Json) -> Json:
    _missing(body, "model_id", "path")
    return {"optimizer": True, **_only("model_id", "path", "seq_id", "optimizer")(body)}


def _skyrl_saved(result: Json) -> Json:
    """Named sampler weights have a path without their kind."""
    path = result.get("path")
    return result if path is None else {**result, "path": path.replace("/sampler_weights/", "/")}


def _skyrl_source(body: Json) -> Json:
    """``tinker://<model>/<name>`` is the short form of a sampler checkpoint's path."""
    short = re.fullmatch(r"tinker://([^/]+)/([^/]+)", str(body.get("model_path")))
    return body if short is None else {**body, "model_path": f"tinker://{short[1]}/sampler_weights/{short[2]}"}


def _skyrl_sampling_session(body: Json) -> Json:
    if (body.get("base_model") is None) == (body.get("model_path") is None):
        raise Problem(400, "Exactly one of base_model or model_path must be provided")
    return _skyrl_source(body)


def _skyrl_sample(body: Json) -> Json:
    body = _within(body, "sampling_params", _skyrl_sampling_params)
    if ":" in str(body.get("sampling_session_id")):
        raise Problem(400, "sampling_session_id must not contain ':' (the routing-key delimiter)")
    asked = _without(*_LATER_SAMPLE_FIELDS)(_skyrl_source(body))
    asked["prompt_logprobs"] = bool(asked.get("prompt_logprobs") or asked.get("topk_prompt_logprobs"))
    return asked


def _skyrl_sampling_params(params: Json) -> Json:
    """An empty list of stops is none."""
    if isinstance(params.get("stop"), str):
        raise misfit("sampling_params.stop", "Input should be a valid list", "list_type")
    if params.get("max_tokens") is None:
        raise Problem(400, "max_tokens is currently required")
    if isinstance(params["max_tokens"], int) and params["max_tokens"] <= 0:
        raise Problem(400, "max_tokens must be a positive number")
    return {**params, "stop": params.get("stop") or None}


def _skyrl_poll(body: Json) -> Json:
    try:
        return {**body, "request_id": str(int(body.get("request_id", "")))}
    except ValueError as error:
        raise Problem(500, "Internal Server Error") from error


def _skyrl_submitted(_: Json, answer: Json) -> Json:
    request_id = answer["request_id"]
    return {"future_id": request_id, "status": "pending", "request_id": request_id}


def _skyrl_info(_: Json, answer: Json) -> Json:
    base, rank = answer["model_name"], answer["lora_rank"]
    data = {"base_model": base, "lora_config": {"rank": rank, "seed": None}, "model_name": base}
    return {"model_id": answer["model_id"], "status": "created", "model_data": data}


def _local_time(text: str) -> str:
    return text.removesuffix("Z")


def _skyrl_run(_: Json, run: Json) -> Json:
    return {
        "training_run_id": run["training_run_id"],
        "base_model": run["base_model"],
        "model_owner": "default",
        "is_lora": True,
        "corrupted": False,
        "lora_rank": run["lora_rank"],
        "last_request_time": _local_time(run["last_request_time"]),
        "last_checkpoint": None,
        "last_sampler_checkpoint": None,
        "user_metadata": None,
    }


def _skyrl_runs(asked: Json, answer: Json) -> Json:
    return {**answer, "training_runs": [_skyrl_run(asked, run) for run in answer["training_runs"]]}


def _skyrl_checkpoints(_: Json, answer: Json) -> Json:
    kept = _only("checkpoint_id", "checkpoint_type", "time", "tinker_path")
    listed = [kept(one) for one in answer["checkpoints"]]
    bare = [{**one, "checkpoint_id": one["checkpoint_id"].partition("/")[2]} for one in listed]
    return {"checkpoints": [{**one, "time": _local_time(one["time"])} for one in bare]}


def _skyrl_capabilities(_: Json, answer: Json) -> Json:
    names = [{"model_name": model["model_name"]} for model in answer["supported_models"]]
    return {"supported_models": names, "supported_loss_fns": sorted(_SKYRL_LOSSES)}


def _skyrl_refusal(problem: Problem) -> Problem:
    """Its conflicts do not say that repeating is of no use, and clients repeat them for minutes."""
    headers = {name: value for name, value in problem.headers.items() if name != "x-should-retry"}
    return Problem(problem.status, problem.detail, headers)


_SKYRL_FUTURES = (
    "forward_backward",
    "forward",
    "optim_step",
    "load_weights",
    "save_weights",
    "save_weights_for_sampler",
    "asample",
)
_SKYRL_HAS = frozenset(
    (
        *_SKYRL_FUTURES,
        "healthz",
        "client_config",
        "create_session",
        "session_heartbeat",
        "create_sampling_session",
        "get_sampler",
        "create_model",
        "unload_model",
        "get_info",
        "get_server_capabilities",
        "retrieve_future",
        "telemetry",
        "list_training_runs",
        "get_training_run",
        "get_checkpoint_archive",
        "delete_checkpoint",
        "list_checkpoints",
        "weights_info",
    )
)
#: Paths that its route for deleting a checkpoint matches, with another method or another name.
_SKYRL_ODD = {
    "publish_checkpoint": 405,
    "unpublish_checkpoint": 422,
    "set_checkpoint_ttl": 405,
    "get_external_weights_urls": 405,
}
_LATER_SAMPLE_FIELDS = (
    "topk_sample_logprobs",
    "target_prompt_logprobs",
    "prompt_alt_tokens_k",
    "prompt_logprobs_last_n",
    "record_stability_info",
)

SKYRL = Profile(
    name="skyrl",
    hold_seconds=300.0,
    absent={name: _SKYRL_ODD.get(name, 404) for name in OPERATIONS if name not in _SKYRL_HAS},
    names=Names(
        session=lambda: _skyrl_id("session"),
        model=lambda session_id, number: _skyrl_id("model"),
        sampler=lambda session_id, number: _skyrl_id("sampling"),
        by_number=False,
    ),
    numbered_requests=True,
    announces=False,
    pending_status=408,
    pending=lambda _: {"detail": "Timeout waiting for result"},
    failed_status=400,
    ordered=False,
    loads_first_only=True,
    check_loss=_skyrl_loss,
    loss_output=_skyrl_output,
    reused=lambda _: Problem(409, "Training request sequence number was reused"),
    refusal=_skyrl_refusal,
    requests={
        "create_model": _skyrl_create_model,
        "optim_step": _skyrl_optim_step,
        "save_weights": _skyrl_save,
        "save_weights_for_sampler": _skyrl_save_for_sampler,
        "load_weights": _skyrl_load,
        "create_sampling_session": _skyrl_sampling_session,
        "asample": _skyrl_sample,
        "retrieve_future": _skyrl_poll,
    },
    answers={
        **dict.fromkeys(_SKYRL_FUTURES, _skyrl_submitted),
        "client_config": _only("pjwt_auth_enabled"),
        "create_model": _skyrl_created,
        "get_info": _skyrl_info,
        "get_sampler": _without("tokenizer_id"),
        "get_server_capabilities": _skyrl_capabilities,
        "list_training_runs": _skyrl_runs,
        "get_training_run": _skyrl_run,
        "list_checkpoints": _skyrl_checkpoints,
        "weights_info": _only("base_model", "is_lora", "lora_rank"),
    },
    results={
        models.OptimStepResponse: _only("metrics"),
        models.LoadWeightsResponse: _only("type"),
        models.SaveWeightsForSamplerResponseInternal: _skyrl_saved,
    },
)


# The common JSON core ------------------------------------------------------------------------------------------------

_MINIMAL_HAS = frozenset(
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


def _minimal_load(body: Json) -> Json:
    _missing(body, "model_id", "path")
    return _only("model_id", "seq_id", "path", "optimizer", "type")(body)


def _minimal_capabilities(_: Json, answer: Json) -> Json:
    return {"supported_models": [{"model_name": model["model_name"]} for model in answer["supported_models"]]}


def _minimal_optim_step(body: Json) -> Json:
    _missing(body, "model_id", "adam_params")
    return _without("optimizer_params")(body)


MINIMAL_JSON = Profile(
    name="minimal-json",
    absent={name: 404 for name in OPERATIONS if name not in _MINIMAL_HAS},
    protobuf=False,
    announces=False,
    pending_status=408,
    pending=_only("queue_state", "detail"),
    requests={
        "create_model": _without("optimizer_config"),
        "optim_step": _minimal_optim_step,
        "load_weights": _minimal_load,
        "save_weights": _without("overwrite", "ttl_seconds", "user_metadata"),
        "save_weights_for_sampler": _without("kind", "ttl_seconds", "user_metadata"),
        "asample": _without(*_LATER_SAMPLE_FIELDS),
    },
    answers={
        "asample": _without("sample_sequence_ids"),
        "get_sampler": _without("tokenizer_id"),
        "get_server_capabilities": _minimal_capabilities,
    },
)


# The classes of SDK 0.25 -----------------------------------------------------------------------------------------------


def _forbidding(*unknown: str) -> Rewrite:
    """Refuse a body that has one of these fields, whatever is in it."""

    def rewrite(body: Json) -> Json:
        extra = [
            {"type": "extra_forbidden", "loc": ["body", name], "msg": "Extra inputs are not permitted"}
            for name in unknown
            if name in body
        ]
        if extra:
            raise Problem(422, cast("models.JSONValue", extra))
        return body

    return rewrite


def _null_type(*bodies: Json) -> Json:
    """The last argument with a ``type`` that is null, as every field is that such a server leaves out."""
    return {**bodies[-1], "type": None}


STRICT = Profile(
    name="strict",
    requests={
        "create_model": _forbidding("optimizer_config"),
        "save_weights_for_sampler": _forbidding("kind"),
        "asample": _forbidding(*_LATER_SAMPLE_FIELDS),
    },
    answers={"get_info": _null_type},
    results=dict.fromkeys(
        (
            models.LoadWeightsResponse,
            models.SaveWeightsResponse,
            models.SaveWeightsForSamplerResponseInternal,
            models.SaveWeightsExternalResponseInternal,
            models.UnloadModelResponse,
        ),
        _null_type,
    ),
)


# JSON and nothing else, by the usual web framework ---------------------------------------------------------------------

PLAIN_JSON = Profile(name="plain-json", protobuf=False, announces=False, unread=Problem(500, "Internal Server Error"))

OFFICIAL = Profile(name="official")
PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (OFFICIAL, SKYRL, MINIMAL_JSON, STRICT, PLAIN_JSON)}


def find_profile(wanted: str | Profile) -> Profile:
    """The profile of that name; ValueError, naming those there are, for another name."""
    if isinstance(wanted, Profile):
        return wanted
    if wanted not in PROFILES:
        raise ValueError(f"there is no profile {wanted!r}; there are {', '.join(PROFILES)}")
    return PROFILES[wanted]
