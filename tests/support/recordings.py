"""The recorded exchanges of tests/golden, with their placeholders replaced by values of the same
kind.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs

from support.contract import Contract, Reading

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
_MORE_EVENTS = re.compile(r"<\d+ more events>")


@attrs.frozen
class Message:
    """One side of an exchange: `json` is None for a body in another form, and for none."""

    headers: Mapping[str, str]
    content: bytes
    json: Any = None


@attrs.frozen
class Exchange:
    """One recorded exchange; `place` is the file and the number in it."""

    place: str
    method: str
    path: str
    query: str
    status: int
    request: Message
    response: Message

    @property
    def file(self) -> str:
        return self.place.partition(".")[0]

    @property
    def reading(self) -> Reading:
        """Clients of 2025 leave out defaults."""
        return "taken" if self.file.startswith("legacy") else "sent"


@cache
def _recorded() -> list[tuple[str, dict[str, Any]]]:
    """Each file and exchange as it was written, in the order of files and lines."""
    return [
        (path.name, json.loads(line))
        for path in sorted(GOLDEN.glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


@cache
def exchanges() -> tuple[Exchange, ...]:
    """All of them, in the order of files and lines."""
    return tuple(_exchange(file, recorded) for file, recorded in _recorded())


def messages() -> Iterator[tuple[str, str, dict[str, Any], bytes]]:
    """Yield place, name, decoded form and bytes of every protobuf message that was recorded."""
    for file, recorded in _recorded():
        for side in ("request", "response"):
            body = recorded[side]["body"] or {}
            if "protobuf" in body:
                place = f"{file.removesuffix('.jsonl')}-{recorded['n']}-{side}"
                name = body["protobuf"].removeprefix("tinker_public.")
                yield place, name, body["decoded"], base64.b64decode(body["raw_base64"])


def protobuf_bodies(message: str) -> dict[str, bytes]:
    """Every recorded body of a protobuf message, by its place."""
    return {place: content for place, name, _, content in messages() if name == message}


def check_request(contract: Contract, exchange: Exchange, **other: Any) -> None:
    """Raise Fault when a recorded request, with some of its parts replaced, does not fit."""
    sent = exchange.request
    parts = {"method": exchange.method, "path": exchange.path, "query": exchange.query}
    parts |= {"headers": sent.headers, "content": sent.content, "reading": exchange.reading}
    contract.check_request(**{**parts, **other})


def check_response(contract: Contract, exchange: Exchange, **other: Any) -> None:
    """Raise Fault when a recorded response, with some of its parts replaced, does not fit."""
    answer, operation = exchange.response, contract.find(exchange.method, exchange.path)
    parts = {"status": exchange.status, "headers": answer.headers, "content": answer.content}
    contract.check_response(operation, **{**parts, **other})


def _exchange(file: str, recorded: dict[str, Any]) -> Exchange:
    request, response = recorded["request"], recorded["response"]
    return Exchange(
        place=f"{file}:{recorded['n']}",
        method=request["method"],
        path=request["path"],
        query=request["query"],
        status=response["status"],
        request=_message(request),
        response=_message(response),
    )


def _message(recorded: dict[str, Any]) -> Message:
    body, headers = recorded["body"], restored(recorded["headers"])
    if body is None:
        return Message(headers, b"")
    if "json" in body:
        value = restored(body["json"])
        return Message(headers, json.dumps(value).encode(), value)
    return Message(
        headers,
        base64.b64decode(body["raw_base64"]) if "raw_base64" in body else body["text"].encode(),
    )


def restored(value: Any) -> Any:
    """Return a recorded value with values for its placeholders, without marks of omission."""
    if isinstance(value, dict):
        return {key: restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [
            restored(item)
            for item in value
            if not (isinstance(item, str) and _MORE_EVENTS.fullmatch(item))
        ]
    return (
        {"<rfc3339 timestamp>": "2026-01-02T03:04:05Z", "<float seconds>": "0.25"}.get(value, value)
        if isinstance(value, str)
        else value
    )
