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
    """Targets that are sent sparse: 40 positions with 20 candidates each, of which the first
    counts.
    """
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


def test_sparse_tensors_are_made_dense_where_they_are_refused(
    training: tinker.TrainingClient, wire: Any
) -> None:
    """A server that refuses sparse tensors gets them dense under the same number, and dense at once
    from then on.
    """
    wire.fail(
        "forward_backward", 422, body={"detail": "Sparse loss_fn_input tensors are not supported"}
    )
    first = training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    second = training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    assert shapes_sent(wire) == [(1, True), (1, False), (2, False)]
    assert first.loss == second.loss


def test_sparse_tensors_stay_sparse_where_they_are_read(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """A success with sparse tensors shows that they are supported; a success without them shows
    nothing.
    """
    training.forward_backward([datum()], "cross_entropy").result(10)
    training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    assert shapes_sent(wire)[1:] == [(2, True)]


def test_an_older_success_does_not_make_tensors_sparse_again(
    service: tinker.ServiceClient, wire: Any, datum: MakeDatum
) -> None:
    """A late success of an earlier request without sparse tensors does not make tensors sparse
    again after a refusal.
    """
    first, second = (service.create_lora_training_client("tinker/toy").result(10) for _ in range(2))
    answer = wire.hold("forward_backward")
    early = first.forward_backward([datum()], "cross_entropy")
    wire.wait_for("forward_backward")
    wire.fail(
        "forward_backward", 422, body={"detail": "Sparse loss_fn_input tensors are not supported"}
    )
    second.forward_backward([sparse_datum()], "cross_entropy").result(10)
    answer()
    early.result(10)
    second.forward_backward([sparse_datum()], "cross_entropy").result(10)
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
    """If every form is refused, the first refusal is raised, different ones are notes, and one
    number is used.
    """
    wire.fail("forward_backward", 422, body={"detail": "no such loss"}, times=2, form="protobuf")
    wire.fail("forward_backward", 422, body={"detail": second}, times=2, form="json")
    with pytest.raises(tinker.UnprocessableEntityError, match="no such loss") as caught:
        training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    assert [note.partition(":")[0] for note in getattr(caught.value, "__notes__", [])] == noted
    assert {one.seq_id for one in wire.requests("forward_backward")} == {1}


@pytest.mark.parametrize("knows_weights_info", [True, False])
def test_state_is_loaded_into_a_new_model(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    datum: MakeDatum,
    knows_weights_info: bool,
) -> None:
    """If loading cannot create a model, a fitting one is created and loaded by its first request;
    the run continues from it.
    """
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.5))
    path = training.save_state("s").result(10).path
    wire.fail("load_weights", 422, body={"detail": "model_id missing"})
    known: dict[str, Any] = {"base_model": "tinker/toy", "is_lora": True, "lora_rank": 4}
    if knows_weights_info:
        wire.fail(
            "weights_info",
            200,
            body={**known, "train_unembed": False, "train_mlp": False, "train_attn": True},
        )
    else:
        wire.fail("weights_info", 404)
        run = {
            "training_run_id": training.model_id,
            "model_owner": "me",
            "last_request_time": "2026-01-01T00:00:00Z",
        }
        wire.fail(f"training_runs/{training.model_id}", 200, body={**known, **run})
    again = service.create_training_client_from_state_with_optimizer(path)
    one, other = (
        client.forward([datum()], "cross_entropy").result(10).loss for client in (training, again)
    )
    assert one == other
    lora = wire.requests("create_model")[-1].json["lora_config"]
    assert lora == {
        "rank": 4,
        "train_attn": True,
        "train_mlp": not knows_weights_info,
        "train_unembed": not knows_weights_info,
    }
    load = wire.requests("load_weights")[-1].json
    assert (load["seq_id"], load["model_id"], load["optimizer"]) == (1, again.model_id, True)
    assert wire.requests("forward_backward")[-1].seq_id == 2


def test_a_load_that_may_have_arrived_keeps_its_number(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any
) -> None:
    """If a load into a new model is refused after an attempt whose response was lost, the model
    created instead has another number.
    """
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
    wire.fail("load_weights", 422, body={"detail": "model_id missing"})
    if source == "weights_info":
        wire.fail("weights_info", 200, body={"base_model": "tinker/toy", "is_lora": True})
    else:
        wire.fail("weights_info", 404)
        run = {
            "training_run_id": training.model_id,
            "model_owner": "me",
            "last_request_time": "2026-01-01T00:00:00Z",
        }
        wire.fail(
            f"training_runs/{training.model_id}",
            200,
            body={"base_model": "tinker/toy", "is_lora": True, **run},
        )
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


# ------------------------------------------------------------------------------- the form of bodies

CANNOT = {"detail": "an unexpected failure"}
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


def forms_sent(wire: Any) -> list[tuple[str, int]]:
    """Return the form and the number of each training request."""
    return [
        (one.request.headers["content-type"].rpartition("/")[2], one.seq_id)
        for one in wire.requests("forward_backward")
    ]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 409, 413, 415, 418, 422])
