"""Hooks for schemathesis, which its command line loads too: requests, and further checks."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, HookContext, Response
from schemathesis.core.failures import AcceptedNegativeData

from support.contract import Fault, Operation
from support.judge import strict_contract
from support.message_strategies import configs, datums
from tinker._wire import proto
from tinker.types import Datum, ModelInput

#: Ids that the server gave out, by the name of the field that takes them.
KNOWN: dict[str, list[str]] = {}
BASE_MODEL = "tinker/toy"
#: Fields that take values known under another name.
TAKES = {
    "training_run_id": "model_id",
    "sampler_id": "sampling_session_id",
    "source_path": "tinker_path",
    "model_path": "tinker_path",
}
#: Fields of answers that hold an id.
GIVEN = ("session_id", "model_id", "sampling_session_id", "request_id", "loss_id")
KEPT = 50
# another one in each run; choices must not hang on it
ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

CHECKPOINT = [
    {
        "name": "kind",
        "in": "path",
        "required": True,
        "schema": {"$ref": "#/components/schemas/CheckpointKind"},
    },
    {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "pattern": "^[^/]+$"},
    },
]


# ------------------------------------------------------------------------------------- the document


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:
    """`checkpoint_id` is two segments of a path, which this tool knows as two parameters only."""
    kinds = {"type": "string", "enum": ["weights", "sampler_weights", "external_weights"]}
    raw_schema["components"]["schemas"]["CheckpointKind"] = kinds
    whole = {"$ref": "#/components/parameters/CheckpointId"}
    for path in [path for path in raw_schema["paths"] if "{checkpoint_id}" in path]:
        item = raw_schema["paths"].pop(path)
        for operation in item.values():
            operation["parameters"] = [
                one for one in operation["parameters"] if one != whole
            ] + CHECKPOINT
        raw_schema["paths"][path.replace("{checkpoint_id}", "{kind}/{name}")] = item


# ----------------------------------------------------------------------------------------- requests


@st.composite
def forward_backward(draw: st.DrawFn) -> bytes:
    """Return an encoded request: half of them a model can compute, half are any message."""
    sensible = st.builds(
        lambda length, weight: Datum(
            ModelInput.from_ints([*range(5, 5 + length)]),
            {"target_tokens": [*range(6, 6 + length)], "weights": [weight] * length},
        ),
        st.integers(1, 6),
        st.floats(-2, 2, width=32),
    )
    data = draw(st.lists(sensible, min_size=1, max_size=3) | st.lists(datums(), max_size=3))
    model = draw(st.sampled_from(["known", "known", "nobody:train:0", ""]))
    number = draw(st.integers(1, 4) | st.integers(-(2**31), 2**31 - 1))
    loss_fn = draw(st.sampled_from(["cross_entropy", "ppo", "", "other"]))
    config = draw(st.just({}) | configs)
    chosen = newest("model_id", model) if model == "known" else model
    return b"".join(
        proto.encode_forward_backward(
            chosen, number, data, loss_fn, config, forward_only=draw(st.booleans())
        )
    )


schemathesis.openapi.media_type("application/x-protobuf", forward_backward())


def newest(name: str, default: str) -> str:
    """Return the last id that was given out under a name."""
    return KNOWN.get(name, [default])[-1]


@schemathesis.hook
def before_call(context: HookContext, case: Case, kwargs: dict[str, Any]) -> None:
    """Write numbers as clients do, JSON where there is a value, and mostly ids that exist."""
    if isinstance(case.body, bytes) or case.meta is None:
        return
    if case.media_type == proto.MEDIA_TYPE:  # a link has put JSON into the body
        case.media_type = "application/json"
    if case.meta.generation.mode.is_positive:
        seed = zlib.crc32(
            ID.sub("", repr((case.body, case.path_parameters))).encode(errors="replace")
        )
        case.body = _sensible(case.body, seed)
        if case.path_parameters:
            case.path_parameters = _sensible(case.path_parameters, seed) | _checkpoint(
                case.path_parameters, seed
            )


def _checkpoint(parameters: dict[str, Any], seed: int) -> dict[str, str]:
    """Return the path parameters of a checkpoint that was saved, where one is asked for."""
    paths = KNOWN.get("tinker_path", [])
    if "kind" not in parameters or not paths or seed % 4 == 0:
        return {}
    run, kind, name = paths[seed // 4 % len(paths)].removeprefix("tinker://").split("/")
    return {"training_run_id": run, "kind": kind, "name": name}


def _sensible(value: Any, seed: int) -> Any:
    if isinstance(value, dict):
        return {key: _known(key, _sensible(item, seed), seed) for key, item in value.items()}
    if isinstance(value, list):
        return [_sensible(item, seed) for item in value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # an integer to JSON Schema; no client writes it with a point
    if isinstance(value, int) and not isinstance(value, bool):
        return max(-(2**63), min(value, 2**63 - 1))
    return value


def _known(key: str, value: Any, seed: int) -> Any:
    """Return a better value than a random one: mostly an existing one, and small ranks."""
    if key == "rank" and isinstance(value, int) and value > 8:
        return value if seed % 4 == 0 else 1 + value % 8
    given = [BASE_MODEL] if key == "base_model" else KNOWN.get(TAKES.get(key, key), [])
    if seed % 4 == 0 or not given or not isinstance(value, str) or value in given:
        return value
    return given[seed // 4 % len(given)]


@schemathesis.hook
def after_call(context: HookContext, case: Case, response: Response) -> None:
    """Remember the ids of created objects."""
    if response.status_code != 200 or "json" not in response.headers.get("content-type", [""])[0]:
        return
    body = json.loads(response.content)
    if isinstance(body, dict):
        for name in GIVEN:
            remember(name, body.get(name))
        if str(body.get("path")).startswith("tinker://"):
            remember("tinker_path", body["path"])


def remember(name: str, value: object) -> None:
    """Note an id that was given out."""
    if isinstance(value, str):
        ids = KNOWN.setdefault(name, [])
        ids.append(value)
        del ids[:-KEPT]


# ------------------------------------------------------------------------------------------ answers


@schemathesis.check
def within_the_contract(ctx: CheckContext, response: Response, case: Case) -> None:
    """Stricter than the tool: no field, enum value or status that the document lacks."""
    headers = {name: values[0] for name, values in response.headers.items()}
    try:
        strict_contract().check_response(
            operation_of(case), response.status_code, headers, response.content
        )
    except Fault as fault:
        raise AssertionError(str(fault)) from fault


def operation_of(case: Case) -> Operation:
    """Return the operation of a case, by its name in the document."""
    return strict_contract().operations[case.operation.definition.raw["operationId"]]


#: Faults of a request that a server need not see: limits are for clients to keep, and headers of
#: today's clients only inform. Clients of 2025 send nulls for what they do not say, and no tags
#: where the other fields tell. Most enums are open.
LENIENT = re.compile(
    r" in header |- header: |null value|(smaller|greater|larger|fewer|more items) than|Non-unique "
    r"items|Invalid enum value|Value not matching"
    r"|Missing required property: (type|event)$"
    r"|violates "
    r"`(enum|const|minimum|maximum|minLength|maxLength|minItems|maxItems|uniqueItems|pattern|format)`",
    re.MULTILINE,
)


@schemathesis.hook
def filter_failure(
    context: HookContext, failure: Exception, case: Case, response: Response
) -> bool:
    """Count a failure where a wrong type, or a body without a needed field, is accepted."""
    if not isinstance(failure, AcceptedNegativeData):
        return True
    # A link may have put a good body in the place of the broken one that the report speaks of.
    mended = "Invalid syntax" in failure.message and isinstance(case.body, (dict, list))
    return not (mended or LENIENT.search(failure.message) or _has_null(case.body))


def _has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(item is None or _has_null(item) for item in value.values())
    return isinstance(value, list) and any(map(_has_null, value))
