"""Tolerance: servers that use other forms, omit something, or send more than this client knows do
not break it.

Responses to polls are in test_polling, forms of requests in test_format_negotiation.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker._wire import proto

MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams()
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=2)
RUN = {"training_run_id": "run", "base_model": "b", "model_owner": "me", "is_lora": True}
OTHERS = "another server's way"


@pytest.fixture
def rest(service: tinker.ServiceClient) -> tinker.RestClient:
    """Read on the transport."""
    return service.create_rest_client()


@pytest.mark.parametrize("status", [200, 201, 202])
def test_every_2xx_is_a_success(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum, status: int
) -> None:
    """A server may respond with 201 or 202 instead of 200, to every request."""
    wire.fail("create_session", status, body={"session_id": "s"}, outside=OTHERS)
    wire.fail("create_model", status, body={"request_id": "m"}, outside=OTHERS)
    wire.fail("retrieve_future", status, body={"model_id": "model"}, outside=OTHERS)
    wire.fail("get_info", status, body={"model_id": "model", "model_data": {}}, outside=OTHERS)
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("forward_backward", status, body={"request_id": "f"}, outside=OTHERS)
    wire.fail(
        "retrieve_future",
        status,
        body={"loss_fn_output_type": "t", "loss_fn_outputs": [{}], "metrics": {}},
        outside=OTHERS,
    )
    assert training.forward_backward([datum()], "cross_entropy").result(10).metrics == {}


@pytest.mark.parametrize("status", [404, 405, 501])
def test_optional_operations_may_be_absent(
    connect: Callable[..., tinker.ServiceClient], wire: Any, datum: MakeDatum, status: int
) -> None:
    """Without settings, heartbeats, model descriptions and the end of a session, training works and
    ends.
    """
    wire.fail("client/config", status)
    service = connect()
    wire.fail("get_info", status)
    wire.fail("session_heartbeat", status)
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    wire.wait_for("session_heartbeat")
    assert training.forward_backward([datum()], "cross_entropy").result(10).loss > 0
    session = wire.requests("session_heartbeat")[0].json["session_id"]
    wire.fail(f"sessions/{session}/finish", status)
    service.close().result(10)


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_sampler_that_the_server_cannot_describe_samples(
    service: tinker.ServiceClient, wire: Any, status: int
) -> None:
    """Only a request for its base model raises an error that the server does not report it."""
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    restored = tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle())
    wire.fail(f"samplers/{sampler._sampling_session_id}", status)
    with pytest.raises(tinker.APIStatusError):
        restored.get_base_model()
    assert restored.sample(PROMPT, 1, PARAMS).result(10).sequences


def test_checkpoints_as_others_list_them(rest: tinker.RestClient, wire: Any) -> None:
    """Bare names, times without a zone, unknown kinds and unknown fields all stay readable as they
    were sent.
    """
    checkpoint = {
        "checkpoint_id": "0001",
        "checkpoint_type": "merged",
        "time": "2026-01-02T03:04:05",
        "tinker_path": "other://run/0001",
        "quantized": {"bits": 4},
    }
    wire.fail(
        "training_runs/run/checkpoints",
        200,
        body={"checkpoints": [checkpoint], "next": 7},
        outside=OTHERS,
    )
    (listed,) = rest.list_checkpoints("run").result(10).checkpoints
    assert (listed.checkpoint_id, listed.checkpoint_type, listed.tinker_path) == (
        "0001",
        "merged",
        "other://run/0001",
    )
    assert listed.time == datetime.datetime(2026, 1, 2, 3, 4, 5)
    wire.fail(
        "training_runs/run",
        200,
        body={**RUN, "last_request_time": "2026-01-02T03:04:05.5"},
        outside=OTHERS,
    )
    assert rest.get_training_run("run").result(10).last_request_time.microsecond == 500_000


def test_bare_checkpoint_names_are_passed_on(rest: tinker.RestClient, wire: Any) -> None:
    """If a server lists bare names, requests use these bare names."""
    wire.fail("training_runs/run/checkpoints/0001", 204, body=b"")
    rest.delete_checkpoint("run", "0001").result(10)
    assert [one.request.method for one in wire.requests("training_runs/run/checkpoints/0001")] == [
        "DELETE"
    ]
    wire.judge.bad_requests.clear()  # the contract has them with their kind


@pytest.mark.parametrize("path", ["twinkle://run/weights/0001", "mint://a", "file:///tmp/x"])
def test_paths_of_other_schemes_are_passed_on(
    service: tinker.ServiceClient, wire: Any, path: str
) -> None:
    """A path with any scheme is sent unchanged."""
    wire.fail("create_sampling_session", 200, body={"sampling_session_id": "s"})
    service.create_sampling_client(model_path=path).result(10)
    assert wire.requests("create_sampling_session")[0].json["model_path"] == path


def test_losses_of_other_servers_are_passed_on(silent: tinker.TrainingClient, wire: Any) -> None:
    """If a server has not reported its losses, unknown names, inputs and settings
    are sent to it.
    """
    inputs: Any = {
        "target_tokens": [2, 3, 4],
        "values": tinker.TensorData([0.1, 0.2, 0.3], "float32"),
    }
    datum = tinker.Datum(PROMPT, inputs)
    wire.fail("forward_backward", 200, body={"request_id": "f"})
    wire.fail(
        "retrieve_future",
        200,
        body={"loss_fn_output_type": "t", "loss_fn_outputs": [{}], "metrics": {}},
    )
    silent.forward_backward([datum], "ppo_critic", {"value_clip": 0.2, "mode": "fast"}).result(10)  # type: ignore[arg-type]
    call = proto.decode_forward_backward(wire.requests("forward_backward")[0].body)
    assert (call.loss_fn, call.loss_fn_config) == (
        "ppo_critic",
        {"value_clip": 0.2, "mode": "fast"},
    )
    assert sorted(call.data[0].loss_fn_inputs) == ["target_tokens", "values"]


def test_a_result_without_a_loss_has_none(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Without ``loss:sum`` a result has its outputs and the metrics that the server sent."""
    output = {"logprobs": {"data": [-1.0], "dtype": "float32"}}
    body = {
        "loss_fn_output_type": "scalar",
        "loss_fn_outputs": [output],
        "metrics": {"total_loss:sum": 2.0},
    }
    wire.fail("retrieve_future", 200, body=body)
    result = training.forward_backward([datum([1])], "cross_entropy").result(10)
    assert result.metrics == {"total_loss:sum": 2.0}
    assert result.loss_fn_outputs[0]["logprobs"].tolist() == [-1.0]


