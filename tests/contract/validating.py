"""Transports that hold every exchange against the contract, and what they have seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import httpx
from contract import Contract, Fault, Operation, Reading

JSON = "application/json"
#: In the extensions of a response that a test made up: why it is outside the contract.
OUTSIDE = "outside_the_contract"


class Judge:
    """Holds exchanges against the contract. Remembers the faults, and which operations were asked and were done.

    A result is judged by what was submitted, where the submission was seen.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.bad_requests: list[str] = []
        self.bad_answers: list[str] = []
        self.asked: set[str] = set()
        self.succeeded: set[str] = set()
        self._results: dict[str, str | None] = {}

    def request(self, request: httpx.Request, content: bytes, reading: Reading = "sent") -> None:
        """Judge a request on its way out. Fault when it does not fit."""
        try:
            operation = self.contract.check_request(
                request.method, request.url.path, request.url.query.decode(), request.headers, plain(request, content), reading
            )
        except Fault as fault:
            self.bad_requests.append(str(fault))
            raise
        self.asked.add(operation.id)

    def response(self, request: httpx.Request, content: bytes, response: httpx.Response) -> None:
        """Judge the answer to a request that has an operation."""
        operation = self.contract.find(request.method, request.url.path)
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


def plain(request: httpx.Request, content: bytes) -> bytes:
    """The body before it was compressed."""
    if request.headers.get("content-encoding") != "zstd":
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


class Validating(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport around another one. Requests that do not fit are not sent; a response marked OUTSIDE is not judged.

    Exchanges with other hosts than the first one are none of the API.
    """

    def __init__(self, inner: Any, judge: Judge) -> None:
        self._inner, self._judge = inner, judge
        self._host: str | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.read()
        response = self._inner.handle_request(request)
        response.read()
        self._answered(request, response)
        return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        if self._is_api(request):
            self._judge.request(request, request.content)
        response = await self._inner.handle_async_request(request)
        await response.aread()
        if self._is_api(request):
            self._answered(request, response)
        return response

    def _is_api(self, request: httpx.Request) -> bool:
        self._host = self._host or request.url.host
        return request.url.host == self._host

    def _answered(self, request: httpx.Request, response: httpx.Response) -> None:
        if OUTSIDE not in response.extensions:
            self._judge.response(request, request.content, response)
