"""A server with scripted faults and a scripted model, in the process or on a port."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import math
import operator
import reprlib
import ssl
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast

import attrs
import httpx
import numpy as np

from tinker._http import retry
from tinker.local.engines import protocol
from tinker.local.engines.protocol import Continuation, EngineError, Int32, SampleJob, SampleResult
from tinker.local.engines.toy import ToyEngine
from tinker.service_client import ServiceClient
from tinker.testing import faults
from tinker.testing.clock import SteppedClock
from tinker.testing.faults import (
    Delivery,
    Fault,
    FaultKind,
    FaultScript,
    HeaderValue,
    OtherForms,
    Port,
    ServerResponse,
)
from tinker.types.model_input import Datum, ModelInput
from tinker.types.params import AdamParams, SampleRequest, SamplingParams
from tinker.wire import ForwardBackwardCall, decode_forward_backward

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tinker.local import State

T = TypeVar("T")
LARGEST_TOKEN = 2**31 - 1
_SHOWN_CHARACTERS = 200
END_OF_TEXT = 256  # of the toy's vocabulary, whose ids below are bytes


class ScriptError(EngineError):
    """The script has no entry for a request, or a rule of it failed: the request fails."""


def call_rule(
    rule: Callable[..., object],
    arguments: tuple[object, ...],
    read: Callable[[Any], T],
    wanted: str,
) -> T:
    """Return what ``read`` makes of the result of a rule.

    Raises ScriptError, which names the rule, if it raises or if ``read`` refuses its result with
    TypeError or ValueError. ``wanted`` is what the rule must return.
    """
    try:
        said = rule(*arguments)
    except Exception as error:
        raise ScriptError(
            f"the rule {locate(rule)} raised {type(error).__name__}: {error}; "
            f"it must return {wanted}"
        ) from error
    try:
        return read(said)
    except (TypeError, ValueError) as error:
        raise ScriptError(
            f"the rule {locate(rule)} returned {_show(said)}; it must return {wanted}"
        ) from error


def locate(rule: Callable[..., object]) -> str:
    """Return the name of a function and, if it is written in Python, its file and line."""
    function: Any = rule
    while isinstance(function, functools.partial):
        function = cast("functools.partial[object]", function).func
    function = inspect.unwrap(function)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def _show(value: object) -> str:
    text = repr(value)
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    return (
        f"{shown} of length {len(cast('list[object]', value))}"
        if isinstance(value, (list, tuple))
        else shown
    )


def read_number(value: Any) -> float:
    """Return a number as a float. Raises TypeError for anything else, such as text."""
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def read_numbers(values: Iterable[Any], name: str) -> list[float]:
    """Return numbers as floats. Raises TypeError or ValueError, with the name and the index, for
    anything else.
    """
    numbers: list[float] = []
    for index, value in enumerate(values):
        try:
            numbers.append(read_number(value))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}[{index}] must be a number, got {value!r}") from None
    return numbers


def read_logprobs(values: Iterable[Any], count: int) -> list[float]:
    """Return ``count`` log-probabilities. Raises ValueError for another count or NaN, TypeError for
    what is no number.
    """
    logprobs = read_numbers(values, "logprobs")
    if len(logprobs) != count:
        raise ValueError(
            f"got {len(logprobs)} logprobs for {count} tokens; pass one for each token"
        )
    if any(map(math.isnan, logprobs)):
        raise ValueError("a log-probability cannot be NaN")
    return logprobs


def read_token(value: Any) -> int:
    """Return a token id. Raises TypeError for anything but an integer, ValueError for one outside 0
    to 2**31 - 1.
    """
    token = operator.index(value)
    if not 0 <= token <= LARGEST_TOKEN:
        raise ValueError(f"a token id must be from 0 to {LARGEST_TOKEN}, got {token}")
    return token


def _read_tokens(said: str | Sequence[int]) -> tuple[int, ...]:
    try:
        tokens = tuple(said.encode()) if isinstance(said, str) else tuple(map(read_token, said))
    except TypeError:
        raise TypeError(
            f"a response must be a string, token ids or a ScriptedSample, got {said!r}"
        ) from None
    return tokens or (END_OF_TEXT,)


def _read_logprobs(logprobs: Sequence[float] | None) -> tuple[float, ...] | None:
    return None if logprobs is None else tuple(read_numbers(logprobs, "logprobs"))


@attrs.frozen
class ScriptedSample:
    """One response of a scripted model.

    ``said`` is a text, encoded in the toy's tokens (its bytes), or a list of token ids. An empty
    text is the end-of-text token. If ``logprobs`` is None, the model computes the log-probabilities
    of these tokens, so that a policy that was just sampled has a ratio of 1. If ``stop_reason`` is
    None, it is ``stop``, or ``length`` if ``max_tokens`` truncates it.
    """

    tokens: tuple[int, ...] = attrs.field(alias="said", converter=_read_tokens)
    logprobs: tuple[float, ...] | None = attrs.field(default=None, converter=_read_logprobs)
    stop_reason: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.logprobs is not None:
            read_logprobs(self.logprobs, len(self.tokens))


#: A text, token ids, or both with their log-probabilities.
Answer: TypeAlias = str | Sequence[int] | ScriptedSample
AnswerRule: TypeAlias = Callable[[str], Answer]
LogprobRule: TypeAlias = Callable[[list[int]], Sequence[float]]
LossRule: TypeAlias = Callable[[str, int], float]


class ModelScript:
    """The script of one server's model. Used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Remove the script."""
        self._answers: deque[ScriptedSample] = deque()
        self._by_prompt: dict[str, deque[ScriptedSample]] = {}
        self._rule: AnswerRule | None = None
        self._losses: deque[float] = deque()
        self._loss_rule: LossRule | None = None
        self._logprob_rule: LogprobRule | None = None
        self.has_samples: bool = False
        self.has_losses: bool = False
        self._steps = 0

    def add_samples(
        self, answers: Iterable[Answer] | Mapping[str, Iterable[Answer]] | AnswerRule
    ) -> None:
        """Set the next samples: in the order of the requests, by prompt, or by a rule."""
        if isinstance(answers, (str, ScriptedSample)):
            raise TypeError(f"script_samples takes a list of responses: write [{answers!r}]")
        with self._lock:
            if callable(answers):
                self._rule = answers
            elif isinstance(answers, Mapping):
                self._add_by_prompt(cast("Mapping[str, Iterable[Answer]]", answers))
            else:
                self._answers.extend(map(_to_sample, answers))
            self.has_samples = True

    def _add_by_prompt(self, answers: Mapping[str, Iterable[Answer]]) -> None:
        for prompt, several in answers.items():
            if isinstance(several, (str, ScriptedSample)):
                raise TypeError(
                    "script_samples takes a list of responses for each prompt: write "
                    f"{{{prompt!r}: [{several!r}]}}"
                )
        for prompt, several in answers.items():
            self._by_prompt.setdefault(prompt, deque()).extend(map(_to_sample, several))

    def take_sample(self, prompt: Sequence[int], taken: int, count: int) -> ScriptedSample:
        """Return the next response to a prompt, after the first ``taken`` of ``count`` for one
        request.

        Raises ScriptError if the script has none or its rule fails.
        """
        text = bytes(token for token in prompt if token < END_OF_TEXT).decode(errors="replace")
        with self._lock:
            waiting = self._by_prompt.get(text) or self._answers
            if waiting:
                return waiting.popleft()
            rule, prompts = self._rule, list(self._by_prompt)
        if rule is None:
            others = (
                ""
                if text in prompts or not prompts
                else f"; it has the prompts {reprlib.repr(prompts)[1:-1]}"
            )
            left = f"; {count} asked for, {taken} left"
            raise ScriptError(
                f"the script has no response left for the prompt {text!r}{left}{others}"
            )
        return call_rule(rule, (text,), _to_sample, "a string, token ids or a ScriptedSample")

    @property
    def has_logprobs(self) -> bool:
        """Return whether there is a rule for log-probabilities."""
        return self._logprob_rule is not None

    def set_logprobs(self, rule: LogprobRule) -> None:
        """Set the rule for the log-probabilities of prompts."""
        if not callable(rule):
            raise TypeError(f"script_logprobs takes a function, got {rule!r}")
        self._logprob_rule = rule

    def take_logprobs(self, prompt: list[int]) -> list[float] | None:
        """Return the log-probabilities after the first token; None without a rule. Raises
        ScriptError if the rule fails.
        """
        if self._logprob_rule is None:
            return None
        count = len(prompt) - 1
        wanted = (
            f"a number for each token after the first, none of them NaN; here {count} "
            f"number{'' if count == 1 else 's'}"
        )
        return call_rule(
            self._logprob_rule, (prompt,), lambda said: read_logprobs(said, count), wanted
        )

    def add_losses(self, losses: Iterable[float] | LossRule) -> None:
        """Set the next losses, or a rule for them."""
        if not callable(losses) and not hasattr(losses, "__iter__"):
            raise TypeError(f"script_losses takes a list of losses or a function, got {losses!r}")
        with self._lock:
            if callable(losses):
                self._loss_rule = losses
            else:
                self._losses.extend(read_numbers(losses, "losses"))
            self.has_losses = True

    def take_loss(self, loss_fn: str) -> float:
        """Return the loss of the next request. Raises ScriptError if the script has none or its
        rule fails.
        """
        with self._lock:
            number, self._steps = self._steps, self._steps + 1
            if self._losses:
                return self._losses.popleft()
            rule = self._loss_rule
        if rule is None:
            raise ScriptError("the script has no loss left")
        return call_rule(rule, (loss_fn, number), read_number, "a number")

    def list_pending(self) -> list[str]:
        """Return the unused entries of the script."""
        with self._lock:
            pending = [_count_samples(self._answers)] if self._answers else []
            pending += [
                f"{_count_samples(left)} for {prompt!r}"
                for prompt, left in self._by_prompt.items()
                if left
            ]
            losses = "1 loss" if len(self._losses) == 1 else f"{len(self._losses)} losses"
            return pending + ([losses] if self._losses else [])


