"""Refused default fields are left out from then on; every other refusal is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker

Connect = Callable[..., tinker.ServiceClient]
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=1)
LATER = ["topk_sample_logprobs", "prompt_alt_tokens_k", "record_stability_info"]
OTHERS = "a stricter server's"


def refused(name: str, kind: str = "extra_forbidden") -> dict[str, Any]:
    return {"type": kind, "loc": ["body", *name.split(".")], "msg": "Extra inputs", "input": 0}


def refusal(*names: str, kind: str = "extra_forbidden") -> dict[str, Any]:
    """Return the response of a pydantic server to unknown fields."""
    return {"detail": [refused(name, kind) for name in names]}


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampler that is ready."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


@pytest.fixture
def wire(wire: Any) -> Any:
    """Yield a transport that accepts bodies without refused fields, as the contract does not."""
    yield wire
    wire.judge.bad_requests[:] = [
        one for one in wire.judge.bad_requests if not one.endswith("is a required property")
    ]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(422, "extra_forbidden"), (400, "extra_forbidden"), (422, "value_error.extra")],
)
def test_a_refused_default_is_left_out_from_then_on(
    sampler: tinker.SamplingClient, wire: Any, status: int, kind: str
) -> None:
    """The request is repeated without the fields under its number, and none has them later."""
    wire.fail("asample", status, body=refusal(*LATER, kind=kind), outside=OTHERS)
    for _ in range(2):
        assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    refused, again, later = wire.requests("asample")
    assert again.json == {name: value for name, value in refused.json.items() if name not in LATER}
    assert later.json == {**again.json, "seq_id": 1}
    keys = {one.request.headers["x-idempotency-key"] for one in (refused, again, later)}
    assert len(keys) == 3


def test_a_server_that_names_one_field_at_a_time(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Fields are left out one after the other until the server accepts the request."""
    for name in LATER:
        wire.fail("asample", 422, body=refusal(name), outside=OTHERS)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert not wire.requests("asample")[-1].json.keys() & set(LATER)
    assert len(wire.requests("asample")) == 1 + len(LATER)


def test_a_field_with_another_value_is_sent(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A refused field is left out only while it has its default value."""
    wire.fail("asample", 422, body=refusal(*LATER), outside=OTHERS, times=2)
    for _ in range(2):
        with pytest.raises(tinker.UnprocessableEntityError, match="topk_sample_logprobs"):
            sampler.sample(PROMPT, 1, PARAMS, topk_sample_logprobs=2).result(10)
    wire.fail("asample", 422, body=refusal("topk_sample_logprobs"), outside=OTHERS)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    sampler.sample(PROMPT, 1, PARAMS, topk_sample_logprobs=2).result(10)
    sent = [one.json.get("topk_sample_logprobs") for one in wire.requests("asample")]
    assert sent == [2, 2, 0, None, 2]


@pytest.mark.parametrize(
    "body",
    [
        {"detail": [refused(LATER[0]), refused("model_path", kind="missing")]},
        refusal("sampling_params"),
        refusal("no_such_field"),
        refusal("prompt.chunks"),
        {"detail": [{**refused("x"), "loc": ["body", "prompt", "chunks", 0, "tokens"]}]},
        {"detail": [{**refused("x"), "loc": ["body"]}]},
        {"detail": "extra_forbidden"},
        b'extra_forbidden {"',
        b'"extra_forbidden" \xff',
    ],
)
def test_other_refusals_are_raised_at_once(
    sampler: tinker.SamplingClient, wire: Any, body: Any
) -> None:
    """A refusal that also concerns something else, or a required field, is raised."""
    wire.fail("asample", 422, body=body, outside=OTHERS)
    with pytest.raises(tinker.UnprocessableEntityError):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests("asample")) == 1


def test_a_nested_field(service: tinker.ServiceClient, wire: Any) -> None:
    """A refused default may be a field of a nested value."""
    both = refusal("optimizer_config", "lora_config.train_mlp")
    wire.fail("create_model", 422, body=both, outside=OTHERS)
    assert service.create_lora_training_client("tinker/toy", rank=2).result(10).model_id
    again = wire.requests("create_model")[-1].json
    assert again["lora_config"] == {"rank": 2, "train_attn": True, "train_unembed": True}
    assert "optimizer_config" not in again
    wire.fail("create_model", 422, body=refusal("lora_config.train_mlp"), outside=OTHERS)
    with pytest.raises(tinker.UnprocessableEntityError):
        service.create_lora_training_client("tinker/toy", train_mlp=False).result(10)


def test_a_retry_keeps_its_key(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Once fields are left out, every attempt of one request is identical."""
    wire.fail("asample", 422, body=refusal(*LATER), outside=OTHERS)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    wire.fail("asample", 503, times=2)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    attempts = wire.requests("asample")[2:]
    assert len(attempts) == 3
    assert len({(one.body, one.request.headers["x-idempotency-key"]) for one in attempts}) == 1


def test_another_session_sends_all_fields(connect: Connect, wire: Any) -> None:
    """Fields that one server refused are sent to the next session's server."""
    for _ in range(2):
        wire.fail("create_model", 422, body=refusal("optimizer_config"), outside=OTHERS)
        connect().create_lora_training_client("tinker/toy").result(10)
    sent = ["optimizer_config" in one.json for one in wire.requests("create_model")]
    assert sent == [True, False] * 2
