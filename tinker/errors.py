"""Every exception of this package.

    TinkerError
    ├── APIError                        one HTTP exchange failed
    │   ├── APIStatusError              the server responded with an error status
    │   │   ├── BadRequestError             400
    │   │   ├── AuthenticationError         401
    │   │   ├── BillingError                402
    │   │   ├── PermissionDeniedError       403
    │   │   ├── NotFoundError               404
    │   │   │   └── SessionLostError            the server no longer knows the session
    │   │   ├── ConflictError               409
    │   │   ├── UnprocessableEntityError    422
    │   │   ├── RateLimitError              429
    │   │   └── InternalServerError         500 and above
    │   ├── APIResponseValidationError  the response does not match the contract
    │   └── APIConnectionError          no response
    │       ├── APITimeoutError             not in time
    │       └── ResponseTooLargeError       it is larger than its limit, or than the memory that is
                                            left
    ├── RequestFailedError              an accepted request failed on the server
    │   └── RefusedResultError              the poll for its result returned an error status
    ├── PrecedingRequestFailed          the request did not run, because an earlier one failed
    ├── LossTermError                   a term of a regularized loss failed
    ├── CircuitOpenError                the call was not made, because the server failed repeatedly
    ├── UnknownIdentityError            the owner of the credential is unknown
    └── ClientClosedError               the client was closed before the request was made
    FutureWarning
    └── ExperimentalWarning             the operation may change without notice

An error has the attribute ``operation``, and notes about retries. Errors can be pickled. Their
requests contain no credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

if TYPE_CHECKING:
    import httpx

from tinker._basics.shown import clean

E = TypeVar("E", bound=BaseException)


class TinkerError(Exception):
    """The base of every error that this package raises on purpose, except ValueError and TypeError
    for invalid arguments.

    Attributes:
        operation: The name of the operation that failed; None if the error is not about one.
        training_run_id: The run that the failed operation belongs to; None if it belongs to none.
    """

    operation: str | None = None
    training_run_id: str | None = None

    def __str__(self) -> str:
        return clean(super().__str__())

    def add_note(self, note: str, /) -> None:
        super().add_note(clean(note))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(
    kind: type[TinkerError], args: tuple[object, ...], attributes: dict[str, object]
) -> TinkerError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ShownExchange(NamedTuple):
    """What an error keeps of a request and its response, without credentials. httpx's objects are
    made when somebody looks.
    """

    method: str
    url: str
    request_headers: Mapping[str, str]
    status_code: int = 0
    headers: Mapping[str, str] = {}  # names in lower case
    content: bytes = b""

    def request(self) -> httpx.Request:
        import httpx

        return httpx.Request(self.method, self.url, headers=self.request_headers)

    def response(self, request: httpx.Request) -> httpx.Response:
        import httpx

        headers = [(_to_bytes(name), _to_bytes(value)) for name, value in self.headers.items()]
        return httpx.Response(
            self.status_code, headers=headers, content=self.content, request=request
        )


def _to_bytes(text: str) -> bytes:
    """Return the bytes of a header name or value, whose encoding is unknown."""
    return text.encode("utf-8", "surrogateescape")


class APIError(TinkerError):
    """An exchange with the server failed.

    Attributes:
        may_have_arrived: Whether the server may have accepted the request in an attempt before the
            last one.
        message: The text of the error.
        request: The request, without credentials.
        body: The parsed JSON of the response, or its text if it is not JSON; None if there is
            neither.
    """

    may_have_arrived: bool = False
    _exchange: ShownExchange

    def __init__(
        self, message: str, request: httpx.Request | ShownExchange, *, body: object | None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.body = body
        if isinstance(request, ShownExchange):
            self._exchange = request
        else:
            self.request = request

    @cached_property
    def request(self) -> httpx.Request:
        return self._exchange.request()


class APIResponseValidationError(APIError):
    """The response does not match the contract.

    Attributes:
        response: The response.
        status_code: The HTTP status of the response.
    """

    def __init__(
        self, response: httpx.Response, body: object | None, message: str | None = None
    ) -> None:
        super().__init__(
            message or "The server's response does not match the contract.",
            response.request,
            body=body,
        )
        self.response = response
        self.status_code: int = response.status_code


class APIStatusError(APIError):
    """The server responded with an error status.

    Attributes:
        status_code: The HTTP status of the response.
        response: The response.
        retry_after: The seconds that the server asked to wait; None if it did not.
        code: The server's word for the kind of refusal, which does not change when its message
            does; None if it sent none.
    """

    status_code: int

    def __init__(
        self, message: str, response: httpx.Response | ShownExchange, body: object | None
    ) -> None:
        if isinstance(response, ShownExchange):
            super().__init__(message, response, body=body)
        else:
            super().__init__(message, response.request, body=body)
            self.response = response
        self.status_code = response.status_code
        self.retry_after: float | None = None
        code = cast("dict[str, object]", body).get("code") if isinstance(body, dict) else None
        self.code: str | None = code if isinstance(code, str) else None

    @cached_property
    def response(self) -> httpx.Response:
        return self._exchange.response(self.request)

    def header(self, name: str) -> str | None:
        """Return a header of the response; ``name`` is in lower case."""
        return (self._exchange if "_exchange" in self.__dict__ else self.response).headers.get(name)


class BadRequestError(APIStatusError):
    """400: the request is invalid."""


class AuthenticationError(APIStatusError):
    """401: the credential is missing, invalid or expired."""


class BillingError(APIStatusError):
    """402: the account cannot pay for the request."""


class PermissionDeniedError(APIStatusError):
    """403: the credential does not permit the request."""


class NotFoundError(APIStatusError):
    """404: the server does not have the item or the operation."""


class SessionLostError(NotFoundError):
    """The server no longer knows this client's session, usually because it was restarted.

    Runs, samplers and results in its memory are lost; saved checkpoints are not. Create a new
    client from the same ServiceClient, which starts a new session.
    ``create_training_client_from_state_with_optimizer(path)`` continues a run.

    Attributes:
        session_id: The session.
    """

    session_id: str | None = None


class SessionSilentError(TinkerError):
    """The server accepted no heartbeat of the session for too long, so the client sends no new
    requests in it.

    ``Config.heartbeat_lost_seconds`` sets the limit. Heartbeats continue; when the server accepts
    one, requests are sent again.
    """


class ConflictError(APIStatusError):
    """409: the request conflicts with the state of the server."""


class UnprocessableEntityError(APIStatusError):
    """422: the request is well-formed but invalid."""


class RateLimitError(APIStatusError):
    """429: too many requests."""


class InternalServerError(APIStatusError):
    """500 and above: the server failed."""


class APIConnectionError(APIError):
    """The connection failed or broke before the response was complete.

    Attributes:
        never_connected: Whether no connection could be made at all.
        never_ran: Whether the server cannot have begun with the request: there was no connection,
            or the server said so.
        wrong_address: Whether the address is probably wrong: its server does not use TLS, its host
            does not exist, or no program of this machine listens there. Such a failure is retried
            only for some seconds, unless the server has answered before.
    """

    never_connected: bool = False
    never_ran: bool = False
    wrong_address: bool = False

    def __init__(
        self, request: httpx.Request | ShownExchange, message: str = "Connection error."
    ) -> None:
        super().__init__(message, request, body=None)


class APITimeoutError(APIConnectionError):
    """The response did not arrive in time."""

    def __init__(
        self, request: httpx.Request | ShownExchange, message: str = "Request timed out."
    ) -> None:
        super().__init__(request, message)


class ResponseTooLargeError(APIConnectionError):
    """The response was not read to its end: it is larger than a response of its kind may be, or
    does not fit into memory.
    """


class RequestFailedError(TinkerError):
    """The server accepted a request and then failed to carry it out.

    Attributes:
        message: The whole message.
        reason: The server's explanation alone.
        request_id: The server's id of the request.
        category: The cause of the failure, ``server``, ``user`` or ``unknown``.
    """

    def __init__(
        self, message: str, request_id: str, category: str, *, reason: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason: str = message if reason is None else reason
        self.request_id = request_id
        self.category = category


class RefusedResultError(RequestFailedError, ValueError):
    """The request failed: the server responded to the poll for its result with an error status.

    The official client raises a ValueError for such a response.
    """


class SampleStreamError(TinkerError, RuntimeError):
    """A stream of samples broke after some of its tokens had arrived. ``__cause__`` is the reason.

    Before the first token, a failure is retried and raised like that of any other request.

    Attributes:
        message: The reason in words.
        received_tokens: The number of tokens that arrived, over all samples.
    """

    def __init__(self, message: str, received_tokens: int) -> None:
        super().__init__(message)
        self.message = message
        self.received_tokens = received_tokens


class PrecedingRequestFailed(TinkerError):
    """The request did not run, because an earlier request of its training run failed and you have
    not received that error yet.

    It was not sent, or the server did not run it. ``__cause__`` is the earlier error. After you
    receive either error, new requests run again.

    Attributes:
        operation: The name of the operation that did not run.
        failed_operation: The name of the operation that failed.

    Example::

        failed = training.forward_backward(data, "no_such_loss")
        step = training.optim_step(params)  # called before anybody looked at the failure
        step.result()  # raises PrecedingRequestFailed: no step without its gradient
        training.save_state("kept")         # works
    """

    def __init__(self, message: str, operation: str, failed_operation: str) -> None:
        super().__init__(message)
        self.operation: str | None = operation
        self.failed_operation = failed_operation


class LossTermError(TinkerError):
    """A term of a loss made by ``tinker.regularizers.regularized`` failed, so the step has no
    gradient.

    ``__cause__`` is the error of the term.

    Attributes:
        term: The name of the term.
    """

    def __init__(self, message: str, term: str) -> None:
        super().__init__(message)
        self.term = term


class CircuitOpenError(TinkerError):
    """The call was not made, because the circuit breaker is open after repeated failures.

    If the request was being retried when the circuit opened, ``__cause__`` is its last failure. The
    server may have accepted the request.

    Attributes:
        circuit: The name of the circuit.
        retry_after: The seconds after which you can try again.
    """

    def __init__(self, message: str, circuit: str, retry_after: float) -> None:
        super().__init__(message)
        self.circuit = circuit
        self.retry_after = retry_after


class UnknownIdentityError(TinkerError, RuntimeError):
    """The owner of the credential is unknown, because the server issues no tokens that name one."""


class ClientClosedError(TinkerError, RuntimeError):
    """The client was closed, so the request was not made."""

    def __init__(
        self,
        message: str = "this ServiceClient is closed; create a new one, or close this one later",
    ) -> None:
        super().__init__(message)


class ExperimentalWarning(FutureWarning):
    """The operation may change without notice."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    402: BillingError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}

for _status, _kind in _BY_STATUS.items():
    _kind.status_code = _status
for _error in list(globals().values()):
    if isinstance(_error, type) and issubclass(_error, (TinkerError, Warning)):
        _error.__module__ = "tinker"  # where users import them from, and what tracebacks say


def status_error_type(status: int) -> type[APIStatusError]:
    """Return the exception class for an error status; APIStatusError if the status has no specific
    class.

    Args:
        status: The HTTP status, 400 or above.

    Returns:
        The exception class.
    """
    if status >= 500:
        return InternalServerError
    return _BY_STATUS.get(status, APIStatusError)


def copy_error(error: E) -> E:
    """Copy an error for another waiter, so that tracebacks and notes of several threads do not mix.

    Args:
        error: The error to copy.

    Returns:
        A copy with the same cause if the error belongs to this package; otherwise the same error.
    """
    if not isinstance(error, TinkerError):
        return error
    attributes: dict[str, Any] = dict(error.__dict__)
    if "__notes__" in attributes:
        attributes["__notes__"] = list(attributes["__notes__"])
    copy = _rebuild(type(error), error.args, attributes)
    copy.__cause__ = error.__cause__
    return cast("E", copy)
