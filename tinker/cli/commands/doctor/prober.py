"""What ``tinker doctor`` looks at, one thing after the other. Nothing is tried again, and nothing on the server changes."""

from __future__ import annotations

import asyncio
import email.utils
import importlib.metadata
import platform
import re
import statistics
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from tinker_wire import CONTRACT_VERSION, models
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.operations import OPERATIONS
from tinker_wire.runtime import Binary, Operation, Request

from tinker._config import Config
from tinker._http import (
    ABSENT_STATUSES,
    UNEXPECTED_STATUS,
    UNREADABLE_STATUSES,
    WRONG_METHOD_STATUS,
    Answer,
    Purpose,
    find_source,
)
from tinker._installation import inspect_installation
from tinker._runtime import Runtime
from tinker._session import Form, Negotiation, Trial
from tinker._version import DISTRIBUTION_VERSION
from tinker._wire import json, proto
from tinker.errors import APIResponseValidationError, APIStatusError, TinkerError
from tinker.futures import APIFuture, start
from tinker.types import Datum, ModelInput

Status: TypeAlias = Literal["ok", "note", "FAIL"]
Support: TypeAlias = Literal["yes", "no", "unknown"]

# Beyond this, the ends of tokens and of signed URLs are misjudged.
MAX_SKEW_SECONDS = 60.0
_TRIES = 5
# No operation has this method, so it never reaches one: a server that knows the path says that the method is wrong.
_HARMLESS_METHOD = "PATCH"
_NO_OPERATION = "/api/v1/no_such_operation"
_NO_MODEL = "doctor:train:0"
_NAMES = {"proto": "protobuf", "json": "JSON"}
_AT_ONCE = 8
_OPTIONAL_PACKAGES = ("torch", "transformers", "huggingface_hub", "zstandard", "starlette")


class Finding(NamedTuple):
    """One thing that was looked at: in order, worth knowing, or to be repaired."""

    name: str
    status: Status
    detail: str


class Examination(NamedTuple):
    """Everything that was found. ``operations`` says of each operation of the contract whether the server has it."""

    base_url: str
    findings: list[Finding]
    operations: dict[str, Support]

    @property
    def failed(self) -> list[str]:
        """What must be repaired."""
        return [finding.name for finding in self.findings if finding.status == "FAIL"]


def examine(config: Config, connect: Callable[[], Runtime], exchange_seconds: float) -> Examination:
    """Look at everything; blocks. ``connect`` is called where a connection makes sense.

    What takes longer than ``exchange_seconds`` (0: no limit) counts as not answered.
    """
    findings = [_versions(), _installation(), _credential(config)]
    operations: dict[str, Support] = dict.fromkeys(OPERATIONS, "unknown")
    if findings[-1].status != "FAIL":
        patient = _Patient(connect(), exchange_seconds or None)
        found: APIFuture[Mapping[str, Support]] = APIFuture("doctor")
        operations |= start(found, partial(_look, patient, findings)).result()
    return Examination(config.base_url, findings, operations)


class _Patient:
    """The server that is looked at."""

    def __init__(self, runtime: Runtime, seconds: float | None) -> None:
        self._runtime, self._seconds = runtime, seconds

    @property
    def runtime(self) -> Runtime:
        """Its connections."""
        return self._runtime

    async def answer(self, request: Request[Any]) -> Answer:
        """One exchange. TinkerError for every refusal, and for none in time."""
        transport = self._runtime.transport
        call = transport.prepare(request, Purpose.SESSION)
        try:
            async with asyncio.timeout(self._seconds):
                return await transport.perform(call, request.operation)
        except TimeoutError:
            raise TinkerError(f"no answer within {self._seconds:g} s (--patience)") from None

    async def status(self, request: Request[Any]) -> int:
        """The status of the answer, also of a refusal."""
        try:
            return (await self.answer(request)).status
        except APIStatusError as error:
            return error.status_code

    async def read(self, request: Request[Any]) -> Any:
        """The value of the answer."""
        transport = self._runtime.transport
        return transport.decode(request, transport.prepare(request, Purpose.SESSION), await self.answer(request))


