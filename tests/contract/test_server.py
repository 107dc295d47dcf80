"""The server against the document, by schemathesis: every operation, with examples, at limits, at
random and along links.

What is generated and what is checked besides the tool's own checks is in ``fuzzing``. Each
operation gets a few random requests and its examples; `EXAMPLES=all`, as in `nox -s contract` and
`nox -s chaos`, adds those at limits and more random ones.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.config import SchemathesisConfig
from schemathesis.core import NOT_SET
from schemathesis.core.failures import FailureGroup
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from support import fuzzing
from support.contract import Contract
from support.judge import Judge, Validating, strict_contract
from tinker_wire.operations import OPERATIONS

from tinker.local import Settings, State, create_app, running_server
from tinker.local.engines.toy import ToyEngine
from tinker.testing import Report, check_ids, run
from tinker.testing.conformance import all_checks
from tinker.testing.conformance.report import findings

KEY = "tml-key"
QUICK = {
    "hold_seconds": 5.0,
    "gap_seconds": 0.0,
    "max_sessions": 10**6,
    "max_models": 10**6,
    "max_samplers": 10**6,
}
ALL_CHECKS = list(HealthCheck)


def read_config() -> SchemathesisConfig:
    """Return what schemathesis.toml says; by default without the hundreds at limits."""
    config = SchemathesisConfig.discover()
    if os.environ.get("EXAMPLES") != "all":
        config.projects.default.phases.coverage.enabled = False
        config.projects.default.generation.max_examples = 6
    return config


document = copy.deepcopy(strict_contract().document)
document["servers"] = [{"url": "/"}]
everything = schemathesis.openapi.from_dict(document, config=read_config())
# it ends every other test, and has a separate one
schema = everything.exclude(operation_id="delete_api_key")


class Relay:
    """An application that hands requests to another one, which each test chooses.

    The tool starts and ends its application around every request; the chosen one does not notice.
    """

    to: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.to(scope, receive, send)


relay = everything.app = schema.app = Relay()


@everything.auth()
@schema.auth()
class Key:
    """The credential of every request; the tool also tries without one."""

    def get(self, case: Case, context: Any) -> str:
        return KEY

    def set(self, case: Case, data: str, context: Any) -> None:
        case.headers["X-API-Key"] = data


def quick_state(folder: Path) -> State:
    """Of a server that waits for nothing, with a key."""
    chosen = Settings(data_dir=folder, api_key=KEY, **QUICK)
    return State(lambda: ToyEngine(vocabulary=512, max_context_length=64), chosen)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ASGIApp]:
    """Yield a server that waits for nothing, with a key."""
    state = quick_state(tmp_path_factory.mktemp("server"))
    yield create_app(state)
    state.close()


@pytest.fixture(autouse=True)
def server(app: ASGIApp) -> None:
    """Requests go to that server, inside this process."""
    relay.to = app


@schema.parametrize()
@settings(suppress_health_check=ALL_CHECKS)
def test_every_operation(case: Case) -> None:
    """No request makes the server fail or answer outside the document, and valid ones are taken."""
    case.call_and_validate()


def test_revoking_a_key(tmp_path: Path) -> None:
    """The one operation that takes the others away: from then on the key opens nothing."""
    state = quick_state(tmp_path)
    relay.to = create_app(state)
    attempt("get_api_key")
    attempt("delete_api_key")
    assert request("get_api_key").status_code == 401
    state.close()


@pytest.mark.parametrize("max_examples", [8, pytest.param(60, marks=pytest.mark.soak)])
def test_along_links(tmp_path_factory: pytest.TempPathFactory, max_examples: int) -> None:
    """Requests with ids of earlier responses break nothing, and many operations succeed."""
    succeeded: Counter[str] = Counter()

    class Machine(schema.as_state_machine()):  # type: ignore[misc]
        def setup(self) -> None:
            """Give each run a separate server in the same state."""
            super().setup()
            self.state = quick_state(tmp_path_factory.mktemp("server"))
            relay.to = create_app(self.state)
            begin()

        def teardown(self) -> None:
            self.state.close()
            super().teardown()

        def after_call(self, response: Any, case: Case) -> None:
            if response.status_code < 300:
                succeeded[fuzzing.operation_of(case).id] += 1

    Machine.run(
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            suppress_health_check=ALL_CHECKS,
        )
    )
    assert "retrieve_future" in succeeded
    assert len(succeeded) >= 15, succeeded  # by chance not always the same


def linked(operation: str, answer: dict[str, Any], target: str) -> dict[str, Any]:
    """Return the fields that the answer to one operation gives to another, by their link."""
    contract = strict_contract()
    (link,) = [
        one
        for one in contract.operations[operation].response(200)["links"].values()
        if one["operationId"] == target
    ]
    return {
        name: answer[where.removeprefix("$response.body#/")]
        for name, where in link["requestBody"].items()
    }


def test_the_links_lead_from_a_session_to_a_result() -> None:
    """By the document's links alone, a session leads to a model, a loss and its result."""
    body: dict[str, Any] = {"tags": [], "sdk_version": "1"}
    needed = {
        "create_model": {"model_seq_id": 0, "base_model": "tinker/toy", "lora_config": {"rank": 2}},
        "forward_backward": {
            "forward_backward_input": {"data": [EXAMPLE], "loss_fn": "cross_entropy"},
            "seq_id": 1,
        },
    }
    chain = [
        "create_session",
        "create_model",
        "retrieve_future",
        "forward_backward",
        "retrieve_future",
    ]
    for operation, target in itertools.pairwise(chain):
        body = linked(operation, made(operation, **body), target) | needed.get(target, {})
    assert made("retrieve_future", **body)["loss_fn_outputs"]


