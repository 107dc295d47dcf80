"""One request from its body to its answer, whole or as a stream; its samples are those of the contract."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

import attrs
from starlette.requests import ClientDisconnect, Request
from tinker_wire import models

from tinker._chat import ChatTurn
from tinker.local.call import APICall
from tinker.local.engines.protocol import Engine, EngineError
from tinker.local.errors import APIProblem
from tinker.local.handlers.futures import cancel_sample
from tinker.local.handlers.sampling import open_stream, submit_sample
from tinker.local.naming import choose_engine_for, find_engine
from tinker.local.operations.streams import KEEP_ALIVE
from tinker.local.state import State
from tinker.local.storage.futures import RequestFailure
from tinker.local.v1.answers import DONE, AnswerBody, AnswerForm, TokenUsage, describe_error, encode_event
from tinker.local.v1.bodies import DEFAULT_MAX_TOKENS, SCHEME, ChatBody, CompletionBody, GenerationBody
from tinker.local.v1.texts import SampleText, Texts, TokenScore, ToolSchema
from tinker.types.results import SampledSequence, SampleResponse, TopkLogprobs

LOOK_SECONDS = 1.0  # between two looks whether the client is still there


async def resolve_model(state: State, name: str) -> str:
    """Return the newest checkpoint to sample from of the run with this name or ID; any other name as it is."""
    engines = await state.engines()
    if name.startswith(SCHEME) or any(name == one.base_model or name in one.aliases for one in engines):
        return name
    records = await state.offload_always(state.checkpoints.list)
    samplers = [one for one in records if one.kind == "sampler_weights"]
    named = (one.path for one in samplers if name in (one.training_run_id, (one.run_metadata or {}).get("name")))
    return next(named, name)


async def find_model_engine(state: State, name: str) -> Engine:
    """Return the engine of a base model or of a checkpoint to sample from. Raises APIProblem 404 for another name."""
    engines = await state.engines()
    try:
        if name.startswith(SCHEME):
            record, _ = await state.offload_always(lambda: state.checkpoints.find(name, "sampler_weights"))
            return find_engine(engines, record.engine_model)
        return choose_engine_for(state, engines, name)[0]
    except EngineError as error:
        raise APIProblem(404, str(error)) from error
    except APIProblem as problem:
        raise APIProblem(404, problem.detail) from problem


async def sample(state: State, request: Request, call: APICall, wanted: models.SampleRequest) -> SampleResponse:
    """Sample, and wait for the whole result. The work ends when the client goes. APIProblem when it fails."""
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
    """Return the refusal that a failed request is: 400 where it is the client's fault, else 500; it names what was sent."""
    return APIProblem(400 if category == "user" else 500, error.replace("json_schema needs", "response_format needs"))


