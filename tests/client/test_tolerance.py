"""Tolerance: servers that use other forms, omit or add something do not break this client.

Responses to polls are in test_polling, forms of requests in test_format_negotiation.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from support.answers import training_run

import tinker
from tinker._wire import proto

MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams()
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=2)
LOSS = {"loss_fn_output_type": "t", "loss_fn_outputs": [{}], "metrics": {}}
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
    for operation, body in (
        ("create_session", {"session_id": "s"}),
        ("create_model", {"request_id": "m"}),
        ("retrieve_future", {"model_id": "model"}),
        ("get_info", {"model_id": "model", "model_data": {}}),
        ("forward_backward", {"request_id": "f"}),
        ("retrieve_future", LOSS),
    ):
        wire.fail(operation, status, body=body, outside=OTHERS)
    training = service.create_lora_training_client("tinker/toy").result(10)
    assert training.forward_backward([datum()], "cross_entropy").result(10).metrics == {}


@pytest.mark.parametrize("status", [404, 405, 501])
def test_optional_operations_may_be_absent(
    connect: Callable[..., tinker.ServiceClient], wire: Any, datum: MakeDatum, status: int
) -> None:
    """Without settings, heartbeats, descriptions and the end of a session, training works."""
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


def test_checkpoints_as_others_list_them(rest: tinker.RestClient, wire: Any) -> None:
    """Bare names, times without a zone, unknown kinds and fields stay readable as sent."""
    checkpoint = {
        "checkpoint_id": "0001",
        "checkpoint_type": "merged",
        "time": "2026-01-02T03:04:05",
        "tinker_path": "other://run/0001",
        "quantized": {"bits": 4},
    }
    body = {"checkpoints": [checkpoint], "next": 7}
    wire.fail("training_runs/run/checkpoints", 200, body=body, outside=OTHERS)
    (listed,) = rest.list_checkpoints("run").result(10).checkpoints
    assert (listed.checkpoint_id, listed.checkpoint_type) == ("0001", "merged")
    assert listed.tinker_path == "other://run/0001"
    assert listed.time == datetime.datetime(2026, 1, 2, 3, 4, 5)
    run = training_run("run", last_request_time="2026-01-02T03:04:05.5")
    wire.fail("training_runs/run", 200, body=run, outside=OTHERS)
    assert rest.get_training_run("run").result(10).last_request_time.microsecond == 500_000
    wire.fail("training_runs/run/checkpoints/0001", 204, body=b"")
    rest.delete_checkpoint("run", listed.checkpoint_id).result(10)  # asks for it as it was listed
    (sent,) = wire.requests("training_runs/run/checkpoints/0001")
    assert sent.request.method == "DELETE"
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
    """Names, inputs and settings of losses go to a server that has not reported its losses."""
    values = tinker.TensorData([0.1, 0.2, 0.3], "float32")
    inputs: Any = {"target_tokens": [2, 3, 4], "values": values}
    datum = tinker.Datum(PROMPT, inputs)
    wire.fail("forward_backward", 200, body={"request_id": "f"})
    wire.fail("retrieve_future", 200, body=LOSS)
    silent.forward_backward([datum], "ppo_critic", {"value_clip": 0.2, "mode": "fast"}).result(10)  # type: ignore[arg-type]
    call = proto.decode_forward_backward(wire.requests("forward_backward")[0].body)
    assert call.loss_fn == "ppo_critic"
    assert call.loss_fn_config == {"value_clip": 0.2, "mode": "fast"}
    assert sorted(call.data[0].loss_fn_inputs) == ["target_tokens", "values"]


def test_a_result_without_a_loss_has_none(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Without ``loss:sum`` a result has its outputs and the metrics that the server sent."""
    output = {"logprobs": {"data": [-1.0], "dtype": "float32"}}
    body = {**LOSS, "loss_fn_outputs": [output], "metrics": {"total_loss:sum": 2.0}}
    wire.fail("retrieve_future", 200, body=body)
    result = training.forward_backward([datum([1])], "cross_entropy").result(10)
    assert result.metrics == {"total_loss:sum": 2.0}
    assert result.loss_fn_outputs[0]["logprobs"].tolist() == [-1.0]


def test_an_empty_refusal_is_retried(training: tinker.TrainingClient, wire: Any) -> None:
    """A 400 without content did not come from the server: it is resent under its number."""
    wire.fail("optim_step", 400, body=b"", times=2)
    training.optim_step(ADAM).result(10)
    assert [one.seq_id for one in wire.requests("optim_step")] == [1, 1, 1]
    wire.fail("optim_step", 400, body=b"", times=3)
    with pytest.raises(tinker.BadRequestError):
        training.optim_step(ADAM).result(10)


def test_fields_that_only_some_servers_send_are_kept(
    service: tinker.ServiceClient, wire: Any
) -> None:
    """An unknown stop reason is kept, and fields beside the contract are in `extra`."""
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    sequence = {"stop_reason": "filtered", "tokens": [1], "routed_experts": [[0, 3]]}
    plain = {"stop_reason": "stop", "tokens": [2]}
    answered = {"sequences": [sequence, plain], "policy_version": 7}
    wire.fail("retrieve_future", 200, body=answered, outside=OTHERS)
    found = sampler.sample(PROMPT, 2, PARAMS).result(10)
    assert found.extra == {"policy_version": 7}
    assert [one.stop_reason for one in found.sequences] == ["filtered", "stop"]
    assert [one.extra for one in found.sequences] == [{"routed_experts": [[0, 3]]}, None]
    again = tinker.SampleResponse.model_validate(found.model_dump())
    assert (again.extra, again.sequences[0].extra) == (found.extra, found.sequences[0].extra)
    assert found.sequences[0] != tinker.SampledSequence(stop_reason="filtered", tokens=[1])
    assert "extra" not in found.sequences[1].model_dump()
