"""The routes below ``/v1``: credentials, bodies and errors as clients for OpenAI's
API have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tinker_wire.operations import OPERATIONS

from tinker.local.bodies import UnknownFields, read_body
from tinker.local.call import APICall, read_credential, receive
from tinker.local.engines.protocol import Engine
from tinker.local.errors import APIProblem, Endpoint, answer_errors
from tinker.local.operations.streams import EVENT_STREAM, STREAM_HEADERS
from tinker.local.state import State
from tinker.local.v1 import bodies
from tinker.local.v1.answers import AnswerBody, describe_error
from tinker.local.v1.conversations import (
    Conversation,
    encode,
    find_model,
    open_chat,
    open_completion,
)
from tinker.local.v1.texts import Texts, load_texts

MEDIA_TYPE = "application/json"


def v1_routes(state: State, unread: UnknownFields) -> list[Route]:
    """Make the routes; a tokenizer is loaded with the first request that needs it."""
    endpoints = Endpoints(state, unread)
    return [
        Route("/v1/models", _answer(state, endpoints.list_models), methods=["GET"]),
        Route("/v1/models/{model:path}", _answer(state, endpoints.get_model), methods=["GET"]),
        Route("/v1/completions", _answer(state, endpoints.complete), methods=["POST"]),
        Route("/v1/chat/completions", _answer(state, endpoints.chat), methods=["POST"]),
        Route("/tokenize", _answer(state, endpoints.tokenize), methods=["POST"]),
        Route("/detokenize", _answer(state, endpoints.detokenize), methods=["POST"]),
    ]


def _answer(state: State, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint behind the check of the credential, with errors in the form of OpenAI's
    API.
    """

    async def respond(request: Request) -> Response:
        state.accounts.admit("asample", read_any_credential(request.headers))
        return await endpoint(request)

    return answer_errors(respond, _refuse)


def _refuse(problem: APIProblem) -> Response:
    status = 400 if problem.status == 422 else problem.status  # as OpenAI's API has it
    param = "model" if status == 404 else None  # the only thing that a request of these names
    return _to_response(describe_error(status, problem.detail, param), status, problem.headers)


def read_any_credential(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of ``X-API-Key``, or else of the bearer token in ``Authorization``; empty
    without either.
    """
    kind, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip().encode("latin-1") if kind.lower() == "bearer" else b""
    return read_credential(headers) or bearer


class Endpoints:
    """The endpoints of one server."""

    def __init__(self, state: State, unread: UnknownFields) -> None:
        self._state, self._unread = state, unread
        self._texts: dict[str, Texts] = {}

    async def list_models(self, request: Request) -> Response:
        """List the base models and every checkpoint of theirs that can be sampled from, the newest
        first.
        """
        engines = await self._state.engines()
        served = {engine.base_model for engine in engines}
        records = await self._state.offload_always(self._state.checkpoints.list)
        samplers = [
            one for one in records if one.kind == "sampler_weights" and one.engine_model in served
        ]
        saved = [_describe_model(one.path, one.created_at) for one in samplers]
        return _to_response(
            {
                "object": "list",
                "data": [*(_describe_model(one.base_model, 0) for one in engines), *saved],
            }
        )

    async def get_model(self, request: Request) -> Response:
        """Describe one of them."""
        name, _ = await find_model(self._state, request.path_params["model"])
        return _to_response(_describe_model(name, 0))

    async def complete(self, request: Request) -> Response:
        """Continue with a text."""
        return await self._generate(request, bodies.CompletionBody, open_completion)

    async def chat(self, request: Request) -> Response:
        """Continue with a conversation."""
        return await self._generate(request, bodies.ChatBody, open_chat)

    async def tokenize(self, request: Request) -> Response:
        """Return the tokens of a text or of a conversation, as vLLM does."""
        _, body, headers = await self._receive(request, bodies.TokenizeBody)
        engine, texts = await self._open(body)
        tokens = encode(texts, body)
        names = texts.names(tokens) if body.return_token_strs else None
        found = {
            "count": len(tokens),
            "max_model_len": engine.max_context_length,
            "tokens": tokens,
            "token_strs": names,
        }
        return _to_response(found, headers=headers)

    async def detokenize(self, request: Request) -> Response:
        """Return the text of tokens, as vLLM does."""
        _, body, headers = await self._receive(request, bodies.DetokenizeBody)
        _, texts = await self._open(body)
        return _to_response({"prompt": texts.decode(body.tokens)}, headers=headers)

    async def _generate(
        self,
        request: Request,
        kind: type[bodies.Body],
        open_conversation: Callable[[State, Texts, bodies.Body], Conversation],
    ) -> Response:
        call, body, headers = await self._receive(request, kind)
        _, texts = await self._open(body)
        conversation = open_conversation(self._state, texts, body)
        if not conversation.body.stream:
            return _to_response(await conversation.answer(request, call), headers=headers)
        events = await conversation.open_stream(request, call)
        return StreamingResponse(
            events, media_type=EVENT_STREAM, headers={**STREAM_HEADERS, **headers}
        )

    async def _receive(
        self, request: Request, kind: type[bodies.Body]
    ) -> tuple[APICall, bodies.Body, Mapping[str, str]]:
        """Read a request, and check it; returns the headers that name what was not read, too."""
        settings = self._state.settings
        call = await receive(
            request, OPERATIONS["asample"], settings.max_request_bytes, self._state.offload
        )
        body = read_body(call.content, kind)
        bodies.check_body(call.content, body, settings.max_samples)
        return (
            call,
            body,
            self._unread.check(
                request.scope["route"].path.removeprefix("/v1/"), call.content, kind
            ),
        )

    async def _open(
        self, body: bodies.GenerationBody | bodies.DetokenizeBody
    ) -> tuple[Engine, Texts]:
        """Find the model of a request, whose name is resolved, and its tokenizer."""
        body.model, engine = await find_model(
            self._state, body.model or (await self._state.engines())[0].base_model
        )
        if engine.base_model not in self._texts:
            self._texts[engine.base_model] = await self._state.offload_always(
                lambda: load_texts(engine)
            )
        return engine, self._texts[engine.base_model]


def _describe_model(name: str, created: float) -> AnswerBody:
    return {"id": name, "object": "model", "created": int(created), "owned_by": "tinker"}


def _to_response(
    answer: AnswerBody, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(answer), status, dict(headers or {}), MEDIA_TYPE)
