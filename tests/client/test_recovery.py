"""Recovery: what counts as a loss, what is repeated, from where, and when recovery gives up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.answers import training_run

import tinker
from tinker.observing import Event, RecoveryChange
from tinker.recovery import (
    RecoveringTrainingClient,
    Recovery,
    RecoveryFailedError,
    RecoveryPolicy,
    SavePoint,
)

Connect = Callable[..., tinker.ServiceClient]
MakeDatum = Callable[..., tinker.Datum]
Restart = Callable[[], None]
PARAMS = tinker.AdamParams(learning_rate=0.05)
SAMPLE = tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)
POLICY = RecoveryPolicy(backoff_seconds=1)


def datum(step: int) -> tinker.Datum:
    tokens = [3 + step, 5 + 2 * step, 7 + step, 2]
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )


def begin(client: tinker.TrainingClient, step: int) -> Any:
    """Begin a step and return the future of its loss."""
    loss = client.forward_backward([datum(step)], "cross_entropy")
    client.optim_step(PARAMS)
    return loss


def probe(client: tinker.TrainingClient) -> list[float]:
    """Return values that identify a set of weights to the last bit."""
    output = client.forward([datum(n) for n in range(8)], "cross_entropy").result(10)
    return [value for one in output.loss_fn_outputs for value in one["logprobs"].tolist()]


@pytest.fixture
def first(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return service.create_lora_training_client("tinker/toy", rank=4, seed=3).result(10)


@pytest.fixture
def recoveries() -> list[Recovery]:
    return []


@pytest.fixture
def client(first: tinker.TrainingClient, recoveries: list[Recovery]) -> RecoveringTrainingClient:
    return RecoveringTrainingClient(first, POLICY, on_recovery=recoveries.append)


def undisturbed(steps: int) -> list[float]:
    """Return the probe of a run without interruptions."""
    with tinker.ServiceClient(base_url="local://toy") as service:
        client = service.create_lora_training_client("tinker/toy", rank=4, seed=3)
        for step in range(steps):
            begin(client, step)
        return probe(client)


def loop(
    client: RecoveringTrainingClient, steps: int, body: Callable[[int], Any], **given: Any
) -> None:
    """Do the same in each step, in a separate block."""
    for step in client.steps(steps, **given):
        with step as number:
            body(number)


Events = dict[int, Callable[[], object]]


def train(
    client: RecoveringTrainingClient, steps: int, at: Events, first: int = 0, **given: Any
) -> list[int]:
    """Wait for every loss, with a one-time event in some steps; return the steps taken."""
    taken = list[int]()

    def body(step: int) -> None:
        taken.append(step)
        at.pop(step, lambda: None)()
        begin(client, first + step).result(10)

    loop(client, steps, body, **given)
    return taken


def test_recovery_by_hand(
    client: RecoveringTrainingClient, restart: Restart, recoveries: list[Recovery]
) -> None:
    """The same object continues from the last save; what was recovered, and from where, is told."""
    before = client.model_id
    assert train(client, 9, {}, save_every=3) == list(range(9))
    restart()
    with pytest.raises(tinker.SessionLostError) as caught:
        client.optim_step(PARAMS).result(10)
    recovery = client.recover(caught.value)
    assert recoveries == [recovery]
    assert (recovery.run_id, recovery.new_run_id) == (before, client.model_id)
    last = SavePoint(path=f"tinker://{before}/weights/step-000009", step=9)
    assert recovery.save == client.saves[-1] == last
    assert (recovery.step, recovery.attempt, recovery.with_optimizer) == (9, 1, True)
    assert recovery.error is caught.value
    assert probe(client) == undisturbed(9)


@pytest.mark.parametrize(
    ("lost_in", "save_every", "taken", "from_steps"),
    [
        ([4], 3, [0, 1, 2, 3, 4, 3, 4, 5, 6, 7], [3]),
        ([1], 8, [0, 1, 0, 1, 2, 3, 4, 5, 6, 7], [0]),
        ([1, 3, 5, 6], 2, [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4, 5, 6, 6, 7], [0, 2, 4, 6]),
    ],
    ids=["once", "before the first save", "several"],
)
def test_only_the_lost_steps_are_repeated(
    client: RecoveringTrainingClient,
    restart: Restart,
    recoveries: list[Recovery],
    lost_in: list[int],
    save_every: int,
    taken: list[int],
    from_steps: list[int],
) -> None:
    """A loss ends its step, and the loop goes on after the last save, or with a new run."""
    client.steps(1)  # a step that is never begun changes nothing
    assert train(client, 8, dict.fromkeys(lost_in, restart), save_every=save_every) == taken
    assert [(one.step, one.attempt) for one in recoveries] == [(step, 1) for step in from_steps]
    for one in recoveries:
        assert (one.save is None) == (one.step == 0) == (not one.with_optimizer)
    assert probe(client) == undisturbed(8)


def test_a_loop_that_drops_every_future(client: RecoveringTrainingClient, restart: Restart) -> None:
    """Without results or blocks the loop detects the loss at the next save at the latest."""
    taken = list[int]()
    for step in client.steps(8, save_every=4):
        taken.append(step)
        begin(client, step)
        if taken == [0, 1, 2, 3, 4, 5]:
            restart()
    assert taken[:6] == [0, 1, 2, 3, 4, 5]
    assert taken[-4:] == [4, 5, 6, 7]
    assert probe(client) == undisturbed(8)


def test_a_loop_in_a_coroutine(client: RecoveringTrainingClient, restart: Restart) -> None:
    """``async for`` and ``async with`` do the same without blocking the event loop."""

    async def all_of_it() -> list[int]:
        taken = list[int]()
        async for step in client.steps(6, save_every=2):
            async with step as number:
                taken.append(number)
                if taken == [0, 1, 2, 3]:
                    await asyncio.to_thread(restart)
                await begin(client, number)
        return taken

    taken = asyncio.run(all_of_it())
    assert taken[:4] == [0, 1, 2, 3]
    assert taken[-4:] == [2, 3, 4, 5]
    assert probe(client) == undisturbed(6)


def test_training_before_the_loop_is_saved_first(
    client: RecoveringTrainingClient, restart: Restart
) -> None:
    """Training before the loop is saved first, as the loop cannot repeat it."""
    for step in range(2):
        begin(client, step).result(10)
    assert train(client, 2, {0: restart}, first=2) == [0, 0, 1]
    assert probe(client) == undisturbed(4)
    assert client.saves[0].path.endswith("/step-000000-start")


def test_a_first_save_that_fails(client: RecoveringTrainingClient, wire: Any) -> None:
    """If the save before the loop fails, the loop raises its error and begins no step."""
    begin(client, 0).result(10)
    wire.fail("save_weights", 403)
    with pytest.raises(tinker.PermissionDeniedError):
        train(client, 2, {})
    assert len(wire.requests("forward_backward")) == 1


def test_a_second_loop_begins_where_the_first_ended(
    client: RecoveringTrainingClient, restart: Restart, wire: Any
) -> None:
    """A loop saves after every ten steps and the last, where the next begins without a save."""
    train(client, 12, {})
    assert train(client, 3, {1: restart}, first=12) == [0, 1, 0, 1, 2]
    assert probe(client) == undisturbed(15)
    saved = [one.json["path"] for one in wire.requests("save_weights")]
    assert saved == ["step-000010", "step-000012", "step-000015"]


def test_a_save_in_the_middle_of_a_step(client: RecoveringTrainingClient, restart: Restart) -> None:
    """A loop does not return to a save in the middle of a step: what to repeat is unknown."""

    def body(step: int) -> None:
        client.forward_backward([datum(step)], "cross_entropy")
        if step == 3 and len(client.saves) == 1:
            client.save_state("in-the-middle").result(10)
            restart()
        client.optim_step(PARAMS).result(10)

    loop(client, 5, body, save_every=2)
    assert probe(client) == undisturbed(5)


def test_a_sampler_of_the_lost_session(client: RecoveringTrainingClient, restart: Restart) -> None:
    """The error of a sampler created in the step counts like an error of the run."""
    taken = list[int]()

    def body(step: int) -> None:
        taken.append(step)
        begin(client, step).result(10)
        sampler = client.save_weights_and_get_sampling_client().result(10)
        if taken == [0, 1, 2]:
            restart()
        sampler.sample(*SAMPLE).result(10)

    loop(client, 4, body, save_every=2)
    assert taken == [0, 1, 2, 2, 3]


# Which failures are losses


def fail_with_category(wire: Any, category: str) -> None:
    wire.fail("retrieve_future", 200, body={"error": "a device failed", "category": category})


def corrupt(wire: Any, run_id: str) -> None:
    """Fail a request on the server, which then reports that the run is corrupted."""
    fail_with_category(wire, "server")
    wire.fail(f"training_runs/{run_id}", 200, body=training_run(run_id, corrupted=True))


def forget(wire: Any, run_id: str) -> None:
    """Let the server know the session, but not the run."""
    wire.fail("forward_backward", 404)
    wire.fail("get_info", 404)


@pytest.mark.parametrize(
    ("lose", "error"),
    [
        (corrupt, tinker.RequestFailedError),
        (lambda wire, _: wire.fail("retrieve_future", 410), tinker.APIStatusError),
        (forget, tinker.NotFoundError),
    ],
    ids=["corrupted", "expired", "unknown"],
)
def test_failures_that_are_losses(
    client: RecoveringTrainingClient,
    wire: Any,
    recoveries: list[Recovery],
    lose: Callable[[Any, str], None],
    error: type[Exception],
) -> None:
    """A run that the server calls corrupted or does not know, and an expired result, are losses."""
    run_id = client.model_id
    assert train(client, 4, {2: lambda: lose(wire, run_id)}, save_every=2) == [0, 1, 2, 2, 3]
    assert isinstance(recoveries[0].error, error)
    assert probe(client) == undisturbed(4)


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt, tinker.TinkerError])
def test_other_errors_leave_the_loop(
    client: RecoveringTrainingClient, error: type[BaseException]
) -> None:
    """Errors of the body, ends of the program and a 404 of another kind leave the loop."""

    def body(_: int) -> None:
        if error is not tinker.TinkerError:
            raise error
        client.load_state("tinker://none/weights/none").result(10)

    with pytest.raises(error) as caught:
        loop(client, 1, body)
    assert not isinstance(caught.value, RecoveryFailedError)


@pytest.mark.parametrize("category", ["server", "user"])
def test_a_failure_of_an_intact_run(
    client: RecoveringTrainingClient, wire: Any, category: str
) -> None:
    """If the run is intact, the error of a failed request is raised unchanged."""
    fail_with_category(wire, category)
    with pytest.raises(tinker.RequestFailedError, match="a device failed"):
        loop(client, 4, lambda step: begin(client, step).result(10))


def test_an_unreceived_failure(client: RecoveringTrainingClient) -> None:
    """The loop raises an unreceived failure at the next save; a received one is the body's."""
    bad = tinker.Datum(tinker.ModelInput.from_ints([10**6]), {"target_tokens": [1]})
    with pytest.raises(tinker.TinkerError, match="1000000"):
        loop(client, 1, lambda _: client.forward_backward([bad], "cross_entropy"))
    handled = 0
    for _ in client.steps(2):
        try:
            client.forward_backward([bad], "cross_entropy").result(10)
        except tinker.TinkerError:
            handled += 1
    assert handled == 2


