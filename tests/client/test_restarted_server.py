"""Server restarts: what is lost is reported, and the client continues in a new session."""

from __future__ import annotations

import concurrent.futures
import gc
from collections.abc import Callable
from typing import Any

import pytest
from support.queue_news import waiting

import tinker

MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams(learning_rate=0.01)
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=2)
LOST = "no longer knows this client's session"

OPERATIONS: dict[
    str, Callable[[tinker.TrainingClient, tinker.SamplingClient, tinker.Datum], Any]
] = {
    "forward": lambda training, _, datum: training.forward([datum], "cross_entropy"),
    "backward": lambda training, _, datum: training.forward_backward([datum], "cross_entropy"),
    "optim_step": lambda training, *_: training.optim_step(ADAM),
    "save_state": lambda training, *_: training.save_state("late"),
    "save_weights_for_sampler": lambda training, *_: training.save_weights_for_sampler("late"),
    "load_state": lambda training, *_: training.load_state("tinker://some-run/weights/kept"),
    "get_sampling_client": lambda training, *_: training.save_weights_and_get_sampling_client(),
    "sample": lambda _, sampler, __: sampler.sample(PROMPT, 1, PARAMS),
    "compute_logprobs": lambda _, sampler, __: sampler.compute_logprobs(PROMPT),
}


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_reports_the_lost_session(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    restart: Callable[[], None],
    datum: MakeDatum,
    operation: str,
    replaced: bool,
) -> None:
    """Each request raises a NotFoundError that says how to continue, also next to a new session."""
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    restart()
    if replaced:
        service.create_sampling_client(base_model="tinker/toy").result(10)
    with pytest.raises(tinker.SessionLostError, match=LOST) as caught:
        OPERATIONS[operation](training, sampler, datum()).result(10)
    assert isinstance(caught.value, tinker.NotFoundError)
    assert replaced or isinstance(caught.value.__cause__, tinker.NotFoundError)
    assert "create_training_client_from_state_with_optimizer" in str(caught.value).splitlines()[0]


