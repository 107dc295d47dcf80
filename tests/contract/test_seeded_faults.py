"""Faults in the document, each with the witness that catches it.

Those in the sources are in `support/source_faults.py`; `check_source_faults.py` puts each of them
into a copy of the project. Names and numbers of messages are compared by `test_official.py`.
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from support.cases import for_each
from support.contract import Contract, Fault
from support.pet_contract import REMOVED, put
from support.recordings import check_request, check_response, exchanges
from support.source_faults import SOURCE_FAULTS

from codegen.files import ROOT
from codegen.follow import compare_document

OFFICIAL = json.loads(
    (Path(__file__).with_name("official") / "0.38.0.json").read_text(encoding="utf-8")
)
SECRETS = re.compile(r"(^|_)(jwt|token|secret|urls|upload_url)$")
#: Names that end like a secret and hold none.
OPEN = {"SampleStreamEvent.token", "UnhandledExceptionEvent.token"}


# ---------------------------------------------------------------------------------------- witnesses


def official(document: Any) -> list[str]:
    """Say where the document differs from the official SDK."""
    return list(compare_document(document, OFFICIAL))


def recordings(document: Any) -> list[str]:
    """Say which recorded exchanges do not fit."""
    contract, found = Contract(document), []
    for one in exchanges():
        try:
            check_request(contract, one)
            check_response(contract, one)
        except Fault as fault:
            found.append(f"{one.place}: {fault}")
    return found


def secrets(document: Any) -> list[str]:
    """Say which properties are named like a secret and are not marked as one."""
    return [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, node in schema.get("properties", {}).items()
        if SECRETS.search(field) and "x-secret" not in node and f"{name}.{field}" not in OPEN
    ]


def defaults(document: Any) -> list[str]:
    """Return the defaults that differ from those read from clients."""
    schemas = document["components"]["schemas"]
    return [
        f"{name}.{field}"
        for name, fields in DEFAULTS.items()
        for field, value in fields.items()
        if schemas[name]["properties"][field].get("default") != value
    ]


def values(document: Any) -> list[str]:
    """Return the values that fit, or do not, contrary to the known result."""
    found = []
    for name, value, fits in VALUES:
        check = jsonschema_rs.validator_for(
            {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        )
        if check.is_valid(value) is not fits:
            found.append(f"{name}: {value}")
    return found


def headers(document: Any) -> list[str]:
    """Return the statuses that lack a header that clients use."""
    responses = document["components"]["responses"]
    return [
        f"{name} {header}"
        for name, header in HEADERS
        if header not in responses[name].get("headers", {})
    ]


DEFAULTS: dict[str, dict[str, Any]] = {
    "ClientConfigResponse": {
        "fwdbwd_max_chunk_len": 1024,
        "fwdbwd_max_chunk_bytes_count": 5_000_000,
        "fwdbwd_dispatch_bytes_semaphore_size": 50_000_000,
        "sample_dispatch_bytes_semaphore_size": 10_485_760,
        "inflight_response_bytes_semaphore_size": 52_428_800,
        "sample_max_concurrent_requests": 2000,
        "billing_exception_max_pause_duration_sec": 3600,
        "pjwt_auth_enabled": False,
    },
    "AdamParams": {
        "learning_rate": 1e-4,
        "beta1": 0.9,
        "beta2": 0.95,
        "eps": 1e-12,
        "weight_decay": 0.0,
        "grad_clip_norm": 0.0,
    },
    "SamplingParams": {"temperature": 1.0, "top_k": -1, "top_p": 1.0},
    "SampleRequest": {"num_samples": 1},
    "SessionSearchRequest": {"limit": 50},
}
CHECKPOINT = {
    "checkpoint_type": "training",
    "time": "2026-01-02T03:04:05Z",
    "tinker_path": "tinker://run/weights/a",
}
VALUES: list[tuple[str, Any, bool]] = [
    ("HealthResponse", {"status": "ok"}, True),
    ("HealthResponse", {"status": "healthy"}, False),
    ("Checkpoint", {**CHECKPOINT, "checkpoint_id": "weights/a"}, True),
    ("Checkpoint", {**CHECKPOINT, "checkpoint_id": "a"}, False),
    ("TokenLogprob", [], False),
    ("TokenLogprob", [1, -0.5], True),
    ("TtlSeconds", 60, False),
    ("TtlSeconds", 3600, True),
    ("CreateSessionResponse", {}, False),
    ("UntypedAPIFuture", {"request_id": ""}, False),
    ("StopReason", "length", True),
    ("RequestFailedResponse", {"error": "x"}, False),
    ("FutureAnswer", {"type": "try_again", "request_id": "r"}, False),
    ("FutureAnswer", {"error": "x", "category": "user"}, True),
]
HEADERS = [
    ("TooManyRequests", "Retry-After"),
    ("TooManyRequests", "retry-after-ms"),
    ("Unavailable", "Retry-After"),
]
S = "components/schemas"


def schema(path: str, value: object) -> Callable[[Any], None]:
    """Put a value below the schemas."""
    return lambda document: put(document, f"{S}/{path}", value)


def rename(path: str, new: str) -> Callable[[Any], None]:
    """Give a key of a mapping another name."""

    def change(document: Any) -> None:
        *parents, old = [key.replace("~1", "/") for key in path.split("/")]
        for key in parents:
            document = document[key]
        document[new] = document.pop(old)

    return change


def drop(path: str, value: str) -> Callable[[Any], None]:
    """Take a value out of a list."""

    def change(document: Any) -> None:
        for key in path.split("/"):
            document = document[key]
        document.remove(value)

    return change


# ------------------------------------------------------------------------------------------- faults

DOCUMENT_FAULTS: dict[str, tuple[Callable[[Any], None], Callable[[Any], list[str]]]] = {
    "O1 Checkpoint.size_bytes renamed": (
        rename(f"{S}/Checkpoint/properties/size_bytes", "nbytes"),
        official,
    ),
    "O2 default of beta2": (schema("AdamParams/properties/beta2/default", 0.999), defaults),
    "O3 default of fwdbwd_max_chunk_len": (
        schema("ClientConfigResponse/properties/fwdbwd_max_chunk_len/default", 2048),
        defaults,
    ),
    "O4 healthz renamed": (rename("paths/~1api~1v1~1healthz", "/api/v1/health"), official),
    "O5 a category of failures renamed": (
        schema("SessionFailedCategory/enum", ["user", "server"]),
        official,
    ),
    "O6 count of CheckpointBillingEvent renamed": (
        rename(f"{S}/CheckpointBillingEvent/properties/count", "checkpoint_count"),
        official,
    ),
    "O7 session_id not required": (
        drop(f"{S}/CreateSessionResponse/required", "session_id"),
        official,
    ),
    "O8 topk_sample_logprobs a number": (
        schema("SampleRequest/properties/topk_sample_logprobs/type", "number"),
        official,
    ),
    "O9 key in another header": (
        lambda d: put(d, "components/securitySchemes/ApiKey/name", "Authorization"),
        recordings,
    ),
    "O10 token no secret": (
        schema("LoadWeightsRequest/properties/weights_access_token/x-secret", REMOVED),
        secrets,
    ),
    "O11 expires_at never null": (
        schema("Checkpoint/properties/expires_at/type", "string"),
        official,
    ),
    "O12 shorter time to live": (schema("TtlSeconds/minimum", 60), values),
    "O13 default of top_k": (schema("SamplingParams/properties/top_k/default", 0), defaults),
    "O14 cispo misspelt": (schema("LossFnType/enum/3", "cipso"), official),
    "O16 fewer numbers for copies": (
        schema("JoinSamplingSessionResponse/properties/client_counter/maximum", 0),
        recordings,
    ),
    "N1 health of any word": (
        schema("HealthResponse/properties/status", {"type": "string"}),
        values,
    ),
    "N2 checkpoint ids of any form": (
        schema("Checkpoint/properties/checkpoint_id/pattern", REMOVED),
        values,
    ),
    "N3 a pair of nothing": (schema("TokenLogprob/minItems", 0), values),
    "N4 a constant never null": (
        schema("GetInfoResponse/properties/type/type", "string"),
        official,
    ),
    "N5 a failure without a category": (
        drop(f"{S}/RequestFailedResponse/required", "category"),
        values,
    ),
    "N6 try_again without its fields": (
        drop(f"{S}/TryAgainResponse/required", "queue_state"),
        values,
    ),
    "N7 an empty request id": (
        schema("UntypedAPIFuture/properties/request_id/minLength", 0),
        values,
    ),
    "N8 a queue state renamed": (schema("QueueState/enum/1", "paused"), official),
    "N9 an image format lost": (schema("ImageFormat/enum", ["png"]), official),
    "N10 a constant misspelt": (
        schema("TelemetryResponse/properties/status/const", "ok"),
        official,
    ),
    "N11 limit of concurrent samples": (
        schema("ClientConfigResponse/properties/sample_max_concurrent_requests/default", 200),
        defaults,
    ),
    "N12 the JWT exchange on by default": (
        schema("ClientConfigResponse/properties/pjwt_auth_enabled/default", True),
        defaults,
    ),
    "N13 JWT no secret": (schema("AuthTokenResponse/properties/jwt/x-secret", REMOVED), secrets),
    "N14 URLs of an upload no secret": (
        schema("ExternalWeightsUploadStartResult/properties/urls/x-secret", REMOVED),
        secrets,
    ),
    "N15 Retry-After of 429 lost": (
        lambda d: put(d, "components/responses/TooManyRequests/headers/Retry-After", REMOVED),
        headers,
    ),
    "N16 Retry-After of 503 lost": (
        lambda d: put(d, "components/responses/Unavailable/headers/Retry-After", REMOVED),
        headers,
    ),
    "N17 tokens as text": (
        schema("EncodedTextChunk/properties/tokens/items/type", "string"),
        recordings,
    ),
    "N18 GET for a POST": (rename("paths/~1api~1v1~1get_info/post", "get"), official),
    "N19 a nested field renamed": (
        rename(f"{S}/LoraConfig/properties/train_mlp", "train_ffn"),
        official,
    ),
    "N20 a schema lost": (rename(f"{S}/SessionSummary", "SessionInfo"), official),
}


@pytest.fixture(scope="module")
def sound(document: Any) -> Callable[[Callable[[Any], list[str]]], set[str]]:
    """Return a witness's findings for the unchanged document."""
    return cache(lambda witness: frozenset(witness(document)))


@for_each("name", DOCUMENT_FAULTS)
def test_a_fault_in_the_document_is_found(document: Any, sound: Any, name: str) -> None:
    """The witness of the fault finds something that it does not find in the unchanged document."""
    change, witness = DOCUMENT_FAULTS[name]
    broken = copy.deepcopy(document)
    change(broken)
    assert set(witness(broken)) - sound(witness)


@for_each("witness", [official, secrets, defaults, values, headers])
def test_the_document_has_none_of_them(sound: Any, witness: Callable[[Any], list[str]]) -> None:
    """The witnesses find nothing in the unchanged document."""
    assert sound(witness) == set()


@for_each("name", SOURCE_FAULTS)
def test_the_place_of_a_fault_and_its_test_are_there(name: str) -> None:
    """The text of a fault is in its file once, and the test that fails with it exists."""
    file, sound, _, test = SOURCE_FAULTS[name]
    assert (ROOT / file).read_text(encoding="utf-8").count(sound) == 1
    module, _, function = test.partition("[")[0].partition("::")
    tree = ast.parse((ROOT / "tests" / module).read_text(encoding="utf-8"))
    assert function in {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