def test_protobuf_that_is_refused_is_sent_as_json(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum, status: int
) -> None:
    """If the first protobuf body is refused, in whatever way, the same request is sent as JSON, and
    JSON from then on.
    """
    wire.fail("forward_backward", status, body={"detail": "what is this"}, form="protobuf")
    for _ in range(2):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert forms_sent(wire) == [("x-protobuf", 1), ("json", 1), ("json", 2)]


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
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert forms_sent(wire) == [("json", 1), ("x-protobuf", 1), ("x-protobuf", 2)]


def test_protobuf_that_makes_a_server_fail_is_sent_as_json(
    training: tinker.TrainingClient, wire: Any, clock: Any, datum: MakeDatum
) -> None:
    """A server that fails on protobuf gets JSON at once, and only JSON after the second such
    failure.
    """
    wire.fail(
        "forward_backward",
        500,
        body=b"Internal Server Error",
        times=2,
        form="protobuf",
        outside="another server's",
    )
    del clock.slept[:]
    for _ in range(3):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert forms_sent(wire) == [
        ("x-protobuf", 1),
        ("json", 1),
        ("x-protobuf", 2),
        ("json", 2),
        ("json", 3),
    ]
    assert max(clock.slept, default=0) < 0.5  # polls, no retries


def test_the_form_in_which_a_connection_broke_is_tried_again(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """If a server fails on protobuf and then closes the connection, the next attempt is JSON again,
    not protobuf.
    """
    wire.fail(
        "forward_backward",
        500,
        body=b"Internal Server Error",
        form="protobuf",
        outside="another server's",
    )
    wire.drop("forward_backward", apply=False)
    training.forward_backward([datum()], "cross_entropy").result(10)
    assert forms_sent(wire) == [("x-protobuf", 1), ("json", 1), ("json", 1)]


def test_a_server_that_fails_once_keeps_getting_protobuf(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """After one failure that did not recur with JSON, the session keeps sending protobuf."""
    wire.fail("forward_backward", 500, body=CANNOT, form="protobuf")
    for _ in range(3):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert forms_sent(wire) == [
        ("x-protobuf", 1),
        ("json", 1),
        ("x-protobuf", 2),
        ("x-protobuf", 3),
    ]


def test_a_server_that_fails_for_a_while_is_retried(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Failures of both forms are retried, and after a few rounds the request is sent as protobuf
    alone.
    """
    wire.fail("forward_backward", 500, body=CANNOT, times=6)
    training.forward_backward([datum()], "cross_entropy").result(10)
    assert [form for form, _ in forms_sent(wire)] == ["x-protobuf", "json"] * 3 + ["x-protobuf"] * 4
    attempts = {
        one.request.headers["x-idempotency-key"] for one in wire.requests("forward_backward")
    }
    assert len(attempts) == 2


def test_overload_does_not_change_the_form(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Responses of gateways, and requests to slow down, do not change the form."""
    for status in (502, 503, 504, 429, 408):
        wire.fail("forward_backward", status)
    training.forward_backward([datum()], "cross_entropy").result(10)
    assert forms_sent(wire) == [("x-protobuf", 1)] * 6


def test_accepted_protobuf_is_kept(
    training: tinker.TrainingClient, wire: Any, datum: MakeDatum
) -> None:
    """Once protobuf was accepted, later failures and refusals do not change the form."""
    training.forward_backward([datum()], "cross_entropy").result(10)
    wire.fail("forward_backward", 500, times=2)
    training.forward_backward([datum()], "cross_entropy").result(10)
    wire.fail("forward_backward", 400, body={"detail": "no"})
    with pytest.raises(tinker.BadRequestError):
        training.forward_backward([datum()], "cross_entropy").result(10)
    assert {form for form, _ in forms_sent(wire)} == {"x-protobuf"}


@pytest.mark.parametrize("choice", ["proto", "json"])
def test_a_configured_form_is_never_changed(
    connect: Connect, wire: Any, datum: MakeDatum, choice: str
) -> None:
    """A form chosen by the user is kept, even if the server fails on it."""
    training = connect(wire=choice).create_lora_training_client("tinker/toy").result(10)
    wire.fail("forward_backward", 500, times=2)
    training.forward_backward([datum()], "cross_entropy").result(10)
    assert len({form for form, _ in forms_sent(wire)}) == 1


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
    """If a request is refused in both forms, the error is that of the form that was read; the other
    one is a note.
    """
    rounds = 3 if as_proto[0] == 500 else 1
    for _ in range(rounds):
        for form, (status, body) in (("protobuf", as_proto), ("json", as_json)):
            wire.fail("forward_backward", status, body=body, form=form, outside="another server's")
    with pytest.raises(tinker.APIStatusError, match="no such loss") as caught:
        training.forward_backward([datum()], "cross_entropy").result(10)
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
    """Server settings that let no request pass are reported at once, with the name
    of the setting.
    """
    wire.fail("client/config", 200, body={limit: value}, times=3, outside="no limit is below 1")
    with pytest.raises(
        tinker.APIResponseValidationError, match=f"{limit} must be at least 1, got {value}"
    ):
        connect().create_sampling_client(base_model="tinker/toy").result(10)
    assert connect().create_sampling_client(base_model="tinker/toy").result(10)