EXAMPLE = {
    "model_input": {"chunks": [{"type": "encoded_text", "tokens": [5]}]},
    "loss_fn_inputs": {"target_tokens": {"data": [6], "dtype": "int64"}},
}


def begin() -> str:
    """Return a session with a model, whose id is returned, and a sampler."""
    fuzzing.KNOWN.clear()
    session = made("create_session", tags=[], sdk_version="1")["session_id"]
    promise = made(
        "create_model",
        session_id=session,
        model_seq_id=0,
        base_model="tinker/toy",
        lora_config={"rank": 2},
    )
    made(
        "create_sampling_session",
        session_id=session,
        sampling_session_seq_id=0,
        base_model="tinker/toy",
    )
    return str(made("retrieve_future", request_id=promise["request_id"])["model_id"])


def request(operation: str, body: object = NOT_SET, media_type: str | None = None) -> Any:
    """Return the answer to one request of our own."""
    row = OPERATIONS[operation]
    case = everything[row.path][row.method].Case(
        body=body, media_type=media_type, headers={"X-API-Key": KEY}
    )
    return case.call()


def made(operation: str, **body: Any) -> dict[str, Any]:
    """Return the answer to a request that must succeed."""
    for _ in range(500):  # a result may take longer than the server holds a request for it
        answer = request(operation, body, "application/json")
        if answer.status_code != 408:
            break
    assert answer.status_code == 200, answer.content
    return dict(answer.json())


def test_encoded_messages_reach_a_model() -> None:
    """Valid messages are computed or are user errors, and the model goes on after each."""
    outcomes: Counter[str] = Counter()

    @settings(
        max_examples=100,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=ALL_CHECKS,
    )
    @given(body=fuzzing.forward_backward())
    def submit(body: bytes) -> None:
        answer = request("forward_backward", body, "application/x-protobuf")
        if answer.status_code == 200:
            outcome = made("retrieve_future", request_id=answer.json()["request_id"])
            outcomes[outcome.get("category", outcome.get("type", "computed"))] += 1
            begin()  # the next message has a model whose first number is free

    begin()
    submit()
    assert outcomes["computed"]
    assert outcomes["user"]
    assert not outcomes["server"]


# --------------------------------------------------------------------------------- known to succeed


@pytest.fixture(scope="module")
def kit_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Judge, Report]:
    """Return a run of the conformance kit with all checks: what the judge saw, and the report."""
    judge = Judge()
    chosen = Settings(
        data_dir=tmp_path_factory.mktemp("server"),
        api_key=KEY,
        hold_seconds=2.0,
        gap_seconds=3.0,
        inline_result_bytes=1000,
    )
    with running_server(chosen, ToyEngine(vocabulary=512)) as url:
        report = run(
            url,
            api_key=KEY,
            slow=True,
            destructive=True,
            transport=Validating(httpx.HTTPTransport(), judge),
        )
    assert len(report.checks) == len(check_ids(slow=True, destructive=True))
    return judge, report


@pytest.fixture
def judged(kit_run: tuple[Judge, Report]) -> Judge:
    return kit_run[0]


def test_the_conformance_kit_finds_nothing(kit_run: tuple[Judge, Report]) -> None:
    """Whatever the kit can find wrong in a server is not so in ours."""
    assert [(one.title, one.observed) for one in findings(kit_run[1])] == []


