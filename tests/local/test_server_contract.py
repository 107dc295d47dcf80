"""The server against the contract: handlers, refusals with their codes, and faults of bodies."""

from __future__ import annotations

import ast
import datetime
from typing import Annotated, Any, Literal, cast, get_args

import msgspec
import pytest
from support.api import (
    Api,
    MakeApi,
    model_body,
    sample_body,
    step_body,
)
from support.contract import ROOT
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.app import HANDLERS, Handler
from tinker.local.call import CODES, FieldError, read_body, read_field_error


def test_every_operation_has_a_handler() -> None:
    """The server has a handler for every operation of the contract."""
    assert HANDLERS.keys() == OPERATIONS.keys()


def test_an_operation_without_a_handler_is_501(
    make_api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operation without a handler is refused by name, and the others work."""
    monkeypatch.delitem(cast("dict[str, Handler]", HANDLERS), "get_sampler")
    api = make_api()
    sampler = api.sampler(api.session())
    api.refuses(501, "get_sampler", "get_sampler", sampler_id=sampler)
    assert "sequences" in api.result(api.sample(sampler))


REFUSALS: dict[str, tuple[str, Any]] = {
    "session_not_found": ("create_model", lambda _: model_body("s")),
    "base_model_not_offered": (
        "create_model",
        lambda api: model_body(api.session(), base_model="b"),
    ),
    "model_not_found": ("optim_step", lambda _: step_body("m", 1)),
    "sampling_session_not_found": ("asample", lambda _: sample_body("s")),
    "request_not_found": ("retrieve_future", lambda _: {"request_id": "r"}),
    "checkpoint_not_found": ("weights_info", lambda _: {"tinker_path": "tinker://r/weights/n"}),
    "invalid_body": ("create_session", lambda _: {"tags": 1}),
    "seq_id_used": ("optim_step", lambda api: step_body(stepped(api), 1, beta1=0.5)),
}


def stepped(api: Api) -> str:
    """Return a model whose first number is used."""
    model = api.model()
    api.result(api.step(model, 1))
    return model


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refusal_has_its_code(api: Api, code: str) -> None:
    """The body of a refusal says what kind it is, beside its words."""
    operation, body = REFUSALS[code]
    answer = api.call(operation, body(api))
    assert (answer.is_error, answer.json()["code"]) == (True, code)
    assert answer.json()["detail"]


def test_the_codes_are_those_of_the_contract() -> None:
    """The server spells the codes of the contract, but for two statuses that it never sends."""
    listed = {*get_args(get_args(models.ErrorCode)[0])}
    spelled = set(CODES.values())
    for path in (ROOT / "tinker" / "local").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            named = [word.value for word in call.keywords if word.arg == "code"]
            place = {"make_not_found": 0, "conflict": 1}.get(getattr(call.func, "id", ""), 9)
            for value in (*named, *call.args[place : place + 1]):
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    spelled.add(value.value)
    assert spelled == listed - {"payment_required", "timeout"}


WHOLE, SECONDS = "x-tinker-request-iteration", "x-tinker-create-promise-roundtrip-time"


@pytest.mark.parametrize(
    ("name", "value"),
    [(WHOLE, "destructive"), (WHOLE, "-1"), (WHOLE, ""), (SECONDS, "soon"), (SECONDS, "")],
)
def test_headers_have_their_declared_types(api: Api, name: str, value: str) -> None:
    """A declared header of the wrong type is 422 with its name."""
    future = {"request_id": f"{api.model()}:request:0"}
    answer = api.retrieve(future, headers={name: value})
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["header", name])
    assert api.retrieve(future, headers={name: "3"}).status_code == 200


def test_unknown_paths_and_methods_have_a_detail(api: Api) -> None:
    """Errors of the router have the form of every other error."""
    missing = api.get("/api/v1/nothing")
    wrong = api.get("/api/v1/create_session")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert "/api/v1/nothing" in missing.json()["detail"]
    assert "GET" in wrong.json()["detail"]
    assert wrong.headers["allow"] == "POST"


NO_BODIES = [b"", b"{", b"3x", b"\xff\xfe", b"[1]", b'"text"', b"null", b"{}"]
TAKE_AN_EMPTY_OBJECT = frozenset({"auth_token", "search_checkpoints", "search_sessions"})


@pytest.mark.parametrize(
    ("operation", "content"),
    [
        (name, content)
        for name, row in sorted(OPERATIONS.items())
        if row.body is not None
        for content in NO_BODIES
        if content != b"{}" or name not in TAKE_AN_EMPTY_OBJECT
    ],
)
def test_no_body_makes_a_server_error(api: Api, operation: str, content: bytes) -> None:
    """An invalid body is 422 with the place of the fault, whatever the client sends."""
    status, detail = api.refused(
        operation, content=content, session_id="s", training_run_id="r", checkpoint_id="weights/c"
    )
    assert status == 422
    assert detail[0]["loc"][0] == "body"


def test_every_wrong_field_is_named(api: Api) -> None:
    """A body with several faults is refused with all of them at once."""
    body = {"model_id": 5, "adam_params": {"learning_rate": "high"}}
    _, detail = api.refused("optim_step", body)
    places = [(".".join(map(str, fault["loc"])), fault["type"]) for fault in detail]
    rate = "body.adam_params.learning_rate"
    assert sorted(places) == [(rate, "type_error"), ("body.model_id", "type_error")]
    body = {"base_model": "tinker/toy", "lora_config": {"rank": "8"}}
    _, detail = api.refused("create_model", body)
    assert {fault["loc"][1] for fault in detail} == {"session_id", "model_seq_id", "lora_config"}


@pytest.mark.parametrize(
    ("changes", "place", "said"),
    [
        ({"tags": ["a", 5]}, ("tags", 1), "must be a string, not an integer"),
        ({"sdk_version": None}, ("sdk_version",), "must be a string, not null"),
        ({"sdk_version": ...}, ("sdk_version",), "the field is missing"),
        ({"user_metadata": 5}, ("user_metadata",), "must be an object or null, not an integer"),
    ],
)
def test_faults_have_plain_messages(
    api: Api, changes: dict[str, Any], place: tuple[str | int, ...], said: str
) -> None:
    """Each fault of a body has the path of its field, also of a missing one, and the reason."""
    body = {"tags": [], "sdk_version": "1", **changes}
    body = {name: value for name, value in body.items() if value is not ...}
    kind = "missing" if "missing" in said else "type_error"
    fault = {"loc": ["body", *place], "msg": said, "type": kind}
    assert api.refused("create_session", body) == (422, [fault])


def limited(kind: Any, **limits: Any) -> Any:
    return Annotated[kind, msgspec.Meta(**limits)]


@pytest.mark.parametrize(
    ("value", "kind", "fault"),
    [
        (0, limited(int, ge=1), FieldError((), "must be an integer of at least 1")),
        (2.0, limited(float, lt=1), FieldError((), "must be a number of less than 1.0")),
        (
            [[], [1, 2]],
            list[limited(list[int], max_length=1)],
            FieldError((1,), "must be a list of length at most 1"),
        ),
        ("b", limited(str, pattern="^a"), FieldError((), "must be a string matching regex '^a'")),
        (
            {"k": "z"},
            dict[str, Literal["x", "y"]],
            FieldError((), "the value 'z' is unknown", "enum"),
        ),
        ("noon", datetime.datetime, FieldError((), "Invalid RFC3339 encoded datetime")),
    ],
)
def test_limits_have_plain_messages(value: object, kind: Any, fault: FieldError) -> None:
    """msgspec's errors about limits, patterns and enums become sentences; others stay unchanged."""
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(value, kind)
    assert read_field_error(caught.value) == fault


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("session_heartbeat", {"session_id": "nobody"}),
        ("finish_session", {"reason": {"type": "success"}, "detail": None}),
        ("get_info", {"model_id": "nobody:train:x"}),
        ("get_info", {"model_id": ""}),
        ("get_sampler", None),
        ("join_sampling_session", {"sampling_session_id": "nobody"}),
        ("retrieve_futures", {"target": {"type": "sampling_session", "sampling_session_id": "n"}}),
    ],
)
def test_what_is_unknown_is_404(api: Api, operation: str, body: object) -> None:
    """An unknown id is 404 and named."""
    where = {"session_id": "nobody", "sampler_id": "nobody:sample:0"}
    api.refuses(404, "not found", operation, body, **where)


