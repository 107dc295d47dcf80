"""What is wrong is refused in one form, and what only looks unusual is not."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from tinker_wire import models
from tinker_wire.api import sampling as sampling_api
from tinker_wire.api import service as service_api
from tinker_wire.api import training as training_api
from tinker_wire.api import weights as weights_api
from tinker_wire.runtime import Request

from tinker._version import __version__
from tinker.testing.conformance.bench import Bench, plain_body
from tinker.testing.conformance.exchange import Answer, Message
from tinker.testing.conformance.registry import check
from tinker.testing.conformance.sampler import Sampler
from tinker.testing.conformance.trainee import Trainee, create
from tinker.types.results import ForwardBackwardOutput, SampleResponse

T = TypeVar("T")

_SESSION = models.CreateSessionRequest(tags=[], sdk_version=__version__)


@check("get_info", "optim_step", "create_model", "create_sampling_session", "asample", "get_training_run", "weights_info")
def unknown_ids(bench: Bench) -> None:
    """Ids that were never given out are 404, with a detail."""
    gone = "no-such-session:train:0"
    lora = models.LoraConfig(rank=8)
    base = bench.base_model()
    params = models.SamplingParams(max_tokens=1)
    prompt = models.ModelInput(chunks=[models.EncodedTextChunk(tokens=[5])])
    requests: list[Request[Any]] = [
        training_api.get_info(models.GetInfoRequest(model_id=gone)),
        training_api.optim_step(models.OptimStepRequest(model_id=gone, seq_id=1, adam_params=models.AdamParams())),
        training_api.create_model(
            models.CreateModelRequest(session_id="no-such-session", model_seq_id=0, base_model=base, lora_config=lora)
        ),
        training_api.get_training_run(training_run_id=gone),
        sampling_api.create_sampling_session(
            models.CreateSamplingSessionRequest(session_id="no-such-session", sampling_session_seq_id=0, base_model=base)
        ),
        sampling_api.asample(
            models.SampleRequest(prompt=prompt, sampling_params=params, sampling_session_id="no-such:sample:0", seq_id=0)
        ),
        weights_api.weights_info(models.WeightsInfoRequest(tinker_path=f"tinker://{gone}/weights/no-such-checkpoint")),
    ]
    for request in requests:
        bench.refused(request, 404)


@check("create_session", "create_model", "optim_step", "asample", "retrieve_future", "forward_backward")
def malformed(bench: Bench) -> None:
    """A body that is no JSON, lacks a field or has a wrong type is refused with 422, naming the place."""
    request = service_api.create_session(_SESSION)
    for content in (b"", b"{", b"\xff", b"[]", b"null", b"{}", b'{"tags": "x", "sdk_version": 1}'):
        answer = bench.refused(request, 422, 400, content=content)
    bench.expect(isinstance(_detail(answer.content), list), "the detail of status 422 is no list of places")
    prompt = {"chunks": [{"type": "encoded_text", "tokens": ["five"]}]}
    sample = {"prompt": prompt, "sampling_params": {}, "sampling_session_id": "s", "seq_id": 0}
    bodies: dict[str, object] = {
        "/api/v1/create_model": {"session_id": bench.session(), "model_seq_id": "first", "base_model": 1},
        "/api/v1/optim_step": {"model_id": "m", "seq_id": 1, "adam_params": {"learning_rate": "fast"}},
        "/api/v1/asample": sample,
        "/api/v1/retrieve_future": {"request": "r"},
        "/api/v1/forward_backward": {"model_id": "m", "seq_id": 1, "forward_backward_input": {"data": {}}},
    }
    for path, body in bodies.items():
        message = Message("POST", path, bench.link.api_key, {"Content-Type": "application/json"}, msgspec.json.encode(body))
        found = bench.link.send(message, bench.deadline)
        bench.require(found.status >= 400, f"{message} answers {found.status} to a body that does not fit")
        bench.expect(found.status in (400, 422), f"{message} refuses a body that does not fit with {found.status}")


def _detail(content: bytes) -> object:
    try:
        return msgspec.json.decode(content, type=models.ErrorResponse).detail
    except msgspec.DecodeError:
        return None


@check("forward_backward")
def broken_protobuf(bench: Bench) -> None:
    """A protobuf body that is cut off, or is none, is refused with 400 or 422."""
    trainee = create(bench)
    request = trainee.request("proto")
    whole = plain_body(request)
    for content in (whole[:-3], b"\xff\xff\xff"):
        bench.refused(request, 422, 400, 415, content=content)


@check("create_session", "create_sampling_session", "asample")
def unknown_fields(bench: Bench) -> None:
    """Fields that the server does not know are ignored."""
    _accepted(bench, service_api.create_session(_SESSION), tags=[], sdk_version=__version__, field_of_tomorrow={"a": [1]})
    sampler = Sampler.on_base(bench)
    body = msgspec.to_builtins(sampler.body(), enc_hook=str)
    body["sampling_params"]["knob_of_tomorrow"] = 3
    _accepted(bench, sampling_api.asample(sampler.body()), **body)


@check("create_session", "create_model", "optim_step", "forward_backward", "create_sampling_session", "asample")
def older_bodies(bench: Bench) -> None:
    """Bodies of 2025 are taken: without defaults and types, with nulls for what is not said."""
    session = _accepted(
        bench, service_api.create_session(_SESSION), tags=[], sdk_version="0.7.0", user_metadata=None, project_id=None
    ).session_id
    request = training_api.create_model(
        models.CreateModelRequest(session_id=session, model_seq_id=0, base_model=bench.base_model())
    )
    body = {"session_id": session, "model_seq_id": 0, "base_model": bench.base_model(), "user_metadata": None}
    made = bench.promise(request, _sent(bench, request, {**body, "lora_config": {"rank": 8}}), models.CreateModelResponse)
    trainee = Trainee(bench, bench.result(made).model_id)
    _older_training(bench, trainee)
    _older_sample(bench, session)
    bench.leave(session)


def _older_training(bench: Bench, trainee: Trainee) -> None:
    inputs = {"target_tokens": {"data": [6, 7], "dtype": "int64", "shape": None}}
    datum = {"loss_fn_inputs": inputs, "model_input": {"chunks": [{"tokens": [5, 6]}]}}
    what = {"data": [datum], "loss_fn": "cross_entropy", "loss_fn_config": None}
    request = trainee.request("json")
    body = {"forward_backward_input": what, "model_id": trainee.model_id, "seq_id": 1}
    loss = bench.promise(request, _sent(bench, request, body), ForwardBackwardOutput)
    bench.result(loss, protobuf=False)
    params: dict[str, object] = {"model_id": trainee.model_id, "seq_id": 2, "adam_params": {}, "type": "optim_step"}
    step = training_api.optim_step(models.OptimStepRequest(model_id=trainee.model_id))
    bench.result(bench.promise(step, _sent(bench, step, params), models.OptimStepResponse))


def _older_sample(bench: Bench, session: str) -> None:
    opening: dict[str, object] = {"session_id": session, "sampling_session_seq_id": 0, "base_model": bench.base_model()}
    request = sampling_api.create_sampling_session(
        models.CreateSamplingSessionRequest(session_id=session, sampling_session_seq_id=0)
    )
    sampler = _accepted(bench, request, **opening, model_path=None).sampling_session_id
    body = {
        "prompt": {"chunks": [{"tokens": [5, 6]}]},
        "sampling_params": {"max_tokens": 2, "stop": None, "seed": None},
        "num_samples": 1,
        "sampling_session_id": sampler,
        "seq_id": 0,
        "prompt_logprobs": None,
        "base_model": None,
    }
    sample = sampling_api.asample(Sampler(bench, sampler).body())
    promise = bench.promise(sample, _sent(bench, sample, body), SampleResponse)
    bench.result(promise, protobuf=False)


def _sent(bench: Bench, request: Request[Any], body: object) -> Answer:
    """The answer to a request with another body."""
    return bench.send(request, content=msgspec.json.encode(body))


def _accepted(bench: Bench, request: Request[T], **body: object) -> T:
    return bench.accepted(request, _sent(bench, request, body))