async def _look(patient: _Patient, findings: list[Finding]) -> Mapping[str, Support]:
    answer = await _reached(patient, findings)
    if answer is None:
        return {}
    fault = await _stranger(patient)
    if fault is not None:
        findings[-1] = Finding("connection", "FAIL", fault)
        return {}
    findings.append(_clock(patient, answer))
    for name, check in _CHECKS.items():
        try:
            findings.append(await check(patient))
        except TinkerError as error:
            findings.append(Finding(name, "FAIL", str(error)))
    operations = await _operations(patient)
    findings.append(_summary(operations))
    return operations


def _versions() -> Finding:
    here = f"tinker {DISTRIBUTION_VERSION}, contract {CONTRACT_VERSION}, Python {platform.python_version()}"
    return Finding("versions", "ok", ", ".join([here, *(f"{name} {version}" for name, version in _installed().items())]))


def _installed() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in _OPTIONAL_PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def _installation() -> Finding:
    installation = inspect_installation()
    if installation.problem is not None:
        return Finding("installation", "FAIL", installation.problem)
    return Finding("installation", "ok", str(installation))


def _credential(config: Config) -> Finding:
    """Where it comes from; it is not asked for yet."""
    try:
        source = find_source(config)
    except TinkerError as error:
        return Finding("credential", "FAIL", str(error))
    if source is None:
        return Finding("credential", "note", "none, which servers other than the hosted one may accept")
    if config.api_key is not None:
        return Finding("credential", "ok", "the key of TINKER_API_KEY")
    if config.credential_cmd is not None:
        return Finding("credential", "ok", "what TINKER_CREDENTIAL_CMD prints")
    return Finding("credential", "ok", f"the key stored in {config.credentials_file}")


async def _reached(patient: _Patient, findings: list[Finding]) -> Answer | None:
    """The first answer, None without one; how long answers take."""
    clock = patient.runtime.clock
    seconds: list[float] = []
    answer: Answer | None = None
    try:
        for _ in range(_TRIES):
            began = clock.monotonic()
            answer = await _any_answer(patient)
            seconds.append(clock.monotonic() - began)
    except TinkerError as error:
        findings.append(Finding("connection", "FAIL", str(error)))
        return None
    first, *others = seconds
    detail = f"answers in {_ms(statistics.median(others))}, the first one, which connects, in {_ms(first)}"
    findings.append(Finding("connection", "ok", detail))
    return answer


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


async def _any_answer(patient: _Patient) -> Answer:
    """Whatever it says: it shows that somebody is there."""
    try:
        return await patient.answer(service_api.healthz())
    except APIStatusError as error:
        return Answer(error.status_code, error.response.headers, b"")


async def _stranger(patient: _Patient) -> str | None:
    """Why what answers is no Tinker server; None where it is, or where a credential is needed to know."""
    try:
        await patient.read(service_api.get_server_capabilities())
    except APIResponseValidationError as error:
        return str(error)
    except APIStatusError as error:
        return str(error) if error.status_code in ABSENT_STATUSES else None
    except TinkerError:
        return None
    return None