@attrs.frozen(kw_only=True)
class Conversation:
    """One request: ``top`` is how many of the likeliest tokens are wanted at each place, ``echo`` whether the prompt comes
    back, with its scores, and ``tools`` are those that the model may call."""

    state: State
    texts: Texts
    form: AnswerForm
    body: GenerationBody
    prompts: Sequence[Sequence[int]]
    max_tokens: int | None
    top: int
    echo: bool
    tools: Sequence[ToolSchema] = ()

    async def answer(self, request: Request, call: APICall) -> AnswerBody:
        """Sample every prompt; returns the whole answer."""
        results = await self._sample_all(request, call)
        choices: list[AnswerBody] = []
        count = 0
        for prompt, result in zip(self.prompts, results, strict=True):
            for sequence in result.sequences:
                text, written, turn = self._write(prompt, sequence)
                count, scores = count + text.token_count, text.drain_scores()
                if self.echo:
                    written = self.texts.decode(prompt) + written
                    scores = [*self._score_prompt(prompt, result), *scores]
                choices.append(self.form.choice(len(choices), written, scores, _end(text, turn), turn))
        return self.form.whole(choices, TokenUsage(sum(map(len, self.prompts)), count))

    async def _sample_all(self, request: Request, call: APICall) -> list[SampleResponse]:
        """Sample every prompt, all at once; the first failure is raised when all have ended."""
        tasks = [sample(self.state, request, call, self._to_request(prompt)) for prompt in self.prompts]
        results: list[SampleResponse] = []
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
            results.append(outcome)
        return results

    def _write(self, prompt: Sequence[int], sequence: SampledSequence) -> tuple[SampleText, str, ChatTurn | None]:
        """Return a sample that has ended, what is written in it, and that as a message where tools are called in it."""
        text, tokens, table = SampleText(self.texts, self.body.stops), sequence.tokens_np.tolist(), sequence.topk_logprobs_np
        logprobs = [0.0] * len(tokens) if sequence.logprobs_np is None else sequence.logprobs_np.tolist()
        last = len(tokens) - 1
        parts = [
            text.add(
                TokenScore(token, self._word(token), logprobs[at], self._top(table, at)),
                sequence.stop_reason if at == last else None,
            )
            for at, token in enumerate(tokens)
        ]
        turn = self.texts.read_calls(prompt, tokens, self.tools) if self.tools else None
        return text, "".join([*parts, text.finish(sequence.stop_reason)]), turn

    def _score_prompt(self, prompt: Sequence[int], result: SampleResponse) -> list[TokenScore]:
        values = result.prompt_logprobs_np
        if values is None:
            return []
        logprobs = [None, *values[1:].tolist()]
        table = result.topk_prompt_logprobs_np
        return [
            TokenScore(token, self._word(token), logprobs[at], self._top(table, at) if at else ())
            for at, token in enumerate(prompt)
        ]

    def _top(self, table: TopkLogprobs | None, at: int) -> list[tuple[str, float]]:
        if table is None:
            return []
        ids, logprobs = table.token_ids[at].tolist(), table.logprobs[at].tolist()
        return [(self._word(token), value) for token, value in zip(ids, logprobs, strict=True)]

    def _word(self, token: int) -> str:
        return self.texts.decode([token], special=True)

    def _to_request(self, prompt: Sequence[int]) -> models.SampleRequest:
        """Return the sample of the contract that is asked for."""
        body, stops, is_checkpoint = self.body, self.body.stops, self.body.model.startswith(SCHEME)
        return models.SampleRequest(
            base_model=None if is_checkpoint else body.model,
            model_path=body.model if is_checkpoint else None,
            num_samples=body.samples,
            prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(prompt))]),
            sampling_params=models.SamplingParams(
                max_tokens=self.max_tokens,
                seed=body.seed,
                stop=[*stops, *self.texts.ends.values()] if stops else None,
                temperature=1.0 if body.temperature is None else body.temperature,
                top_k=-1 if body.top_k is None else body.top_k,
                top_p=1.0 if body.top_p is None else body.top_p,
                min_p=body.min_p,
                presence_penalty=body.presence_penalty,
                frequency_penalty=body.frequency_penalty,
                repetition_penalty=body.repetition_penalty,
                json_schema=None if body.response_format is None else body.response_format.read_schema(),
                priority=body.priority,
            ),
            prompt_logprobs=self.echo and ((self.form.scored and len(prompt) > 1) or self.max_tokens == 0),
            topk_prompt_logprobs=self.top if self.echo and len(prompt) > 1 else 0,
            topk_sample_logprobs=self.top,
        )

    # Streams

    async def open_stream(self, request: Request, call: APICall) -> AsyncGenerator[bytes]:
        """Begin a stream; APIProblem when it is refused.

        The likeliest tokens are not streamed, and calls of tools are read when they are whole, so these come all at once.
        """
        wanted = self._to_request(self.prompts[0])
        if self.top or self.tools:
            return self._replay(await sample(self.state, request, call, wanted))
        return self._follow(await open_stream(self.state, wanted))

    async def _replay(self, result: SampleResponse) -> AsyncGenerator[bytes]:
        count = 0
        for index, sequence in enumerate(result.sequences):
            if self.form.is_chat:
                yield self.form.first_chunk(index)
            text, written, turn = self._write(self.prompts[0], sequence)
            count += text.token_count
            yield self.form.chunk(index, written, text.drain_scores(), None, turn)
            yield self.form.chunk(index, "", [], _end(text, turn))
        for event in self._last_events(count):
            yield event

    async def _follow(self, source: AsyncGenerator[models.SampleStreamEvent | None]) -> AsyncGenerator[bytes]:
        samples = [SampleText(self.texts, self.body.stops) for _ in range(self.body.samples)]
        async with contextlib.aclosing(source) as events:
            for index in range(len(samples) if self.form.is_chat else 0):
                yield self.form.first_chunk(index)
            async for event in events:
                if event is None:
                    yield KEEP_ALIVE
                elif event.type == "failed":
                    yield encode_event(describe_error(400 if event.category == "user" else 500, event.error))
                    return
                elif event.type == "tokens":
                    for chunk in self._to_chunks(samples[event.index], event):
                        yield chunk
                if all(text.finish_reason is not None for text in samples):
                    break
        for last in self._last_events(sum(text.token_count for text in samples)):
            yield last

    def _to_chunks(self, text: SampleText, event: models.SampleStreamEvent) -> list[bytes]:
        if text.finish_reason is not None:
            return []
        last = len(event.tokens) - 1
        scores = [
            TokenScore(token, self._word(token), value) for token, value in zip(event.tokens, event.logprobs, strict=True)
        ]
        written = "".join(text.add(score, event.stop_reason if at == last else None) for at, score in enumerate(scores))
        if not scores and event.stop_reason is not None:
            written += text.finish(event.stop_reason)
        new = text.drain_scores() if self.form.scored else []
        chunks = [self.form.chunk(event.index, written, new, None)] if written or new else []
        return chunks if text.finish_reason is None else [*chunks, self.form.chunk(event.index, "", [], text.finish_reason)]

    def _last_events(self, count: int) -> list[bytes]:
        options = self.body.stream_options
        usage = TokenUsage(sum(map(len, self.prompts)), count)
        return [*([self.form.usage_chunk(usage)] if options is not None and options.include_usage else []), DONE]


def _end(text: SampleText, turn: ChatTurn | None) -> str:
    """Return why a sample has ended; ``tool_calls`` where it waits for tools."""
    return (text.finish_reason or "length") if turn is None else "tool_calls"


def open_completion(state: State, texts: Texts, body: CompletionBody) -> Conversation:
    """Read a completion request."""
    form = AnswerForm(model=body.model, created=int(state.now()), scored=body.logprobs is not None, is_chat=False)
    return Conversation(
        state=state,
        texts=texts,
        form=form,
        body=body,
        prompts=[texts.encode(prompt) if isinstance(prompt, str) else prompt for prompt in body.prompts],
        max_tokens=DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        top=body.logprobs or 0,
        echo=bool(body.echo),
    )


def open_chat(state: State, texts: Texts, body: ChatBody) -> Conversation:
    """Read a chat request."""
    form = AnswerForm(model=body.model, created=int(state.now()), scored=bool(body.logprobs), is_chat=True)
    return Conversation(
        state=state,
        texts=texts,
        form=form,
        body=body,
        prompts=[texts.encode_chat([message.to_turn() for message in body.messages], body.callable_tools)],
        max_tokens=body.max_completion_tokens if body.max_tokens is None else body.max_tokens,
        top=body.top_logprobs or 0,
        echo=False,
        tools=body.callable_tools,
    )