def test_every_answer_to_the_conformance_kit_fits(judged: Judge) -> None:
    """Known requests, with every kind of result, are answered strictly as the document says."""
    assert judged.bad_answers == []


def test_every_operation_is_answered_with_success(judged: Judge) -> None:
    """The kit does every operation, but for assumed ones that no check is about."""
    unchecked = judged.contract.assumed - {name for one in all_checks() for name in one.operations}
    assert OPERATIONS.keys() - judged.succeeded == unchecked


# ------------------------------------------------------------------------------------------- faults


def tampered(app: ASGIApp, path: str, change: Callable[[Message], None]) -> ASGIApp:
    """Return the application with changed successful answers at one path."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def changed(message: Message) -> None:
            if message["type"] == "http.response.body" and statuses[0] < 300:
                change(start[0])
                change(message)
                start[0]["headers"] = [
                    (
                        name,
                        str(len(message["body"])).encode() if name == b"content-length" else value,
                    )
                    for name, value in start[0]["headers"]
                ]
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                start.append(message)
                return
            await send(start[0])
            await send(message)

        start: list[Message] = []
        statuses: list[int] = []
        await app(scope, receive, changed if scope["path"].endswith(path) else send)

    return answer


def body(change: Callable[[dict[str, Any]], object]) -> Callable[[Message], None]:
    """Change the JSON of an answer."""

    def apply(message: Message) -> None:
        if message["type"] == "http.response.body":
            value = json.loads(message["body"])
            change(value)
            message["body"] = json.dumps(value).encode()

    return apply


def status(number: int) -> Callable[[Message], None]:
    """Change the status of an answer."""

    def apply(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["status"] = number

    return apply


def media_type(name: bytes) -> Callable[[Message], None]:
    """Change the media type of an answer."""

    def apply(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                (key, name if key == b"content-type" else value)
                for key, value in message["headers"]
            ]

    return apply


FAULTS = {
    "a field": ("create_session", body(lambda v: v.update(session_id=7)), "7 is not of type"),
    "server error": ("create_session", status(500), "Server error"),
    "status": ("client_dynamic_config", status(201), "client_dynamic_config: status 201"),
    "media type": ("get_server_capabilities", media_type(b"text/html"), "text/html"),
    "refusal": ("client_config", status(422), "Valid data should have been accepted"),
}


@pytest.mark.parametrize(("operation", "change", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_of_the_server_is_found(
    app: ASGIApp, operation: str, change: Callable[[Message], None], words: str
) -> None:
    """One changed answer is enough for the test of its operation to fail."""
    relay.to = tampered(app, OPERATIONS[operation].path, change)
    assert words in failures(operation)
    relay.to = app
    attempt(operation)


def test_a_server_that_needs_no_key_is_found(tmp_path: Path) -> None:
    """Every operation but one asks for the credential; a server that does not is at fault."""
    state = State(lambda: ToyEngine(vocabulary=512), Settings(data_dir=tmp_path, **QUICK))
    relay.to = create_app(state)
    assert "without authentication" in failures("create_session")
    state.close()


def failures(operation: str) -> str:
    """Return the tool's failures for an operation."""
    with pytest.raises(FailureGroup) as caught:
        attempt(operation)
    return "\n".join(map(str, caught.value.exceptions))


def attempt(operation: str) -> None:
    """Some requests of one operation, with all checks."""
    row = OPERATIONS[operation]

    @settings(
        max_examples=5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=ALL_CHECKS,
    )
    @given(case=everything[row.path][row.method].as_strategy())
    def test(case: Case) -> None:
        case.call_and_validate()

    test()


@pytest.mark.parametrize(
    ("result", "fits"),
    [
        ({"path": "tinker://a/weights/b", "type": "save_weights"}, True),
        ({"type": "save_weights"}, False),
        ({"metrics": {}}, False),
    ],
)
def test_a_result_is_judged_by_what_was_submitted(
    contract: Contract, result: dict[str, Any], fits: bool
) -> None:
    """A result of another operation is refused for the submitted one."""
    judge, headers = Judge(), {"content-type": "application/json"}
    submit, poll = contract.operations["save_weights"], contract.operations["retrieve_future"]
    judge.answered(submit, b"", 200, headers, b'{"request_id": "r"}')
    judge.answered(poll, b'{"request_id": "r"}', 200, headers, json.dumps(result).encode())
    assert (judge.bad_answers == []) is fits
