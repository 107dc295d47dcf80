"""Servers that know less than the hosted one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinker
from tinker._wire import proto

MakeDatum = Callable[..., tinker.Datum]


def sparse_datum() -> tinker.Datum:
    """Targets that are sent sparse: 40 positions, 20 candidates each, of which the first counts."""
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
    calls = [proto.decode_forward_backward(one.body) for one in wire.sent("forward_backward")]
    return [(call.seq_id, call.data[0].loss_fn_inputs["weights"].is_sparse) for call in calls]


def test_sparse_tensors_are_made_dense_where_they_are_refused(training: tinker.TrainingClient, wire: Any) -> None:
    """A server that refuses sparse tensors gets them dense under the same number, and from then on at once."""
    wire.fail("forward_backward", 422, body={"detail": "Sparse loss_fn_input tensors are not supported"})
    first = training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    second = training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    assert shapes_sent(wire) == [(1, True), (1, False), (2, False)]
    assert first.loss == second.loss


def test_sparse_tensors_stay_sparse_where_they_are_read(training: tinker.TrainingClient, wire: Any, datum: MakeDatum) -> None:
    """A success without sparse tensors says nothing about them, one with them does."""
    training.forward_backward([datum()], "cross_entropy").result(10)
    training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    assert shapes_sent(wire)[1:] == [(2, True)]


def test_refusal_in_every_form_is_the_first_one(training: tinker.TrainingClient, wire: Any) -> None:
    """When no form is accepted, the first refusal is raised, with the others as notes, and nothing was numbered twice."""
    wire.fail("forward_backward", 422, body={"detail": "no such loss"}, times=3)
    with pytest.raises(tinker.UnprocessableEntityError, match="no such loss") as caught:
        training.forward_backward([sparse_datum()], "cross_entropy").result(10)
    assert [note.partition(":")[0] for note in caught.value.__notes__] == [
        "As proto, sparse tensors made dense",
        "As json, sparse tensors kept",
    ]
    assert {one.seq_id for one in wire.sent("forward_backward")} == {1}


@pytest.mark.parametrize("knows_weights_info", [True, False])
def test_state_is_loaded_into_a_model_made_for_it(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, datum: MakeDatum, knows_weights_info: bool
) -> None:
    """Where loading cannot create a model, a fitting one is created and loaded as its first request; the run goes on from it."""
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.5))
    path = training.save_state("s").result(10).path
    wire.fail("load_weights", 422, body={"detail": "model_id missing"})
    known: dict[str, Any] = {"base_model": "tinker/toy", "is_lora": True, "lora_rank": 4}
    if knows_weights_info:
        wire.fail("weights_info", 200, body={**known, "train_unembed": True})
    else:
        wire.fail("weights_info", 404)
        run = {"training_run_id": training.model_id, "model_owner": "me", "last_request_time": "2026-01-01T00:00:00Z"}
        wire.fail(f"training_runs/{training.model_id}", 200, body={**known, **run})
    again = service.create_training_client_from_state_with_optimizer(path)
    one, other = (client.forward([datum()], "cross_entropy").result(10).loss for client in (training, again))
    assert one == other
    assert wire.sent("create_model")[-1].json["lora_config"]["rank"] == 4
    load = wire.sent("load_weights")[-1].json
    assert (load["seq_id"], load["model_id"], load["optimizer"]) == (1, again.model_id, True)
    assert wire.sent("forward_backward")[-1].seq_id == 2


def test_one_stop_text_is_a_list_of_one(service: tinker.ServiceClient, wire: Any) -> None:
    """A bare stop text is sent in the form that every server reads."""
    params = tinker.SamplingParams(max_tokens=1, stop="END")
    service.create_sampling_client(base_model="tinker/toy").sample(tinker.ModelInput.from_ints([1]), 1, params).result(10)
    assert wire.sent("asample")[0].json["sampling_params"]["stop"] == ["END"]
    assert params.stop == "END"
