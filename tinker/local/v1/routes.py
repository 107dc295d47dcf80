"""The routes below ``/v1``: credentials, bodies and errors as clients for OpenAI's API have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tinker_wire.operations import OPERATIONS

from tinker.local.bodies import UnknownFields, read_body
from tinker.local.call import read_credential, receive
from tinker.local.errors import APIProblem, Endpoint, answer_errors
from tinker.local.operations.streams import EVENT_STREAM, STREAM_HEADERS
from tinker.local.state import State
from tinker.local.v1 import bodies
from tinker.local.v1.answers import AnswerBody, describe_error
from tinker.local.v1.conversations import Conversation, find_model_engine, open_chat, open_completion, resolve_model
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
    ]


def _answer(state: State, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint behind the check of the credential, with errors in the form of OpenAI's API."""

    async def respond(request: Request) -> Response:
        state.accounts.admit("asample", read_any_credential(request.headers))
        return await endpoint(request)

    return answer_errors(respond, _refuse)


def _refuse(problem: APIProblem) -> Response:
    status = 400 if problem.status == 422 else problem.status  # as OpenAI's API has it
    # The model is the only thing that a request of these names.
    param = problem.param if isinstance(problem, bodies.UnknownParameter) else "model" if status == 404 else None
    return _to_response(describe_error(status, problem.detail, param), status, problem.headers)


def read_any_credential(headers: Mapping[str, str]) -> bytes:
    """Return the bytes of ``X-API-Key``, or else of the bearer token in ``Authorization``; empty without either."""
    kind, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip().encode("latin-1") if kind.lower() == "bearer" else b""
    return read_credential(headers) or bearer


class Endpoints:
    """The endpoints of one server."""

    def __init__(self, state: State, unread: UnknownFields) -> None:
        self._state, self._unread = state, unread
        self._texts: dict[str, Texts] = {}

    async def list_models(self, request: Request) -> Response:
        """List the base models and every checkpoint of theirs that can be sampled from, the newest first."""
        engines = await self._state.engines()
        served = {engine.base_model for engine in engines}
        records = await self._state.offload_always(self._state.checkpoints.list)
        samplers = [one for one in records if one.kind == "sampler_weights" and one.engine_model in served]
        saved = [_describe_model(one.path, one.created_at) for one in samplers]
        return _to_response({"object": "list", "data": [*(_describe_model(one.base_model, 0) for one in engines), *saved]})

    async def get_model(self, request: Request) -> Response:
        """Describe one of them."""
        name = await resolve_model(self._state, request.path_params["model"])
        await find_model_engine(self._state, name)
        return _to_response(_describe_model(name, 0))

    async def complete(self, request: Request) -> Response:
        """Continue with a text."""
        return await self._generate(request, bodies.CompletionBody, bodies.ChatBody, bodies.check_completion, open_completion)

    async def chat(self, request: Request) -> Response:
        """Continue with a conversation."""
        return await self._generate(request, bodies.ChatBody, bodies.CompletionBody, bodies.check_chat, open_chat)

    async def _generate(
        self,
        request: Request,
        kind: type[bodies.Body],
        other: type[bodies.GenerationBody],
        check: Callable[[bodies.Body, int], None],
        open_conversation: Callable[[State, Texts, bodies.Body], Conversation],
    ) -> Response:
        state = self._state
        call = await receive(request, OPERATIONS["asample"], state.settings.max_request_bytes, state.offload)
        kind = bodies.with_others(kind)
        body = read_body(call.content, kind)
        bodies.check_names(call.content, kind, other)
        headers = self._unread.check(request.scope["route"].path.removeprefix("/v1/"), call.content, kind)
        check(body, state.settings.max_samples)
        body.model = await resolve_model(state, body.model)
        conversation = open_conversation(state, await self._find_texts(body.model), body)
        if not body.is_streamed:
            return _to_response(await conversation.answer(request, call), headers=headers)
        events = await conversation.open_stream(request, call)
        return StreamingResponse(events, media_type=EVENT_STREAM, headers={**STREAM_HEADERS, **headers})

    async def _find_texts(self, model: str) -> Texts:
        engine = await find_model_engine(self._state, model)
        if engine.base_model not in self._texts:
            self._texts[engine.base_model] = await self._state.offload_always(lambda: load_texts(engine))
        return self._texts[engine.base_model]


def _describe_model(name: str, created: float) -> AnswerBody:
    return {"id": name, "object": "model", "created": int(created), "owned_by": "tinker"}


def _to_response(answer: AnswerBody, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(answer), status, dict(headers or {}), MEDIA_TYPE)