def test_recover_raises_errors_that_are_no_loss(client: RecoveringTrainingClient) -> None:
    """A manual recover() also raises an error that is not a loss unchanged."""
    for error in (ValueError("mine"), tinker.ClientClosedError()):
        with pytest.raises(type(error)) as caught:
            client.recover(error)
        assert caught.value is error

    async def wait() -> None:
        await client.recover_async(ValueError("mine"))

    with pytest.raises(ValueError, match="mine"):
        asyncio.run(wait())


# Repeated errors of the same loss


def test_a_loss_is_recovered_once(
    service: tinker.ServiceClient,
    client: RecoveringTrainingClient,
    restart: Restart,
    recoveries: list[Recovery],
) -> None:
    """Every error of one loss, a sampler's too, returns one recovery; the new run is kept."""
    samplers = (
        client.save_weights_and_get_sampling_client(),
        service.create_sampling_client(base_model="tinker/toy"),
    )
    ready = [sampler.result(10) for sampler in samplers]
    restart()
    futures: list[Any] = [
        client.forward_backward([datum(0)], "cross_entropy"),
        client.optim_step(PARAMS),
    ]
    errors = [one.exception(10) for one in futures]
    errors += [sampler.sample(*SAMPLE).exception(10) for sampler in ready]
    assert all(isinstance(error, tinker.SessionLostError) for error in errors)
    recovery = client.recover(errors[0])
    begin(client, 0).result(10)
    after = probe(client)
    assert [client.recover(error) for error in errors] == [recovery] * 4
    assert recoveries == [recovery]
    assert (client.model_id, probe(client)) == (recovery.new_run_id, after)


