"""The format of training requests on servers that refuse sparse tensors, protobuf or JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinker
from tinker._wire import proto

MakeDatum = Callable[..., tinker.Datum]
Connect = Callable[..., tinker.ServiceClient]


def sparse_datum() -> tinker.Datum:
    """Targets that are sent sparse: 40 positions of 20 candidates, of which the first counts."""
    targets, weights = np.zeros((40, 20), np.int64), np.zeros((40, 20), np.float32)
    targets[:, 0], weights[:, 0] = 7, 1.0
    inputs: Any = {
        "target_tokens": tinker.TensorData.from_numpy_sparse(targets),
        "weights": tinker.TensorData.from_numpy_sparse(weights),
    }
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(range(40)), loss_fn_inputs=inputs)
    assert datum.loss_fn_inputs["weights"].is_sparse
    return datum


def shapes_sent(wire: Any) -> list[tuple[int, bool]]:
    calls = [proto.decode_forward_backward(one.body) for one in wire.requests("forward_backward")]
    return [(call.seq_id, call.data[0].loss_fn_inputs["weights"].is_sparse) for call in calls]


def refuse_sparse(wire: Any) -> None:
    said = "Sparse loss_fn_input tensors are not supported"
    wire.fail("forward_backward", 422, body={"detail": said})


def step(run: tinker.TrainingClient, datum: tinker.Datum) -> tinker.ForwardBackwardOutput:
    return run.forward_backward([datum], "cross_entropy").result(10)


def test_sparse_tensors_are_made_dense_where_they_are_refused(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """Refused sparse tensors are sent dense, under the same number, and so from then on."""
    refuse_sparse(wire)
    first = step(training, sparse_datum())
    second = step(training, sparse_datum())
    assert shapes_sent(wire) == [(1, True), (1, False), (2, False)]
    assert first.loss == second.loss


def test_sparse_tensors_stay_sparse_where_they_are_read(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A success with sparse tensors shows that they are read; one without shows nothing."""
    step(training, datum())
    step(training, sparse_datum())
    assert shapes_sent(wire)[1:] == [(2, True)]


def test_an_older_success_does_not_make_tensors_sparse_again(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum
) -> None:
    """A late success without sparse tensors does not undo a later refusal of them."""
    first, second = (service.create_lora_training_client("tinker/toy").result(10) for _ in range(2))
    answer = wire.hold("forward_backward")
    early = first.forward_backward([datum()], "cross_entropy")
    wire.wait_for("forward_backward")
    refuse_sparse(wire)
    step(second, sparse_datum())
    answer()
    early.result(10)
    step(second, sparse_datum())
    assert [is_sparse for _, is_sparse in shapes_sent(wire)] == [False, True, False, False]


@pytest.mark.parametrize(
    ("second", "noted"),
    [
        ("no such loss", []),
        ("no such form", ["As json, sparse tensors kept", "As json, sparse tensors made dense"]),
    ],
)
def test_refusal_in_every_form_is_the_first_one(
    training: tinker.TrainingClient, wire: Any, second: str, noted: list[str]
) -> None:
    """If every form is refused, the first refusal is raised, others are notes."""
    wire.fail("forward_backward", 422, body={"detail": "no such loss"}, times=2, form="protobuf")
    wire.fail("forward_backward", 422, body={"detail": second}, times=2, form="json")
    with pytest.raises(tinker.UnprocessableEntityError, match="no such loss") as caught:
        step(training, sparse_datum())
    assert [note.partition(":")[0] for note in getattr(caught.value, "__notes__", [])] == noted
    assert {one.seq_id for one in wire.requests("forward_backward")} == {1}


def describe_state(wire: Any, run_id: str, source: str, **known: Any) -> None:
    """Refuse to load into no model, and describe a state by its weights or by its run."""
    known |= {"base_model": "tinker/toy", "is_lora": True}
    wire.fail("load_weights", 422, body={"detail": "model_id missing"})
    if source == "training_runs":
        wire.fail("weights_info", 404)
        known |= {"training_run_id": run_id, "model_owner": "me"}
        known |= {"last_request_time": "2026-01-01T00:00:00Z"}
    wire.fail(source if source == "weights_info" else f"{source}/{run_id}", 200, body=known)


