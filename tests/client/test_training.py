"""Training requests: their order, their numbers, their calling forms, and failures."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.queue_news import waiting
from support.tolerances import FLOAT64, near

import tinker
from tinker._wire import BUFFERS, proto

Connect = Callable[..., tinker.ServiceClient]
MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams(learning_rate=0.05)


PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=3, stop=[])
SPOILED = "something on the way spoiled it"


@tinker.with_gradients
def own_loss(data: Any, logprobs: Any) -> Any:
    return 1.0, [0 * part - 1 for part in logprobs]


def test_requests_are_numbered_in_the_order_of_the_calls(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Every request has the next number, whatever its kind, and they arrive in that order."""
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(ADAM)
    training.forward([datum()], "cross_entropy")
    training.save_state("a")
    training.save_weights_for_sampler("b").result(10)
    kinds = {"forward_backward", "optim_step", "save_weights", "save_weights_for_sampler"}
    sent = [(one.operation, one.seq_id) for one in wire.exchanges if one.operation in kinds]
    assert sent == [
        ("forward_backward", 1),
        ("optim_step", 2),
        ("forward_backward", 3),
        ("save_weights", 4),
        ("save_weights_for_sampler", 5),
    ]


def test_threads_share_one_order(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Calls of several threads get distinct numbers without gaps, and keep their order."""

    def work(token: int) -> list[tinker.APIFuture[Any]]:
        return [
            training.forward_backward([datum([token, step])], "cross_entropy") for step in range(10)
        ]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        futures = [future for made in pool.map(work, range(4)) for future in made]
    for future in futures:
        future.result(10)
    calls = [proto.decode_forward_backward(one.body) for one in wire.requests("forward_backward")]
    assert [call.seq_id for call in calls] == list(range(1, 41))
    sent = [tuple(call.data[0].model_input.to_ints()) for call in calls]
    for token in range(4):
        assert [step for first, step in sent if first == token] == list(range(10))


def test_results_are_not_waited_for_before_the_next_submission(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A whole pipeline is submitted while the first result is still pending."""
    before = len(wire.requests("retrieve_future"))
    wire.fail("retrieve_future", 200, body=waiting("paused_capacity", "busy"), times=30)
    first = training.forward_backward([datum()], "cross_entropy")
    last = training.optim_step(ADAM)
    wire.wait_for("optim_step")
    first.result(10)
    last.result(10)
    assert len(wire.requests("retrieve_future")) > before + 30
    assert (first.queue_state, first.queue_state_reason) == ("paused_capacity", "busy")


def test_every_calling_form(service: tinker.ServiceClient, datum: MakeDatum) -> None:
    """A created client can be used at once, after result(), after await, and from its twin."""
    assert service.create_lora_training_client("tinker/toy", rank=2).get_info().lora_rank == 2
    at_once = service.create_lora_training_client("tinker/toy", rank=2)
    assert at_once.model_id
    assert at_once.forward([datum()], "cross_entropy").result(10).loss > 0
    assert at_once.result(10) is at_once
    assert at_once.done()
    assert at_once.future().result(10) is at_once

    async def scenario() -> None:
        awaited = await service.create_lora_training_client("tinker/toy", rank=2)
        twin = await service.create_lora_training_client_async("tinker/toy", rank=2)
        for client in (awaited, twin):
            assert isinstance(client, tinker.TrainingClient)
            future = await client.forward_backward_async([datum()], "cross_entropy")
            step = await client.optim_step_async(ADAM)
            assert (await future).loss == (await future.result_async()).loss
            await step
            assert client is await client.result_async(10) is await client.coroutine()
            assert (await client.get_info_async()).lora_rank == 2
            sampler = await client.save_weights_and_get_sampling_client_async()
            response = await sampler.sample_async(PROMPT, 1, PARAMS)
            assert len(response.sequences[0].tokens) == 3

    asyncio.run(scenario())


def test_failed_creation_fails_every_operation(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum
) -> None:
    """Operations queued after a failed creation raise its error, and none of them is sent."""
    wire.fail("create_model", 400, body={"detail": "no such model"})
    client = service.create_lora_training_client("nonsense")
    queued = [client.forward_backward([datum()], "cross_entropy"), client.optim_step(ADAM)]
    sampler = client.save_weights_and_get_sampling_client()
    waiting_for = (client, client.future(), *queued, sampler, sampler.sample(PROMPT, 1, PARAMS))
    for future in waiting_for:
        for receive in (future.result, lambda wait, it=future: asyncio.run(it.result_async(wait))):
            with pytest.raises(tinker.BadRequestError, match="no such model"):
                receive(10)
    for future in queued:
        assert any("could not be created" in note for note in future.exception(0).__notes__)
    for operation in ("forward_backward", "optim_step", "asample"):
        assert wire.requests(operation) == []


SEVERAL_TARGETS = [(3, 1), (3, 2)]  # of each token, which cross_entropy takes
SHAPES = [(), (1, 3), (1,), *SEVERAL_TARGETS]
POLICY = ("target_tokens", "logprobs", "advantages", "weights")
SHAPED = [
    ("cross_entropy", "weights"),
    *[
        (loss, name)
        for loss in ("importance_sampling", "ppo", "cispo", "dro")
        for name in (*POLICY, "mask")
    ],
    ("gspo", "sequence_ratio_mask"),
    ("ppo", "clip_low_threshold"),
]


@pytest.mark.parametrize(("loss", "name"), [("cross_entropy", "target_tokens"), *SHAPED])
def test_shapes_that_no_loss_takes_are_refused_by_the_call(
    training: tinker.TrainingClient, wire: Any, loss: Any, name: str
) -> None:
    """An input without one value for each target, in its shape, is refused and not sent."""
    names = ("target_tokens", "weights") if loss == "cross_entropy" else POLICY
    inputs: dict[str, Any] = {
        one: np.ones(3, np.int64 if one == "target_tokens" else np.float32)
        for one in {*names, name}
    }
    shapes = [
        one
        for one in SHAPES
        if (loss, name) != ("cross_entropy", "target_tokens") or one not in SEVERAL_TARGETS
    ]
    for wrong in (np.ones(shape, inputs[name].dtype) for shape in shapes):
        for one in (wrong, pytest.importorskip("torch").from_numpy(wrong)):
            datum = tinker.Datum(PROMPT, {**inputs, name: one})
            words = r"data\[0\].loss_fn_inputs\['\w+'\] has (shape|length) .*(takes|model_input)"
            with pytest.raises(ValueError, match=words):
                training.forward_backward([datum], loss)
    assert wire.requests("forward_backward") == []
    training.optim_step(ADAM).result(10)
    assert wire.requests("optim_step")[0].seq_id == 1  # no number was used


def test_several_targets_for_each_token(training: tinker.TrainingClient) -> None:
    """cross_entropy takes several targets for each token, with weights of that shape or none."""
    targets: Any = {"target_tokens": np.ones((3, 2), np.int64)}
    for inputs in (targets, {**targets, "weights": np.ones((3, 2), np.float32)}):
        training.forward_backward([tinker.Datum(PROMPT, inputs)], "cross_entropy").result(10)


def test_parameters_of_a_step_are_given_once(training: tinker.TrainingClient) -> None:
    """The parameters of an optimizer step are given by one of their two names, not by both."""
    with pytest.raises(ValueError, match="not both"):
        training.optim_step(ADAM, adam_params=ADAM)


@pytest.mark.parametrize("wire_form", ["proto", "json"])
def test_both_forms_compute_the_same(
    connect: Connect, datum: MakeDatum, wire_form: str, wire: Any
) -> None:
    """A step has the same result over protobuf and over JSON; the chosen form is the one sent."""
    client = connect(wire=wire_form).create_lora_training_client("tinker/toy", rank=4, seed=1)
    output = client.forward_backward([datum(), datum([5, 6])], "cross_entropy").result(10)
    forward = client.forward([datum()], "cross_entropy").result(10)
    kind = wire.requests("forward_backward")[0].request.headers["content-type"]
    assert kind == {"proto": "application/x-protobuf", "json": "application/json"}[wire_form]
    assert bool(wire.requests("forward")) == (wire_form == "json")
    found = [one["logprobs"].tolist() for one in output.loss_fn_outputs]
    assert forward.loss_fn_outputs[0]["logprobs"].tolist() == found[0]
    by_hand = -sum(map(sum, found))
    assert output.loss == near(by_hand, 5)


def test_large_batches_are_chunked(connect: Connect, wire: Any, datum: MakeDatum) -> None:
    """Chunks have consecutive numbers, the first sent last; results equal those of one request."""
    wire.fail("client/config", 200, body={"fwdbwd_max_chunk_len": 2})
    client = connect().create_lora_training_client("tinker/toy", rank=4, seed=1)
    data = [datum([i, i + 1]) for i in range(5)]
    future = client.forward_backward(data, "cross_entropy")
    client.optim_step(ADAM).result(10)
    other = connect().create_lora_training_client("tinker/toy", rank=4, seed=1)
    whole = other.forward_backward(data, "cross_entropy").result(10)
    calls = [proto.decode_forward_backward(one.body) for one in wire.requests("forward_backward")]
    assert [(call.seq_id, len(call.data)) for call in calls[:3]] == [(2, 2), (3, 1), (1, 2)]
    assert wire.requests("optim_step")[0].seq_id == 4
    assert future.result(10).loss == near(whole.loss, 15)
    one, same = (
        [fields["logprobs"].tolist() for fields in output.loss_fn_outputs]
        for output in (future.result(), whole)
    )
    assert one == same


@pytest.mark.parametrize(
    ("arguments", "config", "media_type", "encoding"),
    [
        ({"wire": "json"}, {}, "application/json", None),
        ({}, {"proto_compress_fwdbwd": True}, "application/x-protobuf", "zstd"),
    ],
    ids=["json", "compressed"],
)
def test_large_bodies_arrive_in_every_form(
    connect: Connect,
    wire: Any,
    datum: MakeDatum,
    arguments: dict[str, Any],
    config: dict[str, bool],
    media_type: str,
    encoding: str | None,
) -> None:
    """A body of megabytes as JSON or compressed gives the same results as plain protobuf."""
    large = [datum([1, 2, 3] * 10_000)] * 6
    plain = connect().create_lora_training_client("tinker/toy", rank=4, seed=1)
    expected = plain.forward_backward(large, "cross_entropy").result(60).loss
    wire.fail("client/config", 200, body=config)
    client = connect(**arguments).create_lora_training_client("tinker/toy", rank=4, seed=1)
    assert client.forward_backward(large, "cross_entropy").result(60).loss == near(
        expected, 6, unit=FLOAT64
    )  # of six datums, in one call or in several
    first, *_, last = wire.requests("forward_backward")
    headers = last.request.headers
    assert "content-encoding" not in first.request.headers
    assert encoding is None or len(last.body) < len(first.body)
    assert (headers["content-type"], headers.get("content-encoding")) == (media_type, encoding)


@pytest.mark.parametrize("broken", [False, True])
def test_memory_of_large_steps_is_used_again(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum, broken: bool
) -> None:
    """The memory of a sent body is reused, unless a broken attempt may still be sending it."""
    large = [datum([1] * 30_000)] * 6
    training.forward_backward(large, "cross_entropy").result(60)
    (sent,) = wire.requests("forward_backward")
    memory = BUFFERS.join([sent.body])
    BUFFERS.release(memory)  # the next body of this size takes the memory that was released last
    if broken:
        wire.drop("forward_backward", apply=False)
    training.forward_backward(large, "cross_entropy").result(60)
    is_used_again = BUFFERS.join([sent.body]).obj is memory.obj
    assert is_used_again is not broken


def attempts(wire: Any, operation: str) -> set[tuple[bytes, str]]:
    """Return the distinct bodies and keys with which an operation was sent."""
    sent = wire.requests(operation)
    return {(one.body, one.request.headers["x-idempotency-key"]) for one in sent}


@pytest.mark.parametrize("apply", [False, True])
def test_broken_connection_never_doubles_a_step(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum, apply: bool
) -> None:
    """A submission whose response is lost is sent again unchanged, and is applied once."""
    wire.drop("forward_backward", apply=apply)
    training.forward_backward([datum()], "cross_entropy").result(10)
    wire.drop("optim_step", apply=apply)
    training.optim_step(ADAM).result(10)
    for operation in ("forward_backward", "optim_step"):
        assert len(wire.requests(operation)) == 2
        assert len(attempts(wire, operation)) == 1


@pytest.mark.parametrize(
    "operation", ["create_session", "create_model", "forward_backward", "optim_step", "asample"]
)
@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xff", b"{}", b'{"request_id": 7'])
def test_unreadable_responses_are_retried(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum, operation: str, body: bytes
) -> None:
    """A submission with a corrupted response is sent again, byte for byte, and is applied once."""
    wire.fail(operation, 200, body=body, apply=True, times=2, outside=SPOILED)
    training = service.create_lora_training_client("tinker/toy", rank=4)
    training.forward_backward([datum()], "cross_entropy").result(10)
    training.optim_step(ADAM).result(10)
    training.save_weights_and_get_sampling_client().sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests(operation)) == 3
    assert len(attempts(wire, operation)) == 1


