"""Almost valid bodies: whatever value is in one place of a valid body, the server neither fails nor
stops.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.api import PROTO, Api, custom_loss_body, datum, sample_body, sampler_body, step_body
from tinker_wire.operations import OPERATIONS

from tinker._wire import EventDecoder, proto
from tinker.local import Settings, State
from tinker.local.engines.toy import ToyEngine
from tinker.types.model_input import Datum, ModelInput

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(
        [
            0,
            -1,
            2**31,
            2**53 + 1,
            2**63,
            2**64,
            10**30,
            "",
            "x",
            "tinker://a/weights/b",
            "\x00",
            "😀",
        ]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)


def bodies(session: str, model: str, sampler: str) -> dict[str, Any]:
    what = {
        "data": [datum([1, 2], [2, 3], weights=[1.0, 0.5])],
        "loss_fn": "cross_entropy",
        "loss_fn_config": {},
    }
    lora = {"rank": 4, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True}
    model_body = {
        "session_id": session,
        "model_seq_id": 0,
        "base_model": "tinker/toy",
        "lora_config": lora,
    }
    event = {
        "event": "GENERIC_EVENT",
        "event_name": "n",
        "severity": "INFO",
        "timestamp": "2026-01-02T03:04:05Z",
    }
    events = [{**event, "event_id": "e", "event_session_index": 0, "event_data": {"a": 1}}]
    path = f"tinker://{model}/weights/a"
    return {
        "client_config": {"sdk_version": "1"},
        "create_session": {
            "tags": ["a"],
            "sdk_version": "1",
            "user_metadata": {"k": "v"},
            "type": "create_session",
        },
        "session_heartbeat": {"session_id": session},
        "create_model": {
            **model_body,
            "optimizer_config": {"type": "adamw"},
            "user_metadata": {"a": "b"},
        },
        "get_info": {"model_id": model},
        "forward_backward": {"model_id": model, "seq_id": 1, "forward_backward_input": what},
        "forward": {"model_id": model, "seq_id": 2, "forward_input": what},
        "optim_step": step_body(model, 3, learning_rate=0.1, beta1=0.9, eps=1e-8),
        "save_weights": {
            "model_id": model,
            "seq_id": 4,
            "path": "a",
            "ttl_seconds": 3600,
            "user_metadata": {"a": "b"},
        },
        "save_weights_for_sampler": {
            "model_id": model,
            "seq_id": 5,
            "sampling_session_seq_id": 3,
            "kind": "snapshot",
        },
        "load_weights": {"session_id": session, "model_seq_id": 7, "path": path, "optimizer": True},
        "create_sampling_session": sampler_body(session, 1),
        "asample": sample_body(
            sampler,
            params={"stop": ["a"], "top_k": 2},
            prompt_logprobs=True,
            topk_prompt_logprobs=1,
            target_prompt_logprobs={"data": [5], "dtype": "int64", "shape": [1, 1]},
            prompt_alt_tokens_k=1,
            prompt_logprobs_last_n=1,
        ),
        "retrieve_future": {"request_id": f"{model}:request:0", "allow_metadata_only": True},
        "telemetry": {
            "events": events,
            "platform": "p",
            "sdk_version": "1",
            "session_id": session,
            "process_uuid": "u",
        },
        "search_sessions": {
            "session_id": session,
            "project_ids": ["default"],
            "user_metadata": {"k": "v"},
            "display_name": "n",
            "owner": {"type": "user", "owner_urns": ["u"]},
            "statuses": [{"type": "client_finished", "reasons": ["success"]}],
            "limit": 5,
            "cursor": {"last_created_at": "2026-01-02T03:04:05Z", "last_session_id": session},
        },
        "search_checkpoints": {
            "project_ids": ["default"],
            "user_metadata": {"k": "v"},
            "checkpoint_type": "training",
            "owner": {"type": "user", "owner_urns": ["u"]},
            "base_models": ["tinker/toy"],
            "limit": 5,
            "cursor": {"last_created_at": "2026-01-02T03:04:05Z", "last_checkpoint_uuid": "u"},
        },
        "external_weights_upload_start": {
            "base_model": "tinker/toy",
            "lora_config": lora,
            "destination_project_id": "p",
        },
        "stream_sample": sample_body(sampler, params={"stop": ["a"], "top_k": 2}),
        "external_weights_upload_finish": {"upload_id": "u"},
        "set_session_project": {"project_id": "p"},
        "create_custom_loss": custom_loss_body(session),
        "unload_model": {"model_id": model},
        "save_weights_external": {"model_id": model, "seq_id": 6, "path": "e", "ttl_seconds": 3600},
        "weights_info": {"tinker_path": path},
        "copy_weights": {"source_path": path, "destination_project_id": "p", "ttl_seconds": 3600},
        "set_checkpoint_ttl": {"ttl_seconds": 3600},
        "join_sampling_session": {"sampling_session_id": sampler},
        "retrieve_futures": {
            "target": {
                "type": "sampling_session",
                "sampling_session_id": sampler,
                "cloned_sampler_id": 0,
            },
            "prev_cursor": 0,
            "timeout": 0,
            "retrieved_request_ids": ["a"],
        },
        "cancel_future": {"request_id": f"{model}:request:0"},
        "finish_session": {"reason": {"type": "success"}, "detail": None},
    }


def test_every_operation_with_a_body_is_among_them() -> None:
    """Every operation with a body is fuzzed, except empty bodies; the two configurations are read
    alike.
    """
    known = bodies("s", "m", "p").keys() | {"client_dynamic_config", "auth_token"}
    assert known == {name for name, row in OPERATIONS.items() if row.body is not None}


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as the keys that lead to it."""
    found = [above] if above else []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        found += places(item, (*above, key))
    return found