def test_an_ended_session_says_so(api: Api) -> None:
    """After its end a session takes no new work, and the first reason stays."""
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    for reason in ("errored", "success"):
        api.finish(session, reason)
    assert api.refused("optim_step", step_body(model, 1))[0] == 400
    assert api.refused("asample", sample_body(sampler))[0] == 400
    end = api.shared.store.session(session).end
    assert end is not None
    assert end.reason == models.ClientSessionFinishErrored()


def test_telemetry_is_kept_up_to_a_bound(make_api: MakeApi) -> None:
    """The newest telemetry events are kept, also those without a process, and older ones dropped."""
    api = make_api(max_telemetry_events=2)
    common = {"event": "SESSION_START", "severity": "INFO", "timestamp": "2025-11-02T03:04:05Z"}
    events = [{**common, "event_id": str(at), "event_session_index": at} for at in range(3)]
    body = {"events": events, "platform": "p", "sdk_version": "1", "session_id": "s"}
    assert api.ok("telemetry", body) == {"status": "accepted"}
    assert [event.event_id for event in api.shared.telemetry] == ["1", "2"]


def test_info_describes_a_model(api: Api) -> None:
    """A model's rank, base model and tokenizer are known, even while its creation is pending."""
    future = api.create_model(api.session(), lora_config={"rank": 3})
    info = api.ok("get_info", {"model_id": future["model_id"]})
    assert (info["lora_rank"], info["model_name"], info["is_lora"]) == (3, "tinker/toy", True)
    assert info["model_data"]["tokenizer_id"].endswith("base_model")


