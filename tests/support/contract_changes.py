"""Changes of the real contract, as data: the edits, and the compatibility breaks that the
comparison must report.

`redocly` is what `redocly diff` 2.77 says of the same change: major, minor, patch, or nothing.
Where its judgement is another, `why` says which rule makes the difference.
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
    """One change: edits of the document or of the `.proto`, and what must be found, as (rule,
    level).
    """

    name: str
    edits: tuple[Edit, ...]
    found: frozenset[tuple[str, str]]
    redocly: str = "not read"
    why: str = ""
    #: Edits of both sides, where the contract lacks the changed part.
    given: tuple[Edit, ...] = ()


def edit(
    name: str, edits: Edit | list[Edit], found: str | list[str], *, given: list[Edit] | None = None
) -> ContractEdit:
    """Make one change; findings are written `rule: level`."""
    pairs = [tuple(text.split(": ")) for text in ([found] if isinstance(found, str) else found)]
    listed = edits if isinstance(edits, list) else [edits]
    redocly, why = JUDGED.get(name, ("not read", ""))
    return ContractEdit(
        name,
        tuple(listed),
        frozenset((rule, level) for rule, level in pairs),
        redocly,
        why,
        tuple(given or ()),
    )


def operation(path: str, method: str = "post") -> str:
    return f"paths/{'/api/v1/'.replace('/', '~1')}{path.replace('/', '~1')}/{method}"


def schema(name: str, *keys: str) -> str:
    return "/".join(["components/schemas", name, *keys])


def field(name: str, key: str, *keys: str) -> str:
    return schema(name, "properties", key, *keys)


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
    for kind, *arguments in edits:
        EDITS[kind](changed, *copy.deepcopy(arguments))
    return changed


def remove(document: Any, pointer: str) -> None:
    put(document, pointer, REMOVED)


def append(document: Any, pointer: str, *values: Any) -> None:
    node(document, pointer).extend(values)


def drop(document: Any, pointer: str, words: str) -> None:
    """Take the members of lists away that hold these words, however deep the lists are."""
    dropped = list(drop_below(node(document, pointer), words))
    assert len(dropped) == 1, (pointer, words, dropped)


def drop_below(value: Any, words: str) -> Iterator[Any]:
    if isinstance(value, list):
        for member in [member for member in value if words in json.dumps(member)]:
            yield member
            value.remove(member)
    for member in (
        list(value.values())
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else ()
    ):
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


def rename_schema(document: Any, old: str, name: str) -> None:
    """Call a schema otherwise, and refer to it by the new name."""
    text = json.dumps(document).replace(
        f'"#/components/schemas/{old}"', f'"#/components/schemas/{name}"'
    )
    document.update(json.loads(text))
    rename(document, schema(old), name)


EDITS: dict[str, Any] = {
    "put": put,
    "remove": remove,
    "append": append,
    "drop": drop,
    "rename": rename,
    "rename_schema": rename_schema,
    "proto": lambda document, old, new: None,
}


def make_proto(text: str, edits: tuple[Edit, ...]) -> str:
    """Return the text of the `.proto` after the edits that are meant for it."""
    for kind, *arguments in edits:
        if kind == "proto":
            old, new = arguments
            assert text.count(old) >= 1, old
            text = text.replace(old, new, 1)
    return text


#: What redocly diff says, and why this comparison says something else.
JUDGED: dict[str, tuple[str, str]] = {
    "200 becomes 202": ("major", ""),
    "204 becomes 200 with a body": ("major", ""),
    "410 of retrieve_future removed": ("major", ""),
    "302 of the audit log removed": ("major", ""),
    "418 added beside default": ("minor", "`default` describes it already."),
    "302 added": ("minor", "A client of the old contract does not follow a redirect."),
    "default removed": ("major", ""),
    "body of 429 is another schema": ("major", ""),
    "429 refers to the answer of 503": ("patch", ""),
    "Location removed from 302": ("major", ""),
    "Retry-After removed from 429": ("major", ""),
    "Location no longer required": ("patch", "A client that needs the header may not get it."),
    "header of an answer added": ("minor", ""),
    "required header of an answer added": ("minor", ""),
    "Retry-After is a number": ("major", ""),
    "a header in capitals": ("patch", ""),
    "X-API-Key becomes Authorization": ("major", ""),
    "apiKey becomes bearer": ("major", ""),
    "healthz needs a key": (
        "patch",
        "redocly does not compare operations with their own security.",
    ),
    "security removed": ("patch", ""),
    "a second way in": ("minor", ""),
    "the scheme is called otherwise": ("major", "The name of a scheme is not on the wire."),
    "query limit gets a maximum": ("major", ""),
    "query limit loses its minimum": ("patch", ""),
    "pattern of a path narrowed": ("major", ""),
    "pattern of a path added": ("major", ""),
    "default of a parameter": ("patch", "A missing value means something else now."),
    "parameter removed": ("major", ""),
    "parameter required": ("major", ""),
    "parameter no longer required": ("patch", ""),
    "parameter of another type": ("major", ""),
    "optional header of requests added": ("minor", ""),
    "required header of requests added": ("major", ""),
    "header of requests called otherwise": ("major", ""),
    "lists in a query exploded": ("major", ""),
    "parameter of a path called otherwise": ("patch", ""),
    "query enum loses a value": ("major", ""),
    "query enum gains a value": ("patch", ""),
    "open query enum loses a value": ("major", ""),
    "enum of both ways gains a value": ("major", ""),
    "enum of both ways loses a value": ("major", ""),
    "enum of answers gains a value": ("major", ""),
    "enum of answers loses a value": ("patch", ""),
    "open enum of answers gains a value": (
        "major",
        "`x-open-enum`: clients take values that are not listed.",
    ),
    "open enum of answers closed": ("patch", ""),
    "enum of requests opened": ("patch", ""),
    "open enum in plain OpenAPI": (
        "major",
        "The same values are allowed; only the spelling is another.",
    ),
    "minimum of a request raised": ("major", ""),
    "maximum of a request raised": ("patch", ""),
    "fewer items in a request": ("major", ""),
    "minimum inside a list of requests": ("major", ""),
    "minimum inside a list of answers": ("patch", ""),
    "shortest text of an answer is empty": ("major", ""),
    "integer becomes number in an answer": ("major", ""),
    "number becomes integer in a request": ("major", ""),
    "64 bits written down": ("patch", ""),
    "answer in 64 bits instead of 32": ("major", ""),
    "text of an answer becomes a date": ("patch", ""),
    "an answer may be null": ("major", ""),
    "a request may not be null": ("major", ""),
    "default of a request": ("patch", "A missing value means something else now."),
    "constant of a request": ("major", ""),
    "secret no longer marked": ("patch", "`x-secret` is an extension that redocly does not know."),
    "map of other values": ("major", ""),
    "longer tuple": ("minor", ""),
    "optional property of a request added": ("minor", ""),
    "required property of a request added": ("major", ""),
    "required property with a default added": (
        "major",
        "Clients may leave out what has a default, and servers fill it in.",
    ),
    "property of a request removed": (
        "patch",
        "Servers ignore it, so that the client's wish is lost without an error.",
    ),
    "optional property of an answer removed": (
        "major",
        "It may always have been absent; only Python code that names it breaks.",
    ),
    "required property of an answer removed": ("major", ""),
    "property of an answer no longer required": ("major", ""),
    "property of a request required": ("major", ""),
    "property called otherwise": ("major", ""),
    "StopCondition loses a list of numbers": ("major", ""),
    "StopCondition gains a number": ("minor", ""),
    "FutureAnswer loses a result": ("patch", ""),
    "FutureAnswer told by another word": ("major", ""),
    "FutureAnswer as a plain union": ("major", "The same alternatives, spelled without `if`."),
    "member of a union of requests removed": ("major", ""),
    "open union closed": (
        "patch",
        "`x-open-union`: what clients send beyond the listed members is refused now.",
    ),
    "tag of a member": ("major", ""),
    "discriminator": ("patch", "redocly does not compare discriminators."),
    "text of an error may be a number": ("major", ""),
    "protobuf requests removed": ("major", ""),
    "protobuf answers removed": ("major", ""),
    "requests in another form added": ("minor", ""),
    "another message of a body": (
        "patch",
        "`x-protobuf-message` is an extension that redocly does not know.",
    ),
    "body no longer required": ("patch", ""),
    "another schema of a body": ("major", ""),
    "another result of a future": (
        "minor",
        "`x-result` is an extension that redocly does not know.",
    ),
    "schema called otherwise": ("patch", ""),
    "operation removed": ("major", ""),
    "operation called otherwise": (
        "major",
        "The name is not on the wire; functions of the bindings have it.",
    ),
    "operation in another module": ("patch", ""),
    "operation moved": ("major", ""),
    "PUT becomes PATCH": ("major", ""),
    "servers may lack an operation": (
        "patch",
        "`x-optional` is an extension that redocly does not know.",
    ),
    "operation no longer optional": ("patch", ""),
    "operation deprecated": ("patch", ""),
    "client method removed": ("patch", ""),
    "base URL moved": ("major", ""),
    "words explained otherwise": ("patch", ""),
}

JSON_CONTENT = "content/application~1json/schema"
FUTURE = operation("retrieve_future")
ARCHIVE = operation("training_runs/{training_run_id}/checkpoints/{checkpoint_id}/archive", "get")
ANSWERS = "components/responses"
PARAMETERS = "components/parameters"
CLOSED = ("remove", schema("TraceExportStatus", "x-open-enum"))
BEARER = {"type": "http", "scheme": "bearer"}
CONDITION = {
    "x-any": True,
    "if": {"required": ["type"], "properties": {"type": {"const": "try_again"}}},
    "then": ref("TryAgainResponse"),
    "else": {"anyOf": [ref("SampleResponse"), ref("CreateModelResponse")]},
}

CHANGES = [
    # statuses
    edit(
        "200 becomes 202",
        ("rename", f"{operation('get_info')}/responses/200", "202"),
        [f"status-added: {C}", f"status-removed: {CS}"],
    ),
    edit(
        "204 becomes 200 with a body",
        [
            ("rename", f"{operation('cancel_future')}/responses/204", "200"),
            (
                "put",
                f"{operation('cancel_future')}/responses/200/content",
                {"application/json": {"schema": ref("HealthResponse")}},
            ),
        ],
        [f"status-added: {C}", f"status-removed: {CS}", f"reply: {P}"],
    ),
    edit(
        "410 of retrieve_future removed",
        ("remove", f"{FUTURE}/responses/410"),
        f"status-removed: {CS}",
    ),
    edit(
        "302 of the audit log removed",
        ("remove", f"{operation('audit', 'get')}/responses/302"),
        f"status-removed: {CS}",
    ),
    edit(
        "418 added beside default",
        ("put", f"{FUTURE}/responses/418", ref("Gone", "responses")),
        f"status-added: {NOBODY}",
    ),
    edit(
        "302 added",
        ("put", f"{operation('get_info')}/responses/302", {"description": "Elsewhere."}),
        f"status-added: {C}",
    ),
    edit(
        "default removed",
        ("remove", f"{operation('get_info')}/responses/default"),
        f"status-removed: {CS}",
    ),
    edit(
        "body of 429 is another schema",
        ("put", f"{ANSWERS}/TooManyRequests/{JSON_CONTENT}", ref("RequestFailedResponse")),
        f"other-schema: {CSP}",
    ),
    edit(
        "429 refers to the answer of 503",
        ("put", f"{operation('asample')}/responses/429", ref("Unavailable", "responses")),
        [],
    ),
    # headers of answers
    edit(
        "Location removed from 302",
        ("remove", f"{ARCHIVE}/responses/302/headers/Location"),
        f"header-removed: {C}",
    ),
    edit(
        "Retry-After removed from 429",
        ("remove", f"{ANSWERS}/TooManyRequests/headers/Retry-After"),
        f"header-removed: {C}",
    ),
    edit(
        "Location no longer required",
        ("remove", "components/headers/Location/required"),
        f"header-required: {C}",
    ),
    edit(
        "header of an answer added",
        ("put", f"{ANSWERS}/Gone/headers", {"X-Reason": {"schema": {"type": "string"}}}),
        f"header-added: {NOBODY}",
    ),
    edit(
        "required header of an answer added",
        (
            "put",
            f"{ANSWERS}/Gone/headers",
            {"X-Reason": {"required": True, "schema": {"type": "string"}}},
        ),
        f"header-added: {S}",
    ),
    edit(
        "Retry-After is a number",
        ("put", "components/headers/RetryAfter/schema/type", "integer"),
        f"type: {CS}",
    ),
    edit(
        "a header in capitals",
        ("rename", f"{ANSWERS}/TooManyRequests/headers/retry-after-ms", "Retry-After-Ms"),
        [],
    ),
    # credentials
    edit(
        "X-API-Key becomes Authorization",
        ("put", "components/securitySchemes/ApiKey/name", "Authorization"),
        [f"credential-removed: {C}", f"credential-added: {S}"],
    ),
    edit(
        "apiKey becomes bearer",
        ("put", "components/securitySchemes/ApiKey", BEARER),
        [f"credential-removed: {C}", f"credential-added: {S}"],
    ),
    edit(
        "healthz needs a key",
        ("remove", f"{operation('healthz', 'get')}/security"),
        f"credential-removed: {C}",
    ),
    edit("security removed", ("remove", "security"), f"credential-added: {S}"),
    edit(
        "a second way in",
        [
            ("put", "components/securitySchemes/Token", BEARER),
            ("append", "security", {"Token": []}),
        ],
        f"credential-added: {S}",
    ),
    edit(
        "the scheme is called otherwise",
        [
            ("rename", "components/securitySchemes/ApiKey", "Key"),
            ("put", "security", [{"Key": []}]),
        ],
        [],
    ),
    # parameters
    edit(
        "query limit gets a maximum",
        ("put", f"{PARAMETERS}/Limit20/schema/maximum", 10),
        f"limit: {C}",
    ),
    edit(
        "query limit loses its minimum",
        ("remove", f"{PARAMETERS}/Limit20/schema/minimum"),
        f"limit: {S}",
    ),
    edit(
        "pattern of a path narrowed",
        ("put", f"{PARAMETERS}/CheckpointId/schema/pattern", "^weights/[a-z]+$"),
        f"limit: {CS}",
    ),
    edit(
        "pattern of a path added",
        ("put", f"{PARAMETERS}/TrainingRunId/schema/pattern", "^[a-z]+$"),
        f"limit: {C}",
    ),
    edit(
        "default of a parameter",
        ("put", f"{PARAMETERS}/Limit20/schema/default", 10),
        f"default: {CP}",
    ),
    edit(
        "parameter removed",
        ("remove", f"{operation('training_runs', 'get')}/parameters/0"),
        f"parameter-removed: {CP}",
    ),
    edit(
        "parameter required",
        ("put", f"{PARAMETERS}/DayQuery/required", True),
        f"parameter-required: {CP}",
    ),
    edit(
        "parameter no longer required",
        ("remove", f"{PARAMETERS}/StartingOn/required"),
        f"parameter-required: {S}",
    ),
    edit(
        "parameter of another type",
        ("put", f"{PARAMETERS}/Offset/schema/type", "string"),
        f"type: {CSP}",
    ),
    edit(
        "optional header of requests added",
        (
            "append",
            f"{operation('asample')}/parameters",
            {"name": "X-New", "in": "header", "schema": {"type": "string"}},
        ),
        f"parameter-added: {NOBODY}",
    ),
    edit(
        "required header of requests added",
        (
            "append",
            f"{operation('asample')}/parameters",
            {"name": "X-New", "in": "header", "required": True, "schema": {"type": "string"}},
        ),
        f"parameter-added: {CP}",
    ),
    edit(
        "header of requests called otherwise",
        ("put", f"{PARAMETERS}/ContentEncoding/name", "X-Encoding"),
        [f"parameter-removed: {CP}", f"parameter-added: {NOBODY}"],
    ),
    edit(
        "lists in a query exploded",
        ("put", f"{PARAMETERS}/ProjectIdQuery/explode", False),
        f"parameter-spelling: {CS}",
    ),
    edit(
        "parameter of a path called otherwise",
        [
            ("put", f"{PARAMETERS}/SamplerId/name", "sampler"),
            ("rename", "paths/~1api~1v1~1samplers~1{sampler_id}", "/api/v1/samplers/{sampler}"),
        ],
        f"parameter-renamed: {P}",
    ),
    # enums by where they are used
    edit(
        "query enum loses a value",
        ("put", schema("AccessScope", "enum"), ["owned"]),
        f"value-removed: {CP}",
    ),
    edit(
        "query enum gains a value",
        ("append", schema("AccessScope", "enum"), "shared"),
        f"value-added: {S}",
    ),
    edit(
        "open query enum loses a value",
        ("drop", schema("AuditEventType"), '"teams"'),
        f"value-removed: {C}",
    ),
    edit(
        "enum of both ways gains a value",
        ("append", schema("TensorDtype", "enum"), "float16"),
        f"value-added: {CSP}",
    ),
    edit(
        "enum of both ways loses a value",
        ("drop", schema("TensorDtype"), '"int64"'),
        f"value-removed: {CSP}",
    ),
    edit(
        "enum of answers gains a value",
        ("append", schema("TraceExportStatus", "enum"), "lost"),
        f"value-added: {CP}",
        given=[CLOSED],
    ),
    edit(
        "enum of answers loses a value",
        ("drop", schema("TraceExportStatus"), '"failed"'),
        f"value-removed: {S}",
        given=[CLOSED],
    ),
    edit(
        "open enum of answers gains a value",
        ("append", schema("StopReason", "enum"), "budget"),
        f"value-added: {NOBODY}",
    ),
    edit(
        "open enum of answers closed",
        ("remove", schema("StopReason", "x-open-enum")),
        f"values-closed: {S}",
    ),
    edit(
        "enum of requests opened",
        ("put", schema("SamplingClientKind", "x-open-enum"), True),
        f"values-opened: {S}",
    ),
    edit(
        "open enum in plain OpenAPI",
        (
            "put",
            schema("StopReason"),
            {"anyOf": [{"type": "string", "enum": ["length", "stop"]}, {"type": "string"}]},
        ),
        [],
    ),
    # what schemas say of a value
    edit(
        "minimum of a request raised", ("put", schema("TtlSeconds", "minimum"), 7200), f"limit: {C}"
    ),
    edit(
        "maximum of a request raised",
        ("put", schema("TtlSeconds", "maximum"), 10**10),
        f"limit: {S}",
    ),
    edit(
        "fewer items in a request",
        ("put", field("UserSearchOwner", "owner_urns", "maxItems"), 5),
        f"limit: {C}",
    ),
    edit(
        "minimum inside a list of requests",
        ("put", field("EncodedTextChunk", "tokens", "items", "minimum"), 0),
        f"limit: {C}",
    ),
    edit(
        "minimum inside a list of answers",
        ("put", field("SampledSequence", "tokens", "items", "minimum"), 0),
        f"limit: {S}",
    ),
    edit(
        "shortest text of an answer is empty",
        ("remove", field("UntypedAPIFuture", "request_id", "minLength")),
        f"limit: {C}",
    ),
    edit(
        "integer becomes number in an answer",
        ("put", field("SelfApiKeyResponse", "key_id", "type"), "number"),
        f"type: {CP}",
    ),
    edit(
        "number becomes integer in a request",
        ("put", field("SamplingParams", "temperature", "type"), "integer"),
        f"type: {CP}",
    ),
    edit(
        "64 bits written down",
        ("put", field("SelfApiKeyResponse", "key_id", "format"), "int64"),
        f"format: {NOBODY}",
        given=[("remove", field("SelfApiKeyResponse", "key_id", "format"))],
    ),
    edit(
        "answer in 64 bits instead of 32",
        ("put", field("SelfApiKeyResponse", "key_id", "format"), "int64"),
        f"format: {C}",
        given=[("put", field("SelfApiKeyResponse", "key_id", "format"), "int32")],
    ),
    edit(
        "text of an answer becomes a date",
        ("put", field("SelfApiKeyResponse", "note", "format"), "date-time"),
        f"format: {SP}",
    ),
    edit(
        "an answer may be null",
        ("put", field("SelfApiKeyResponse", "name", "type"), ["string", "null"]),
        f"alternative-added: {CP}",
    ),
    edit(
        "a request may not be null",
        ("put", field("SampleRequest", "sampling_session_id", "type"), "string"),
        f"alternative-removed: {CP}",
    ),
    edit(
        "default of a request",
        ("put", field("SampleRequest", "num_samples", "default"), 2),
        f"default: {CP}",
    ),
    edit(
        "constant of a request",
        ("put", field("SampleRequest", "type", "const"), "draw"),
        f"constant: {CSP}",
    ),
    edit(
        "secret no longer marked",
        ("remove", field("AuthTokenResponse", "jwt", "x-secret")),
        f"secret: {CSP}",
    ),
    edit(
        "map of other values",
        ("put", schema("LossFnConfig", "additionalProperties", "type"), "number"),
        f"alternative-removed: {CP}",
    ),
    edit(
        "longer tuple",
        ("append", schema("TokenLogprob", "prefixItems"), {"type": "string"}),
        f"prefixItems: {S}",
    ),
    # properties
    edit(
        "optional property of a request added",
        ("put", field("SampleRequest", "colour"), {"type": "string"}),
        f"property-added: {NOBODY}",
    ),
    edit(
        "required property of a request added",
        [
            ("put", field("SampleRequest", "colour"), {"type": "string"}),
            ("append", schema("SampleRequest", "required"), "colour"),
        ],
        f"property-added: {CP}",
    ),
    edit(
        "required property with a default added",
        [
            ("put", field("SampleRequest", "colour"), {"type": "string", "default": "red"}),
            ("append", schema("SampleRequest", "required"), "colour"),
        ],
        f"property-added: {NOBODY}",
    ),
    edit(
        "property of a request removed",
        ("remove", field("SampleRequest", "record_stability_info")),
        f"property-removed: {CP}",
    ),
    edit(
        "optional property of an answer removed",
        ("remove", field("SampleResponse", "prompt_cache_hit_tokens")),
        f"property-removed: {P}",
    ),
    edit(
        "required property of an answer removed",
        [
            ("remove", field("AuthTokenResponse", "jwt")),
            ("drop", schema("AuthTokenResponse", "required"), '"jwt"'),
        ],
        f"property-removed: {CP}",
    ),
    edit(
        "property of an answer no longer required",
        ("drop", schema("AuthTokenResponse", "required"), '"jwt"'),
        f"no-longer-required: {CP}",
    ),
    edit(
        "property of a request required",
        ("append", schema("SampleRequest", "required"), "seq_id"),
        f"now-required: {CP}",
    ),
    edit(
        "property called otherwise",
        [
            ("rename", field("AuthTokenResponse", "jwt"), "token"),
            ("put", schema("AuthTokenResponse", "required"), ["token"]),
        ],
        [f"property-removed: {CP}", f"property-added: {S}"],
    ),
    # unions and schemas without a Python type
    edit(
        "StopCondition loses a list of numbers",
        ("drop", schema("StopCondition"), '"integer"'),
        f"alternative-removed: {C}",
    ),
    edit(
        "StopCondition gains a number",
        ("append", schema("StopCondition", "anyOf"), {"type": "integer"}),
        f"alternative-added: {S}",
    ),
    edit(
        "FutureAnswer loses a result",
        ("drop", schema("FutureAnswer"), "/CreateModelResponse"),
        f"alternative-removed: {S}",
    ),
    edit(
        "FutureAnswer told by another word",
        ("put", schema("FutureAnswer", "if", "properties", "type", "const"), "other"),
        f"condition: {CS}",
        given=[("put", schema("FutureAnswer"), CONDITION)],
    ),
    edit(
        "FutureAnswer as a plain union",
        (
            "put",
            schema("FutureAnswer"),
            {
                "x-any": True,
                "anyOf": [
                    ref("TryAgainResponse"),
                    ref("CreateModelResponse"),
                    ref("SampleResponse"),
                ],
            },
        ),
        [],
        given=[("put", schema("FutureAnswer"), CONDITION)],
    ),
    edit(
        "member of a union of requests removed",
        [
            ("drop", schema("SearchOwner", "oneOf"), "UserSearchOwner"),
            ("remove", schema("SearchOwner", "discriminator", "mapping", "user")),
        ],
        f"alternative-removed: {CP}",
    ),
    edit(
        "open union closed",
        ("remove", schema("OptimizerConfig", "x-open-union")),
        f"union-closed: {CSP}",
    ),
    edit(
        "tag of a member",
        [
            ("rename", schema("SearchOwner", "discriminator", "mapping", "own"), "mine"),
            ("put", field("OwnSearchOwner", "type", "const"), "mine"),
        ],
        [f"constant: {CSP}", f"discriminator: {CSP}"],
    ),
    edit(
        "discriminator",
        ("put", schema("SearchOwner", "discriminator", "propertyName"), "kind"),
        f"discriminator: {CSP}",
    ),
    edit(
        "text of an error may be a number",
        ("append", schema("ErrorDetail", "anyOf"), {"type": "integer"}),
        f"alternative-added: {C}",
    ),
    # bodies
    edit(
        "protobuf requests removed",
        ("remove", f"{operation('forward_backward')}/requestBody/content/application~1x-protobuf"),
        f"media-type-removed: {CP}",
    ),
    edit(
        "protobuf answers removed",
        ("remove", f"{FUTURE}/responses/200/content/application~1x-protobuf"),
        f"media-type-removed: {C}",
    ),
    edit(
        "requests in another form added",
        (
            "put",
            f"{operation('asample')}/requestBody/content/application~1cbor",
            {"schema": {"type": "string", "format": "binary"}},
        ),
        f"media-type-added: {S}",
    ),
    edit(
        "another message of a body",
        (
            "put",
            f"{operation('forward_backward')}/requestBody/content/application~1x-protobuf/x-protobuf-message",
            "tinker_public.Other",
        ),
        f"protobuf-message: {CS}",
    ),
    edit(
        "body no longer required",
        ("put", f"{operation('asample')}/requestBody/required", False),
        f"body-required: {S}",
    ),
    edit(
        "another schema of a body",
        ("put", f"{operation('asample')}/requestBody/{JSON_CONTENT}", ref("GetInfoRequest")),
        f"other-schema: {CSP}",
    ),
    edit(
        "another result of a future",
        ("put", f"{operation('optim_step')}/x-result", ref("SaveWeightsResponse")),
        f"other-schema: {CSP}",
    ),
    edit(
        "schema called otherwise",
        ("rename_schema", "HealthResponse", "Health"),
        [f"class-removed: {P}", f"class-added: {NOBODY}", f"other-schema: {P}"],
    ),
    # operations
    edit("operation removed", ("remove", operation("healthz", "get")), f"operation-removed: {CP}"),
    edit(
        "operation called otherwise",
        ("put", f"{operation('healthz', 'get')}/operationId", "health"),
        f"function-renamed: {P}",
    ),
    edit(
        "operation in another module",
        ("put", f"{operation('healthz', 'get')}/tags", ["auth"]),
        f"module: {P}",
    ),
    edit(
        "operation moved",
        ("rename", "paths/~1api~1v1~1healthz", "/healthz"),
        f"operation-moved: {CS}",
    ),
    edit(
        "PUT becomes PATCH",
        ("rename", operation("sessions/{session_id}/project", "put"), "patch"),
        f"operation-moved: {CS}",
    ),
    edit(
        "servers may lack an operation",
        ("put", f"{operation('asample')}/x-optional", True),
        f"optional: {C}",
    ),
    edit(
        "operation no longer optional",
        ("remove", f"{operation('healthz', 'get')}/x-optional"),
        f"optional: {S}",
    ),
    edit(
        "operation deprecated",
        ("put", f"{operation('healthz', 'get')}/deprecated", True),
        f"deprecated: {NOBODY}",
    ),
    edit(
        "client method removed",
        ("remove", f"{operation('sessions', 'get')}/x-client"),
        f"method-removed: {P}",
    ),
    edit(
        "base URL moved",
        ("put", "servers/0/url", "https://example.com"),
        [f"server-removed: {C}", f"server-added: {NOBODY}"],
    ),
    edit(
        "words explained otherwise",
        ("put", f"{operation('healthz', 'get')}/summary", "Is it there?"),
        [],
    ),
    # messages
    edit(
        "proto: two numbers swapped",
        [
            ("proto", "crow_indices = 2", "crow_indices = 9"),
            ("proto", "col_indices = 3", "col_indices = 2"),
            ("proto", "crow_indices = 9", "crow_indices = 3"),
        ],
        f"proto-number: {CSP}",
    ),
    edit(
        "proto: field removed",
        ("proto", "  int32 prompt_cache_hit_tokens = 4;\n", ""),
        f"proto-removed: {CP}",
    ),
    edit(
        "proto: field removed and reserved",
        ("proto", "bool forward_only = 6;", 'reserved 6, "forward_only";'),
        f"proto-removed: {CSP}",
    ),
    edit(
        "proto: field added",
        ("proto", "uint32 length = 4;", "uint32 length = 4;\n  bool sorted = 5;"),
        f"proto-added: {NOBODY}",
    ),
    edit(
        "proto: field called otherwise",
        ("proto", "string loss_fn = 4;", "string loss = 4;"),
        f"proto-renamed: {P}",
    ),
    edit(
        "proto: wider number in requests",
        ("proto", "int32 seq_id = 2;", "int64 seq_id = 2;"),
        f"proto-type: {SP}",
    ),
    edit(
        "proto: wider number in answers",
        ("proto", "int32 prompt_cache_hit_tokens = 4;", "int64 prompt_cache_hit_tokens = 4;"),
        f"proto-type: {CP}",
    ),
    edit(
        "proto: other type",
        ("proto", "bytes logprobs = 2;", "repeated float logprobs = 2;"),
        [f"proto-type: {CSP}", f"proto-label: {CSP}"],
    ),
    edit(
        "proto: list becomes one",
        ("proto", "repeated SampledSequence sequences = 1;", "SampledSequence sequences = 1;"),
        f"proto-label: {CSP}",
    ),
    edit(
        "proto: presence no longer known",
        ("proto", "optional bytes logprobs = 3;", "bytes logprobs = 3;"),
        f"proto-label: {P}",
    ),
    edit(
        "proto: reserved number used",
        ("proto", "reserved 6;", "bytes other = 6;"),
        f"proto-reserved: {CS}",
        given=[
            ("proto", "double number = 1;", "double number = 1;"),
            ("proto", "bool forward_only = 6;", "reserved 6;"),
        ],
    ),
    edit(
        "proto: enum of answers gains a value",
        ("proto", "STOP_REASON_LENGTH = 1;", "STOP_REASON_LENGTH = 1;\n  STOP_REASON_OTHER = 2;"),
        f"proto-added: {NOBODY}",
    ),
    edit(
        "proto: enum of both ways loses a value",
        ("proto", "  DTYPE_BFLOAT16 = 4;\n", ""),
        f"proto-removed: {CSP}",
    ),
]


def write_table() -> str:
    """Return the table of the documentation: each change, its levels, and what redocly diff says of
    it.
    """
    rows = [
        f"| {change.name} | {levels_of(change)} | {change.redocly} | {change.why} |"
        for change in CHANGES
    ]
    return "\n".join(
        ["| Change | This comparison | redocly diff | Reason |", "|---|---|---|---|", *rows]
    )


def levels_of(change: ContractEdit) -> str:
    """Return the clients and servers that a change breaks, by all findings."""
    words = ", ".join(level for _, level in change.found)
    return ", ".join(level for level in (C, S, P) if level in words) or (
        NOBODY if change.found else "no change"
    )
