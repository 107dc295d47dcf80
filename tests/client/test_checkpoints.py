"""What a training run saves, loads and frees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import tinker

MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams(learning_rate=0.05)


def accept(wire: Any, operation: str, result: dict[str, Any]) -> None:
    """Let the next request of an operation be accepted, and its result be this."""
    wire.fail(operation, 200, body={"request_id": f"{operation}-1"})
    wire.fail("retrieve_future", 200, body=result)


def test_weights_are_saved_to_download(training: tinker.TrainingClient, wire: Any) -> None:
    """An external save carries name, time and recipients, takes its number, and gives the path."""
    path = f"tinker://{training.model_id}/external_weights/out"
    accept(wire, "save_weights_external", {"path": path, "size_bytes": 5})
    saved = training.save_weights_external("out", 3600, ["age1abc"]).result(10)
    assert isinstance(saved, tinker.types.SaveWeightsExternalResponse)
    assert saved.path == path
    assert wire.sent("save_weights_external")[0].json == {
        "model_id": training.model_id,
        "path": "out",
        "seq_id": 1,
        "ttl_seconds": 3600,
        "age_encryption_recipients": ["age1abc"],
        "type": "save_weights_external",
    }
    assert wire.sent("retrieve_future")[-1].request.headers["x-tinker-request-type"] == "SaveWeightsExternal"


@pytest.mark.parametrize("with_optimizer", [False, True])
def test_state_is_loaded_in_place(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, datum: MakeDatum, with_optimizer: bool
) -> None:
    """A run that loads a state as its first request goes on from it, with the optimizer where asked for."""
    for _ in range(3):
        training.forward_backward([datum()], "cross_entropy")
        training.optim_step(ADAM)
    path = training.save_state("three").result(10).path
    other = service.create_lora_training_client("tinker/toy", rank=4, seed=5)
    load = other.load_state_with_optimizer if with_optimizer else other.load_state
    loaded = load(path)
    for client in (training, other):
        client.forward_backward([datum()], "cross_entropy")
        client.optim_step(ADAM)
    one, two = (client.forward([datum()], "cross_entropy").result(10).loss for client in (training, other))
    loaded.result(10)
    assert (one == two) is with_optimizer
    sent = wire.sent("load_weights")[0].json
    assert (sent["optimizer"], sent["seq_id"], sent["path"]) == (with_optimizer, 1, path)


def test_access_token_of_a_load(training: tinker.TrainingClient, wire: Any) -> None:
    """A token for somebody else's checkpoint goes along with the load."""
    accept(wire, "load_weights", {"path": "tinker://other/weights/1"})
    training.load_state("tinker://other/weights/1", weights_access_token="wtok").result(10)
    assert wire.sent("load_weights")[0].json["weights_access_token"] == "wtok"


def test_unloading_comes_last(training: tinker.TrainingClient, wire: Any, datum: MakeDatum) -> None:
    """A run is freed after what was called before, and that takes no number."""
    training.forward_backward([datum()], "cross_entropy").result(10)
    accept(wire, "unload_model", {"model_id": training.model_id, "type": "unload_model"})
    assert training.unload_model().result(10).model_id == training.model_id
    assert wire.sent("unload_model")[0].json == {"model_id": training.model_id, "type": "unload_model"}
    training.optim_step(ADAM).result(10)
    assert wire.sent("optim_step")[0].seq_id == 2


def test_wrong_arguments_are_refused_on_the_users_line(training: tinker.TrainingClient, wire: Any) -> None:
    """Names, times, recipients and paths that cannot be right are a ValueError; nothing is sent."""
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: training.save_weights_external("a/b"), "without '/'"),
        (lambda: training.save_weights_external("a", 60), "3600"),
        (lambda: training.save_weights_external("a", None, ["k"] * 11), "at most 10"),
        (lambda: training.save_weights_external("a", None, "age1abc"), "list"),
        (lambda: training.save_state("a", 60), "3600"),
        (lambda: training.save_weights_for_sampler("a", 60), "3600"),
        (lambda: training.load_state("nowhere"), "checkpoint path"),
        (lambda: training.load_state_with_optimizer("nowhere"), "checkpoint path"),
    ]
    before = len(wire.exchanges)
    for call, message in wrong:
        with pytest.raises(ValueError, match=message):
            call()
    assert len(wire.exchanges) == before


def test_twins_give_futures(training: tinker.TrainingClient, wire: Any) -> None:
    """The twins of a training client are awaited twice: for the future, and for the result."""

    async def scenario() -> None:
        accept(wire, "save_weights_external", {"path": "tinker://r/external_weights/a"})
        assert (await (await training.save_weights_external_async("a"))).path == "tinker://r/external_weights/a"
        for twin in (training.load_state_async, training.load_state_with_optimizer_async):
            accept(wire, "load_weights", {"path": "tinker://r/weights/a"})
            assert (await (await twin("tinker://r/weights/a"))).path == "tinker://r/weights/a"

    asyncio.run(scenario())