def _count_samples(samples: Sequence[ScriptedSample]) -> str:
    return f"{len(samples)} sample{'' if len(samples) == 1 else 's'}"


def _to_sample(answer: Answer) -> ScriptedSample:
    return answer if isinstance(answer, ScriptedSample) else ScriptedSample(answer)


class ScriptedEngine(ToyEngine):
    """Engine that trains like the toy engine and takes its samples from the script."""

    def __init__(self, script: ModelScript) -> None:
        super().__init__()
        self._script = script

    def forward_backward(
        self,
        adapter_id: str,
        data: Sequence[protocol.TrainingExample],
        loss_fn: str,
        config: Mapping[str, float | str],
        *,
        backward: bool,
    ) -> protocol.LossResult:
        result = super().forward_backward(adapter_id, data, loss_fn, config, backward=backward)
        if not self._script.has_losses:
            return result
        return attrs.evolve(
            result, metrics={**result.metrics, "loss:sum": self._script.take_loss(loss_fn)}
        )

    def sample(self, jobs: Sequence[SampleJob]) -> list[SampleResult]:
        if not self._script.has_samples and not self._script.has_logprobs:
            return super().sample(jobs)
        return [self._sample_scripted(job) for job in jobs]

    def _sample_scripted(self, job: SampleJob) -> SampleResult:
        # this is what compute_logprobs sends
        only_scores = job.prompt_logprobs and job.max_tokens <= 1
        if only_scores or not self._script.has_samples:
            return self._with_logprobs(job, super().sample([job])[0])
        if job.topk_sample_logprobs:
            raise EngineError("a scripted sample has no top-k log-probabilities")
        bare = attrs.evolve(job, num_samples=1, max_tokens=1, listener=None)
        result = self._with_logprobs(job, super().sample([bare])[0])
        prompt = job.tokens.tolist()
        answers = [
            self._script.take_sample(prompt, n, job.num_samples) for n in range(job.num_samples)
        ]
        return attrs.evolve(
            result,
            sequences=[self._say(job, index, answer) for index, answer in enumerate(answers)],
        )

    def _with_logprobs(self, job: SampleJob, result: SampleResult) -> SampleResult:
        if result.prompt_logprobs is None:
            return result
        values = self._script.take_logprobs(job.tokens.tolist())
        if values is None:
            return result
        return attrs.evolve(result, prompt_logprobs=np.array([np.nan, *values], np.float32))

    def _say(self, job: SampleJob, index: int, answer: ScriptedSample) -> Continuation:
        tokens = np.array(answer.tokens[: job.max_tokens], np.int32)
        logprobs = (
            self._score(job, tokens)
            if answer.logprobs is None
            else np.array(answer.logprobs[: len(tokens)], np.float32)
        )
        reason = answer.stop_reason or ("stop" if len(tokens) == len(answer.tokens) else "length")
        for place, (token, logprob) in enumerate(zip(tokens.tolist(), logprobs.tolist()), start=1):
            is_last = place == len(tokens)
            if job.listener is not None and not job.listener.take(
                index, token, logprob, reason if is_last else None
            ):
                return Continuation(
                    tokens=tokens[:place], logprobs=logprobs[:place], stop_reason=reason
                )
        return Continuation(tokens=tokens, logprobs=logprobs, stop_reason=reason)

    def _score(self, job: SampleJob, tokens: Int32) -> protocol.Float32:
        """Return the log-probabilities that the weights assign to the tokens of a response."""
        protocol.check_tokens("the scripted response", tokens, self._vocabulary)
        whole = SampleJob(
            tokens=np.concatenate([job.tokens, tokens]),
            weights=job.weights,
            max_tokens=1,
            seed=0,
            prompt_logprobs=True,
        )
        scored = super().sample([whole])[0].prompt_logprobs
        assert scored is not None
        return scored[len(job.tokens) :]