def test_what_was_not_sent_because_of_the_lost_session(
    training: tinker.TrainingClient,
    restart: Callable[[], None],
    datum: MakeDatum,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A step behind an unseen gradient reports the lost session too."""
    training.optim_step(ADAM).result(10)
    restart()
    unseen = training.forward_backward([datum()], "cross_entropy")
    with pytest.raises(tinker.SessionLostError, match=LOST) as caught:
        training.optim_step(ADAM).result(10)
    assert caught.value.__notes__[-1] == "optim_step was not sent."
    del unseen
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_loop_that_looks_at_nothing_after_the_session_was_lost(
    training: tinker.TrainingClient,
    restart: Callable[[], None],
    datum: MakeDatum,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The loss of the session is logged once, however many requests fail because of it."""
    training.optim_step(ADAM).result(10)
    restart()
    training.forward_backward([datum()], "cross_entropy")
    for _ in range(6):
        concurrent.futures.wait([training.optim_step(ADAM)], 10)
        gc.collect()
    assert caplog.text.count("never retrieved") == 1


def test_a_result_that_was_waited_for(
    training: tinker.TrainingClient, wire: Any, restart: Callable[[], None], datum: MakeDatum
) -> None:
    """A request accepted before the restart adds to the error that its outcome is unknown."""
    wire.fail("retrieve_future", 200, body=waiting("active"), times=10**9)
    unfinished = training.forward_backward([datum()], "cross_entropy")
    wire.wait_for("retrieve_future", len(wire.requests("retrieve_future")) + 1)
    restart()
    wire.faults.clear()
    with pytest.raises(tinker.SessionLostError) as caught:
        unfinished.result(10)
    assert "does not know whether it ran" in str(caught.value.__cause__.__notes__)


def test_a_new_client_starts_a_new_session(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    restart: Callable[[], None],
    datum: MakeDatum,
) -> None:
    """The same service client continues the run from its checkpoint, in a new session."""
    path = training.save_state("kept").result(10).path
    restart()
    again = service.create_training_client_from_state_with_optimizer(path)
    assert again.forward_backward([datum()], "cross_entropy").result(10).loss > 0
    assert again.optim_step(ADAM).result(10)
    sampler = service.create_sampling_client(base_model="tinker/toy")
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert len(wire.requests("create_session")) == 2
    first, second = (answer["session_id"] for answer in wire.answers("create_session"))
    assert first != second
    assert again.model_id.startswith(second)


@pytest.mark.parametrize("kind", ["sampler", "training"])
def test_several_new_clients_share_the_new_session(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    restart: Callable[[], None],
    kind: str,
) -> None:
    """Clients created concurrently after a restart share one new session."""
    restart()
    create = "sampling" if kind == "sampler" else "lora_training"
    make = getattr(service, f"create_{create}_client")
    for client in [make(base_model="tinker/toy") for _ in range(4)]:
        client.result(10)
    assert len(wire.requests("create_session")) == 2


def test_an_unknown_checkpoint_is_not_a_lost_session(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, clock: Any
) -> None:
    """While the server knows the session, a 404 is raised and no new session is started."""
    clock.advance(10)
    wire.wait_for("session_heartbeat")
    wire.fail("create_sampling_session", 404)
    with pytest.raises(tinker.NotFoundError) as caught:
        service.create_sampling_client(model_path="tinker://none/sampler_weights/none").result(10)
    assert not isinstance(caught.value, tinker.SessionLostError)
    assert len(wire.requests("create_session")) == 1


def test_a_server_without_heartbeats(
    connect: Callable[..., tinker.ServiceClient], wire: Any
) -> None:
    """If a server has never answered a heartbeat, a 404 does not mean that the session is lost."""
    wire.fail("session_heartbeat", 404, times=10**9)
    training = connect().create_lora_training_client("tinker/toy", rank=4).result(10)
    wire.wait_for("session_heartbeat")
    wire.fail("optim_step", 404)
    with pytest.raises(tinker.NotFoundError) as caught:
        training.optim_step(ADAM).result(10)
    assert not isinstance(caught.value, tinker.SessionLostError)
    wire.faults.clear()


def test_a_server_that_goes_down_again(
    training: tinker.TrainingClient, wire: Any, restart: Callable[[], None]
) -> None:
    """The check for a lost session is retried if its connection breaks."""
    restart()
    wire.drop("session_heartbeat", apply=False, times=2)
    with pytest.raises(tinker.SessionLostError):
        training.optim_step(ADAM).result(10)


def test_a_restart_before_the_first_heartbeat_of_a_session(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    restart: Callable[[], None],
) -> None:
    """A later session of a server with heartbeats may be lost before its first one."""
    restart()
    wire.fail("session_heartbeat", 404, times=10**9)
    again = service.create_lora_training_client("tinker/toy", rank=2)
    again.result(10)
    wire.fail("optim_step", 404)
    with pytest.raises(tinker.SessionLostError):
        again.optim_step(ADAM).result(10)
    wire.faults.clear()


def test_only_the_new_session_is_kept_alive(
    service: tinker.ServiceClient,
    training: tinker.TrainingClient,
    wire: Any,
    clock: Any,
    restart: Callable[[], None],
) -> None:
    """No heartbeat of the lost session is sent after a new one has replaced it."""
    restart()
    service.create_sampling_client(base_model="tinker/toy").result(10)
    # two of the lost session, the check whether it is lost, one of the new session
    wire.wait_for("session_heartbeat", 4)
    _, new = (answer["session_id"] for answer in wire.answers("create_session"))
    before = len(wire.requests("session_heartbeat"))
    clock.advance(10)
    wire.wait_for("session_heartbeat", before + 1)
    service.get_server_capabilities()
    assert [one.json["session_id"] for one in wire.requests("session_heartbeat")[before:]] == [new]
