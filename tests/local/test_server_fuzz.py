"""Almost valid bodies: whatever is in one place of them, the server neither fails nor stops."""

from __future__ import annotations

import copy
import json
from functools import reduce
from operator import getitem
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.api import PROTO, Api, custom_loss_body
from support.derived_calls import example_body
from tinker_wire.operations import OPERATIONS

from tinker._wire import EventDecoder, proto
from tinker.local import Settings, State
from tinker.local.engines.toy import ToyEngine
from tinker.types.model_input import Datum, ModelInput

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**53 + 1, 2**63, 2**64, 10**30]),
    st.sampled_from(["", "x", "tinker://a/weights/b", "\x00", "😀"]),
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


LATER = {"user_metadata": {"k": "v"}, "ttl_seconds": 3600}


DAY = "2026-01-02T03:04:05Z"


MORE: dict[str, dict[str, Any]] = {
    "asample": {
        "topk_prompt_logprobs": 1,
        "target_prompt_logprobs": {"data": [5], "dtype": "int64", "shape": [1, 1]},
        "prompt_alt_tokens_k": 1,
        "prompt_logprobs": True,
        "prompt_logprobs_last_n": 1,
    },
    "save_weights": LATER,
    "save_weights_for_sampler": {"sampling_session_seq_id": 3, "path": None},
    "save_weights_external": {"age_encryption_recipients": None},
    "load_weights": {"model_id": None, "model_seq_id": 7, "optimizer": True},
    "search_sessions": {"cursor": {"last_created_at": DAY, "last_session_id": "s"}},
    "search_checkpoints": {
        "checkpoint_type": "training",
        "cursor": {"last_created_at": DAY, "last_checkpoint_uuid": "u"},
    },
}


def bodies(session: str, model: str, sampler: str) -> dict[str, Any]:
    """Return the example of each body in the document, and more, with ids that exist."""
    path = f"tinker://{model}/weights/a"
    known = {
        "session_id": session,
        "model_id": model,
        "sampling_session_id": sampler,
        "base_model": "tinker/toy",
        "tinker_path": path,
        "source_path": path,
        "request_id": f"{model}:request:0",
        "last_session_id": session,
    }

    def with_ids(value: Any) -> Any:
        if isinstance(value, list):
            return [with_ids(one) for one in value]
        if isinstance(value, dict):
            return {name: known.get(name, with_ids(one)) for name, one in value.items()}
        return value

    found = {name: example_body(name) for name, row in OPERATIONS.items() if row.body is not None}
    found |= {"create_custom_loss": custom_loss_body(session)}
    found = {name: with_ids({**body, **MORE.get(name, {})}) for name, body in found.items()}
    found["load_weights"] |= {"session_id": session, "model_id": None, "path": path}
    found["retrieve_futures"]["timeout"] = 0
    return {name: body for name, body in found.items() if body}


def places(value: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value, as the keys that lead to it."""
    found = [above] if above else []
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        found += places(value[key], (*above, key))
    return found


def replaced(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(body)
    target = reduce(getitem, place[:-1], changed)
    target[place[-1]] = value
    return changed


@pytest.mark.parametrize("operation", ["create_custom_loss", "create_session", "asample"])
@pytest.mark.parametrize("depth", [300, 100_000])
def test_deep_bodies_are_refused(shared: Api, operation: str, depth: int) -> None:
    """However deeply a body is nested, it is an error of the request."""
    deep = b"[" * depth + b"]" * depth
    valid = bodies("s", "m", "p")[operation]
    body = json.dumps({**valid, "user_metadata": "DEEP", "graph": {"nodes": ["DEEP"]}})
    answer = shared.call(operation, content=body.encode().replace(b'"DEEP"', deep))
    is_taken = operation == "create_session" and answer.status_code == 200
    assert is_taken or 400 <= answer.status_code < 500


def outcome(api: Api, operation: str, answer: httpx.Response) -> dict[str, Any]:
    """Return the result of what was accepted, or the last event of a stream."""
    if operation == "stream_sample":
        *_, event = EventDecoder().feed(answer.content)
        return dict(json.loads(event.data))
    # data about the prompt exist in protobuf only
    found = api.retrieve(answer.json(), headers=PROTO if operation == "asample" else None)
    return dict(found.json()) if found.headers["content-type"] == "application/json" else {}


def check_answer(api: Api, operation: str, answer: httpx.Response) -> None:
    """Check that neither the answer nor the result is a fault of the server."""
    assert answer.status_code < 500, answer.text
    is_submission = b'"request_id"' in answer.content and operation != "retrieve_future"
    if answer.status_code == 200 and (is_submission or operation == "stream_sample"):
        found = outcome(api, operation, answer)
        assert found.get("category") != "server", found


FUZZED = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(FUZZED, max_examples=200)
@given(data=st.data())
def test_no_value_in_no_place_breaks_the_server(shared: Api, data: st.DataObject) -> None:
    """Any value in any place of any body is answered below 500 and resolved; the server goes on."""
    session = shared.session()
    model = shared.create_model(session, 5)["model_id"]
    valid = bodies(session, model, shared.sampler(session, 9))
    operation = data.draw(st.sampled_from(sorted(valid)), "operation")
    place = data.draw(st.sampled_from(places(valid[operation])), "place")
    changed = replaced(valid[operation], place, data.draw(VALUES, "value"))
    where = {"session_id": session, "training_run_id": model, "checkpoint_id": "weights/a"}
    answer = shared.call(operation, content=json.dumps(changed).encode(), **where)
    check_answer(shared, operation, answer)
    assert shared.ok("session_heartbeat", {"session_id": shared.session()})


@settings(FUZZED, max_examples=100)
@given(data=st.data())
def test_no_change_of_a_protobuf_body_breaks_the_server(shared: Api, data: st.DataObject) -> None:
    """A protobuf message that is cut short or changed is never the server's fault."""
    model = shared.create_model(shared.session())["model_id"]
    one = Datum(ModelInput.from_ints([1, 2]), {"target_tokens": [2, 3], "weights": [1.0, 0.5]})
    config = {"clip_low_threshold": 0.5}
    body = bytearray(b"".join(proto.encode_forward_backward(model, 1, [one, one], "ppo", config)))
    for _ in range(data.draw(st.integers(1, 3), "changes")):
        at = data.draw(st.integers(0, len(body) - 1), "at")
        body[at] = data.draw(st.integers(0, 255), "byte")
    cut = data.draw(st.integers(1, len(body)), "length")
    headers = {"content-type": "application/x-protobuf"}
    answer = shared.call("forward_backward", content=bytes(body[:cut]), headers=headers)
    check_answer(shared, "forward_backward", answer)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """One small server for all examples, so that later ones see damage done by earlier ones."""
    limits = {"gap_seconds": 0.0, "max_samples": 8, "max_sessions": 10**6, "max_models": 10**6}
    chosen = Settings(data_dir=tmp_path_factory.mktemp("data"), **limits)
    api = Api(State(lambda: ToyEngine(vocabulary=512, max_context_length=64), chosen))
    yield api
    api.close()
