"""Answers with something left out: the kit says what is missing of which operation, and ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import attrs
import httpx
import pytest
from support.contract import the_contract
from support.tampering import Stepped, Tampering, edited, is_of, media_type, operation_of, read

from tinker._wire import proto
from tinker.local.call import Profile
from tinker.testing import Outcome, Report, conformance, run, verify
from tinker.testing.conformance.context import CheckContext
from tinker.testing.conformance.outcome import KIT
from tinker.testing.conformance.report import findings

Serve = Callable[..., str]
Path: TypeAlias = tuple[str, ...]
KEY = "tml-key"
USUAL: dict[str, Any] = {
    "hold_seconds": 2.0,
    "inline_result_bytes": 10**9,
    "gap_seconds": 60.0,
    "max_uploads": 10**6,
    "api_key": KEY,
}
JSON_ONLY: dict[str, Any] = {**USUAL, "profile": Profile(name="json only", protobuf=False)}
RESULTS = {
    operation.id: operation.result
    for operation in the_contract().operations.values()
    if operation.result
}
#: Names of exceptions, which no finding has.
_INTERNAL = re.compile(r"\b[A-Z]\w*(Error|Exception)\b")
TWO_FORMS = ("ForwardBackwardOutput", "SampleResponse")
_MAPS = frozenset({"user_metadata", "metrics", "urls", "event_details", "loss_fn_inputs"})


class Replies(Tampering):
    """Changes the answers of one operation, or the results of what was submitted by it."""

    def __init__(
        self, operation: str, change: Callable[[httpx.Response], httpx.Response], *, result: bool
    ) -> None:
        super().__init__(self._edit)
        self._operation, self._change, self._result = operation, change, result
        self._submitted: set[str] = set()
        self.changed = 0

    def _edit(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not response.is_success:
            return response
        if not self._result:
            return self._changed(response) if operation_of(request) == self._operation else response
        if not is_of(request, "retrieve_future"):
            if operation_of(request) == self._operation:
                self._submitted.add(response.json()["request_id"])
            return response
        is_result = b'"try_again"' not in response.content and b'"category"' not in response.content
        is_own = is_result and json.loads(request.content).get("request_id") in self._submitted
        return self._changed(response) if is_own else response

    def _changed(self, response: httpx.Response) -> httpx.Response:
        changed = self._change(response)
        self.changed += changed is not response
        return changed


class Listening(Tampering):
    """Remembers the largest answer of each operation, and the largest result of each."""

    def __init__(self) -> None:
        super().__init__(self._listen)
        self.answers: dict[str, Any] = {}
        self.results: dict[str, Any] = {}
        self._submitted: dict[str, str] = {}

    def _listen(self, request: httpx.Request, response: httpx.Response) -> httpx.Response:
        value = (
            read(response.content)
            if response.is_success and "json" in media_type(response)
            else None
        )
        if not isinstance(value, dict):
            return response
        operation, found = operation_of(request), self.answers
        if operation == "retrieve_future":
            if value.get("type") == "try_again" or "error" in value:
                return response
            operation, found = (
                self._submitted.get(json.loads(request.content)["request_id"], ""),
                self.results,
            )
        elif "request_id" in value:
            self._submitted[value["request_id"]] = operation
        if operation and len(str(value)) > len(str(found.get(operation, ""))):
            found[operation] = value
        return response


def paths(value: object, where: Path = ()) -> Iterator[Path]:
    """Yield the place of each member of the JSON and of the records in it."""
    if isinstance(value, dict) and (not where or where[-1] not in _MAPS):
        for name, item in value.items():
            yield (*where, name)
            yield from paths(item, (*where, name))
    elif isinstance(value, list) and value:
        yield from paths(value[0], (*where, "[]"))


def without(value: Any, path: Path) -> Any:
    """Return the JSON without what is at this place."""
    if path[0] == "[]":
        return [without(one, path[1:]) for one in value] if isinstance(value, list) else value
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {name: one for name, one in value.items() if name != path[0]}
    return {**value, path[0]: without(value[path[0]], path[1:])}


def is_required(schema: dict[str, Any], path: Path) -> bool:
    """Return whether the contract requires what is at this place, where all above it is there."""
    schema = the_contract().resolved(schema)
    if path[0] == "[]":
        return "items" in schema and is_required(schema["items"], path[1:])
    if len(path) == 1:
        return path[0] in schema.get("required", ())
    below = schema.get("properties", {}).get(path[0]) or schema.get("additionalProperties")
    return isinstance(below, dict) and is_required(below, path[1:])


def leave_out(path: Path) -> Callable[[httpx.Response], httpx.Response]:
    def change(response: httpx.Response) -> httpx.Response:
        value = read(response.content) if "json" in media_type(response) else None
        left = without(value, path) if isinstance(value, dict) else value
        return response if left == value else edited(response, json.dumps(left).encode())

    return change


def check(
    url: str, operation: str, change: Callable[[httpx.Response], httpx.Response], *, result: bool
) -> Report:
    """Return the report on an operation of a server with other answers, or results, of it."""
    only = [
        one.name
        for one in conformance.all_checks()
        if operation in one.operations and one.name != "training.custom_loss"
    ]
    transport = Replies(operation, change, result=result)
    report = run(
        url, api_key=KEY, transport=transport, clock=Stepped().clock, only=only, deadline_seconds=60
    )
    assert transport.changed, "no answer was changed"
    told = [text for one in findings(report) for text in (one.title, *one.observed)]
    assert [text for text in told if _INTERNAL.search(text)] == []
    assert [row.how for row in report.checks if row.blocked_by == KIT] == []
    return report


@pytest.fixture(scope="module")
def servers(serve: Serve) -> tuple[str, str]:
    """Our server, and one that reads and writes JSON alone."""
    return serve(**USUAL), serve(**JSON_ONLY)


@pytest.fixture(scope="module")
def right(servers: tuple[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Right answers of each operation, and right results, all of them as JSON."""
    listening = [Listening(), Listening()]
    for url, one in zip(servers, listening):
        run(
            url,
            api_key=KEY,
            transport=one,
            clock=Stepped().clock,
            skip=["*.custom_loss"],
            deadline_seconds=3600,
        )
    return {**listening[1].answers, **listening[0].answers}, {
        **listening[0].results,
        **listening[1].results,
    }