def _clock(patient: _Patient, answer: Answer) -> Finding:
    """By the header ``Date``, whose unit is a second."""
    try:
        theirs = email.utils.parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
    except ValueError:
        return Finding("clock", "note", "the server does not say what time it is")
    skew = patient.runtime.clock.wall() - theirs
    if abs(skew) <= MAX_SKEW_SECONDS:
        return Finding("clock", "ok", "as the server's, within a minute")
    return Finding("clock", "FAIL", f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server's; set it right")


async def _settings(patient: _Patient) -> Finding:
    """As clients ask at their start; from here on requests carry what the server wants."""
    facts = await patient.runtime.server.facts()
    if not facts.answered:
        return Finding("settings", "note", "the server gives clients none, so they speak JSON to it first")
    default = models.ClientConfigResponse()
    changed = [name for name, value in facts.config.model_dump().items() if value != getattr(default, name)]
    return Finding("settings", "ok", f"given; other than by default: {', '.join(changed) or 'none'}")


async def _models(patient: _Patient) -> Finding:
    found = (await patient.read(service_api.get_server_capabilities())).supported_models
    names = [one.model_name for one in found if one.model_name is not None]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return Finding("models", "ok" if names else "note", f"{', '.join(names[:3]) or 'none'}{more}")


async def _wire(patient: _Patient) -> Finding:
    """What clients will do, found out as they do; with a request for a model that does not exist."""
    choice = patient.runtime.config.wire
    wire = Negotiation(choice)
    wire.config_answered((await patient.runtime.server.facts()).answered)
    first = wire.form
    refusals: list[APIStatusError] = []

    async def post(form: Form) -> Form:
        try:
            await patient.answer(_no_request(form))
        except APIStatusError as error:
            if _is_about_the_form(error):
                refusals.append(error)
                raise
        return form

    try:
        found = await Trial(wire, post, has_sparse=False).once()
    except APIStatusError as error:
        detail = f"the server does not tell what it reads; it answers {error.status_code} to a model that it cannot know"
        return Finding("wire", "note", f"{detail}. Training requests go as {_NAMES[first.media]} first")
    why = ", as TINKER_WIRE says" if choice != "auto" else ""
    if found != first:
        why = f", as the server answers {refusals[0].status_code} to {_NAMES[first.media]}"
    return Finding("wire", "ok", f"training requests go as {_NAMES[found.media]}{why}")


def _no_request(form: Form) -> Request[Any]:
    """A training request for a model that does not exist; as protobuf it is no text, like those of clients."""
    datum = Datum(ModelInput.from_ints([1_000_000]), {"target_tokens": [1_000_000], "weights": [1.0]})
    if form.media == "proto":
        body = proto.encode_forward_backward(_NO_MODEL, 1, [datum], "cross_entropy")
        return training_api.forward_backward(Binary(proto.MEDIA_TYPE, body))
    inputs = models.ForwardBackwardInput(data=json.wire_data([datum]), loss_fn="cross_entropy")
    return training_api.forward_backward(
        models.ForwardBackwardRequest(forward_backward_input=inputs, model_id=_NO_MODEL, seq_id=1)
    )


def _is_about_the_form(error: APIStatusError) -> bool:
    """Whether a refusal may be about the form of the body. One that names the model has read it."""
    return error.status_code in UNREADABLE_STATUSES | {UNEXPECTED_STATUS} and _NO_MODEL not in str(error.body)


#: In this order, once the server answers.
_CHECKS: Mapping[str, Callable[[_Patient], Awaitable[Finding]]] = {
    "settings": _settings,
    "models": _models,
    "wire": _wire,
}


async def _operations(patient: _Patient) -> dict[str, Support]:
    """Of each operation whether its path exists, asked by a method that none has; unknown where a server answers all alike."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def exists(path: str) -> Support:
        request: Request[None] = Request(operation="doctor", method=_HARMLESS_METHOD, path=path, reply=None)
        async with room:
            try:
                status = await patient.status(request)
            except TinkerError:
                return "unknown"
        return "yes" if status == WRONG_METHOD_STATUS else "no" if status in ABSENT_STATUSES else "unknown"

    paths = {name: _filled(operation) for name, operation in OPERATIONS.items()}
    asked = sorted({*paths.values(), _NO_OPERATION})
    known = dict(zip(asked, await asyncio.gather(*map(exists, asked))))
    if known[_NO_OPERATION] != "no" or known[paths["get_server_capabilities"]] != "yes":
        return dict.fromkeys(paths, "unknown")
    return {name: known[path] for name, path in paths.items()}


def _filled(operation: Operation) -> str:
    """The path with names that belong to nothing."""
    return re.sub(r"\{[^}]*\}", "doctor", operation.path.replace("{checkpoint_id}", "weights/doctor"))


def _summary(operations: Mapping[str, Support]) -> Finding:
    missing = sorted(name for name, support in operations.items() if support == "no")
    if "yes" not in operations.values():
        return Finding("operations", "note", "the server does not tell which it has")
    needed = [name for name in missing if not OPERATIONS[name].optional]
    present = sum(support == "yes" for support in operations.values())
    detail = f"{present} of {len(operations)}"
    if missing:
        detail += f"; missing: {', '.join(missing)}"
    return Finding("operations", "note" if needed or missing else "ok", detail)
