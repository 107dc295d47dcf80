"""A sampling session under test: its requests, numbered as they are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinker_wire import models
from tinker_wire.api import sampling as api

from tinker.testing.conformance.context import CheckContext, PendingResult
from tinker.testing.conformance.outcome import Contradiction
from tinker.types.results import SampleResponse

PROMPT = (5, 6, 7, 8)
_PARAMS = frozenset(models.SamplingParams.__struct_fields__)


class SamplingFixture:
    """One sampling session. Requests take the next number unless one is given."""

    def __init__(self, context: CheckContext, sampling_session_id: str) -> None:
        self.context = context
        self.sampling_session_id = sampling_session_id
        self.number: int = 0

    @classmethod
    def on_base(cls, context: CheckContext, number: int = 0) -> SamplingFixture:
        """Return a session on the base model."""
        return cls.open(context, number, base_model=context.base_model())

    @classmethod
    def open(
        cls, context: CheckContext, number: int = 0, *, base_model: str | None = None, model_path: str | None = None
    ) -> SamplingFixture:
        """Return a session on a base model or on saved weights."""
        context.need("sampling.session")
        body = models.CreateSamplingSessionRequest(
            session_id=context.session(),
            sampling_session_seq_id=context.number(number),
            base_model=base_model,
            model_path=model_path,
        )
        return cls(context, context.call(api.create_sampling_session(body)).sampling_session_id)

    def body(self, prompt: Sequence[int] = PROMPT, *, number: int | None = None, **fields: Any) -> models.SampleRequest:
        """Return a request; ``fields`` may be those of the request and those of its sampling parameters."""
        if number is None:
            number, self.number = self.number, self.number + 1
        params: dict[str, Any] = {"max_tokens": 5, "stop": [], **{name: fields.pop(name) for name in _PARAMS & fields.keys()}}
        return models.SampleRequest(
            prompt=models.ModelInput(chunks=[models.EncodedTextChunk(tokens=list(prompt))]),
            sampling_params=models.SamplingParams(**params),
            sampling_session_id=self.sampling_session_id,
            seq_id=number,
            **fields,
        )

    def submit(self, *args: Any, **fields: Any) -> PendingResult[SampleResponse]:
        """Submit the request of :meth:`body` with the same arguments."""
        self.context.need("sampling.sample")
        request = api.asample(self.body(*args, **fields), x_tinker_sampling_backpressure="1")
        return self.context.submit(request, SampleResponse)

    def sample(self, *args: Any, **fields: Any) -> SampleResponse:
        """Return the result of :meth:`submit`."""
        return self.context.result(self.submit(*args, **fields))


def prompt_scores(context: CheckContext, found: Sequence[float | None] | None) -> Sequence[float | None]:
    """Return the logprobs of the tokens of ``PROMPT``: one for each, None for the first. Contradiction where they are not."""
    if found is None or len(found) != len(PROMPT):
        count = "none" if found is None else len(found)
        how = f"the prompt has {len(PROMPT)} tokens and {count} logprobs; there is one for each, null for the first"
        raise Contradiction(how, cause="prompt logprobs", operation="asample", schema="SampleResponse")
    told = f"the first logprob is {found[0]}, and nothing is before it"
    context.expect(found[0] is None, told, "prompt logprobs", "asample", "SampleResponse")
    return found