def test_threads_with_the_same_loss(
    client: RecoveringTrainingClient, restart: Restart, recoveries: list[Recovery]
) -> None:
    """Threads that recover concurrently get one new run, and the user's function is called once."""
    restart()
    error: Any = client.optim_step(PARAMS).exception(10)
    together = threading.Barrier(4)

    def recover(_: int) -> Recovery:
        together.wait(10)
        return client.recover(error)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        (recovery,) = {one.new_run_id for one in threads.map(recover, range(4))}
    assert client.model_id == recovery
    assert len(recoveries) == 1


def test_an_old_error_in_a_loop_is_raised(
    client: RecoveringTrainingClient, restart: Restart
) -> None:
    """A step that waits for a future of the previous run gets its error."""
    old = list[Any]()

    def body(step: int) -> None:
        if not old:
            restart()
        old.append(begin(client, step))
        old[0].result(10)

    with pytest.raises(tinker.SessionLostError):
        loop(client, 4, body, save_every=2)
    assert len(old) == 2
    assert client.forward([datum(0)], "cross_entropy").result(10)


# Policies


def test_a_given_checkpoint(first: tinker.TrainingClient, restart: Restart, wire: Any) -> None:
    """The policy's path is loaded; if no save of the loop has it, the loop starts again."""
    path = first.save_state("origin").result(10).path
    client = RecoveringTrainingClient(first, RecoveryPolicy(checkpoint=path))
    assert train(client, 4, {3: restart}, save_every=2) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert wire.requests("load_weights")[-1].json["path"] == path
    assert probe(client) == undisturbed(4)


