"""Recovery of runs that no loop of this process trains: by the executor and the monitor."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.answers import training_run

import tinker
from tinker.observing import Event, RecoveryChange
from tinker.recovery import (
    RecoveredRun,
    RecoveryExecutor,
    RecoveryFailedError,
    RecoveryMonitor,
    RecoveryPolicy,
    RunMarkedCorrupted,
)

Connect = Callable[..., tinker.ServiceClient]
PARAMS = tinker.AdamParams(learning_rate=0.05)
POLL_SECONDS = 20.0
TIME = "2026-01-01T00:00:00Z"


def save(training: tinker.TrainingClient, *names: str, **metadata: str) -> list[str]:
    """Step and save under each name; return the paths."""
    paths = list[str]()
    for name in names:
        training.optim_step(PARAMS)
        paths.append(training.save_state(name, user_metadata=metadata or None).result(10).path)
    return paths


def test_the_last_checkpoint(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """A new client continues from the run's last checkpoint as reported by the server."""
    _, last = save(training, "a", "b")
    heard: list[RecoveredRun] = []
    executor = RecoveryExecutor(service, on_recovery=heard.append)
    recovered = executor.recover(training.model_id).result(10)
    assert heard == [recovered]
    assert recovered.recovery.save is not None
    assert (recovered.recovery.save.path, recovered.recovery.run_id) == (last, training.model_id)
    assert recovered.client.model_id == recovered.recovery.new_run_id != training.model_id
    assert recovered.client.optim_step(PARAMS).result(10)


def test_the_best_checkpoint_of_the_run(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """The policy's function receives every trainable checkpoint, with its stored metadata."""
    save(training, "a", score="3")
    (best,) = save(training, "b", score="9")
    save(training, "c", score="5")
    training.save_weights_for_sampler("sampler").result(10)
    policy = RecoveryPolicy(checkpoint=lambda one: float(one.user_metadata["score"]))
    recovered = RecoveryExecutor(service, policy).recover(training.model_id).result(10)
    assert recovered.recovery.save is not None
    assert recovered.recovery.save.path == best


def test_a_given_checkpoint(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any
) -> None:
    """A given path is used even if the server does not know the run any more."""
    given, _ = save(training, "a", "b")
    wire.fail(f"training_runs/{training.model_id}", 404, times=2)
    policy = RecoveryPolicy(checkpoint=given)
    RecoveryExecutor(service, policy).recover(training.model_id).result(10)
    RecoveryExecutor(service).recover(training.model_id, last_checkpoint=given).result(10)
    assert [one.json["path"] for one in wire.requests("load_weights")] == [given, given]


@pytest.mark.parametrize("policy", [RecoveryPolicy(), RecoveryPolicy(checkpoint=lambda save: 1.0)])
def test_the_new_run_has_the_metadata_of_the_lost_one(
    connect: Connect, policy: RecoveryPolicy
) -> None:
    """The new run and the recovery events have the user metadata of the lost run."""
    events: list[Event] = []
    service = connect(observers=[events.append])
    training = service.create_lora_training_client(
        "tinker/toy", rank=4, user_metadata={"trial": "2"}
    )
    save(training, "a")
    client = RecoveryExecutor(service, policy).recover(training.model_id).result(10).client
    rest = service.create_rest_client()
    assert rest.get_training_run(client.model_id).result(10).user_metadata == {"trial": "2"}
    told = [one for one in events if isinstance(one, RecoveryChange) and one.stage == "completed"]
    about = [(one.training_run_id, one.user_metadata) for one in told]
    assert about == [(training.model_id, {"trial": "2"})]


def test_a_run_without_a_checkpoint(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """Without a checkpoint the future and the user's function say that none is there."""
    failures: list[RecoveryFailedError] = []
    policy = RecoveryPolicy(attempts=2, backoff_seconds=1)
    executor = RecoveryExecutor(service, policy, on_failure=failures.append)
    words = "has no checkpoint that it can be recovered from"
    with pytest.raises(RecoveryFailedError, match=words):
        executor.recover(training.model_id).result(10)
    assert [one.attempts for one in failures] == [2]


def test_concurrent_recoveries_are_limited(service: tinker.ServiceClient, wire: Any) -> None:
    """Another run waits while the maximum is recovered; the same run is not recovered twice."""
    runs = [service.create_lora_training_client("tinker/toy", rank=4) for _ in range(3)]
    paths = [save(one, "a")[0] for one in runs]
    executor = RecoveryExecutor(service, at_once=2)
    release = wire.hold("load_weights")
    first = executor.recover(runs[0].model_id)
    wire.wait_for("load_weights")
    assert executor.recover(runs[0].model_id) is first
    second = wire.hold("load_weights")
    others = [executor.recover(one.model_id) for one in runs[1:]]
    wire.wait_for("load_weights", 2)
    assert not wire.arrives("load_weights", 3, seconds=0.1)
    release()
    second()
    found = [one.result(10).recovery.save for one in (first, *others)]
    assert [one.path for one in found if one is not None] == paths
    assert executor.recover(runs[0].model_id) is not first


@pytest.mark.parametrize("trial", range(10))
def test_two_threads_recover_a_run_once(
    service: tinker.ServiceClient, wire: Any, trial: int
) -> None:
    """Threads that request a recovery at the same time get one future, and one run is created."""
    training = service.create_lora_training_client("tinker/toy", rank=4)
    save(training, "a")
    executor, together = RecoveryExecutor(service), threading.Barrier(4)
    release = wire.hold("load_weights")

    def recover(_: int) -> tinker.APIFuture[RecoveredRun]:
        together.wait(10)
        return executor.recover(training.model_id)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        futures = set(threads.map(recover, range(4)))
    release()
    assert len({future.result(10).client.model_id for future in futures}) == 1
    assert len(wire.requests("load_weights")) == 1


class Heard:
    """What a monitor's executor and its observers were told, with a way to wait for it."""

    def __init__(self) -> None:
        self.recovered: list[RecoveredRun] = []
        self.unknown: list[RecoveryChange] = []
        self._changed = threading.Condition()

    def note(self, recovered: RecoveredRun) -> None:
        with self._changed:
            self.recovered.append(recovered)
            self._changed.notify_all()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RecoveryChange) and event.stage == "unknown":
            with self._changed:
                self.unknown.append(event)
                self._changed.notify_all()

    def wait(self, recovered: int = 0, unknown: int = 0) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: len(self.recovered) >= recovered and len(self.unknown) >= unknown,
                timeout=10,
            )


