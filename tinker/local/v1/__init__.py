"""The endpoints that clients for OpenAI's API ask for: ``/v1/models``, ``/v1/completions`` and
``/v1/chat/completions``. With them come ``/tokenize`` and ``/detokenize``, as vLLM has them.

They are no part of the contract. A request becomes a sample of the contract (``asample`` or
``stream_sample``), so that it waits, is counted and is refused like every other one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

import attrs
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.call import (
    APICall,
    APIProblem,
    Endpoint,
    UnknownFields,
    answer_errors,
    read_body,
    read_credential,
    receive,
)
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.handlers.sampling import (
    OwnSampleRequest,
    cancel_sample,
    open_stream,
    submit_sample,
)
from tinker.local.handlers.shared import (
    EVENT_STREAM,
    KEEP_ALIVE,
    STREAM_HEADERS,
    choose_engine_for,
    find_engine,
)
from tinker.local.state import State
from tinker.local.storage.futures import RequestFailure
from tinker.local.v1 import texts as bodies
from tinker.local.v1.texts import (
    DEFAULT_MAX_TOKENS,
    DONE,
    SCHEME,
    AnswerBody,
    AnswerForm,
    ChatBody,
    ChatForm,
    CompletionBody,
    GenerationBody,
    SamplePart,
    SampleText,
    Texts,
    TokenizeBody,
    TokenScore,
    ToolSchema,
    describe_error,
    encode_event,
    load_texts,
)
from tinker.types.results import SampledSequence, SampleResponse, TopkLogprobs

# What the contract has, too.
_SAMPLING = str.split(
    "seed temperature top_k top_p min_p "
    "presence_penalty frequency_penalty repetition_penalty priority"
)
LOOK_SECONDS = 1.0  # between two looks whether the client is still there


async def find_model(state: State, name: str) -> tuple[str, Engine]:
    """Return a base model or a checkpoint to sample from, and its engine. Raises APIProblem 404 for
    another name.

    The name or ID of a run is its newest checkpoint to sample from.
    """
    engines = await state.engines()
    if not name.startswith(SCHEME) and not any(
        name == one.base_model or name in one.aliases for one in engines
    ):
        records = await state.offload_always(state.checkpoints.list)
        samplers = [one for one in records if one.kind == "sampler_weights"]
        named = (
            one.path
            for one in samplers
            if name in (one.training_run_id, (one.run_metadata or {}).get("name"))
        )
        name = next(named, name)
    try:
        if not name.startswith(SCHEME):
            return name, choose_engine_for(state, engines, name)[0]
        record, _ = await state.offload_always(
            lambda: state.checkpoints.find(name, "sampler_weights")
        )
        return name, find_engine(engines, record.engine_model)
    except (EngineError, APIProblem) as error:
        raise APIProblem(404, str(error)) from error


async def sample(
    state: State, request: Request, call: APICall, wanted: models.SampleRequest
) -> SampleResponse:
    """Sample, and wait for the whole result. The work ends when the client goes. APIProblem when it
    fails.
    """
    promise = await submit_sample(state, call, wanted)
    future = state.futures.find(promise.request_id)
    try:
        while (outcome := await future.wait(LOOK_SECONDS)) is None:
            if await request.is_disconnected():
                raise ClientDisconnect
    finally:
        if future.outcome is None:
            cancel_sample(state, future)
        state.futures.release(promise.request_id)
    if isinstance(outcome, RequestFailure):
        raise to_problem(outcome.error, outcome.category)
    assert isinstance(outcome, SampleResponse)
    return outcome


def to_problem(error: str, category: str | None) -> APIProblem:
    """Return the refusal that a failed request is: 400 where it is the client's fault, else 500; it
    names what was sent.
    """
    return APIProblem(
        400 if category == "user" else 500,
        error.replace("json_schema needs", "response_format needs"),
    )


@attrs.frozen(kw_only=True)
class Conversation:
    """One request: ``top`` is how many of the likeliest tokens are wanted at each place, ``echo``
    whether the prompt comes back, with its scores, and ``tools`` are those that the model may call.
    ``continues``: its text continues the prompt's.
    """

    state: State
    texts: Texts
    form: AnswerForm
    body: GenerationBody
    prompts: Sequence[Sequence[int]]
    max_tokens: int | None
    top: int
    echo: bool = False
    tools: Sequence[ToolSchema] = ()
    continues: bool = True

    async def answer(self, request: Request, call: APICall) -> AnswerBody:
        """Sample every prompt; returns the whole answer."""
        pieces = await self._sample_all(request, call)
        return self.form.whole(pieces, self._count(sum(len(piece.tokens) for piece in pieces)))

    async def _sample_all(self, request: Request, call: APICall) -> list[SamplePart]:
        """Sample every prompt, all at once; the first failure is raised when all have ended."""
        tasks = [
            sample(self.state, request, call, self._to_request(prompt)) for prompt in self.prompts
        ]
        pieces: list[SamplePart] = []
        for prompt, outcome in zip(
            self.prompts, await asyncio.gather(*tasks, return_exceptions=True), strict=True
        ):
            if isinstance(outcome, BaseException):
                raise outcome
            for sequence in outcome.sequences:
                pieces.append(self._write(len(pieces), prompt, outcome, sequence))
        return pieces

    def _count(self, completion: int) -> AnswerBody:
        """Count the tokens of the request."""
        prompt = sum(map(len, self.prompts))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _write(
        self, index: int, prompt: Sequence[int], result: SampleResponse, sequence: SampledSequence
    ) -> SamplePart:
        """Return a sample that has ended, as a message where tools are called in it."""
        echo, asked = self._echo(prompt, result) if self.echo else ("", [])
        text, tokens = self._begin(prompt, len(echo)), sequence.tokens_np.tolist()
        logprobs = (
            [0.0] * len(tokens) if sequence.logprobs_np is None else sequence.logprobs_np.tolist()
        )
        tops = _read_top(sequence.topk_logprobs_np, len(tokens))
        written = "".join(text.add(*drawn) for drawn in zip(tokens, logprobs, tops, strict=True))
        written += text.finish(sequence.stop_reason)
        turn, scores = (
            self.texts.read_calls(prompt, tokens, self.tools) if self.tools else None,
            text.drain_scores(),
        )
        return SamplePart(
            index=index,
            text=echo + written,
            scores=[*asked, *scores],
            tokens=[score.word.token for score in scores],
            finish_reason=text.finish_reason if turn is None else "tool_calls",
            turn=turn,
            prompt=prompt,
        )

    def _begin(self, prompt: Sequence[int], begin: int = 0) -> SampleText:
        """Return the text of a sample behind a prompt: another text, unless it continues that of
        the prompt.
        """
        words = (
            self.texts.word(None, token) for token in reversed(prompt if self.continues else ())
        )
        previous = next((word.token for word in words if not word.is_special), None)
        return SampleText(
            self.texts, self.body.stops, self._ends, previous, begin, self.body.min_tokens
        )

    def _echo(self, prompt: Sequence[int], result: SampleResponse) -> tuple[str, list[TokenScore]]:
        """Return the text of the prompt, and its scores if there are any."""
        text, values = SampleText(self.texts, (), frozenset()), result.prompt_logprobs_np
        logprobs = [None] * len(prompt) if values is None else [None, *values[1:].tolist()]
        tops = _read_top(result.topk_prompt_logprobs_np, len(prompt))
        words = "".join(
            text.add(*one) for one in zip(prompt, logprobs, [[], *tops[1:]], strict=True)
        ) + text.finish("length")
        return words, [] if values is None else text.drain_scores()

    @property
    def _ends(self) -> frozenset[int]:
        """Return the tokens that end a sample."""
        return frozenset(
            [*(self.body.stop_token_ids or ()), *(() if self.body.ignore_eos else self.texts.ends)]
        )

    def _to_request(self, prompt: Sequence[int]) -> OwnSampleRequest:
        """Return the sample of the contract that is asked for."""
        body, is_checkpoint = self.body, self.body.model.startswith(SCHEME)
        is_plain = not (body.stops or body.stop_token_ids or body.ignore_eos or body.min_tokens)
        return OwnSampleRequest(
            base_model=None if is_checkpoint else body.model,
            model_path=body.model if is_checkpoint else None,
            num_samples=body.n,
            prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(prompt))]),
            sampling_params=models.SamplingParams(
                **{name: value for name in _SAMPLING if (value := getattr(body, name)) is not None},
                max_tokens=self.max_tokens,
                stop=body.stops or None,
                json_schema=None
                if body.response_format is None
                else body.response_format.read_schema(),
            ),
            prompt_logprobs=self.echo
            and ((self.form.scored and len(prompt) > 1) or self.max_tokens == 0),
            topk_prompt_logprobs=self.top if self.echo and len(prompt) > 1 else 0,
            topk_sample_logprobs=self.top,
            ends=None if is_plain else sorted(self._ends),
            min_tokens=body.min_tokens,
        )

    # Streams

    async def open_stream(self, request: Request, call: APICall) -> AsyncGenerator[bytes]:
        """Begin a stream; APIProblem when it is refused.

        The likeliest tokens are not streamed, and calls of tools are read when they are whole, so
        these come all at once.
        """
        if self.top or self.tools:
            return self._replay(await self._sample_all(request, call))
        return self._follow(await open_stream(self.state, self._to_request(self.prompts[0])))

    async def _replay(self, pieces: Sequence[SamplePart]) -> AsyncGenerator[bytes]:
        count = sum(len(piece.tokens) for piece in pieces)
        for event in [*map(self.form.chunk, pieces), *self._last_events(count)]:
            yield event

    async def _follow(
        self, source: AsyncGenerator[models.SampleStreamEvent | None]
    ) -> AsyncGenerator[bytes]:
        samples = [self._begin(self.prompts[0]) for _ in range(self.body.n)]
        count, shows_tokens = 0, self.form.scored or self.form.numbered
        async with contextlib.aclosing(source) as events:
            for index in range(len(samples) if self.form.is_chat or self.form.numbered else 0):
                yield self.form.chunk(SamplePart(index=index, prompt=self.prompts[0]))
            async for event in events:
                if event is None:
                    yield KEEP_ALIVE
                elif event.type == "failed":
                    yield encode_event(
                        describe_error(400 if event.category == "user" else 500, event.error)
                    )
                    return
                elif event.type == "tokens" and samples[event.index].finish_reason is None:
                    piece = _read_event(samples[event.index], event)
                    count += len(piece.tokens)
                    if piece.text or piece.finish_reason or (piece.tokens and shows_tokens):
                        yield self.form.chunk(piece)
                if all(text.finish_reason is not None for text in samples):
                    break
        for last in self._last_events(count):
            yield last

    def _last_events(self, count: int) -> list[bytes]:
        options = self.body.stream_options
        return [
            *(
                [self.form.usage_chunk(self._count(count))]
                if options is not None and options.include_usage
                else []
            ),
            DONE,
        ]


def _read_event(text: SampleText, event: models.SampleStreamEvent) -> SamplePart:
    """Return the part of a sample that an event adds."""
    written = "".join(
        text.add(token, logprob)
        for token, logprob in zip(event.tokens, event.logprobs, strict=True)
    )
    if event.stop_reason is not None:
        written += text.finish(event.stop_reason)
    scores = text.drain_scores()
    tokens = [score.word.token for score in scores]
    return SamplePart(
        index=event.index,
        text=written,
        scores=scores,
        tokens=tokens,
        finish_reason=text.finish_reason,
    )


def _read_top(table: TopkLogprobs | None, count: int) -> list[list[tuple[int, float]]]:
    """Return the likeliest tokens at each of so many places."""
    if table is None:
        return [[] for _ in range(count)]
    return [
        list(zip(*row, strict=True))
        for row in zip(table.token_ids.tolist(), table.logprobs.tolist(), strict=True)
    ]


def open_completion(state: State, texts: Texts, body: CompletionBody) -> Conversation:
    """Read a completion request."""
    return Conversation(
        state=state,
        texts=texts,
        form=_form(state, body, is_chat=False, scored=body.logprobs is not None),
        body=body,
        prompts=[
            _encode_text(texts, body, one) if isinstance(one, str) else one for one in body.prompts
        ],
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        top=body.logprobs or 0,
        echo=body.echo,
    )


def open_chat(state: State, texts: Texts, body: ChatBody) -> Conversation:
    """Read a chat request."""
    return Conversation(
        state=state,
        texts=texts,
        form=_form(state, body, is_chat=True, scored=bool(body.logprobs)),
        body=body,
        prompts=[_encode_messages(texts, body)],
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        top=body.top_logprobs or 0,
        tools=body.callable_tools,
        continues=body.continue_final_message,
    )


def _form(state: State, body: GenerationBody, *, is_chat: bool, scored: bool) -> AnswerForm:
    numbered, created = body.return_token_ids, int(state.now())
    return AnswerForm(
        model=body.model, created=created, scored=scored, numbered=numbered, is_chat=is_chat
    )


def encode(texts: Texts, body: TokenizeBody) -> list[int]:
    """Return the tokens that are asked for."""
    if body.prompt is not None:
        return _encode_text(texts, body, body.prompt)
    return _encode_messages(texts, body)


def _encode_text(texts: Texts, body: GenerationBody, prompt: str) -> list[int]:
    if body.add_special_tokens is None and isinstance(body, CompletionBody):
        return texts.encode_prompt(prompt)
    return texts.encode(prompt, special=body.add_special_tokens is not False)


def _encode_messages(texts: Texts, body: ChatBody) -> list[int]:
    continues = body.continue_final_message
    starts = not continues and body.add_generation_prompt is not False
    special, options = bool(body.add_special_tokens), body.chat_template_kwargs or {}
    form = ChatForm(
        starts_answer=starts, continues_last=continues, adds_special=special, options=options
    )
    return texts.encode_chat(
        [message.to_turn() for message in body.messages], body.callable_tools, form
    )


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