def test_the_best_checkpoint(
    first: tinker.TrainingClient, restart: Restart, recoveries: list[Recovery]
) -> None:
    """The user's function chooses among the saves of the loop, which returns to the chosen one."""
    policy = RecoveryPolicy(checkpoint=lambda save: -abs((save.step or 0) - 2))
    client = RecoveringTrainingClient(first, policy, on_recovery=recoveries.append)
    assert train(client, 7, {6: restart}, save_every=2) == [0, 1, 2, 3, 4, 5, 6, 2, 3, 4, 5, 6]
    assert recoveries[0].step == 2
    assert probe(client) == undisturbed(7)


def test_a_fresh_optimizer(
    first: tinker.TrainingClient, restart: Restart, wire: Any, recoveries: list[Recovery]
) -> None:
    """Without the optimizer's state only the weights are loaded."""
    client = RecoveringTrainingClient(
        first, RecoveryPolicy(with_optimizer=False), on_recovery=recoveries.append
    )
    train(client, 2, {1: restart}, save_every=1)
    assert wire.requests("load_weights")[-1].json["optimizer"] is False
    assert not recoveries[0].with_optimizer


def test_saves_by_hand(client: RecoveringTrainingClient, restart: Restart) -> None:
    """Manual saves can be recovered from manually, keep their metadata, and replace no other."""
    begin(client, 0)
    client.save_state("mine", user_metadata={"score": "7"}).result(10)
    with pytest.raises(tinker.ConflictError):
        client.save_state("mine").result(10)
    begin(client, 1).result(10)
    restart()
    lost = begin(client, 2).exception(10)
    recovery = client.recover(lost)
    assert recovery.save is not None
    assert recovery.save.path.endswith("/mine")
    assert recovery.save.user_metadata == {"score": "7"}
    assert recovery.step is None
    assert probe(client) == undisturbed(1)


# Failed recoveries


def test_recovery_gives_up(connect: Connect, restart: Restart, wire: Any, clock: Any) -> None:
    """After the policy's attempts an error says so; user's function and observers are notified."""
    events: list[Event] = []
    failures: list[RecoveryFailedError] = []
    service = connect(observers=[events.append], user_metadata={"trial": 1})
    training = service.create_lora_training_client(
        "tinker/toy", rank=4, seed=3, user_metadata={"trial": 2}
    ).result(10)
    client = RecoveringTrainingClient(
        training, RecoveryPolicy(attempts=3, backoff_seconds=2), on_failure=failures.append
    )
    run_id = client.model_id

    def body(step: int) -> None:
        begin(client, step).result(10)
        if step == 1:
            restart()
            wire.fail("load_weights", 403, times=3)

    with pytest.raises(RecoveryFailedError, match=r"3 attempts since the last save") as caught:
        loop(client, 4, body, save_every=1)
    assert failures == [caught.value]
    assert (caught.value.run_id, caught.value.attempts) == (run_id, 3)
    assert isinstance(caught.value.__cause__, tinker.PermissionDeniedError)
    told = [event for event in events if isinstance(event, RecoveryChange)]
    assert [(event.stage, event.attempt) for event in told] == [
        ("detected", 0),
        *((stage, attempt) for attempt in (1, 2, 3) for stage in ("started", "failed")),
        ("exhausted", 3),
    ]
    about = {(event.training_run_id, event.user_metadata["trial"]) for event in told}
    assert about == {(run_id, 2)}
    started = {event.path for event in told if event.stage == "started"}
    assert started == {f"tinker://{run_id}/weights/step-000001"}
    assert clock.slept[-2:] == [2.0, 4.0]


