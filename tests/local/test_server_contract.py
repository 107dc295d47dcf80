"""The server against the contract: every operation exists, and results and errors have the
documented form.
"""

from __future__ import annotations

import ast
import datetime
from typing import Annotated, Any, Literal, TypeGuard, cast, get_args

import httpx
import msgspec
import pytest
from support.api import (
    Api,
    MakeApi,
    custom_loss_body,
    model_body,
    sample_body,
    sampler_body,
    step_body,
)
from support.contract import ROOT
from support.derived_calls import example_body
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.app import HANDLERS, Handler
from tinker.local.call import CODES, FieldError, read_field_error


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


LORA = {"base_model": "tinker/toy", "lora_config": {"rank": 4}}
REFUSALS: dict[str, tuple[str, Any]] = {
    "session_not_found": ("create_model", lambda _: {"session_id": "s", "model_seq_id": 0, **LORA}),
    "base_model_not_offered": (
        "create_model",
        lambda api: {"session_id": api.session(), "model_seq_id": 0, **LORA, "base_model": "b"},
    ),
    "model_not_found": ("optim_step", lambda _: step_body("m", 1)),
    "sampling_session_not_found": ("asample", lambda _: sample_body("s")),
    "request_not_found": ("retrieve_future", lambda _: {"request_id": "r"}),
    "checkpoint_not_found": ("weights_info", lambda _: {"tinker_path": "tinker://r/weights/n"}),
    "invalid_body": ("create_session", lambda _: {"tags": 1}),
    "seq_id_used": (
        "optim_step",
        lambda api: step_body(stepped(api), 1, beta1=0.5),
    ),
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
    """The server spells each code that the contract lists, except those of statuses that it never
    sends, and no other.
    """
    listed = {*get_args(get_args(models.ErrorCode)[0])}
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tinker" / "local").rglob("*.py")]
    calls = [
        node for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)
    ]
    spelled = {
        word.value.value
        for call in calls
        for word in call.keywords
        if word.arg == "code" and is_text(word.value)
    }
    for name, place in (("make_not_found", 0), ("conflict", 1)):
        made = [
            call.args[place:]
            for call in calls
            if isinstance(call.func, ast.Name) and call.func.id == name
        ]
        spelled |= {arguments[0].value for arguments in made if arguments and is_text(arguments[0])}
    assert {*CODES.values(), *spelled} == listed - {"payment_required", "timeout"}


def is_text(node: ast.AST) -> TypeGuard[Any]:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-tinker-request-iteration", "destructive"),
        ("x-tinker-request-iteration", "-1"),
        ("x-tinker-request-iteration", ""),
        ("x-tinker-create-promise-roundtrip-time", "soon"),
        ("x-tinker-create-promise-roundtrip-time", ""),
    ],
)
def test_headers_have_their_declared_types(api: Api, name: str, value: str) -> None:
    """A declared header of the wrong type is 422 with its name."""
    future = {"request_id": f"{api.model(api.session())}:request:0"}
    answer = api.retrieve(future, headers={name: value})
    assert (answer.status_code, answer.json()["detail"][0]["loc"]) == (422, ["header", name])
    assert api.retrieve(future, headers={name: "3"}).status_code == 200


def uploaded(api: Api, model: str) -> str:
    """Return an upload with its one file sent: the exported adapter of a model."""
    api.result(api.ok("save_weights_external", {"model_id": model, "seq_id": 3, "path": "sent"}))
    links = api.ok(
        "get_external_weights_urls", training_run_id=model, checkpoint_id="external_weights/sent"
    )
    upload = api.ok(
        "external_weights_upload_start", {"base_model": "tinker/toy", "lora_config": {"rank": 4}}
    )
    for name, url in upload["urls"].items():
        content = api.get(links["urls"][name]).content
        assert api.runner.run(api.client.put(url, content=content)).is_success
    return upload["upload_id"]


def read_ids(answer: httpx.Response) -> dict[str, str]:
    """Return the ids in a response, which later operations may need in their paths."""
    body = (
        answer.json()
        if answer.headers.get("content-type") == "application/json" and answer.content
        else {}
    )
    return {
        name: value
        for name, value in body.items()
        if name.endswith("_id") and isinstance(value, str)
    }