_PATIENCE_SECONDS = 10.0  # real ones, for what a test waits for
_READ_SECONDS = 60.0  # of a client that names no timeout

Mode = Literal["up", "down", "silent"]


@attrs.define(eq=False)
class ReceivedRequest:
    """One request that arrived. ``at`` is the time of the server's clock, or of the system's
    monotonic clock.

    ``status`` is the status of the response; None until there is one.
    """

    operation: str
    method: str = attrs.field(repr=False)
    url: str = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    at: float = attrs.field(repr="{:.3f}".format)
    fault: Fault | None = attrs.field(default=None, repr=lambda fault: f"{fault and fault.kind!r}")
    status: int | None = None

    @property
    def json(self) -> Any:
        """Return the body as JSON. Raises ValueError if it is protobuf; see :attr:`data` and
        :attr:`loss_fn`.
        """
        if "protobuf" in self.headers.get("content-type", ""):
            raise ValueError(
                f"the body of {self.operation} is protobuf; read "
                ".data, .loss_fn and .loss_fn_config"
            )
        return json.loads(self.body)

    @property
    def data(self) -> list[Datum]:
        """Return the datums of a ``forward`` or ``forward_backward``, whatever its format."""
        return list(self._loss.data)

    @property
    def loss_fn(self) -> str:
        """Return the name of the loss of a ``forward`` or ``forward_backward``."""
        return self._loss.loss_fn

    @property
    def loss_fn_config(self) -> dict[str, float | str]:
        """Return the settings of the loss of a ``forward`` or ``forward_backward``."""
        return self._loss.loss_fn_config

    @property
    def adam_params(self) -> AdamParams:
        """Return the parameters of an ``optim_step`` with Adam."""
        self._check_operation("optim_step")
        return AdamParams.model_validate(self.json["adam_params"])

    @property
    def prompt(self) -> ModelInput:
        """Return the prompt of an ``asample``."""
        return self._sample.prompt

    @property
    def num_samples(self) -> int:
        """Return how many samples an ``asample`` asks for."""
        return self._sample.num_samples

    @property
    def sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of an ``asample``."""
        return self._sample.sampling_params

    @property
    def _loss(self) -> ForwardBackwardCall:
        self._check_operation("forward", "forward_backward")
        content_type = self.headers.get("content-type", "")
        return decode_forward_backward(
            self.body, content_type, forward_only=self.operation == "forward"
        )

    @property
    def _sample(self) -> SampleRequest:
        self._check_operation("asample")
        return SampleRequest.model_validate_json(self.body)

    def _check_operation(self, *operations: str) -> None:
        if self.operation not in operations:
            raise ValueError(
                f"this is a request of {self.operation}, not of {' or '.join(operations)}"
            )


class FaultyServer:
    """An ASGI application behind a connection with scriptable faults.

    Clients reach it in this process, through :attr:`transport` or the clients that :meth:`service`
    creates, and on a port while :meth:`on_port` runs. Operations have their ids from the contract
    (``asample``, ``retrieve_future``, ...); ``"*"`` matches any. :meth:`verify` fails if a scripted
    fault did not happen. All methods may be called from any thread. Those that script a fault raise
    ValueError for an unknown operation, for ``times`` or ``count`` below 1, and for negative
    seconds.

    >>> import tinker
    >>> from tinker.testing import toy_server
    >>> with toy_server(clock=SteppedClock()) as server:
    ...     server.fail_next("create_session", status=503, headers={"retry-after": "5"}, times=2)
    ...     model = server.service().create_lora_training_client("tinker/toy").result(30)
    ...     [exchange.status for exchange in server.requests("create_session")]
    [503, 503, 200]
    """

    def __init__(
        self, app: ASGIApp, *, clock: SteppedClock | None = None, keep: bool = True
    ) -> None:
        self._app = app
        self._clock = clock
        self._keep = keep
        self._script = FaultScript()
        self._forms = OtherForms()
        self._arrived = threading.Condition()
        self._mode: Mode = "up"
        self._life = 0
        self._port: Port | None = None
        self._services: list[ServiceClient] = []
        self.open_state: Callable[[], State] | None = None
        self.state: State | None = None
        self.model_script: ModelScript | None = None
        self.exchanges: list[ReceivedRequest] = []
        self.totals: Counter[str] = Counter()

    def __repr__(self) -> str:
        """Show the URL, the state of the server, and the faults that have not happened yet."""
        where = "" if self._port is None else f" on {self._port.url}"
        faults_to_come = ", ".join(self._script.list_pending()) or "none"
        return f"<{type(self).__name__}{where}, {self._mode}; faults to come: {faults_to_come}>"

    # ----------------------------------------------------------------------------------- the script

    def fail_next(
        self,
        operation: str,
        status: int = 503,
        *,
        headers: Mapping[str, HeaderValue] | None = None,
        body: object = None,
        times: int = 1,
        applied: bool = False,
    ) -> None:
        """Return this status for the next requests.

        Bytes in ``body`` are sent unchanged, other values as JSON; None sends a default detail.
        Header values may be any bytes. With ``applied``, the server executes the request first, and
        its own response is lost.

        A client that does not know yet which encodings the server accepts may send a refused
        protobuf request again as JSON. This counts as the same request and gets the same response.

        Raises TypeError if the status is not an int, and ValueError for an invalid status or a
        success without a ``body``.
        """
        _check_status(status, body)
        self._script.add(
            operation, faults.status_fault(status, headers, body, applied=applied), times
        )

    def drop_next(
        self,
        operation: str,
        *,
        applied: bool = False,
        error_code: int | None = None,
        times: int = 1,
    ) -> None:
        """Break the connection of the next requests without a response, before or after the server
        executes them.

        With an ``error_code`` (7 is REFUSED_STREAM), only the streams of these requests are reset
        if they came over HTTP/2.
        """
        self._script.add(
            operation, Fault(kind="drop", applied=applied, error_code=error_code), times
        )

    def hang_next(
        self, operation: str, *, seconds: float | None = None, applied: bool = False, times: int = 1
    ) -> None:
        """Send no response to the next requests and keep their connections open. Break them after
        ``seconds``, if given.
        """
        self._script.add(operation, Fault(kind="hang", applied=applied, seconds=seconds), times)

    def delay_next(self, operation: str, seconds: float, *, times: int = 1) -> None:
        """Delay the next requests by this many seconds, even if their clients have given up by
        then.
        """
        self._script.add(operation, Fault(kind="delay", applied=True, seconds=seconds), times)

    def truncate_next(self, operation: str, *, times: int = 1) -> None:
        """Break the connection in the middle of the next responses."""
        self._script.add(operation, Fault(kind="truncate", applied=True), times)

    def corrupt_next(self, operation: str, *, body: bytes | None = None, times: int = 1) -> None:
        """Replace the bodies of the next responses with ``body``, by default with garbage of the
        same length.
        """
        self._script.add(operation, Fault(kind="corrupt", applied=True, body=body), times)

    def header_next(self, operation: str, name: str, value: HeaderValue, *, times: int = 1) -> None:
        """Add a header to the next responses. Its value may be any bytes; a string is encoded as
        UTF-8.
        """
        self._script.add(operation, Fault(kind="header", applied=True, header=(name, value)), times)

    def slow_next(self, operation: str, seconds: float, *, times: int = 1) -> None:
        """Send the bodies of the next responses in eight pieces, with a delay of ``seconds`` before
        each.
        """
        self._script.add(operation, Fault(kind="slow", applied=True, seconds=seconds), times)

    def trickle_next(
        self,
        operation: str,
        seconds: float,
        *,
        count: int | None = faults.SLOW_PIECES,
        times: int = 1,
    ) -> None:
        """Send ``count`` bytes of a header of the next responses one by one, with a delay of
        ``seconds`` before each.

        If ``count`` is None, the head never ends.
        """
        _check_ends(count, seconds)
        self._script.add(
            operation, Fault(kind="trickle", applied=True, seconds=seconds, count=count), times
        )

    def inform_next(
        self,
        operation: str,
        status: int = 103,
        *,
        seconds: float = 0.0,
        count: int | None = 1,
        times: int = 1,
    ) -> None:
        """Send ``count`` informational responses before each of the next responses, with a delay of
        ``seconds`` after each.

        If ``count`` is None, the final response never arrives. Raises ValueError if the status is
        not informational.
        """
        if not 100 <= status < 200 or status == 101:
            raise ValueError(f"{status} is not an informational status; 100, 102 and 103 are")
        _check_ends(count, seconds)
        fault = Fault(kind="inform", applied=True, seconds=seconds, count=count, informs=status)
        self._script.add(operation, fault, times)

    def fail_randomly(
        self,
        rate: float,
        *,
        seed: int,
        kinds: Sequence[FaultKind] = faults.KINDS,
        hang_seconds: float | None = None,
        longest_seconds: float = 1.0,
    ) -> None:
        """Let a share ``rate`` of all exchanges fail, with equal probability for each of ``kinds``.
        A rate of 0 stops this.

        The fault of the n-th exchange of an operation depends only on ``seed``. Hanging connections
        break after ``hang_seconds``. ``longest_seconds`` is the maximum duration of a delay or a
        slow response.
        """
        chance = faults.chances(
            rate, seed, kinds, hang_seconds=hang_seconds, longest_seconds=longest_seconds
        )
        self._script.by_chance(chance)

    def forget(self) -> None:
        """Remove scripted and random faults."""
        self._script.forget()
        if self.model_script is not None:
            self.model_script.forget()

    def verify(self) -> None:
        """Raise AssertionError if a scripted fault did not happen or a scripted response was not
        used, and name each.
        """
        unused = self._script.list_pending()
        assert not unused, f"scripted faults that never happened: {'; '.join(unused)}"
        unheard = [] if self.model_script is None else self.model_script.list_pending()
        assert not unheard, f"scripted responses that were never used: {'; '.join(unheard)}"

    # ------------------------------------------------------------------------------------ the model

    def script_samples(
        self, answers: Iterable[Answer] | Mapping[str, Iterable[Answer]] | AnswerRule
    ) -> None:
        """Script the model's next samples.

        A list is used in request order, one element per sample. For concurrent requests, give a
        mapping of prompts (as text) to lists, or a function of the prompt, so that the order of the
        requests does not matter. A response is a text, a list of token ids, or a
        :class:`ScriptedSample` with log-probabilities. A sample fails if the script has no response
        left.

        >>> import tinker
        >>> from tinker.testing import toy_server
        >>> with toy_server() as server:
        ...     server.script_samples({"2 + 2 =": [" 4", " 5"]})
        ...     sampler = server.service().create_sampling_client(base_model="tinker/toy")
        ...     prompt = tinker.ModelInput.from_ints(list(b"2 + 2 ="))
        ...     answers = (
        ...         sampler.sample(prompt, 2, tinker.SamplingParams(max_tokens=8))
        ...         .result(30)
        ...         .sequences
        ...     )
        ...     [bytes(one.tokens).decode() for one in answers]
        [' 4', ' 5']
        """
        self._model_script().add_samples(answers)

    def script_logprobs(self, rule: LogprobRule) -> None:
        """Script ``compute_logprobs``: ``rule(tokens)`` returns the log-probability of each prompt
        token after the first.
        """
        self._model_script().set_logprobs(rule)

    def script_losses(self, losses: Iterable[float] | LossRule) -> None:
        """Script the losses that the next ``forward`` and ``forward_backward`` requests report;
        gradients do not change.

        A function is called with the name of the loss and the number of the request, starting at 0.
        """
        self._model_script().add_losses(losses)

    def _model_script(self) -> ModelScript:
        if self.model_script is None:
            raise ValueError("this server has no model to script; use toy_server()")
        return self.model_script

    # ---------------------------------------------------------------------------------- up and down

    def go_down(self) -> None:
        """Refuse new connections and break existing ones. The server keeps its state, but responses
        in transit are lost.
        """
        self._mode = "down"
        self._life += 1
        if self._port is not None:
            self._port.close_listener()

    def go_silent(self) -> None:
        """Accept requests without responding, like a server whose machine hangs."""
        self._mode = "silent"

    def come_up(self) -> None:
        """Respond again."""
        self._mode = "up"
        if self._port is not None:
            self._port.open_listener()

    def restart(self) -> None:
        """Restart the server: it knows no session, run or result any more, and keeps what was
        saved.

        Clients get :class:`tinker.SessionLostError`, as from a server that died. Responses in
        transit are lost. Faults that are scripted stay. Raises ValueError unless :func:`toy_server`
        started the server.
        """
        if self.open_state is None:
            raise ValueError("this server has no state to lose; use toy_server()")
        from tinker.local import create_app

        self._life += 1
        if self.state is not None:
            self.state.close()
        self.state = self.open_state()
        self._app = create_app(self.state)

    # -------------------------------------------------------------------------------------- the log

    def requests(self, operation: str = faults.ANY) -> list[ReceivedRequest]:
        """Return the received requests of an operation, oldest first; of all operations by default.

        Raises ValueError for an unknown operation.
        """
        faults.check_operation(operation)
        with self._arrived:
            return [
                exchange
                for exchange in self.exchanges
                if operation in (exchange.operation, faults.ANY)
            ]

    def wait_for(self, operation: str, count: int = 1) -> list[ReceivedRequest]:
        """Wait until ``count`` requests of an operation have arrived.

        Raises AssertionError after ten real seconds, and ValueError for an unknown operation.
        """
        with self._arrived:
            there = self._arrived.wait_for(
                lambda: len(self.requests(operation)) >= count, _PATIENCE_SECONDS
            )
        assert there, (
            f"{operation}: expected {count} requests, but {len(self.requests(operation))} arrived"
        )
        return self.requests(operation)

    # -------------------------------------------------------------------------------------- clients

    @property
    def transport(self) -> httpx.AsyncBaseTransport:
        """Return an in-process transport to this server, for ``ServiceClient(transport=...)`` and
        any httpx client.
        """
        return _InProcess(self)

    def service(self, **arguments: Any) -> ServiceClient:
        """Create a client that is connected to this server in the process and uses its clock. It is
        closed with the server.
        """
        given: dict[str, Any] = {
            "base_url": "http://server",
            "api_key": "tml-test",
            "transport": self.transport,
        }
        if self._clock is not None:
            given["clock"] = self._clock.clock()
        self._services.append(ServiceClient(**{**given, **arguments}))
        return self._services[-1]

    @contextmanager
    def on_port(self, *, ssl_context: ssl.SSLContext | None = None) -> Generator[str]:
        """Listen on a free local port and yield the base URL. Requires real time.

        With an ``ssl_context`` the URL is ``https://localhost:…``, and the context's ALPN protocols
        say which of ``h2`` and ``http/1.1`` a client may choose.
        """
        self._port = Port(self._serve, ssl_context)
        try:
            yield self._port.url
        finally:
            port, self._port = self._port, None
            port.close()

    def close(self) -> None:
        """Close the clients that :meth:`service` created."""
        services, self._services = self._services, []
        for service in services:
            service.close().exception(_PATIENCE_SECONDS)

    # ------------------------------------------------------------------------------------ exchanges

    @property
    def mode(self) -> Mode:
        """Return the state of the server: ``up``, ``down`` or ``silent``."""
        return self._mode

    def _note(self, request: httpx.Request, body: bytes) -> ReceivedRequest:
        operation = faults.operation_of(request.method, request.url.path)
        at = time.monotonic() if self._clock is None else self._clock.now
        hang = Fault(kind="hang") if self._mode == "silent" else None
        fault = hang or self._forms.of(operation, body) or self._script.take(operation)
        exchange = ReceivedRequest(
            operation, request.method, str(request.url), request.headers, body, at, fault
        )
        with self._arrived:
            self.totals["exchanges"] += 1
            if fault is not None:
                # it still applies if the request comes in another encoding
                self._forms.note(request.headers, body, fault)
                self.totals[fault.name] += 1
            if self._keep:
                self.exchanges.append(exchange)
            self._arrived.notify_all()
        return exchange

    async def _serve(self, request: httpx.Request, sleep: Callable[[float], Any]) -> Delivery:
        """Execute one exchange on the server, and return how its response is delivered."""
        exchange, life = self._note(request, await request.aread()), self._life
        fault = exchange.fault
        if fault is not None and fault.kind == "delay":
            await sleep(fault.seconds or 0.0)
        answer: ServerResponse | None = None
        if fault is None or fault.applied:
            with nullcontext() if self._clock is None else self._clock.busy():
                answer = await call_app(self._app, request)
        if self._life != life:
            return Delivery(None, Fault(kind="drop"))
        answer = faults.apply_fault(answer, fault)
        if fault is not None and fault.kind == "status":
            self._note_refusal(exchange, answer)
        exchange.status = None if answer is None else answer.status
        return Delivery(answer, fault)

    def _note_refusal(self, exchange: ReceivedRequest, answer: ServerResponse | None) -> None:
        """Skip the sequence number of a refused request, so that its run does not wait for it."""
        if self.state is None or answer is None or answer.status not in retry.REJECTED_STATUSES:
            return
        request = faults.read_number(exchange.headers.get("content-type", ""), exchange.body)
        with self.state.lock() as shared:
            model = None if request is None else shared.store.find_model(request.model_id)
            if request is not None and request.seq_id is not None and model is not None:
                model.queue.skip(request.seq_id, self.state.clock())
                self.state.notify()


async def call_app(app: ASGIApp, request: httpx.Request) -> ServerResponse:
    """Return an application's response, as it would go over the wire. Exceptions of the application
    are raised here.
    """
    response = await httpx.ASGITransport(app).handle_async_request(request)
    content = [part async for part in cast("httpx.AsyncByteStream", response.stream)]
    return ServerResponse(
        status=response.status_code, headers=response.headers, content=b"".join(content)
    )


def _check_status(status: object, body: object) -> None:
    """Raise TypeError if the status is not an int, ValueError for an invalid status or a success
    without a body.
    """
    if not isinstance(status, int) or isinstance(status, bool):
        raise TypeError(f"status must be an int, got {status!r}")
    if not 200 <= status <= 599:
        raise ValueError(f"status must be from 200 to 599, got {status}")
    if status < 300 and body is None:
        raise ValueError(
            f"{status} is not an error status; pass a status from 300 to 599, or the "
            "body of the response"
        )


def _check_ends(count: int | None, seconds: float) -> None:
    """Raise ValueError for a fault that never ends and takes no time, because simulated time would
    stop.
    """
    if count is None and seconds <= 0:
        raise ValueError("seconds must be greater than 0 if count is None")


@attrs.frozen
class _InProcess(httpx.AsyncBaseTransport):
    """Transport of a client in the same process."""

    server: FaultyServer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.server.mode == "down":
            raise httpx.ConnectError("connection refused", request=request)
        limit = (
            cast("dict[str, float | None]", request.extensions.get("timeout", {})).get("read")
            or _READ_SECONDS
        )
        return await _InProcessExchange(self.server, request, limit).answer()


@attrs.define
class _InProcessExchange:
    """One exchange in the process, whose client accepts at most ``limit`` seconds of silence (its
    read timeout).
    """

    server: FaultyServer
    request: httpx.Request
    limit: float
    timed_out: bool = False

    async def answer(self) -> httpx.Response:
        """Return the response as httpx reads it. Raises the error of httpx for a broken or silent
        connection.
        """
        delivery = await self.server._serve(self.request, self.sleep)  # pyright: ignore[reportPrivateUsage]
        answer, fault = delivery.answer, delivery.fault
        if fault is not None and fault.kind == "hang":
            await self.sleep(fault.seconds)
        for seconds in faults.pauses(answer, fault):
            if self.timed_out:
                break
            await self.sleep(seconds)
        if self.timed_out:
            raise httpx.ReadTimeout("the read timed out", request=self.request)
        if answer is None:
            raise httpx.ReadError("the connection broke", request=self.request)
        if fault is not None and fault.kind == "truncate":
            raise httpx.RemoteProtocolError(
                "the connection broke in the middle of the body", request=self.request
            )
        return httpx.Response(
            answer.status, headers=answer.headers, content=answer.content, request=self.request
        )

    async def sleep(self, seconds: float | None) -> None:
        """Let time pass, but not longer than the read timeout; None means forever."""
        self.timed_out = self.timed_out or seconds is None or seconds >= self.limit
        duration = self.limit if seconds is None else min(seconds, self.limit)
        clock = self.server._clock  # pyright: ignore[reportPrivateUsage]
        await (asyncio.sleep(duration) if clock is None else clock.elapse(duration))


@contextmanager
def toy_server(
    data_dir: Path | None = None,
    *,
    clock: SteppedClock | None = None,
    keep: bool = True,
    **settings: Any,
) -> Generator[FaultyServer]:
    """Run a local server with the toy engine behind a faulty connection. Requires the extra
    ``server``.

    If ``data_dir`` is None, a temporary folder is used. ``settings`` are those of
    ``tinker.local.Settings``. The server uses ``clock`` too. The end of the block closes the
    clients and the server, but does not call :meth:`~FaultyServer.verify`. If ``keep`` is False,
    the log of requests stays empty.
    """
    from tinker.local import Settings, State, create_app

    with tempfile.TemporaryDirectory(prefix="tinker-") as folder:
        chosen: dict[str, Any] = {
            "hold_seconds": 0.2,
            "data_dir": data_dir or Path(folder),
            **settings,
        }
        clocks: dict[str, Any] = {} if clock is None else {"clock": clock, "now": clock}
        script = ModelScript()
        open_state = partial(State, lambda: ScriptedEngine(script), Settings(**chosen), **clocks)
        state = open_state()
        server = FaultyServer(create_app(state), clock=clock, keep=keep)
        server.state, server.model_script, server.open_state = state, script, open_state
        try:
            yield server
        finally:
            server.come_up()
            server.forget()
            server.close()
            server.state.close()