def test_losses_without_progress_end(
    client: RecoveringTrainingClient, restart: Restart, recoveries: list[Recovery]
) -> None:
    """A step that loses the run every time is not repeated indefinitely."""

    def body(step: int) -> None:
        if step == 3:
            restart()
        begin(client, step).result(10)

    with pytest.raises(RecoveryFailedError):
        loop(client, 4, body, save_every=2)
    assert [one.attempt for one in recoveries] == [1, 2, 3]


def test_user_functions_that_raise(
    first: tinker.TrainingClient, restart: Restart, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception of ``on_recovery`` is logged, and the loop continues."""

    def broken(_: Recovery) -> None:
        raise LookupError("a defect of the user's")

    client = RecoveringTrainingClient(first, POLICY, on_recovery=broken)
    with caplog.at_level(logging.ERROR, "tinker"):
        train(client, 2, {1: restart}, save_every=1)
    assert "a defect of the user's" in caplog.text


def test_no_failure_of_the_lost_run_is_logged(
    client: RecoveringTrainingClient, restart: Restart, caplog: pytest.LogCaptureFixture
) -> None:
    """Failures of a recovered run are not logged as unreceived."""
    with caplog.at_level(logging.ERROR, "tinker"):
        losses = [restart]
        for step in client.steps(4, save_every=2):
            if step == 2 and losses:
                losses.pop()()
            begin(client, step)
    assert "never retrieved" not in caplog.text


# Invalid arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"attempts": 0}, ValueError, "attempts must be at least 1, got 0"),
        ({"attempts": 1.5}, TypeError, "attempts must be an integer, got float"),
        ({"backoff_seconds": -1}, ValueError, "backoff_seconds must be at least 0"),
        ({"backoff_seconds": "5"}, TypeError, "backoff_seconds must be a number, got str"),
        ({"max_backoff_seconds": float("nan")}, ValueError, "max_backoff_seconds"),
        (
            {"checkpoint": "step-1"},
            ValueError,
            "must be a checkpoint path such as tinker://<run>/weights/",
        ),
        (
            {"checkpoint": 5},
            TypeError,
            "'latest', a path or a function of a SavePoint, got int",
        ),
        ({"with_optimizer": 1}, TypeError, "with_optimizer must be True or False, got int"),
        ({"tries": 5}, TypeError, "tries"),
    ],
)
def test_wrong_policies(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    """An invalid policy is refused where it is created, by the name of the value."""
    with pytest.raises(error, match=message):
        RecoveryPolicy(**arguments)


def test_wrong_arguments(first: tinker.TrainingClient, client: RecoveringTrainingClient) -> None:
    """Invalid clients, functions and loops are refused too; nothing is sent."""
    wrong: Any = 5
    make = RecoveringTrainingClient
    for call, error, message in [
        (lambda: make(wrong), TypeError, "training must be a TrainingClient"),
        (lambda: make(client), TypeError, "training must be a client that a service client made"),
        (lambda: make(first, wrong), TypeError, "policy must be a RecoveryPolicy, got int"),
        (lambda: make(first, wrong - 5), TypeError, "policy must be a RecoveryPolicy, got int"),
        (lambda: make(first, on_recovery=wrong), TypeError, "on_recovery must be a function"),
        (lambda: make(first, on_failure=wrong), TypeError, "on_failure must be a function"),
        (lambda: client.steps(-1), ValueError, "count must be at least 0, got -1"),
        (lambda: client.steps(wrong / 2), TypeError, "count must be an integer, got float"),
        (lambda: client.steps(1, save_every=0), ValueError, "save_every must be at least 1"),
        (lambda: client.steps(1, name="a/b"), ValueError, "name"),
        (lambda: client.steps(1, ttl_seconds=5), ValueError, "ttl_seconds"),
    ]:
        with pytest.raises(error, match=message):
            call()
