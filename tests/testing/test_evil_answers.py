"""Answers with something left out: the kit says what is missing and of which operation, ends, and never fails over one itself."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import httpx
from support.contract import the_contract
from support.tampering import Tampering, edited, is_of, media_type, read

from tinker.local.profiles import Profile

Serve = Callable[..., str]
Path: TypeAlias = tuple[str, ...]
KEY = "tml-key"
USUAL: dict[str, Any] = {
    "hold_seconds": 2.0,
    "inline_result_bytes": 10**9,
    "gap_seconds": 60.0,
    "max_uploads": 10**6,
    "api_key": KEY,
}
JSON_ONLY: dict[str, Any] = {**USUAL, "profile": Profile(name="json only", protobuf=False)}
RESULTS = {operation.id: operation.result for operation in the_contract().operations.values() if operation.result}
#: What an exception of Python is called, which no report may say.
_INTERNAL = re.compile(r"\b\w+(Error|Exception)\b(?!: \{)")
_MAPS = frozenset({"user_metadata", "metrics", "urls", "event_details", "loss_fn_inputs"})


def operation_of(request: httpx.Request) -> str:
    """Return the id of the operation that a request is of; empty for an address outside the contract."""
    for operation in the_contract().operations.values():
        if operation.method == request.method and operation.match(request.url.path):
            return operation.id
    return ""


class Replies(Tampering):
    """Changes the answers of one operation, or the results of what was submitted by it."""

    def __init__(self, operation: str, change: Callable[[httpx.Response], httpx.Response], *, result: bool) -> None:
        super().__init__(self._edit)
        self._operation, self._change, self._result = operation, change, result
        self._submitted: set[str] = set()
        self.changed = 0

    def _edit(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            return response
        if not self._result:
            return self._changed(response) if operation_of(request) == self._operation else response
        if not is_of(request, "retrieve_future"):
            if operation_of(request) == self._operation:
                self._submitted.add(response.json()["request_id"])
            return response
        is_result = b'"try_again"' not in response.content and b'"category"' not in response.content
        is_own = is_result and json.loads(request.content).get("request_id") in self._submitted
        return self._changed(response) if is_own else response

    def _changed(self, response: httpx.Response) -> httpx.Response:
        changed = self._change(response)
        self.changed += changed is not response
        return changed


class Listening(Tampering):
    """Remembers the largest answer of each operation, and the largest result of each."""

    def __init__(self) -> None:
        super().__init__(self._listen)
        self.answers: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._submitted: dict[str, str] = {}

    def _listen(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        value = read(response.content) if response.is_success and "json" in media_type(response) else None
        if not isinstance(value, dict):
            return response
        operation, found = operation_of(request), self.answers
        if operation == "retrieve_future":
            if value.get("type") == "try_again" or "error" in value:
                return response
            operation, found = self._submitted.get(json.loads(request.content)["request_id"], ""), self.results
        elif "request_id" in value:
            self._submitted[value["request_id"]] = operation
        if operation and len(str(value)) > len(str(found.get(operation, ""))):
            found[operation] = value
        return response


def paths(value: object, where: Path = ()) -> Iterator[Path]:
    """Yield the place of each member of the JSON and of the records in it."""
    if isinstance(value, dict) and (not where or where[-1] not in _MAPS):
        for name, item in value.items():
            yield (*where, name)
            yield from paths(item, (*where, name))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*where, "[]"))


def without(value: Any, path: Path) -> Any:
    """Return the JSON without what is at this place."""
    if path[0] == "[]":
        return [without(one, path[1:]) for one in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {name: one for name, one in value.items() if name != path[0]}
    return {**value, path[0]: without(value[path[0]], path[1:])}


def is_required(schema: dict[str, Any], path: Path) -> bool:
    """Return whether the contract requires what is at this place of a record, where all that is above it is there."""
    schema = the_contract().resolved(schema)
    if path[0] == "[]":
        return "items" in schema and is_required(schema["items"], path[1:])
    if len(path) == 1:
        return path[0] in schema.get("required", ())
    below = schema.get("properties", {}).get(path[0]) or schema.get("additionalProperties")
    return isinstance(below, dict) and is_required(below, path[1:])


def leave_out(path: Path) -> Callable[[httpx.Response], httpx.Response]:
    def change(response: httpx.Response) -> httpx.Response:
        value = read(response.content) if "json" in media_type(response) else None
        left = without(value, path) if isinstance(value, dict) else value
        return response if left == value else edited(response, json.dumps(left).encode())

    return change