OPERATIONS = the_contract().operations
#: These answer with no JSON, or are asked for by no check that needs no torch.
WITH_ANSWERS = [
    name
    for name, one in OPERATIONS.items()
    if "application/json"
    in the_contract().resolved(one.node["responses"].get("200", {})).get("content", {})
    and name not in ("retrieve_future", "get_checkpoint_archive", "create_custom_loss")
]
WITH_RESULTS = [name for name in RESULTS if name != "create_custom_loss"]
SWEEP = [*((name, False) for name in WITH_ANSWERS), *((name, True) for name in WITH_RESULTS)]


@pytest.mark.parametrize(
    ("operation", "result"),
    [
        pytest.param(
            *one,
            id=f"{'result' if one[1] else 'answer'} of {one[0]}",
            marks=[] if at % 11 == 0 else pytest.mark.soak,
        )
        for at, one in enumerate(SWEEP)
    ],
)
def test_each_field_left_out_is_named(
    operation: str,
    result: bool,
    servers: tuple[str, str],
    right: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    """Where the contract requires it, a finding names it and the operation."""
    node, kind = OPERATIONS[operation].node, RESULTS.get(operation) if result else None
    schema: dict[str, Any] = {"$ref": f"#/components/schemas/{kind}"}
    if kind is None:
        schema = the_contract().resolved(node["responses"]["200"])["content"]["application/json"][
            "schema"
        ]
    places = list(paths(right[result][operation]))
    assert places or operation in ("client_config", "session_heartbeat")
    unnamed: list[str] = []
    for place in places:
        report = check(servers[kind in TWO_FORMS], operation, leave_out(place), result=result)
        seen = [
            text for one in findings(report) if operation in one.operations for text in one.observed
        ]
        if is_required(schema, place) and not any(place[-1] in text for text in seen):
            unnamed.append(".".join(place))
    assert unnamed == []


# ---------------------------------------------------------------------------------------- no result


def nothing(status: int) -> Callable[[httpx.Response], httpx.Response]:
    """A proxy answers without a body."""
    return lambda response: edited(response, b"", status)


def ends(content: bytes) -> Iterator[int]:
    """Yield where each field of a protobuf message ends."""
    at = 0
    while at < len(content):
        kind, at = varint(content, at)
        length, at = {1: (8, at), 5: (4, at)}.get(kind & 7) or varint(content, at)
        at += length if kind & 7 else 0
        yield at


def varint(content: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (content[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 128:
            return value, at


def cut(fields: int) -> Callable[[httpx.Response], httpx.Response]:
    """The body ends after so many fields."""

    def change(response: httpx.Response) -> httpx.Response:
        places = [0, *ends(response.content)] if media_type(response) == proto.MEDIA_TYPE else []
        return (
            edited(response, response.content[: places[fields]])
            if len(places) > fields + 1
            else response
        )

    return change


def cut_sequences(response: httpx.Response) -> httpx.Response:
    """The body ends after the first of several sequences."""
    is_message = media_type(response) == proto.MEDIA_TYPE
    return (
        cut(1)(response)
        if is_message and len(proto.decode_sample(response.content).sequences) > 1
        else response
    )


def of_json(
    change: Callable[[dict[str, Any]], object],
) -> Callable[[httpx.Response], httpx.Response]:
    """Change the JSON of a result."""

    def changed(response: httpx.Response) -> httpx.Response:
        value = read(response.content) if "json" in media_type(response) else None
        if not isinstance(value, dict):
            return response
        before = json.dumps(value)
        after = json.dumps(change(value) or value)
        return response if after == before else edited(response, after.encode())

    return changed


def shorten(*names: str) -> Callable[[httpx.Response], httpx.Response]:
    """Leave out the last item of a list at this place, or of each where it goes through one."""

    def change(value: Any, at: tuple[str, ...]) -> Any:
        if isinstance(value, list) and at[:1] == ("[]",):
            return [change(one, at[1:]) for one in value]
        if isinstance(value, dict) and value.get(at[0]) is not None:
            return (
                {**value, at[0]: change(value[at[0]], at[1:])}
                if len(at) > 1
                else {**value, at[0]: value[at[0]][:-1]}
            )
        return value

    return of_json(lambda value: change(value, names))


def shorter_rows(value: dict[str, Any]) -> None:
    for fields in value.get("loss_fn_outputs", ()):
        row = fields["logprobs"]
        row.update(data=row["data"][:-1], shape=[len(row["data"]) - 1])


@attrs.frozen
class Loss:
    """What is lost of a result on its way, and what the finding is called."""

    change: Callable[[httpx.Response], httpx.Response]
    title: str


NONE, PARTS = "Results are missing or say nothing", "Results do not have as many parts"
LOST: dict[str, Loss] = {
    "204": Loss(nothing(204), NONE),
    "200 without a body": Loss(nothing(200), NONE),
}
OF_LOSSES: dict[str, Loss] = {
    "cut before the first field": Loss(cut(0), NONE),
    "cut after the first field": Loss(cut(1), PARTS),
    "an output short": Loss(shorten("loss_fn_outputs"), PARTS),
    "no outputs": Loss(of_json(lambda value: value.update(loss_fn_outputs=[])), PARTS),
    "a logprob short": Loss(of_json(shorter_rows), PARTS),
}
OF_SAMPLES: dict[str, Loss] = {
    "cut before the first field": Loss(cut(0), NONE),
    "cut after the first of several sequences": Loss(cut_sequences, PARTS),
    "a sequence short": Loss(shorten("sequences"), PARTS),
    "a token short": Loss(shorten("sequences", "[]", "tokens"), PARTS),
    "a logprob short": Loss(shorten("sequences", "[]", "logprobs"), PARTS),
    "a prompt logprob short": Loss(
        shorten("prompt_logprobs"), "Prompt logprobs do not have one value per token"
    ),
}


def losses_of(operation: str) -> dict[str, Loss]:
    return LOST | {"ForwardBackwardOutput": OF_LOSSES, "SampleResponse": OF_SAMPLES}.get(
        RESULTS[operation] or "", {}
    )


def wires_of(operation: str, name: str) -> list[str]:
    """Return the wires on which this is lost: protobuf is cut, lists of JSON are short."""
    if RESULTS[operation] not in TWO_FORMS:
        return ["json"]
    return (
        ["protobuf", "json"]
        if name in LOST
        else ["protobuf"]
        if name.startswith("cut")
        else ["json"]
    )


PROXIES = [
    (operation, wire, name)
    for operation in WITH_RESULTS
    for name in losses_of(operation)
    for wire in wires_of(operation, name)
]


@pytest.mark.parametrize(
    ("operation", "wire", "name"),
    [
        pytest.param(*one, marks=[] if at % 11 == 0 else pytest.mark.soak)
        for at, one in enumerate(PROXIES)
    ],
)
def test_a_result_that_is_lost_is_one_finding(
    operation: str, wire: str, name: str, servers: tuple[str, str]
) -> None:
    """A proxy that answers polls with nothing, or a part, is one finding of the operation."""
    lost = losses_of(operation)[name]
    report = check(
        servers[wire == "json" and RESULTS[operation] in TWO_FORMS],
        operation,
        lost.change,
        result=True,
    )
    assert [one.title[: len(lost.title)] for one in findings(report)] == [lost.title], findings(
        report
    )
    assert [one.operations for one in findings(report)] == [(operation,)]
    assert not report.passed()


@pytest.mark.parametrize(
    ("operation", "fails"),
    [("optim_step", False), ("load_weights", False), ("save_weights_for_sampler", True)],
)
def test_an_empty_object_is_noted(operation: str, fails: bool, servers: tuple[str, str]) -> None:
    """Where no field is required it differs; where the request asks for one, it contradicts."""
    report = check(
        servers[0],
        operation,
        of_json(lambda value: {"": 0} if not value else value.clear()),
        result=True,
    )
    (found,) = findings(report)
    assert (found.title, found.operations) == (f"{NONE}.", (operation,))
    assert report.passed() is not fails


# ----------------------------------------------------------------------------------- the kit itself


def test_an_exception_in_a_check_is_no_finding(
    servers: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the kit's own failure, with operation and answer; the exit code is 3."""

    def fail(context: CheckContext) -> None:
        context.base_model()
        raise IndexError("list index out of range")

    own = attrs.evolve(conformance.all_checks()[0], name="service.own", body=fail, basis=False)
    monkeypatch.setattr("tinker.testing.conformance.all_checks", lambda: (own,))
    report = run(servers[0], api_key=KEY)
    (row,) = report.checks
    assert (row.outcome, row.blocked_by, findings(report)) == (Outcome.BLOCKED, KIT, ())
    assert (
        "get_server_capabilities (GET /api/v1/get_server_capabilities) answered 200" in row.how[0]
    )
    assert "test_evil_answers.py, line " in row.how[0]
    assert "IndexError" not in row.how[0]
    assert report.was_cut_short
    with pytest.raises(RuntimeError, match="the check fails in"):
        verify("service.own", servers[0], api_key=KEY)
