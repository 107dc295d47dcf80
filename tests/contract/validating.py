"""What holds every exchange of a test against the contract, and a transport that does so on the way to a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import httpx
from contract import Contract, Fault, Operation, Reading, load

from tinker._wire import proto

PARSERS = {
    "tinker_public.ForwardBackwardRequest": proto.decode_forward_backward,
    "tinker_public.ForwardBackwardOutput": proto.decode_loss_output,
    "tinker_public.SampleResponse": proto.decode_sample,
}


@cache
def strict_contract() -> Contract:
    """The contract, read once in a process, which also parses protobuf bodies."""
    return Contract(load(), PARSERS)


class Judge:
    """Holds exchanges against the contract. Remembers the faults, and which operations were asked and were done.

    A result is judged by what was submitted, where the submission was seen.
    """

    def __init__(self, contract: Contract | None = None) -> None:
        self.contract = contract or strict_contract()
        self.bad_requests: list[str] = []
        self.bad_answers: list[str] = []
        self.asked: set[str] = set()
        self.succeeded: set[str] = set()
        self._results: dict[str, str | None] = {}

    @property
    def faults(self) -> list[str]:
        """Everything that did not fit."""
        return [*self.bad_requests, *self.bad_answers]

    def request(self, request: httpx.Request, content: bytes, reading: Reading = "sent") -> None:
        """Judge a request on its way out."""
        path, _, query = request.url.raw_path.decode().partition("?")
        try:
            body = plain(request.headers, content)
            operation = self.contract.check_request(request.method, path, query, request.headers, body, reading)
        except Fault as fault:
            self.bad_requests.append(str(fault))
        else:
            self.asked.add(operation.id)

    def response(self, request: httpx.Request, content: bytes, response: httpx.Response) -> None:
        """Judge the answer to a request; one to a request outside the contract is judged with that."""
        try:
            operation = self.contract.find(request.method, request.url.raw_path.decode().partition("?")[0])
        except Fault:
            return
        self.answered(operation, content, response.status_code, response.headers, response.content)

    def answered(self, operation: Operation, asked: bytes, status: int, headers: Mapping[str, str], content: bytes) -> None:
        """Judge an answer, and note what it promises."""
        result = self._results.get(field(asked, "request_id")) if operation.id == "retrieve_future" else None
        try:
            self.contract.check_response(operation, status, headers, content, result)
        except Fault as fault:
            self.bad_answers.append(str(fault))
            return
        if status < 400:
            self.succeeded.add(operation.id)
        if operation.result is not None and status == 200:
            self._results[field(content, "request_id")] = operation.result


def plain(headers: Mapping[str, str], content: bytes) -> bytes:
    """The body before it was compressed."""
    if headers.get("content-encoding") != "zstd":
        return content
    import zstandard

    return zstandard.ZstdDecompressor().decompress(content)


def field(content: bytes, name: str) -> str:
    """A field of a JSON object; empty where there is none."""
    try:
        value: Any = json.loads(content)
    except ValueError:
        return ""
    return str(value.get(name, "")) if isinstance(value, dict) else ""


class Validating(httpx.BaseTransport):
    """A transport around another one, for servers under test: requests may be anything, answers have to fit."""

    def __init__(self, inner: httpx.BaseTransport, judge: Judge) -> None:
        self._inner, self._judge = inner, judge

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        response = self._inner.handle_request(request)
        response.read()
        self._judge.response(request, request.content, response)
        return response

    def close(self) -> None:
        self._inner.close()
