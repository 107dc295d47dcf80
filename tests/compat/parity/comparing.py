"""Normalize and compare the requests and results of two clients."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

import attrs
import msgspec
import zstandard
from exceptions import ALIKE, COUNTED_ONCE, DEFAULT_QUERIES, HEADERS, NOT_COMPARED
from recording import Recorded
from tinker_wire.operations import OPERATIONS

from tinker import types
from tinker._wire import json as wire_json
from tinker._wire import proto
from tinker.local.call import read_body

# The numbers of a sampler's clone begin at a multiple of a thousand millions, which is drawn.
DRAWN = re.compile(r":request:[1-9]\d*(?P<number>\d{9})")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@attrs.frozen
class Message:
    """One request, comparable: the operation, and the rest as JSON text."""

    operation: str
    text: str


def messages(requests: Iterable[Recorded]) -> Counter[Message]:
    """Count the messages that are compared."""
    found = [_message(request) for request in requests]
    once = {one for one in found if one.operation in COUNTED_ONCE}
    return Counter(
        [*once, *(one for one in found if one.operation not in NOT_COMPARED and one not in once)]
    )


def _message(request: Recorded) -> Message:
    operation, path = _operation(request)
    headers = {name: value for name, value in request.headers.items() if name in HEADERS}
    body: Any
    if operation in ("forward", "forward_backward"):
        operation, body = _loss(operation, request)
        path = operation
    else:
        body = _json(operation, request.content)
    query = sorted(set(parse_qsl(request.query)) - DEFAULT_QUERIES)
    text = json.dumps([request.method, path, query, headers, body], sort_keys=True)
    return Message(operation, DRAWN.sub(r":request:\g<number>", UUID.sub("<uuid>", text)))


def _operation(request: Recorded) -> tuple[str, str]:
    path = unquote(request.path)
    for name, row in OPERATIONS.items():
        pattern = re.sub(r"\\{\w*checkpoint_id\\}", "(?:[^/]+/)?[^/]+", re.escape(row.path))
        if row.method == request.method and re.fullmatch(
            re.sub(r"\\{\w+\\}", "[^/]+", pattern), path
        ):
            return name, path
    return "unknown", path


def _json(operation: str, content: bytes) -> Any:
    """Return the body with the contract's defaults for missing fields; unknown fields stay."""
    if not content:
        return None
    raw, row = json.loads(content), OPERATIONS.get(operation)
    if row is None or row.body is None:
        return raw
    body = _filled(msgspec.to_builtins(read_body(content, row.body)), raw)
    return ALIKE[operation](body) if operation in ALIKE else body


def _filled(complete: Any, raw: Any) -> Any:
    """``raw`` over ``complete``; a null is as good as nothing, and numbers are floats."""
    if isinstance(raw, dict) and isinstance(complete, dict):
        both = {
            name: _filled(complete.get(name), raw.get(name, complete.get(name)))
            for name in {*complete, *raw}
        }
        return {name: value for name, value in both.items() if value is not None}
    if isinstance(raw, list) and isinstance(complete, list) and len(raw) == len(complete):
        return [_filled(*pair) for pair in zip(complete, raw, strict=True)]
    return float(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw


def _loss(operation: str, request: Recorded) -> tuple[str, Any]:
    """Return a loss to compute, the same from protobuf and from JSON."""
    if "protobuf" in request.headers["content-type"]:
        call = proto.decode_forward_backward(_uncompressed(request))
        operation = "forward" if call.forward_only else "forward_backward"
        head = (call.model_id, call.seq_id, call.loss_fn, dict(call.loss_fn_config))
        return operation, [*head, [_example(datum) for datum in call.data]]
    body = read_body(request.content, OPERATIONS[operation].body)
    asked = body.forward_input if operation == "forward" else body.forward_backward_input
    head = (body.model_id, body.seq_id, asked.loss_fn, asked.loss_fn_config or {})
    return operation, [*head, [_example(wire_json.public_datum(datum)) for datum in asked.data]]


def _uncompressed(request: Recorded) -> bytes:
    if request.headers.get("content-encoding") != "zstd":
        return request.content
    return zstandard.ZstdDecompressor().decompressobj().decompress(request.content)


def _example(datum: types.Datum) -> Any:
    """Tensors by name; the sparse ones stay so."""
    tensors = {
        name: [one.dtype, one.shape, one.sparse_crow_indices, one.sparse_col_indices, one.data]
        for name, one in datum.loss_fn_inputs.items()
    }
    spans = [datum.model_input_spans, datum.loss_fn_input_spans]
    return [datum.model_input.model_dump(), tensors, repr(spans)]


def differences(theirs: Counter[Message], ours: Counter[Message]) -> list[tuple[str, str]]:
    """(operation, what only one of them said)."""
    only_theirs = [
        (one.operation, f"official only: {one.text}") for one in (theirs - ours).elements()
    ]
    return [
        *only_theirs,
        *((one.operation, f"ours only:     {one.text}") for one in (ours - theirs).elements()),
    ]


def lines(output: str) -> list[str]:
    """Return the lines that a script showed."""
    return [line for line in output.splitlines() if line.startswith("{")]


def differing_lines(theirs: Sequence[str], ours: Sequence[str]) -> list[tuple[str, str]]:
    """(name, what each of them showed)."""
    rest = list(ours)
    found: list[tuple[str, str]] = []
    for line in theirs:
        if line in rest:
            rest.remove(line)
        else:
            found.append((next(iter(json.loads(line))), f"official only: {line}"))
    return [*found, *((next(iter(json.loads(line))), f"ours only:     {line}") for line in rest)]