# Bodies of clients of 2025


def prompted(*chunks: object, **fields: Any) -> dict[str, Any]:
    return {"prompt": {"chunks": chunks}, "sampling_params": {}, **fields}


@pytest.mark.parametrize("size", [{"height": 2, "tokens": 4, "width": 3}, {"expected_tokens": 4}])
def test_old_images_are_recognised_and_refused_as_images(
    api: Api, sampler: str, size: dict[str, int]
) -> None:
    """An image without a type is recognised by its fields, and refused in the result."""
    image = {"data": "iVBORw==", "format": "png", **size}
    body = prompted({"tokens": [1]}, image, sampling_session_id=sampler, seq_id=0)
    api.fails("chunk 1 is of type 'image'", api.ok("asample", body))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (prompted({"nothing": 1}), "chunks"),
        (prompted({"tokens": ["a"]}), "must be an integer, not a string"),
        (prompted(5), "must be an object, not an integer"),
        ({**prompted(), "prompt": None}, "must be an object, not null"),
        ({"prompt": {"chunks": [{"tokens": [1]}]}}, "sampling_params"),
    ],
)
def test_leniency_ends_where_the_meaning_is_unclear(
    api: Api, record: dict[str, Any], said: str
) -> None:
    """A body that neither form allows is 422 and names the place."""
    api.refuses(422, said, "asample", record)


def test_a_record_is_read_as_the_member_that_it_fits() -> None:
    """Of the members of a union that fit, the one is meant whose fields are not null."""
    text = b'{"tokens": [1], "format": null, "data": null}'
    asset = b'{"format": "png", "data": null, "location": "x"}'
    found = read_body(b'{"chunks": [%s, %s]}' % (text, asset), models.ModelInput).chunks
    assert [type(one) for one in found] == [models.EncodedTextChunk, models.ImageAssetPointerChunk]


def test_required_nulls_stay() -> None:
    """``detail`` of finish is null on the wire and keeps that meaning."""
    body = b'{"reason": {"type": "success", "extra": null}, "detail": null, "unknown": 1}'
    assert read_body(body, models.FinishSessionRequest).detail is None