@pytest.fixture
def heard() -> Heard:
    return Heard()


Watched = tuple[RecoveryMonitor, tinker.TrainingClient]


@pytest.fixture
def watched(connect: Connect, heard: Heard) -> Watched:
    """Return a monitor, and a run to watch."""
    service = connect(observers=[heard])
    training = service.create_lora_training_client(
        "tinker/toy", rank=4, user_metadata={"trial": "2"}
    ).result(10)
    executor = RecoveryExecutor(service, on_recovery=heard.note)
    return RecoveryMonitor(executor, poll_seconds=POLL_SECONDS), training


def ask_again(wire: Any, clock: Any, question: str) -> None:
    """Advance the clock until the monitor, which may be about to sleep, has polled once more."""
    count = len(wire.requests(question)) + 1
    for _ in range(100):
        clock.advance(POLL_SECONDS, idle=True)
        if wire.arrives(question, count, seconds=0.1):
            return
    pytest.fail("the monitor does not ask")


def test_a_corrupted_run_is_recovered_once(
    watched: Watched, wire: Any, clock: Any, heard: Heard
) -> None:
    """The monitor polls at its interval, hands a corrupted run over, and stops watching it."""
    monitor, training = watched
    run_id, (path,) = training.model_id, save(training, "a")
    question = f"training_runs/{run_id}"
    with monitor:
        monitor.watch(run_id)
        wire.wait_for(question)
        last = {"checkpoint_id": "weights/x", "checkpoint_type": "training", "time": TIME}
        last["tinker_path"] = path
        told = training_run(run_id, corrupted=True, last_checkpoint=last)
        wire.fail(question, 200, body=told)
        ask_again(wire, clock, question)
        heard.wait(recovered=1)
        assert monitor.watched == {}
    error = heard.recovered[0].recovery.error
    assert isinstance(error, RunMarkedCorrupted)
    assert error.run_id == run_id
    assert len(wire.requests(question)) == 2


def test_an_unknown_run_is_recovered(watched: Watched, wire: Any, clock: Any, heard: Heard) -> None:
    """If a server no longer knows a run, the last reported checkpoint and metadata are used."""
    monitor, training = watched
    run_id, (path,) = training.model_id, save(training, "a")
    with monitor:
        monitor.watch(run_id)
        wire.wait_for(f"training_runs/{run_id}")
        wire.fail(f"training_runs/{run_id}", 404)
        ask_again(wire, clock, f"training_runs/{run_id}")
        heard.wait(recovered=1)
    assert heard.recovered[0].recovery.save is not None
    assert heard.recovered[0].recovery.save.path == path
    assert wire.requests("load_weights")[0].json["user_metadata"] == {"trial": "2"}


def test_a_failed_poll_is_retried(watched: Watched, wire: Any, clock: Any, heard: Heard) -> None:
    """A failed poll is reported to observers, and the run is still watched."""
    monitor, training = watched
    wire.fail(f"training_runs/{training.model_id}", 403)
    with monitor:
        monitor.watch(training.model_id)
        heard.wait(unknown=1)
        assert isinstance(heard.unknown[0].error, tinker.PermissionDeniedError)
        ask_again(wire, clock, f"training_runs/{training.model_id}")
        assert list(monitor.watched) == [training.model_id]
        monitor.unwatch(training.model_id)
        monitor.unwatch("none")
        assert monitor.watched == {}
    assert heard.recovered == []


def test_wrong_values(service: tinker.ServiceClient) -> None:
    """Invalid values are refused by name."""
    wrong: Any = 5
    executor = RecoveryExecutor(service)
    make, monitor = RecoveryExecutor, RecoveryMonitor
    for call, error, message in [
        (lambda: make(service, wrong), TypeError, "policy must be a RecoveryPolicy, got int"),
        (lambda: make(service, at_once=0), ValueError, "at_once must be at least 1, got 0"),
        (lambda: make(service, at_once=wrong / 2), TypeError, "at_once must be an integer"),
        (lambda: make(service, on_recovery=wrong), TypeError, "on_recovery must be a function"),
        (lambda: monitor(wrong), TypeError, "executor must be a RecoveryExecutor, got int"),
        (lambda: monitor(executor, poll_seconds=-1), ValueError, "poll_seconds must be at least 0"),
        (lambda: monitor(executor).watch(wrong), TypeError, "run_id must be a string, got int"),
    ]:
        with pytest.raises(error, match=message):
            call()  # type: ignore[no-untyped-call]
