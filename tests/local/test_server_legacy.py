"""Bodies of clients of 2025: explicit nulls, no defaults, no ``type``, and without newer fields."""

from __future__ import annotations

from typing import Any

import pytest
from support.api import Api, MakeApi
from tinker_wire import models

from tinker.local.call import read_body

LORA = {"rank": 16, "seed": None, "train_unembed": True, "train_mlp": True, "train_attn": True}


def old_datum(tokens: list[int], targets: list[int], **inputs: list[float]) -> dict[str, Any]:
    tensors = {"target_tokens": {"data": targets, "dtype": "int64", "shape": [len(targets)]}}
    tensors |= {
        name: {"data": values, "dtype": "float32", "shape": [len(values)]}
        for name, values in inputs.items()
    }
    return {"loss_fn_inputs": tensors, "model_input": {"chunks": [{"tokens": tokens}]}}


@pytest.fixture
def old(make_api: MakeApi) -> Api:
    """Return a server for scripts that name a separate model."""
    return make_api(any_base_model=True)


def fetch(api: Api, future: dict[str, Any]) -> Any:
    """Poll as in 2025, with the request id alone."""
    answer = api.call("retrieve_future", {"request_id": future["request_id"]})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_whole_session_of_2025(old: Api) -> None:
    """Create, losses, steps, saves, loads, sampling and telemetry work with the bodies of clients
    0.4.1 and 0.7.0.
    """
    session = old.ok(
        "create_session", {"tags": [], "user_metadata": {"a": "b"}, "sdk_version": "0.4.1"}
    )["session_id"]
    base = {
        "session_id": session,
        "base_model": "Qwen/Qwen3-8B",
        "user_metadata": None,
        "lora_config": LORA,
    }
    model = fetch(old, old.ok("create_model", {**base, "model_seq_id": 0}))["model_id"]
    assert old.ok("get_info", {"model_id": model})["lora_rank"] == 16

    both = [old_datum([1, 2, 3], [2, 3, 4], weights=[0.0, 1.0, 1.0]), old_datum([5, 6], [6, 7])]
    plain = {"data": both, "loss_fn": "cross_entropy", "loss_fn_config": None}
    ppo_data = [
        old_datum([1, 2, 3], [2, 3, 4], logprobs=[-0.1, -0.2, -0.3], advantages=[0.0, 1.0, 1.0])
    ]
    ppo = {"data": ppo_data, "loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.9}}
    first = fetch(
        old,
        old.ok(
            "forward_backward", {"forward_backward_input": plain, "model_id": model, "seq_id": 1}
        ),
    )
    assert [len(output["logprobs"]["data"]) for output in first["loss_fn_outputs"]] == [3, 2]
    assert (
        "loss:sum"
        in fetch(old, old.ok("forward", {"forward_input": plain, "model_id": model, "seq_id": 2}))[
            "metrics"
        ]
    )
    assert "metrics" in fetch(
        old,
        old.ok("forward_backward", {"forward_backward_input": ppo, "model_id": model, "seq_id": 3}),
    )
    for number, params in ((4, {"learning_rate": 0.0001}), (5, {})):
        body = {"adam_params": params, "model_id": model, "seq_id": number}
        assert "metrics" in fetch(old, old.ok("optim_step", body))

    path = fetch(old, old.ok("save_weights", {"model_id": model, "path": "0001", "seq_id": 6}))[
        "path"
    ]
    assert path == f"tinker://{model}/weights/0001"
    stored = fetch(old, old.save_sampler(model, path="s1", seq_id=7))
    assert stored["path"] == f"tinker://{model}/sampler_weights/s1"
    assert (
        fetch(old, old.ok("load_weights", {"model_id": model, "path": path, "seq_id": 8}))["path"]
        == path
    )
    with_optimizer = {"model_id": model, "path": path, "optimizer": True, "seq_id": 9}
    assert fetch(old, old.ok("load_weights", with_optimizer))["model_id"] == model
    body = {"model_id": model, "sampling_session_seq_id": 0, "seq_id": 10}
    sampler = fetch(old, old.ok("save_weights_for_sampler", body))["sampling_session_id"]

    sample = {"prompt": {"chunks": [{"tokens": [1, 2, 3, 4]}]}, "sampling_session_id": sampler}
    two = {
        **sample,
        "num_samples": 2,
        "sampling_params": {"max_tokens": 8},
        "seq_id": 0,
        "prompt_logprobs": False,
    }
    assert len(fetch(old, old.ok("asample", {**two, "topk_prompt_logprobs": 0}))["sequences"]) == 2
    scored = {
        **sample,
        "num_samples": 1,
        "sampling_params": {"max_tokens": 8, "stop": ["x"], "temperature": 0.5},
    }
    result = fetch(
        old,
        old.ok(
            "asample", {**scored, "seq_id": 1, "prompt_logprobs": True, "topk_prompt_logprobs": 2}
        ),
    )
    assert len(result["prompt_logprobs"]) == len(result["topk_prompt_logprobs"]) == 4

    base_sampler = {
        "session_id": session,
        "sampling_session_seq_id": 1,
        "base_model": "Qwen/Qwen3-8B",
        "model_path": None,
    }
    assert (
        old.ok("create_sampling_session", base_sampler)["sampling_session_id"]
        == f"{session}:sample:1"
    )
    second = fetch(old, old.ok("create_model", {**base, "user_metadata": {}, "model_seq_id": 1}))[
        "model_id"
    ]
    fresh = {"model_id": second, "path": path, "seq_id": 1}
    assert fetch(old, old.ok("load_weights", fresh))["model_id"] == second
    assert old.ok("session_heartbeat", {"session_id": session}) == {"type": "session_heartbeat"}


def test_old_telemetry_is_taken(old: Api) -> None:
    """Events without a process id are accepted and kept."""
    common = {"severity": "INFO", "timestamp": "2025-11-02T03:04:05.123456Z"}
    events = [
        {"event": "SESSION_START", "event_id": "a", "event_session_index": 0, **common},
        {
            "duration": "0:00:01.5",
            "event": "SESSION_END",
            "event_id": "b",
            "event_session_index": 1,
            **common,
        },
    ]
    body = {"events": events, "platform": "Linux", "sdk_version": "0.4.1", "session_id": "s"}
    assert old.ok("telemetry", body) == {"status": "accepted"}
    assert len(old.shared.telemetry) == 2


@pytest.mark.parametrize(
    "image",
    [
        {"data": "iVBORw==", "format": "png", "height": 2, "tokens": 4, "width": 3},
        {"data": "iVBORw==", "format": "png", "expected_tokens": 4},
    ],
)
def test_old_images_are_recognised_and_refused_as_images(old: Api, image: dict[str, Any]) -> None:
    """An image without a type is recognised by its fields, and refused in the
    result as an image.
    """
    session = old.session()
    prompt = {"chunks": [{"tokens": [1]}, image]}
    body = {
        "prompt": prompt,
        "sampling_params": {"max_tokens": 1},
        "sampling_session_id": old.sampler(session),
        "seq_id": 0,
    }
    answer = fetch(old, old.ok("asample", body))
    assert answer["category"] == "user"
    assert "chunk 1 is of type 'image'" in answer["error"]


def test_a_pending_request_is_408_for_old_clients(make_api: MakeApi) -> None:
    """A pending request is 408 for old clients, which read the queue state from there only."""
    api = make_api(hold_seconds=0)
    model = api.create_model(api.session())["model_id"]
    body = {"adam_params": {}, "model_id": model, "seq_id": 5}
    future = api.ok("optim_step", body)
    answer = api.call("retrieve_future", {"request_id": future["request_id"]})
    assert (answer.status_code, answer.json()["queue_state"]) == (408, "active")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": {"chunks": [{"nothing": 1}]}, "sampling_params": {}}, "chunks"),
        (
            {"prompt": {"chunks": [{"tokens": ["a"]}]}, "sampling_params": {}},
            "must be an integer, not a string",
        ),
        ({"prompt": {"chunks": [5]}, "sampling_params": {}}, "must be an object, not an integer"),
        ({"prompt": None, "sampling_params": {}}, "must be an object, not null"),
        ({"prompt": {"chunks": [{"tokens": [1]}]}}, "sampling_params"),
    ],
)
def test_leniency_ends_where_the_meaning_is_unclear(
    old: Api, record: dict[str, Any], said: str
) -> None:
    """A body that neither form allows is 422 and names the place."""
    status, detail = old.refused("asample", record)
    assert status == 422
    assert said in str(detail)


def test_a_record_is_read_as_the_member_that_it_fits() -> None:
    """Of the members of a union whose required fields are there, the one is meant whose fields are
    not null.
    """
    body = b'{"chunks": [{"tokens": [1], "format": null, "data": null}, {"format": "png", "data": null, "location": "x"}]}'
    text, pointer = read_body(body, models.ModelInput).chunks
    assert isinstance(text, models.EncodedTextChunk)
    assert isinstance(pointer, models.ImageAssetPointerChunk)


def test_required_nulls_stay() -> None:
    """``detail`` of finish is null on the wire and keeps that meaning."""
    body = b'{"reason": {"type": "success", "extra": null}, "detail": null, "unknown": 1}'
    assert read_body(body, models.FinishSessionRequest).detail is None