def test_every_answer_is_of_the_promised_type(api: Api) -> None:
    """The response body of each operation decodes as the contract's record."""
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    loss = {"loss_fn": "cross_entropy", "data": []}
    for name, seq_id in (("kept", 1), ("deleted", 2)):
        api.result(api.save(model, seq_id, name))
    external = {"model_id": model, "seq_id": 4, "path": "e"}
    path = f"tinker://{model}/weights/kept"
    bodies: dict[str, Any] = {
        "client_config": {"sdk_version": "1"},
        "client_dynamic_config": {"sdk_version": "1"},
        "auth_token": {},
        "create_session": {"tags": ["a"], "sdk_version": "1", "user_metadata": {"k": "v"}},
        "session_heartbeat": {"session_id": session},
        "search_sessions": {"user_metadata": {}},
        "search_checkpoints": {"user_metadata": {}},
        "external_weights_upload_start": {"base_model": "tinker/toy", "lora_config": {"rank": 4}},
        "external_weights_upload_finish": {"upload_id": uploaded(api, model)},
        "set_session_project": {"project_id": "p"},
        "create_model": model_body(session, 1),
        "get_info": {"model_id": model},
        "save_weights_external": external,
        "forward_backward": {"model_id": model, "seq_id": 5, "forward_backward_input": loss},
        "forward": {"model_id": model, "seq_id": 6, "forward_input": loss},
        "optim_step": {"model_id": model, "seq_id": 7},
        "create_custom_loss": custom_loss_body(session),
        "save_weights": {"model_id": model, "seq_id": 8, "path": "a"},
        "save_weights_for_sampler": {"model_id": model, "seq_id": 9, "path": "a"},
        "load_weights": {
            "model_id": model,
            "seq_id": 10,
            "path": "tinker://a/weights/b",
            "optimizer": False,
        },
        "weights_info": {"tinker_path": path},
        "copy_weights": {"source_path": path, "destination_project_id": "p"},
        "set_checkpoint_ttl": {"ttl_seconds": None},
        "create_sampling_session": sampler_body(session, 1),
        "join_sampling_session": {"sampling_session_id": sampler},
        "asample": sample_body(sampler),
        "stream_sample": sample_body(sampler),
        "retrieve_future": {"request_id": f"{model}:request:0"},
        "retrieve_futures": {
            "target": {
                "type": "sampling_session",
                "sampling_session_id": sampler,
                "cloned_sampler_id": 0,
            },
            "timeout": 0,
        },
        "cancel_future": {"request_id": "nobody"},
        "telemetry": {
            "events": [],
            "platform": "p",
            "sdk_version": "1",
            "session_id": session,
            "process_uuid": "u",
        },
        "unload_model": {"model_id": model},
        "finish_session": {"reason": {"type": "success"}, "detail": None},
    }
    hours = {"starting_on": "2026-01-02T00:00:00Z", "ending_before": "2026-01-03T00:00:00Z"}
    checkpoints = {
        "get_external_weights_urls": "external_weights/e",
        "delete_checkpoint": "weights/deleted",
    }
    last = ["unpublish_checkpoint", "unload_model", "delete_api_key", "finish_session"]
    ids = {"session_id": session, "sampler_id": sampler, "training_run_id": model}
    for name in [
        *dict.fromkeys(name for name in [*bodies, *OPERATIONS] if name not in last),
        *last,
    ]:
        operation = OPERATIONS[name]
        answer = api.call(
            name,
            bodies.get(name, example_body(name)),
            headers={"x-api-key": "tml-key" if name != "finish_session" else "tml-other"},
            query=hours,
            **ids | {"checkpoint_id": checkpoints.get(name, "weights/kept")},
        )
        ids = read_ids(answer) | ids
        assert (
            answer.status_code == 302 if name == "get_checkpoint_archive" else answer.is_success
        ), (name, answer.text)
        if name == "save_weights_external":
            api.result(answer.json())
        if name == "stream_sample":
            lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
            assert [msgspec.json.decode(line, type=models.SampleStreamEvent) for line in lines][
                -1
            ].type == "done"
        elif name == "retrieve_future":
            msgspec.json.decode(answer.content, type=models.CreateModelResponse)
        elif operation.reply is None or answer.status_code == 302:
            assert answer.content == b""
        else:
            msgspec.json.decode(answer.content, type=operation.reply)


def test_configuration_is_a_setting(make_api: MakeApi) -> None:
    """Clients get the client configuration that the server was given."""
    api = make_api(
        client_config=models.ClientConfigResponse(fwdbwd_max_chunk_len=7),
        client_dynamic_config=models.ClientDynamicConfigResponse(refresh_interval_sec=11),
    )
    assert api.ok("client_config", {"sdk_version": "1"})["fwdbwd_max_chunk_len"] == 7
    assert api.ok("client_dynamic_config", {"sdk_version": "1"})["refresh_interval_sec"] == 11


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


def test_a_wrong_field_is_named(api: Api) -> None:
    """The response to an invalid body names the field and the reason."""
    status, detail = api.refused("create_session", {"tags": ["a", 5], "sdk_version": "1"})
    assert status == 422
    assert detail == [
        {
            "loc": ["body", "tags", 1],
            "msg": "must be a string, not an integer",
            "type": "type_error",
        }
    ]