@pytest.mark.parametrize("source", ["weights_info", "training_runs"])
def test_state_is_loaded_into_a_new_model(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    source: str,
) -> None:
    """If loading creates no model, a fitting one is created and loaded, and the run goes on."""
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.5))
    path = training.save_state("s").result(10).path
    parts = {"train_unembed": False, "train_mlp": False, "train_attn": True}
    of_weights = source == "weights_info"
    describe_state(wire, training.model_id, source, lora_rank=4, **(parts if of_weights else {}))
    again = service.create_training_client_from_state_with_optimizer(path)
    one, other = (
        client.forward([datum()], "cross_entropy").result(10).loss for client in (training, again)
    )
    assert one == other
    trained = parts if of_weights else dict.fromkeys(parts, True)
    assert wire.requests("create_model")[-1].json["lora_config"] == {"rank": 4, **trained}
    load = wire.requests("load_weights")[-1].json
    assert (load["seq_id"], load["model_id"], load["optimizer"]) == (1, again.model_id, True)
    assert wire.requests("forward_backward")[-1].seq_id == 2


def test_a_load_that_may_have_arrived_keeps_its_number(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any
) -> None:
    """A model created instead of a load that may have arrived has another number."""
    path = training.save_state("s").result(10).path
    wire.drop("load_weights", apply=True)
    wire.fail("load_weights", 400, outside="the server has accepted the load before")
    again = service.create_training_client_from_state(path)
    assert again.save_state("again").result(10).path
    (loaded,) = {
        one.json["model_seq_id"]
        for one in wire.requests("load_weights")
        if one.json.get("session_id")
    }
    assert wire.requests("create_model")[-1].json["model_seq_id"] != loaded


@pytest.mark.parametrize("source", ["weights_info", "training_runs"])
def test_the_rank_of_a_state_of_unknown_rank(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, source: str
) -> None:
    """The new model for a state whose rank the server does not say has the default rank."""
    path = training.save_state("s").result(10).path
    describe_state(wire, training.model_id, source)
    service.create_training_client_from_state(path).save_state("again").result(10)
    assert wire.requests("create_model")[-1].json["lora_config"]["rank"] == 32


def test_one_stop_text_is_a_list_of_one(service: tinker.ServiceClient, wire: Any) -> None:
    """A single stop string is sent in the form that every server reads."""
    params = tinker.SamplingParams(max_tokens=1, stop="END")
    service.create_sampling_client(base_model="tinker/toy").sample(
        tinker.ModelInput.from_ints([1]), 1, params
    ).result(10)
    assert wire.requests("asample")[0].json["sampling_params"]["stop"] == ["END"]
    assert params.stop == "END"


NO_BODY = {"detail": [{"type": "json_invalid", "loc": ["body", 0], "msg": "JSON decode error"}]}
NO_LOSS = {
    "detail": [
        {
            "type": "literal_error",
            "loc": ["body", "forward_backward_input", "loss_fn"],
            "msg": "no such loss",
        }
    ]
}


def forms_sent(wire: Any) -> list[str]:
    """Return the form and the number of each training request, such as ``json 1``."""
    return [
        f"{one.request.headers['content-type'].rpartition('/')[2].removeprefix('x-')} {one.seq_id}"
        for one in wire.requests("forward_backward")
    ]


#: What fails in which form, and what is sent.
FAILURES: dict[str, tuple[list[tuple[int | None, str | None]], str]] = {
    **{
        f"refused with {status}": ([(status, "protobuf")], "protobuf 1, json 1, json 2")
        for status in (400, 401, 403, 404, 405, 406, 409, 413, 415, 418, 422)
    },
    "failed": ([(500, "protobuf")], "protobuf 1, json 1, protobuf 2, protobuf 3"),
    "failed twice": (
        [(500, "protobuf")] * 2,
        "protobuf 1, json 1, protobuf 2, json 2, json 3",
    ),
    "failed, then JSON broke off": (
        [(500, "protobuf"), (None, "json")],
        "protobuf 1, json 1, json 1",
    ),
    "busy": ([(one, None) for one in (502, 503, 504, 429, 408)], ", ".join(["protobuf 1"] * 6)),
}


@pytest.mark.parametrize(("failures", "sent"), FAILURES.values(), ids=FAILURES.keys())
def test_the_form_after_failures(
    training: tinker.TrainingClient,
    wire: Any,
    clock: Any,
    datum: MakeDatum,
    failures: Any,
    sent: str,
) -> None:
    """What a server refuses or fails on as protobuf is sent as JSON at once, under the same number,
    and from then on if it was refused or failed twice; busy servers do not change the form.
    """
    for status, form in failures:
        if status is None:
            wire.drop("forward_backward", apply=False)
        else:
            body = b"Internal Server Error" if status == 500 else {"detail": "what is this"}
            wire.fail("forward_backward", status, body=body, form=form, outside="another server's")
    del clock.slept[:]
    for _ in range(int(sent.rpartition(" ")[2])):
        step(training, datum())
    assert ", ".join(forms_sent(wire)) == sent
    if all(form == "protobuf" for _, form in failures):
        assert max(clock.slept, default=0) < 0.5  # polls, no retries


