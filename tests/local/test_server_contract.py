"""The server against the contract: every operation is there, answers have the promised form, errors have one form."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from server_harness import SERVED, Api, MakeApi, sample_body
from tinker_wire import models
from tinker_wire.operations import OPERATIONS

from tinker.local.app import HANDLERS

#: What the contract has and this server does not do yet; each handler that is added leaves this list.
NOT_SERVED = """
    auth_token cancel_future copy_weights create_custom_loss delete_api_key delete_checkpoint get_api_key get_audit_log
    get_billing_usage get_checkpoint_archive get_checkpoint_storage_usage get_external_weights_urls get_session get_training_run
    join_sampling_session list_checkpoints list_sessions list_training_runs list_user_checkpoints publish_checkpoint
    retrieve_futures save_weights_external search_sessions set_checkpoint_ttl set_session_project trace_export unload_model
    unpublish_checkpoint weights_info
"""


def test_every_operation_has_a_handler_or_is_listed() -> None:
    """What the contract promises, this server does, but for the operations named above."""
    assert OPERATIONS.keys() - HANDLERS.keys() == set(NOT_SERVED.split())
    assert HANDLERS.keys() <= OPERATIONS.keys()


def test_every_answer_is_of_the_promised_type(api: Api) -> None:
    """The body of each operation's answer decodes as the record that the contract names."""
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    datum = {"loss_fn": "cross_entropy", "data": []}
    bodies: dict[str, Any] = {
        "client_config": {"sdk_version": "1"},
        "client_dynamic_config": {"sdk_version": "1"},
        "create_session": {"tags": ["a"], "sdk_version": "1", "user_metadata": {"k": "v"}},
        "session_heartbeat": {"session_id": session},
        "create_model": {"session_id": session, "model_seq_id": 1, "base_model": "tinker/toy"},
        "get_info": {"model_id": model},
        "forward_backward": {"model_id": model, "seq_id": 1, "forward_backward_input": datum},
        "forward": {"model_id": model, "seq_id": 2, "forward_input": datum},
        "optim_step": {"model_id": model, "seq_id": 3},
        "save_weights": {"model_id": model, "seq_id": 4, "path": "a"},
        "save_weights_for_sampler": {"model_id": model, "seq_id": 5, "path": "a"},
        "load_weights": {"model_id": model, "seq_id": 6, "path": "tinker://a/weights/b", "optimizer": False},
        "create_sampling_session": {"session_id": session, "sampling_session_seq_id": 1, "base_model": "tinker/toy"},
        "asample": sample_body(sampler),
        "retrieve_future": {"request_id": f"{model}:request:0"},
        "telemetry": {"events": [], "platform": "p", "sdk_version": "1", "session_id": session, "process_uuid": "u"},
        "finish_session": {"reason": {"type": "success"}, "detail": None},
    }
    for name, operation in sorted(SERVED.items(), key=lambda item: item[0] == "finish_session"):
        answer = api.call(name, bodies.get(name), session_id=session, sampler_id=sampler)
        assert answer.is_success, (name, answer.text)
        if name == "retrieve_future":
            msgspec.json.decode(answer.content, type=models.CreateModelResponse)
        elif operation.reply is None:
            assert answer.content == b""
        else:
            msgspec.json.decode(answer.content, type=operation.reply)


def test_configuration_is_a_setting(make_api: MakeApi) -> None:
    """Clients are told what the server was told."""
    api = make_api(
        client_config=models.ClientConfigResponse(fwdbwd_max_chunk_len=7),
        client_dynamic_config=models.ClientDynamicConfigResponse(refresh_interval_sec=11),
    )
    assert api.ok("client_config", {"sdk_version": "1"})["fwdbwd_max_chunk_len"] == 7
    assert api.ok("client_dynamic_config", {"sdk_version": "1"})["refresh_interval_sec"] == 11


def test_unknown_paths_and_methods_have_a_detail(api: Api) -> None:
    """Errors of the router look like every other error."""
    missing = api.runner.run(api.client.get("/api/v1/nothing"))
    wrong = api.runner.run(api.client.get("/api/v1/create_session"))
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert "/api/v1/nothing" in missing.json()["detail"]
    assert "GET" in wrong.json()["detail"]
    assert wrong.headers["allow"] == "POST"


@pytest.mark.parametrize("content", [b"", b"{", b"3x", b"\xff\xfe", b"[1]", b'"text"', b"null", b"{}"])
@pytest.mark.parametrize("operation", sorted(name for name, row in SERVED.items() if row.body is not None))
def test_no_body_makes_a_server_error(api: Api, operation: str, content: bytes) -> None:
    """Whatever a client sends instead of a body is answered with 422 and a place."""
    status, detail = api.refused(operation, content=content, session_id="s")
    assert status == 422
    assert detail[0]["loc"][0] == "body"


def test_a_wrong_field_is_named(api: Api) -> None:
    """The answer to a body that does not fit says which field and why."""
    status, detail = api.refused("create_session", {"tags": ["a", 5], "sdk_version": "1"})
    assert status == 422
    assert detail == [{"loc": ["body", "tags", 1], "msg": "Expected `str`, got `int`", "type": "value_error"}]


@pytest.mark.parametrize(
    ("operation", "body"),
    [
        ("session_heartbeat", {"session_id": "nobody"}),
        ("finish_session", {"reason": {"type": "success"}, "detail": None}),
        ("create_model", {"session_id": "nobody", "model_seq_id": 0, "base_model": "tinker/toy"}),
        ("create_sampling_session", {"session_id": "nobody", "sampling_session_seq_id": 0, "base_model": "tinker/toy"}),
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
    """An id that the server never gave out is 404 and is named."""
    status, detail = api.refused(operation, body, session_id="nobody", sampler_id="nobody:sample:0")
    assert status == 404
    assert "not known" in detail


def test_an_ended_session_says_so(api: Api) -> None:
    """After finish the heartbeat is 410, new work is refused, the first reason stays, and finishing again is harmless."""
    session = api.session()
    model, sampler = api.model(session), api.sampler(session)
    for reason in ("errored", "success"):
        api.ok("finish_session", {"reason": {"type": reason}, "detail": None}, session_id=session)
    assert api.refused("session_heartbeat", {"session_id": session})[0] == 410
    assert api.refused("optim_step", {"model_id": model, "seq_id": 1})[0] == 400
    assert api.refused("asample", sample_body(sampler))[0] == 400
    ended = api.state.store.session(session).ended
    assert ended is not None
    assert ended.reason.type == "errored"


def test_telemetry_is_kept_up_to_a_bound(make_api: MakeApi) -> None:
    """The newest events can be looked at; older ones make room."""
    api = make_api(max_telemetry_events=2)
    event = {"event": "GENERIC_EVENT", "event_name": "n", "severity": "INFO", "timestamp": "2026-01-02T03:04:05Z"}
    events = [{**event, "event_id": str(index), "event_session_index": index} for index in range(3)]
    body = {"events": events, "platform": "p", "sdk_version": "1", "session_id": "s", "process_uuid": "u"}
    assert api.ok("telemetry", body) == {"status": "accepted"}
    assert [event.event_id for event in api.state.telemetry] == ["1", "2"]


def test_info_describes_a_model(api: Api) -> None:
    """A model's rank, base model and tokenizer are known, also of one whose creation is still pending."""
    session = api.session()
    future = api.create_model(session, lora_config={"rank": 3})
    info = api.ok("get_info", {"model_id": future["model_id"]})
    assert (info["lora_rank"], info["model_name"], info["is_lora"]) == (3, "tinker/toy", True)
    assert info["model_data"]["tokenizer_id"].endswith("base_model")