def test_every_wrong_field_is_named(api: Api) -> None:
    """A body with several faults is refused with all of them at once."""
    _, detail = api.refused("optim_step", {"model_id": 5, "adam_params": {"learning_rate": "high"}})
    places = [(".".join(map(str, fault["loc"])), fault["type"]) for fault in detail]
    assert sorted(places) == [
        ("body.adam_params.learning_rate", "type_error"),
        ("body.model_id", "type_error"),
    ]
    _, detail = api.refused(
        "create_model", {"base_model": "tinker/toy", "lora_config": {"rank": "8"}}
    )
    assert {fault["loc"][1] for fault in detail} == {"session_id", "model_seq_id", "lora_config"}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"sdk_version": None},
            FieldError(("sdk_version",), "must be a string, not null", "type_error"),
        ),
        ({"sdk_version": ...}, FieldError(("sdk_version",), "the field is missing", "missing")),
        (
            {"user_metadata": 5},
            FieldError(
                ("user_metadata",), "must be an object or null, not an integer", "type_error"
            ),
        ),
    ],
)
def test_faults_have_plain_messages(api: Api, changes: dict[str, Any], fault: FieldError) -> None:
    """Each fault of a body has the path of its field, also of a missing one."""
    body = {"tags": [], "sdk_version": "1", **changes}
    _, detail = api.refused(
        "create_session", {name: value for name, value in body.items() if value is not ...}
    )
    assert detail == [fault.describe("body")]


@pytest.mark.parametrize(
    ("value", "kind", "fault"),
    [
        (0, Annotated[int, msgspec.Meta(ge=1)], FieldError((), "must be an integer of at least 1")),
        (
            2.0,
            Annotated[float, msgspec.Meta(lt=1)],
            FieldError((), "must be a number of less than 1.0"),
        ),
        (
            [[], [1, 2]],
            list[Annotated[list[int], msgspec.Meta(max_length=1)]],
            FieldError((1,), "must be a list of length at most 1"),
        ),
        (
            "b",
            Annotated[str, msgspec.Meta(pattern="^a")],
            FieldError((), "must be a string matching regex '^a'"),
        ),
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
        ("create_model", model_body("nobody")),
        (
            "create_sampling_session",
            sampler_body("nobody"),
        ),
        ("get_info", {"model_id": "nobody:train:0"}),
        ("get_info", {"model_id": "nobody:train:x"}),
        ("get_info", {"model_id": ""}),
        ("optim_step", {"model_id": "nobody:train:0", "seq_id": 1}),
        ("asample", sample_body("nobody:sample:0")),
        ("get_sampler", None),
        ("retrieve_future", {"request_id": "nobody"}),
    ],
)
def test_what_is_unknown_is_404(api: Api, operation: str, body: object) -> None:
    """An unknown id is 404 and named."""
    status, detail = api.refused(operation, body, session_id="nobody", sampler_id="nobody:sample:0")
    assert status == 404
    assert "not found" in detail


def test_an_ended_session_says_so(api: Api) -> None:
    """After finish the heartbeat is 410, new work is refused, the first reason stays, and finishing
    again has no effect.
    """
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    for reason in ("errored", "success"):
        api.finish(session, reason)
    assert api.refused("session_heartbeat", {"session_id": session})[0] == 410
    assert api.refused("optim_step", {"model_id": model, "seq_id": 1})[0] == 400
    assert api.refused("asample", sample_body(sampler))[0] == 400
    end = api.shared.store.session(session).end
    assert end is not None
    assert end.reason == models.ClientSessionFinishErrored()


def test_telemetry_is_kept_up_to_a_bound(make_api: MakeApi) -> None:
    """The newest telemetry events are kept, and older ones dropped."""
    api = make_api(max_telemetry_events=2)
    event = {
        "event": "GENERIC_EVENT",
        "event_name": "n",
        "severity": "INFO",
        "timestamp": "2026-01-02T03:04:05Z",
    }
    events = [{**event, "event_id": str(index), "event_session_index": index} for index in range(3)]
    body = {
        "events": events,
        "platform": "p",
        "sdk_version": "1",
        "session_id": "s",
        "process_uuid": "u",
    }
    assert api.ok("telemetry", body) == {"status": "accepted"}
    assert [event.event_id for event in api.shared.telemetry] == ["1", "2"]


def test_info_describes_a_model(api: Api) -> None:
    """A model's rank, base model and tokenizer are known, even while its creation is pending."""
    session = api.session()
    future = api.create_model(session, lora_config={"rank": 3})
    info = api.ok("get_info", {"model_id": future["model_id"]})
    assert (info["lora_rank"], info["model_name"], info["is_lora"]) == (3, "tinker/toy", True)
    assert info["model_data"]["tokenizer_id"].endswith("base_model")