def test_permanently_unreadable_responses(training: tinker.TrainingClient, wire: Any) -> None:
    """The third corrupted response is raised as such, and later requests are not sent."""
    wire.fail("optim_step", 200, body=b"\xff", apply=True, times=3, outside=SPOILED)
    failed, stopped = training.optim_step(ADAM), training.optim_step(ADAM)
    with pytest.raises(tinker.APIResponseValidationError, match="optim_step"):
        failed.result(10)
    with pytest.raises(tinker.PrecedingRequestFailed):
        stopped.result(10)
    assert len(wire.requests("optim_step")) == 3


def test_failed_result_fails_only_its_own_future(
    training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A request that the server accepts and then fails on fails only its future."""
    unknown = training.forward_backward([datum([10**6])], "cross_entropy")
    with pytest.raises(tinker.RequestFailedError) as caught:
        unknown.result(10)
    assert (caught.value.category, caught.value.operation) == ("user", "forward_backward")
    assert training.forward_backward([datum()], "cross_entropy").result(10).loss > 0


def test_state_is_saved_and_loaded(
    service: tinker.ServiceClient, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A run from a state with its optimizer gives exactly the results of the saved run."""
    for _ in range(3):
        training.forward_backward([datum()], "cross_entropy")
        training.optim_step(ADAM)
    path = training.save_state("three").result(10).path
    again = service.create_training_client_from_state_with_optimizer(path)
    fresh = service.create_training_client_from_state(path)
    for client in (training, again, fresh):
        client.forward_backward([datum()], "cross_entropy")
        client.optim_step(ADAM)
    one, other, third = (
        client.forward([datum()], "cross_entropy").result(10).loss
        for client in (training, again, fresh)
    )
    assert one == other
    assert third != one
    assert again.model_id != training.model_id


def test_numpy_and_lists_are_the_same(training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """Token and weight arrays are accepted directly and mean the same as lists."""
    inputs: Any = {"target_tokens": np.asarray([2, 3, 4]), "weights": np.ones(3)}
    arrays = tinker.Datum(tinker.ModelInput.from_ints(np.asarray([1, 2, 3])), inputs)
    one, same = (training.forward([it], "cross_entropy").result(10) for it in (datum(), arrays))
    assert one.loss == same.loss


def test_files_to_download(training: tinker.TrainingClient, wire: Any) -> None:
    """Weights are saved as files with the given name, expiry and keys; the result has the path."""
    path = "tinker://run/external_weights/kept"
    wire.fail("save_weights_external", 200, body={"request_id": "r"})
    wire.fail("retrieve_future", 200, body={"path": path, "type": "save_weights_external"})
    given: Any = {"ttl_seconds": np.int64(7200), "age_encryption_recipients": ["age1abc"]}
    assert training.save_weights_external("kept", **given).result(10).path == path
    sent = wire.requests("save_weights_external")[0].json
    assert {name: sent[name] for name in ("path", *given)} == {"path": "kept", **given}


def test_twins_return_the_future_of_their_method(
    training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """Awaiting an async twin returns the future of its method."""
    batch = [datum()]

    async def scenario() -> None:
        losses = [
            await training.forward_async(batch, "cross_entropy"),
            await training.forward_backward_async(batch, "cross_entropy"),
            await training.forward_backward_custom_async(batch, own_loss),
        ]
        assert all([(await one).loss for one in losses])
        await (await training.optim_step_async(ADAM))
        kept = await (await training.save_state_async("kept"))
        assert kept.path.endswith("/kept")
        sampled = await (await training.save_weights_for_sampler_async("kept"))
        assert sampled.path.endswith("/kept")

    asyncio.run(scenario())


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("saved", [False, True])
def test_samplers_of_a_run_send_the_recording_choice(
    training: tinker.TrainingClient, wire: Any, recorded: bool, saved: bool
) -> None:
    """Both kinds of samplers of a run send the user's choice of recording, by default nothing."""
    asked: dict[str, Any] = {"record_stability_info": True} if recorded else {}
    if saved:
        path = training.save_weights_for_sampler("s").result(10).path
        sampler = training.create_sampling_client(path, **asked)
    else:
        sampler = training.save_weights_and_get_sampling_client(**asked)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert wire.requests("asample")[0].json["record_stability_info"] is recorded
