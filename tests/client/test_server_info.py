"""Server information: what a client has found out about its server, as a record for bug reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tinker

Connect = Callable[..., tinker.ServiceClient]
MakeDatum = Callable[..., tinker.Datum]
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2)


def found(service: tinker.ServiceClient) -> dict[str, tuple[str, str]]:
    """Return finding and evidence by operation."""
    return {fact.operation: (fact.finding, fact.evidence) for fact in service.server_info.facts}


def test_nothing_is_known_at_first(service: tinker.ServiceClient) -> None:
    """The record has the server's address and the reported SDK version, and sends no request."""
    info = service.server_info
    assert (info.base_url, info.facts) == ("http://server", ())
    assert str(info) == "http://server, client reported as SDK 0.38.0"


@pytest.mark.parametrize(
    ("refused", "form"),
    [
        (0, ("as proto, sparse tensors kept", "accepted")),
        (1, ("as json, sparse tensors kept", "415 to another form")),
    ],
)
def test_the_form_of_training_requests(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    refused: int,
    form: tuple[str, str],
) -> None:
    """The first accepted training request determines the form, recorded with a refusal if any."""
    wire.fail("forward_backward", 415, form="protobuf", times=refused)
    for _ in range(2):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert found(service)["forward_backward"] == form


def test_refused_fields(service: tinker.ServiceClient, wire: Any) -> None:
    """Fields that the server refuses are recorded by name."""
    fault = {"type": "extra_forbidden", "loc": ["body", "prompt_alt_tokens_k"], "msg": "no"}
    wire.fail("asample", 422, body={"detail": [fault]}, outside="a stricter server's")
    service.create_sampling_client(base_model="tinker/toy").sample(PROMPT, 1, PARAMS).result(10)
    wire.judge.bad_requests.clear()  # bodies without refused fields are outside the contract
    assert found(service)["asample"] == ("prompt_alt_tokens_k left out", "422")


@pytest.mark.parametrize("status", [404, 501])
def test_absent_operations(service: tinker.ServiceClient, wire: Any, status: int) -> None:
    """A missing operation is recorded with the response."""
    wire.fail("stream_sample", status)
    wire.fail("get_info", status)
    service.create_lora_training_client("tinker/toy").result(10)
    sampler = service.create_sampling_client(base_model="tinker/toy")
    assert list(sampler.sample_stream(PROMPT, 1, PARAMS))
    known = found(service)
    assert known["stream_sample"] == known["get_info"] == ("absent", str(status))
    assert f"stream_sample: absent ({status})" in str(service.server_info)


def test_numbers_that_are_expected_again(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """That a server expects the number of a refused request again is recorded with its message."""
    training.forward_backward([datum()], "cross_entropy").result(10)
    wire.fail("optim_step", 400, body={"detail": "no"})
    with pytest.raises(tinker.BadRequestError):
        training.optim_step(tinker.AdamParams()).result(10)
    wire.fail("optim_step", 400, body={"detail": "expected 2, got 3"})
    training.optim_step(tinker.AdamParams()).result(10)
    again = ("the number of a refused request is used again", "expected 2, got 3")
    assert found(service)["training requests"] == again


def test_a_restarted_server_counts_as_unknown(
    service: tinker.ServiceClient, wire: Any, restart: Callable[[], None]
) -> None:
    """After a restart missing operations count as unknown, as the server may have been updated."""
    wire.fail("stream_sample", 404)
    sampler = service.create_sampling_client(base_model="tinker/toy")
    assert list(sampler.sample_stream(PROMPT, 1, PARAMS))
    assert found(service) == {"stream_sample": ("absent", "404")}
    restart()
    with pytest.raises(tinker.SessionLostError):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    again = service.create_sampling_client(base_model="tinker/toy")
    assert list(again.sample_stream(PROMPT, 1, PARAMS))
    assert len(wire.requests("stream_sample")) == 2
    assert found(service) == {}
