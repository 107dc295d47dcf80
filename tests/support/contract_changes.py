"""Changes of the real contract, as data: the edits, and the breaks that the comparison must report.

The table of docs/contract/changes.md has each of them, with what `redocly diff` says of it.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from support.pet_contract import REMOVED, put

Edit = tuple[Any, ...]
C, S, P, NOBODY = "clients", "servers", "python", "compatible"
CP, CS, CSP, SP = f"{C}, {P}", f"{C}, {S}", f"{C}, {S}, {P}", f"{S}, {P}"


@dataclass(frozen=True)
class ContractEdit:
    """One change: edits of the document or of the `.proto`, and the (rule, level) of each finding."""

    name: str
    edits: tuple[Edit, ...]
    found: frozenset[tuple[str, str]]
    #: Edits of both sides, where the contract lacks the changed part.
    given: tuple[Edit, ...] = ()


def edit(name: str, *edits: Edit, given: tuple[Edit, ...] = (), **found: str) -> ContractEdit:
    """Make one change. A place in an edit is written as `locate` reads it, a finding `rule=level`."""
    pairs = frozenset((rule.replace("_", "-"), level) for rule, level in found.items())
    return ContractEdit(name, edits, pairs, given)


def locate(place: str) -> str:
    """Return the JSON pointer of `METHOD operation`, `Schema`, `Schema.property` or a component."""
    head, slash, rest = place.partition("/")
    method, _, path = head.partition(" ")
    name, dot, field = head.partition(".")
    if path:
        return f"paths/~1api~1v1~1{path}/{method.lower()}{slash}{rest}"
    if head[0].isupper():
        return f"components/schemas/{name}{dot and '/properties/'}{field}{slash}{rest}"
    is_component = head in ("headers", "parameters", "responses", "securitySchemes")
    return f"components/{place}" if is_component else place


def ref(name: str, section: str = "schemas") -> dict[str, str]:
    return {"$ref": f"#/components/{section}/{name}"}


# -------------------------------------------------------------------------------------------- edits


def node(document: Any, pointer: str) -> Any:
    for key in pointer.split("/"):
        name = key.replace("~1", "/").replace("~0", "~")
        document = document[int(name) if isinstance(document, list) else name]
    return document


def make(document: Any, edits: tuple[Edit, ...]) -> Any:
    """Return the document after some edits."""
    changed = copy.deepcopy(document)
    for kind, place, *arguments in edits:
        if kind != "proto":
            EDITS[kind](changed, locate(place), *copy.deepcopy(arguments))
    return changed


def remove(document: Any, pointer: str) -> None:
    put(document, pointer, REMOVED)


def append(document: Any, pointer: str, value: Any) -> None:
    node(document, pointer).append(value)


def drop(document: Any, pointer: str, words: str) -> None:
    """Take the member of a list away that holds these words, however deep the list is."""
    dropped = list(drop_below(node(document, pointer), words))
    assert len(dropped) == 1, (pointer, words, dropped)


def drop_below(value: Any, words: str) -> Iterator[Any]:
    if isinstance(value, list):
        for member in [member for member in value if words in json.dumps(member)]:
            yield member
            value.remove(member)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for member in list(inside):
        yield from drop_below(member, words)


def rename(document: Any, pointer: str, name: str) -> None:
    """Call a member of a mapping otherwise; its place stays."""
    parent, _, last = pointer.rpartition("/")
    owner = node(document, parent)
    old = last.replace("~1", "/")
    assert old in owner
    items = [(name if key == old else key, value) for key, value in owner.items()]
    owner.clear()
    owner.update(items)


def rename_schema(document: Any, pointer: str, name: str) -> None:
    """Call a schema otherwise, and refer to it by the new name."""
    text = json.dumps(document).replace(f'"#/{pointer}"', f'"#/components/schemas/{name}"')
    document.update(json.loads(text))
    rename(document, pointer, name)


EDITS: dict[str, Any] = {
    "put": put,
    "remove": remove,
    "append": append,
    "drop": drop,
    "rename": rename,
    "rename_schema": rename_schema,
}


def make_proto(text: str, edits: tuple[Edit, ...]) -> str:
    """Return the text of the `.proto` after the edits that are meant for it."""
    for kind, old, *new in edits:
        if kind == "proto":
            assert old in text, old
            text = text.replace(old, *new, 1)
    return text


BEARER = {"type": "http", "scheme": "bearer"}
STRING = {"type": "string"}
CLOSED = ("remove", "TraceExportStatus/x-open-enum")
CONDITION = {
    "x-any": True,
    "if": {"required": ["type"], "properties": {"type": {"const": "try_again"}}},
    "then": ref("TryAgainResponse"),
    "else": {"anyOf": [ref("SampleResponse"), ref("CreateModelResponse")]},
}
CONDITIONAL = ("put", "FutureAnswer", CONDITION)

CHANGES = [
    # statuses
    edit(
        "200 becomes 202",
        ("rename", "POST get_info/responses/200", "202"),
        status_added=C,
        status_removed=CS,
    ),
    edit(
        "204 becomes 200 with a body",
        ("rename", "POST cancel_future/responses/204", "200"),
        (
            "put",
            "POST cancel_future/responses/200/content",
            {"application/json": {"schema": ref("HealthResponse")}},
        ),
        reply=P,
        status_added=C,
        status_removed=CS,
    ),
    edit(
        "410 of retrieve_future removed",
        ("remove", "POST retrieve_future/responses/410"),
        status_removed=CS,
    ),
    edit("302 of the audit log removed", ("remove", "GET audit/responses/302"), status_removed=CS),
    edit(
        "418 added beside default",
        ("put", "POST retrieve_future/responses/418", ref("Gone", "responses")),
        status_added=NOBODY,
    ),
    edit(
        "302 added",
        ("put", "POST get_info/responses/302", {"description": "Elsewhere."}),
        status_added=C,
    ),
    edit("default removed", ("remove", "POST get_info/responses/default"), status_removed=CS),
    edit(
        "body of 429 is another schema",
        (
            "put",
            "responses/TooManyRequests/content/application~1json/schema",
            ref("RequestFailedResponse"),
        ),
        other_schema=CSP,
    ),
    edit(
        "429 refers to the answer of 503",
        ("put", "POST asample/responses/429", ref("Unavailable", "responses")),
    ),
    # headers of answers
    edit(
        "Location removed from 302",
        (
            "remove",
            "GET training_runs~1{training_run_id}~1checkpoints~1{checkpoint_id}~1archive/responses/302/headers/Location",
        ),
        header_removed=C,
    ),
    edit(
        "Retry-After removed from 429",
        ("remove", "responses/TooManyRequests/headers/Retry-After"),
        header_removed=C,
    ),
    edit("Location no longer required", ("remove", "headers/Location/required"), header_required=C),
    edit(
        "header of an answer added",
        ("put", "responses/Gone/headers", {"X-Reason": {"schema": STRING}}),
        header_added=NOBODY,
    ),
    edit(
        "required header of an answer added",
        ("put", "responses/Gone/headers", {"X-Reason": {"required": True, "schema": STRING}}),
        header_added=S,
    ),
    edit("Retry-After is a number", ("put", "headers/RetryAfter/schema/type", "integer"), type=CS),
    edit(
        "a header in capitals",
        ("rename", "responses/TooManyRequests/headers/retry-after-ms", "Retry-After-Ms"),
    ),
    # credentials
    edit(
        "X-API-Key becomes Authorization",
        ("put", "securitySchemes/ApiKey/name", "Authorization"),
        credential_added=S,
        credential_removed=C,
    ),
    edit(
        "apiKey becomes bearer",
        ("put", "securitySchemes/ApiKey", BEARER),
        credential_added=S,
        credential_removed=C,
    ),
    edit("healthz needs a key", ("remove", "GET healthz/security"), credential_removed=C),
    edit("security removed", ("remove", "security"), credential_added=S),
    edit(
        "a second way in",
        ("put", "securitySchemes/Token", BEARER),
        ("append", "security", {"Token": []}),
        credential_added=S,
    ),
    edit(
        "the scheme is called otherwise",
        ("rename", "securitySchemes/ApiKey", "Key"),
        ("put", "security", [{"Key": []}]),
    ),
    # parameters
    edit("query limit gets a maximum", ("put", "parameters/Limit20/schema/maximum", 10), limit=C),
    edit("query limit loses its minimum", ("remove", "parameters/Limit20/schema/minimum"), limit=S),
    edit(
        "pattern of a path narrowed",
        ("put", "parameters/CheckpointId/schema/pattern", "^weights/[a-z]+$"),
        limit=CS,
    ),
    edit(
        "pattern of a path added",
        ("put", "parameters/TrainingRunId/schema/pattern", "^[a-z]+$"),
        limit=C,
    ),
    edit("default of a parameter", ("put", "parameters/Limit20/schema/default", 10), default=CP),
    edit("parameter removed", ("remove", "GET training_runs/parameters/0"), parameter_removed=CP),
    edit(
        "parameter required", ("put", "parameters/DayQuery/required", True), parameter_required=CP
    ),
    edit(
        "parameter no longer required",
        ("remove", "parameters/StartingOn/required"),
        parameter_required=S,
    ),
    edit("parameter of another type", ("put", "parameters/Offset/schema/type", "string"), type=CSP),
    edit(
        "optional header of requests added",
        ("append", "POST asample/parameters", {"name": "X-New", "in": "header", "schema": STRING}),
        parameter_added=NOBODY,
    ),
    edit(
        "required header of requests added",
        (
            "append",
            "POST asample/parameters",
            {"name": "X-New", "in": "header", "required": True, "schema": STRING},
        ),
        parameter_added=CP,
    ),
    edit(
        "header of requests called otherwise",
        ("put", "parameters/ContentEncoding/name", "X-Encoding"),
        parameter_added=NOBODY,
        parameter_removed=CP,
    ),
    edit(
        "lists in a query exploded",
        ("put", "parameters/ProjectIdQuery/explode", False),
        parameter_spelling=CS,
    ),
    edit(
        "parameter of a path called otherwise",
        ("put", "parameters/SamplerId/name", "sampler"),
        ("rename", "paths/~1api~1v1~1samplers~1{sampler_id}", "/api/v1/samplers/{sampler}"),
        parameter_renamed=P,
    ),
    # enums by where they are used
    edit("query enum loses a value", ("put", "AccessScope/enum", ["owned"]), value_removed=CP),
    edit("query enum gains a value", ("append", "AccessScope/enum", "shared"), value_added=S),
    edit("open query enum loses a value", ("drop", "AuditEventType", '"teams"'), value_removed=C),
    edit(
        "enum of both ways gains a value",
        ("append", "TensorDtype/enum", "float16"),
        value_added=CSP,
    ),
    edit("enum of both ways loses a value", ("drop", "TensorDtype", '"int64"'), value_removed=CSP),
    edit(
        "enum of answers gains a value",
        ("append", "TraceExportStatus/enum", "lost"),
        given=(CLOSED,),
        value_added=CP,
    ),
    edit(
        "enum of answers loses a value",
        ("drop", "TraceExportStatus", '"failed"'),
        given=(CLOSED,),
        value_removed=S,
    ),
    edit(
        "open enum of answers gains a value",
        ("append", "StopReason/enum", "budget"),
        value_added=NOBODY,
    ),
    edit("open enum of answers closed", ("remove", "StopReason/x-open-enum"), values_closed=S),
    edit(
        "enum of requests opened", ("put", "SamplingClientKind/x-open-enum", True), values_opened=S
    ),
    edit(
        "open enum in plain OpenAPI",
        ("put", "StopReason", {"anyOf": [{"type": "string", "enum": ["length", "stop"]}, STRING]}),
    ),
    # what schemas say of a value
    edit("minimum of a request raised", ("put", "TtlSeconds/minimum", 7200), limit=C),
    edit("maximum of a request raised", ("put", "TtlSeconds/maximum", 10**10), limit=S),
    edit("fewer items in a request", ("put", "UserSearchOwner.owner_urns/maxItems", 5), limit=C),
    edit(
        "minimum inside a list of requests",
        ("put", "EncodedTextChunk.tokens/items/minimum", 0),
        limit=C,
    ),
    edit(
        "minimum inside a list of answers",
        ("put", "SampledSequence.tokens/items/minimum", 0),
        limit=S,
    ),
    edit(
        "shortest text of an answer is empty",
        ("remove", "UntypedAPIFuture.request_id/minLength"),
        limit=C,
    ),
    edit(
        "integer becomes number in an answer",
        ("put", "SelfApiKeyResponse.key_id/type", "number"),
        type=CP,
    ),
    edit(
        "number becomes integer in a request",
        ("put", "SamplingParams.temperature/type", "integer"),
        type=CP,
    ),
    edit(
        "64 bits written down",
        ("put", "SelfApiKeyResponse.key_id/format", "int64"),
        given=(("remove", "SelfApiKeyResponse.key_id/format"),),
        format=NOBODY,
    ),
    edit(
        "answer in 64 bits instead of 32",
        ("put", "SelfApiKeyResponse.key_id/format", "int64"),
        given=(("put", "SelfApiKeyResponse.key_id/format", "int32"),),
        format=C,
    ),
    edit(
        "text of an answer becomes a date",
        ("put", "SelfApiKeyResponse.note/format", "date-time"),
        format=SP,
    ),
    edit(
        "an answer may be null",
        ("put", "SelfApiKeyResponse.name/type", ["string", "null"]),
        alternative_added=CP,
    ),
    edit(
        "a request may not be null",
        ("put", "SampleRequest.sampling_session_id/type", "string"),
        alternative_removed=CP,
    ),
    edit("default of a request", ("put", "SampleRequest.num_samples/default", 2), default=CP),
    edit("constant of a request", ("put", "SampleRequest.type/const", "draw"), constant=CSP),
    edit("secret no longer marked", ("remove", "AuthTokenResponse.jwt/x-secret"), secret=CSP),
    edit(
        "map of other values",
        ("put", "LossFnConfig/additionalProperties/type", "number"),
        alternative_removed=CP,
    ),
    edit("longer tuple", ("append", "TokenLogprob/prefixItems", STRING), prefixItems=S),
    # properties
    edit(
        "optional property of a request added",
        ("put", "SampleRequest.colour", STRING),
        property_added=NOBODY,
    ),
    edit(
        "required property of a request added",
        ("put", "SampleRequest.colour", STRING),
        ("append", "SampleRequest/required", "colour"),
        property_added=CP,
    ),
    edit(
        "required property with a default added",
        ("put", "SampleRequest.colour", {"type": "string", "default": "red"}),
        ("append", "SampleRequest/required", "colour"),
        property_added=NOBODY,
    ),
    edit(
        "property of a request removed",
        ("remove", "SampleRequest.record_stability_info"),
        property_removed=CP,
    ),
    edit(
        "optional property of an answer removed",
        ("remove", "SampleResponse.prompt_cache_hit_tokens"),
        property_removed=P,
    ),
    edit(
        "required property of an answer removed",
        ("remove", "AuthTokenResponse.jwt"),
        ("drop", "AuthTokenResponse/required", '"jwt"'),
        property_removed=CP,
    ),
    edit(
        "property of an answer no longer required",
        ("drop", "AuthTokenResponse/required", '"jwt"'),
        no_longer_required=CP,
    ),
    edit(
        "property of a request required",
        ("append", "SampleRequest/required", "seq_id"),
        now_required=CP,
    ),
    edit(
        "property called otherwise",
        ("rename", "AuthTokenResponse.jwt", "token"),
        ("put", "AuthTokenResponse/required", ["token"]),
        property_added=S,
        property_removed=CP,
    ),
    # unions and schemas without a Python type
    edit(
        "StopCondition loses a list of numbers",
        ("drop", "StopCondition", '"integer"'),
        alternative_removed=C,
    ),
    edit(
        "StopCondition gains a number",
        ("append", "StopCondition/anyOf", {"type": "integer"}),
        alternative_added=S,
    ),
    edit(
        "FutureAnswer loses a result",
        ("drop", "FutureAnswer", "/CreateModelResponse"),
        alternative_removed=S,
    ),
    edit(
        "FutureAnswer told by another word",
        ("put", "FutureAnswer/if/properties/type/const", "other"),
        given=(CONDITIONAL,),
        condition=CS,
    ),
    edit(
        "FutureAnswer as a plain union",
        (
            "put",
            "FutureAnswer",
            {
                "x-any": True,
                "anyOf": [
                    ref("TryAgainResponse"),
                    ref("CreateModelResponse"),
                    ref("SampleResponse"),
                ],
            },
        ),
        given=(CONDITIONAL,),
    ),
    edit(
        "member of a union of requests removed",
        ("drop", "SearchOwner/oneOf", "UserSearchOwner"),
        ("remove", "SearchOwner/discriminator/mapping/user"),
        alternative_removed=CP,
    ),
    edit("open union closed", ("remove", "OptimizerConfig/x-open-union"), union_closed=CSP),
    edit(
        "tag of a member",
        ("rename", "SearchOwner/discriminator/mapping/own", "mine"),
        ("put", "OwnSearchOwner.type/const", "mine"),
        constant=CSP,
        discriminator=CSP,
    ),
    edit(
        "discriminator",
        ("put", "SearchOwner/discriminator/propertyName", "kind"),
        discriminator=CSP,
    ),
    edit(
        "text of an error may be a number",
        ("append", "ErrorDetail/anyOf", {"type": "integer"}),
        alternative_added=C,
    ),
    # bodies
    edit(
        "protobuf requests removed",
        ("remove", "POST forward_backward/requestBody/content/application~1x-protobuf"),
        media_type_removed=CP,
    ),
    edit(
        "protobuf answers removed",
        ("remove", "POST retrieve_future/responses/200/content/application~1x-protobuf"),
        media_type_removed=C,
    ),
    edit(
        "requests in another form added",
        (
            "put",
            "POST asample/requestBody/content/application~1cbor",
            {"schema": {"type": "string", "format": "binary"}},
        ),
        media_type_added=S,
    ),
    edit(
        "another message of a body",
        (
            "put",
            "POST forward_backward/requestBody/content/application~1x-protobuf/x-protobuf-message",
            "tinker_public.Other",
        ),
        protobuf_message=CS,
    ),
    edit(
        "body no longer required",
        ("put", "POST asample/requestBody/required", False),
        body_required=S,
    ),
    edit(
        "another schema of a body",
        ("put", "POST asample/requestBody/content/application~1json/schema", ref("GetInfoRequest")),
        other_schema=CSP,
    ),
    edit(
        "another result of a future",
        ("put", "POST optim_step/x-result", ref("SaveWeightsResponse")),
        other_schema=CSP,
    ),
    edit(
        "schema called otherwise",
        ("rename_schema", "HealthResponse", "Health"),
        class_added=NOBODY,
        class_removed=P,
        other_schema=P,
    ),
    # operations
    edit("operation removed", ("remove", "GET healthz"), operation_removed=CP),
    edit(
        "operation called otherwise",
        ("put", "GET healthz/operationId", "health"),
        function_renamed=P,
    ),
    edit("operation in another module", ("put", "GET healthz/tags", ["auth"]), module=P),
    edit("operation moved", ("rename", "paths/~1api~1v1~1healthz", "/healthz"), operation_moved=CS),
    edit(
        "PUT becomes PATCH",
        ("rename", "PUT sessions~1{session_id}~1project", "patch"),
        operation_moved=CS,
    ),
    edit("servers may lack an operation", ("put", "POST asample/x-optional", True), optional=C),
    edit("operation no longer optional", ("remove", "GET healthz/x-optional"), optional=S),
    edit("operation deprecated", ("put", "GET healthz/deprecated", True), deprecated=NOBODY),
    edit("client method removed", ("remove", "GET sessions/x-client"), method_removed=P),
    edit(
        "base URL moved",
        ("put", "servers/0/url", "https://example.com"),
        server_added=NOBODY,
        server_removed=C,
    ),
    edit("words explained otherwise", ("put", "GET healthz/summary", "Is it there?")),
    # messages
    edit(
        "proto: two numbers swapped",
        ("proto", "crow_indices = 2", "crow_indices = 9"),
        ("proto", "col_indices = 3", "col_indices = 2"),
        ("proto", "crow_indices = 9", "crow_indices = 3"),
        proto_number=CSP,
    ),
    edit(
        "proto: field removed",
        ("proto", "  int32 prompt_cache_hit_tokens = 4;\n", ""),
        proto_removed=CP,
    ),
    edit(
        "proto: field removed and reserved",
        ("proto", "bool forward_only = 6;", 'reserved 6, "forward_only";'),
        proto_removed=CSP,
    ),
    edit(
        "proto: field added",
        ("proto", "uint32 length = 4;", "uint32 length = 4;\n  bool sorted = 5;"),
        proto_added=NOBODY,
    ),
    edit(
        "proto: field called otherwise",
        ("proto", "string loss_fn = 4;", "string loss = 4;"),
        proto_renamed=P,
    ),
    edit(
        "proto: wider number in requests",
        ("proto", "int32 seq_id = 2;", "int64 seq_id = 2;"),
        proto_type=SP,
    ),
    edit(
        "proto: wider number in answers",
        ("proto", "int32 prompt_cache_hit_tokens = 4;", "int64 prompt_cache_hit_tokens = 4;"),
        proto_type=CP,
    ),
    edit(
        "proto: other type",
        ("proto", "bytes logprobs = 2;", "repeated float logprobs = 2;"),
        proto_label=CSP,
        proto_type=CSP,
    ),
    edit(
        "proto: list becomes one",
        ("proto", "repeated SampledSequence sequences = 1;", "SampledSequence sequences = 1;"),
        proto_label=CSP,
    ),
    edit(
        "proto: presence no longer known",
        ("proto", "optional bytes logprobs = 3;", "bytes logprobs = 3;"),
        proto_label=P,
    ),
    edit(
        "proto: reserved number used",
        ("proto", "reserved 6;", "bytes other = 6;"),
        given=(
            ("proto", "double number = 1;", "double number = 1;"),
            ("proto", "bool forward_only = 6;", "reserved 6;"),
        ),
        proto_reserved=CS,
    ),
    edit(
        "proto: enum of answers gains a value",
        ("proto", "STOP_REASON_LENGTH = 1;", "STOP_REASON_LENGTH = 1;\n  STOP_REASON_OTHER = 2;"),
        proto_added=NOBODY,
    ),
    edit(
        "proto: enum of both ways loses a value",
        ("proto", "  DTYPE_BFLOAT16 = 4;\n", ""),
        proto_removed=CSP,
    ),
]


def levels_of(change: ContractEdit) -> str:
    """Return the clients and servers that a change breaks, by all findings."""
    words = ", ".join(level for _, level in change.found)
    levels = ", ".join(level for level in (C, S, P) if level in words)
    return levels or (NOBODY if change.found else "no change")