@pytest.mark.parametrize("status", [415, 422])
def test_json_that_is_refused_is_sent_as_protobuf(
    connect: Connect, wire: Any, datum: MakeDatum, status: int
) -> None:
    """Without evidence for protobuf a server gets JSON first, and protobuf if it refuses JSON."""
    wire.fail("client/config", 404)
    wire.fail(
        "forward_backward",
        status,
        body={"detail": "protobuf only"} if status == 415 else NO_BODY,
        form="json",
    )
    training = connect().create_lora_training_client("tinker/toy").result(10)
    for _ in range(2):
        step(training, datum())
    assert forms_sent(wire) == ["json 1", "protobuf 1", "protobuf 2"]


def test_a_server_that_fails_for_a_while_is_retried(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Failures of both forms are retried, after a few rounds as protobuf alone."""
    wire.fail("forward_backward", 500, times=6)
    step(training, datum())
    assert forms_sent(wire) == ["protobuf 1", "json 1"] * 3 + ["protobuf 1"] * 4
    attempts = {
        one.request.headers["x-idempotency-key"] for one in wire.requests("forward_backward")
    }
    assert len(attempts) == 2


def test_accepted_protobuf_is_kept(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Once protobuf was accepted, later failures and refusals do not change the form."""
    step(training, datum())
    wire.fail("forward_backward", 500, times=2)
    step(training, datum())
    wire.fail("forward_backward", 400, body={"detail": "no"})
    with pytest.raises(tinker.BadRequestError):
        step(training, datum())
    assert {one.split()[0] for one in forms_sent(wire)} == {"protobuf"}


@pytest.mark.parametrize("choice", ["proto", "json"])
def test_a_configured_form_is_never_changed(
    connect: Connect, wire: Any, datum: MakeDatum, choice: str
) -> None:
    """A form chosen by the user is kept, even if the server fails on it."""
    training = connect(wire=choice).create_lora_training_client("tinker/toy").result(10)
    wire.fail("forward_backward", 500, times=2)
    step(training, datum())
    assert len(set(forms_sent(wire))) == 1


@pytest.mark.parametrize(
    ("as_proto", "as_json", "raised"),
    [
        ((400, {"detail": "no such loss"}), (415, {"detail": "protobuf only"}), 400),
        ((415, {"detail": "JSON only"}), (400, {"detail": "no such loss"}), 400),
        ((422, NO_BODY), (422, NO_LOSS), 422),
        ((404, b"<html>nginx</html>"), (422, NO_LOSS), 422),
        ((500, b"Internal Server Error"), (422, NO_LOSS), 422),
    ],
)
def test_the_refusal_of_the_form_that_was_read_is_raised(
    training: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    as_proto: Any,
    as_json: Any,
    raised: int,
) -> None:
    """Of two refusals, that of the form that was read is raised; the other is a note."""
    rounds = 3 if as_proto[0] == 500 else 1
    for _ in range(rounds):
        for form, (status, body) in (("protobuf", as_proto), ("json", as_json)):
            wire.fail("forward_backward", status, body=body, form=form, outside="another server's")
    with pytest.raises(tinker.APIStatusError, match="no such loss") as caught:
        step(training, datum())
    assert caught.value.status_code == raised
    assert any(note.startswith(("As proto", "As json")) for note in caught.value.__notes__)


LIMITS = (
    "sample_max_concurrent_requests",
    "sample_dispatch_bytes_semaphore_size",
    "fwdbwd_dispatch_bytes_semaphore_size",
    "inflight_response_bytes_semaphore_size",
    "fwdbwd_max_chunk_len",
    "fwdbwd_max_chunk_bytes_count",
)


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [0, -1])
def test_limits_that_no_request_can_meet(
    limit: str, value: int, connect: Connect, wire: Any
) -> None:
    """Settings of a server that let no request pass are reported at once, by name."""
    wire.fail("client/config", 200, body={limit: value}, times=3, outside="no limit is below 1")
    with pytest.raises(
        tinker.APIResponseValidationError, match=f"{limit} must be at least 1, got {value}"
    ):
        connect().create_sampling_client(base_model="tinker/toy").result(10)
    assert connect().create_sampling_client(base_model="tinker/toy").result(10)