def replaced(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    target = changed
    for key in place[:-1]:
        target = target[key]
    target[place[-1]] = value
    return changed


def fresh(path: Path) -> Api:
    """Make a small server that does not wait for missing numbers."""
    limits = {"gap_seconds": 0.0, "max_samples": 8, "max_sessions": 10**6, "max_models": 10**6}
    return Api(
        State(
            lambda: ToyEngine(vocabulary=512, max_context_length=64),
            Settings(data_dir=path, **limits),
        )
    )


def proto_only(api: Api, future: Any) -> dict[str, Any]:
    """Return the failure of a sample, empty when it was sampled; data about the prompt exist in
    protobuf only.
    """
    answer = api.retrieve(future, headers=PROTO)
    return dict(answer.json()) if answer.headers["content-type"] == "application/json" else {}


@pytest.mark.parametrize("operation", ["create_custom_loss", "create_session", "asample"])
@pytest.mark.parametrize("depth", [300, 100_000])
def test_deep_bodies_are_refused(shared: Api, operation: str, depth: int) -> None:
    """However deeply a body is nested, it is an error of the request."""
    deep = b"[" * depth + b"]" * depth
    body = json.dumps(
        {**bodies("s", "m", "p")[operation], "user_metadata": "DEEP", "graph": {"nodes": ["DEEP"]}}
    )
    answer = shared.call(operation, content=body.encode().replace(b'"DEEP"', deep))
    assert 400 <= answer.status_code < 500 or (
        operation == "create_session" and answer.status_code == 200
    )


def last_event(answer: httpx.Response) -> dict[str, Any]:
    """Return the last event of a stream."""
    *_, event = EventDecoder().feed(answer.content)
    return dict(json.loads(event.data))


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_value_in_no_place_breaks_the_server(shared: Api, data: st.DataObject) -> None:
    """Any JSON value in any place of any body is answered below 500, its future is resolved, and
    the server continues.
    """
    session = shared.session()
    model = shared.create_model(session, 5)["model_id"]
    valid = bodies(session, model, shared.sampler(session, 9))
    operation = data.draw(st.sampled_from(sorted(valid)), "operation")
    place = data.draw(st.sampled_from(places(valid[operation])), "place")
    changed = replaced(valid[operation], place, data.draw(VALUES, "value"))
    where = {"session_id": session, "training_run_id": model, "checkpoint_id": "weights/a"}
    answer = shared.call(operation, content=json.dumps(changed).encode(), **where)
    assert answer.status_code < 500, answer.text
    if operation == "stream_sample" and answer.status_code == 200:
        assert last_event(answer).get("category") != "server", answer.text
    elif (
        answer.status_code == 200
        and "request_id" in answer.json()
        and operation != "retrieve_future"
    ):
        future = (
            proto_only(shared, answer.json())
            if operation == "asample"
            else shared.result(answer.json())
        )
        assert future.get("category") != "server", future
    assert shared.ok("session_heartbeat", {"session_id": shared.session()})


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_change_of_a_protobuf_body_breaks_the_server(shared: Api, data: st.DataObject) -> None:
    """A protobuf message cut short or with changed bytes is refused or a user error, never the
    server's fault.
    """
    model = shared.create_model(shared.session())["model_id"]
    one = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [1.0, 0.5]})
    body = bytearray(
        b"".join(
            proto.encode_forward_backward(model, 1, [one, one], "ppo", {"clip_low_threshold": 0.5})
        )
    )
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        body[data.draw(st.integers(0, len(body) - 1), "at")] = data.draw(
            st.integers(0, 255), "byte"
        )
    cut = data.draw(st.integers(1, len(body)), "length")
    headers = {"content-type": "application/x-protobuf"}
    answer = shared.call("forward_backward", content=bytes(body[:cut]), headers=headers)
    assert answer.status_code < 500, answer.text
    if answer.status_code == 200:
        assert shared.result(answer.json()).get("category") != "server"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One server for all examples, so that later ones see damage done by earlier ones."""
    api = fresh(tmp_path_factory.mktemp("data"))
    yield api
    api.close()