def test_an_unknown_stop_reason_is_kept(service: tinker.ServiceClient, wire: Any) -> None:
    """An unknown stop reason of a sequence is kept as it was sent."""
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    body = {"sequences": [{"stop_reason": "filtered", "tokens": [1], "score": 2}], "model": "b"}
    wire.fail("retrieve_future", 200, body=body, outside=OTHERS)
    (sequence,) = sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert (sequence.stop_reason, list(sequence.tokens)) == ("filtered", [1])


def test_an_empty_refusal_is_retried(training: tinker.TrainingClient, wire: Any) -> None:
    """A 400 without content did not come from the server: the request is resent under its number,
    and the run continues.
    """
    wire.fail("optim_step", 400, body=b"", times=2)
    training.optim_step(ADAM).result(10)
    assert [one.seq_id for one in wire.requests("optim_step")] == [1, 1, 1]
    wire.fail("optim_step", 400, body=b"", times=3)
    with pytest.raises(tinker.BadRequestError):
        training.optim_step(ADAM).result(10)


def test_any_key_is_accepted(connect: Callable[..., tinker.ServiceClient], wire: Any) -> None:
    """A key need not look like one of the hosted service."""
    connect(api_key="dummy").get_server_capabilities()
    assert wire.requests("get_server_capabilities")[0].request.headers["x-api-key"] == "dummy"


def test_fields_that_only_some_servers_send_are_kept(
    service: tinker.ServiceClient, wire: Any
) -> None:
    """What the JSON of a sample has beside the contract is in `extra` of the result and of its
    sequence, also in a dump.
    """
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    sequence = {"stop_reason": "stop", "tokens": [1], "routed_experts": [[0, 3]]}
    answered = {
        "sequences": [sequence, {"stop_reason": "stop", "tokens": [2]}],
        "policy_version": 7,
    }
    wire.fail("retrieve_future", 200, body=answered, outside=OTHERS)
    found = sampler.sample(PROMPT, 2, PARAMS).result(10)
    assert found.extra == {"policy_version": 7}
    assert [one.extra for one in found.sequences] == [{"routed_experts": [[0, 3]]}, None]
    again = tinker.SampleResponse.model_validate(found.model_dump())
    assert (again.extra, again.sequences[0].extra) == (found.extra, found.sequences[0].extra)
    assert found.sequences[0] != tinker.SampledSequence(stop_reason="stop", tokens=[1])
    assert "extra" not in found.sequences[1].model_dump()
