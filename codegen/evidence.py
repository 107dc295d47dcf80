"""evidence.json: what findings of the conformance kit show, a recorded exchange for each operation
that was recorded.

It is made from openapi.yaml and tests/golden.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from codegen.document import METHODS
from codegen.files import Wanted

RETRIEVE = "retrieve_future"
_LONGEST_LIST = 8

JSON = dict[str, Any]
#: The method and the path pattern of each operation.
Routes = dict[str, tuple[str, re.Pattern[str]]]


def make_evidence(root: Path, document: Any) -> Wanted:
    """Return the text of the file."""
    exchanges = find_exchanges(root / "tests" / "golden", read_routes(document))
    text = json.dumps(exchanges, indent=1, ensure_ascii=False) + "\n"
    return {root / "tinker" / "testing" / "conformance" / "evidence.json": text}


def read_routes(document: Any) -> Routes:
    """Return how the requests of each operation are recognized. A checkpoint's id
    is two segments.
    """
    return {
        operation["operationId"]: (
            method.upper(),
            re.compile(re.sub(r"{\w+}", "[^/]+", path.replace("{checkpoint_id}", "[^/]+/[^/]+"))),
        )
        for path, item in document["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    }


def find_exchanges(folder: Path, routes: Routes) -> dict[str, JSON]:
    """Return the first successful exchange of each operation, of a client of today; and of the
    results that are fetched.
    """
    chosen: dict[str, JSON] = {}
    for file in sorted(folder.glob("*.jsonl")):
        if file.name.startswith("legacy"):
            continue
        submitted: dict[str, str] = {}
        for line in file.read_text(encoding="utf-8").splitlines():
            recorded = json.loads(line)
            for key in keys(recorded, routes, submitted):
                chosen.setdefault(key, exchange(file.name, recorded))
    return dict(sorted(chosen.items()))


def keys(recorded: JSON, routes: Routes, submitted: dict[str, str]) -> Iterator[str]:
    """Yield what an exchange shows: an operation, or with `retrieve_future:` before
    it, its result.
    """
    request, response = recorded["request"], recorded["response"]
    operation = find_operation(routes, request["method"], request["path"])
    if operation is None or not 200 <= response["status"] < 300:
        return
    if operation != RETRIEVE:
        submitted[str((answer_of(response) or {}).get("request_id"))] = operation
        yield operation
        return
    body: JSON = request["body"] or {}
    waited_for = submitted.get(str(body.get("json", {}).get("request_id")))
    if waited_for is not None and (answer_of(response) or {}).get("type") != "try_again":
        yield from (RETRIEVE, f"{RETRIEVE}:{waited_for}")


def answer_of(response: JSON) -> JSON | None:
    """Return the JSON object of an answer, None for anything else."""
    body: JSON = response["body"] or {}
    found = body.get("json")
    return cast("JSON", found) if isinstance(found, dict) else None


def find_operation(routes: Routes, method: str, path: str) -> str | None:
    """Return the operation of a request."""
    found = (
        name
        for name, (known, pattern) in routes.items()
        if known == method and pattern.fullmatch(path)
    )
    return next(found, None)


def exchange(file: str, recorded: JSON) -> JSON:
    """Return the shown parts of an exchange: address, status and bodies, long lists cut off."""
    request, response = recorded["request"], recorded["response"]
    return {
        "recording": f"tests/golden/{file}:{recorded['n']}",
        "request": f"{request['method']} {request['path']}",
        "sent": shorten_body(request["body"]),
        "status": response["status"],
        "answered": shorten_body(response["body"]),
    }


def shorten_body(body: JSON | None) -> Any:
    """Return a body as a reader wants it: JSON as it is, protobuf decoded under the name of its
    message.
    """
    if body is None:
        return None
    if "protobuf" in body:
        return {f"protobuf {body['protobuf']}": shorten(body["decoded"])}
    return shorten(body.get("json", body.get("text")))


def shorten(value: Any) -> Any:
    """Return a value with long lists cut off."""
    if isinstance(value, dict):
        return {key: shorten(item) for key, item in cast("JSON", value).items()}
    if isinstance(value, list):
        items = cast("Sequence[Any]", value)
        rest = [f"... {len(items) - _LONGEST_LIST} more"] if len(items) > _LONGEST_LIST else []
        return [*map(shorten, items[:_LONGEST_LIST]), *rest]
    return value
