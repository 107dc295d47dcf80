"""Failure propagation: operations called before the user has received a failure fail, and no
others.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import attrs
import httpx
import pytest
from tinker_wire import models

import tinker
from tinker.local import Settings, State, create_app
from tinker.local.engines.toy import ToyEngine

MakeDatum = Callable[..., tinker.Datum]
Operation = Callable[[tinker.TrainingClient, tinker.Datum], Any]
ADAM = tinker.AdamParams(learning_rate=0.01)

MODEL, PROMPT = "tinker/toy", tinker.ModelInput.from_ints([1])
PARAMS = tinker.SamplingParams(max_tokens=1)
FAR = tinker.ModelInput.from_ints([10**6, 1, 2])
pytestmark = pytest.mark.gives_up_soon


def far(datum: tinker.Datum) -> tinker.Datum:
    """Return a datum that every server accepts and that fails when it runs, as its token is outside
    every vocabulary.
    """
    return attrs.evolve(datum, model_input=FAR)


@tinker.with_gradients
def own_loss(data: Any, logprobs: Any) -> Any:
    return 1.0, [0 * part - 1 for part in logprobs]


@tinker.with_gradients
def failing_loss(data: Any, logprobs: Any) -> Any:
    raise LookupError("no reward for this")


@pytest.fixture
def training(wire: Any, training: tinker.TrainingClient, datum: MakeDatum) -> tinker.TrainingClient:
    """Return a run whose first request, numbered 1, has settled the form of its requests."""
    training.forward([datum()], "cross_entropy").result(10)
    wire.exchanges.clear()
    return training


# The wire operation that fails, and the call that sends it.
CHANGES: dict[str, tuple[str, Operation]] = {
    "forward_backward": (
        "forward_backward",
        lambda training, datum: training.forward_backward([datum], "cross_entropy"),
    ),
    "forward_backward_custom": (
        "forward_backward",
        lambda training, datum: training.forward_backward_custom([datum], own_loss),
    ),
    "optim_step": ("optim_step", lambda training, datum: training.optim_step(ADAM)),
    "load_state": (
        "load_weights",
        lambda training, datum: training.load_state("tinker://some-run/weights/kept"),
    ),
}
# A status, its headers, and whether the server has read the number of the request.
REFUSALS = {
    400: ({}, True),
    401: ({}, False),
    403: ({}, False),
    404: ({}, False),
    409: ({}, True),
    413: ({}, False),
    422: ({}, True),
    429: ({"x-should-retry": "false", "retry-after": "1"}, False),
    503: ({"x-should-retry": "false"}, True),
}
RECEIPTS: dict[str, Callable[[Any], object]] = {
    "result": lambda future: raised(future),
    "exception": lambda future: future.exception(10),
    "await": lambda future: asyncio.run(awaited(future)),
    "gather": lambda future: asyncio.run(gathered(future)),
    "callback": lambda future: called_back(future),
    "another thread": lambda future: (
        concurrent.futures.ThreadPoolExecutor(1).submit(future.exception, 10).result(10)
    ),
}


def raised(future: Any) -> None:
    with pytest.raises(tinker.TinkerError):
        future.result(10)


async def awaited(future: Any) -> None:
    with pytest.raises(tinker.TinkerError):
        await future


async def gathered(future: Any) -> None:
    (error,) = await asyncio.gather(future, return_exceptions=True)
    assert isinstance(error, tinker.TinkerError)


def called_back(future: Any) -> None:
    called = threading.Event()
    future.add_done_callback(lambda _: called.set())
    assert called.wait(10)


def finish(*futures: Any) -> None:
    """Wait until these are done, without receiving anything."""
    assert not concurrent.futures.wait(futures, 10).not_done


def goes_on(training: tinker.TrainingClient, datum: tinker.Datum, name: str = "afterwards") -> None:
    assert training.forward_backward([datum], "cross_entropy").result(10).loss > 0
    assert training.optim_step(ADAM).result(10)
    assert training.save_state(name).result(10).path


def check_stopped(future: Any, called: str, not_done: str, failed: str, cause: Any) -> None:
    """A request was not sent, or not run, because of the failure before it, which its error
    names.
    """
    with pytest.raises(tinker.PrecedingRequestFailed) as caught:
        future.result(10)
    error = caught.value
    assert str(error).startswith(
        f"{called} was not {not_done}, because the {failed} before it failed: "
    )
    assert (type(error.__cause__), str(error.__cause__)) == (type(cause), str(cause))
    assert (error.operation, error.failed_operation) == (called, failed)


def numbers_of(wire: Any, *operations: str) -> list[int]:
    """Return the numbers of the requests of these operations in the order of their arrival."""
    return [one.seq_id for one in wire.exchanges if one.operation in operations]


@pytest.mark.parametrize("operation", CHANGES)
@pytest.mark.parametrize("status", REFUSALS)
def test_every_refusal(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, operation: str, status: int
) -> None:
    """Requests called before the error was received are not sent and name the failed request; later
    ones run.
    """
    name, call = CHANGES[operation]
    wire.fail(name, status, headers=REFUSALS[status][0])
    failed = call(training, datum())
    behind = [
        training.optim_step(ADAM),
        training.save_state("early"),
        training.forward_backward([datum()], "cross_entropy"),
    ]
    finish(failed, *behind)
    late = training.optim_step(ADAM)  # however late it is called
    finish(late)
    assert len(wire.requests("optim_step")) == (1 if operation == "optim_step" else 0)
    assert wire.requests("save_weights") == []
    cause = failed.exception(10)
    assert isinstance(cause, tinker.APIStatusError)
    assert cause.status_code == status
    names = ["optim_step", "save_state", "forward_backward", "optim_step"]
    for future, called in zip([*behind, late], names, strict=True):
        check_stopped(future, called, "sent", operation, cause)
    goes_on(training, datum())
    numbers = numbers_of(wire, "forward_backward", "optim_step")
    # an unread request leaves its number to the next one
    assert numbers[-2] == (3 if REFUSALS[status][1] else 2)


@pytest.mark.parametrize("receipt", RECEIPTS)
@pytest.mark.parametrize("of_what", ["the failure", "a request that was not sent"])
def test_every_way_to_receive(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, receipt: str, of_what: str
) -> None:
    """However the user receives the error, from the failed request or from a later one, the next
    calls run.
    """
    wire.fail("forward_backward", 422)
    failed, behind = (
        training.forward_backward([datum()], "cross_entropy"),
        training.optim_step(ADAM),
    )
    finish(failed, behind)
    RECEIPTS[receipt](failed if of_what == "the failure" else behind)
    goes_on(training, datum())


def test_observing_is_not_receiving(wire: Any, connect: Any, datum: MakeDatum) -> None:
    """Observers, `done`, `concurrent.futures.wait` and printing a future do not receive its error:
    the run stays stopped.
    """
    seen: list[object] = []
    training = connect(observers=[seen.append]).create_lora_training_client("tinker/toy", rank=4)
    training.forward([datum()], "cross_entropy").result(10)
    wire.fail("forward_backward", 422)
    failed = training.forward_backward([datum()], "cross_entropy")
    finish(failed)
    assert failed.done()
    assert "forward_backward" in str(seen)
    assert repr(failed)
    step = training.optim_step(ADAM)
    finish(step)
    assert wire.requests("optim_step") == []
    assert isinstance(step.exception(10), tinker.PrecedingRequestFailed)


def test_a_loop_that_drops_every_future(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """The steps of a loop that drops every future do not run without their gradients; the next
    result reports the reason.
    """
    for _ in range(3):
        finish(training.forward_backward([datum([10**6])], "cross_entropy"))
        finish(training.optim_step(ADAM))
    assert wire.requests("optim_step") == []
    with pytest.raises(
        tinker.PrecedingRequestFailed,
        match="save_state was not sent, because the forward_backward before",
    ):
        training.save_state("untrained").result(10)


def test_custom_loss(wire: Any, training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """A failing loss function stops the step after it; once its error is received the run
    continues.
    """
    failed, step = (
        training.forward_backward_custom([datum()], failing_loss),
        training.optim_step(ADAM),
    )
    with pytest.raises(LookupError):
        failed.result(10)
    with pytest.raises(tinker.PrecedingRequestFailed, match="no reward for this") as caught:
        step.result(10)
    assert isinstance(caught.value.__cause__, LookupError)
    assert wire.requests("optim_step") == []
    goes_on(training, datum())


def test_a_failure_stops_only_later_requests(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """Requests called before the failed one run."""
    before = training.forward_backward([datum()], "cross_entropy"), training.optim_step(ADAM)
    wire.fail("load_weights", 403)
    failed = training.load_state("tinker://some-run/weights/kept")
    assert [future.exception(10) for future in before] == [None, None]
    assert isinstance(failed.exception(10), tinker.PermissionDeniedError)


def test_cancelled_failure(wire: Any, training: tinker.TrainingClient, datum: MakeDatum) -> None:
    """The failure of a request whose future was cancelled is raised by the next request, once."""
    arrived, release = threading.Event(), threading.Event()

    def hold(_: httpx.Request, __: bytes) -> httpx.Response:
        arrived.set()
        assert release.wait(10)
        return httpx.Response(422, json={"detail": "refused"})

    wire.answer("forward_backward", hold)
    cancelled = training.forward_backward([datum()], "cross_entropy")
    assert arrived.wait(10)
    assert cancelled.cancel()
    release.set()
    with pytest.raises(tinker.PrecedingRequestFailed):
        training.optim_step(ADAM).result(10)
    goes_on(training, datum())


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 413, 422, 429, 501])
@pytest.mark.parametrize("name", ["save_weights", "forward"])
def test_failed_requests_without_effect_stop_nothing(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, name: str, status: int
) -> None:
    """A refused save or forward pass does not change the run, so requests called after it run."""
    calls: dict[str, Callable[[], Any]] = {
        "save_weights": lambda: training.save_state("refused"),
        "forward": lambda: training.forward([datum()], "cross_entropy"),
    }
    wire.fail(
        name if name != "forward" else "forward_backward",
        status,
        headers={"x-should-retry": "false"},
    )
    failed, step = calls[name](), training.optim_step(ADAM)
    assert step.result(10)
    assert failed.exception(10).status_code == status


def test_creation(wire: Any, service: tinker.ServiceClient, datum: MakeDatum) -> None:
    """Without a run, every request fails with the error of the creation, also after that error was
    received.
    """
    wire.fail("create_model", 403)
    training = service.create_lora_training_client("tinker/toy")
    for _ in range(2):
        with pytest.raises(tinker.PermissionDeniedError):
            training.optim_step(ADAM).result(10)


def test_errors_pickle() -> None:
    """PrecedingRequestFailed keeps its message and fields when pickled."""
    error = tinker.PrecedingRequestFailed(
        "optim_step was not sent", "optim_step", "forward_backward"
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.operation, again.failed_operation) == (
        "optim_step was not sent",
        "optim_step",
        "forward_backward",
    )


# Numbers
# --------------------------------------------------------------------------------------------------


def refuse_number(wire: Any, operation: str, expected: int, got: int) -> None:
    """Accept the next request of an operation, and return a result that refuses its number."""
    wire.answer(operation, lambda *_: httpx.Response(200, json={"request_id": f"refused-{got}"}))
    conflict = {"detail": f"Sequence conflict: expected {expected}, got {got}."}
    wire.answer("retrieve_future", lambda *_: httpx.Response(409, json=conflict))


@pytest.fixture
def refused(wire: Any, training: tinker.TrainingClient, datum: MakeDatum) -> tinker.TrainingClient:
    """Return a run whose second request was refused, as its user knows."""
    wire.fail("forward_backward", 422)
    assert training.forward_backward([datum()], "cross_entropy").exception(10)
    wire.exchanges.clear()
    return training


@pytest.mark.parametrize("operation", ["optim_step", "forward_backward"])
def test_a_result_that_refuses_the_number(
    wire: Any, refused: tinker.TrainingClient, datum: MakeDatum, operation: str
) -> None:
    """If the result states that the server expects the number of a refused request, the request is
    resent with it, once.
    """
    refuse_number(wire, operation, expected=2, got=3)
    send = CHANGES[operation][1]
    assert send(refused, datum()).result(10)
    assert numbers_of(wire, operation) == [3, 2]
    assert refused.save_state("kept").result(10).path
    assert numbers_of(wire, "save_weights") == [3]


@pytest.mark.parametrize("step_fails_first", [False, True])
def test_results_that_refuse_the_numbers_of_several(
    wire: Any, refused: tinker.TrainingClient, datum: MakeDatum, step_fails_first: bool
) -> None:
    """While later requests are under way, none is resent out of order: they fail, and the next call
    uses the number.
    """
    release = wire.hold("retrieve_future")
    refuse_number(wire, "forward_backward", expected=2, got=3)
    refuse_number(wire, "optim_step", expected=2, got=4)
    gradient, step = (
        refused.forward_backward([datum()], "cross_entropy"),
        refused.optim_step(ADAM),
    )
    if step_fails_first:
        assert isinstance(step.exception(10), tinker.ConflictError)
    wire.wait_for("optim_step")
    release()
    assert isinstance(gradient.exception(10), tinker.ConflictError)
    assert isinstance(step.exception(10), tinker.ConflictError)
    assert refused.forward_backward([datum()], "cross_entropy").result(10)
    assert refused.optim_step(ADAM).result(10)
    assert numbers_of(wire, "forward_backward", "optim_step") == [3, 4, 2, 3]


def test_a_result_that_expects_an_accepted_number(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A request is not resent under a number that the server has already accepted."""
    assert training.forward_backward([datum()], "cross_entropy").result(10)
    refuse_number(wire, "optim_step", expected=2, got=3)
    assert isinstance(training.optim_step(ADAM).exception(10), tinker.ConflictError)
    assert numbers_of(wire, "optim_step") == [3]


def test_a_custom_loss_whose_number_is_refused(
    wire: Any, refused: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A step of several requests fails if the number of its first is refused; the next step uses
    the expected number.
    """
    refuse_number(wire, "forward_backward", expected=2, got=3)
    assert isinstance(
        refused.forward_backward_custom([datum()], own_loss).exception(10), tinker.ConflictError
    )
    assert refused.forward_backward_custom([datum()], own_loss).result(10)
    assert numbers_of(wire, "forward_backward") == [3, 2, 3]


def test_an_unknown_fate_that_was_a_failure(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """If the caller has another error of a gradient that was accepted and failed, the failure is
    known: later calls run.
    """
    wire.drop("forward_backward", apply=True)
    wire.fail("forward_backward", 401)
    assert isinstance(
        training.forward_backward([far(datum())], "cross_entropy").exception(10),
        tinker.AuthenticationError,
    )
    goes_on(training, datum())


def open_in_chunks(connect: Any, state: State, *, together: bool) -> tinker.TrainingClient:
    """Open a run whose batches are sent as a request for each datum."""
    config = models.ClientConfigResponse(fwdbwd_max_chunk_len=1, parallel_fwdbwd_chunks=together)
    state.settings = attrs.evolve(state.settings, client_config=config)
    return connect().create_lora_training_client(MODEL, rank=4).result(10)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("operation", "accepted", "counts"),
    [("forward_backward", 1, True), ("forward_backward", 0, False), ("forward", 1, False)],
)
def test_part_of_a_batch(
    wire: Any,
    connect: Any,
    state: State,
    datum: MakeDatum,
    operation: str,
    accepted: int,
    counts: bool,
) -> None:
    """A batch that was accepted in part says so if it computes gradients, as those count; later
    requests run.
    """
    training = open_in_chunks(connect, state, together=False)
    if accepted:
        refusal = httpx.Response(413, json={"detail": "too large"})
        wire.answer("forward_backward", lambda *_: refusal, after=accepted)
    else:
        wire.fail("forward_backward", 413)
    with pytest.raises(tinker.APIStatusError) as caught:
        getattr(training, operation)([datum()] * 3, "cross_entropy").result(10)
    notes = str(getattr(caught.value, "__notes__", ""))
    assert ("accepted 1 of the 3 requests of this batch" in notes) == counts
    assert ("gradients" in notes) == counts
    assert training.optim_step(ADAM).result(10)
    assert numbers_of(wire, "optim_step") == [accepted + 1]


@pytest.mark.parametrize(
    ("status", "asked", "sent"),
    [(401, 0, [1]), (422, 0, [4]), (422, 1, [4, 1]), (422, 2, [4, 2]), (422, 3, [4, 3])],
)
def test_the_numbers_of_a_refused_batch(
    wire: Any,
    connect: Any,
    state: State,
    datum: MakeDatum,
    status: int,
    asked: int,
    sent: list[int],
) -> None:
    """If the requests of a batch are sent together and none was read, later requests use their
    numbers; if they were refused, those that the server still expects.
    """
    training = open_in_chunks(connect, state, together=True)
    wire.fail("forward_backward", status, times=2)
    assert training.forward_backward([datum()] * 3, "cross_entropy").exception(10)
    if asked:
        wire.fail("optim_step", 400, body={"detail": f"expected {asked}, got 4"})
    assert training.optim_step(ADAM).result(10)
    assert numbers_of(wire, "optim_step") == sent


@pytest.mark.parametrize("profile", ["official", "skyrl", "minimal-json"])
def test_a_misspelt_loss_on_every_profile(
    tmp_path: Path, clock: Any, datum: MakeDatum, profile: str
) -> None:
    """On every profile, a loss unknown to the server causes one error only: later steps and saves
    run.
    """
    settings = Settings(
        data_dir=tmp_path / "other", hold_seconds=0.2, gap_seconds=0.2, profile=profile
    )
    state = State(ToyEngine, settings)
    transport = httpx.ASGITransport(create_app(state))
    service = tinker.ServiceClient(
        base_url="http://server", api_key="tml-secret", transport=transport, clock=clock.clock()
    )
    training = service.create_lora_training_client("tinker/toy", rank=4)
    with pytest.raises(
        (tinker.TinkerError, ValueError), match=r"no_such_loss|one of cross_entropy"
    ):
        # at once, if the server has reported its losses
        training.forward_backward([datum()], "no_such_loss").result(10)
    training.optim_step(ADAM).result(10)
    training.forward_backward([datum()], "cross_entropy").result(10)
    training.optim_step(ADAM).result(10)
    assert training.save_state("kept").result(10).path
    service.close().result(10)
    state.close()


# What the server has already accepted when the failure arrives
# ------------------------------------------------------------

# Gradients that every server accepts, and that fail when they run.
ACCEPTED: dict[str, Operation] = {
    "token": lambda training, datum: training.forward_backward([far(datum)], "cross_entropy"),
    "load": lambda training, datum: training.load_state("tinker://some-run/weights/kept"),
    "step": lambda training, datum: training.optim_step(
        tinker.AdamParams(learning_rate=0.01, grad_clip_norm=-1.0)
    ),
}


@pytest.mark.parametrize("failing", ACCEPTED)
def test_requests_accepted_after_a_failure(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, failing: str
) -> None:
    """A step, a save and a gradient sent before the failure arrived are not run; each error names
    the failed request.
    """
    release = wire.hold("retrieve_future")
    failed = ACCEPTED[failing](training, datum())
    calls = {
        "optim_step": training.optim_step(ADAM),
        "save_state": training.save_state("early"),
        "forward_backward": training.forward_backward([datum()], "cross_entropy"),
        "save_weights_for_sampler": training.save_weights_for_sampler("early"),
    }
    wire.wait_for("save_weights_for_sampler")
    release()
    finish(failed, *calls.values())
    cause = failed.exception(10)
    assert isinstance(cause, tinker.RequestFailedError)
    for called, future in calls.items():
        check_stopped(future, called, "run", failed.operation, cause)
    goes_on(training, datum())


def test_the_error_of_an_accepted_step_counts_as_receipt(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """Receiving the error of an accepted step counts as receiving the gradient's:
    later calls run.
    """
    release = wire.hold("retrieve_future")
    training.forward_backward([far(datum())], "cross_entropy")
    step = training.optim_step(ADAM)
    wire.wait_for("optim_step")
    release()
    assert isinstance(step.exception(10), tinker.PrecedingRequestFailed)
    goes_on(training, datum())


def test_requests_after_a_received_failure(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A step called after its error was received runs, and every request states which failure its
    caller had received.
    """
    assert training.forward_backward([far(datum())], "cross_entropy").exception(10)
    assert training.optim_step(ADAM).result(10)
    goes_on(training, datum())
    assert training.forward_backward([far(datum())], "cross_entropy").exception(10)
    assert training.save_state("kept").result(10).path
    operations = ("forward_backward", "optim_step", "save_weights")
    sent = [one.request.headers for one in wire.exchanges if one.operation in operations]
    assert [headers["x-tinker-known-failure"] for headers in sent] == ["0", *["2"] * 5, "7"]


def test_a_failure_whose_future_was_cancelled(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum
) -> None:
    """A gradient that failed after its future was cancelled stops the next step, whose error names
    it, once.
    """
    release = wire.hold("retrieve_future")
    cancelled = training.forward_backward([far(datum())], "cross_entropy")
    wire.wait_for("retrieve_future")
    assert cancelled.cancel()
    release()
    step, save = training.optim_step(ADAM), training.save_state("early")
    finish(step, save)
    for future in (step, save):
        with pytest.raises(
            tinker.PrecedingRequestFailed, match=r"was not .*, because the .* before it failed"
        ):
            future.result(10)
    goes_on(training, datum())


def test_a_batch_that_fails_in_part(
    wire: Any, connect: Any, state: State, datum: MakeDatum
) -> None:
    """If one request of a batch fails, the later ones are not run, and the batch raises the first
    error.
    """
    training = open_in_chunks(connect, state, together=True)
    bad = far(datum())
    with pytest.raises(tinker.RequestFailedError, match="1000000") as caught:
        training.forward_backward([datum(), bad, datum(), datum()], "cross_entropy").result(10)
    assert "before it failed" not in str(caught.value)
    goes_on(training, datum())


# What failures hold
# --------------------------------------------------------------------------------------------------


def is_of_the_client(found: object) -> bool:
    """Return whether an object is a frame of the client's requests, or one of their objects."""
    module: str = (
        found.f_globals["__name__"] if isinstance(found, FrameType) else type(found).__module__
    )
    return module.startswith(
        ("tinker._http", "tinker._runtime", "tinker._session", "tinker._training", "tinker.futures")
    )


@pytest.mark.parametrize(
    ("name", "status"),
    [
        *[
            ("forward_backward", 503),
            ("forward_backward", 404),
            ("forward_backward", 422),
            ("optim_step", 403),
        ],
        *[
            ("retrieve_future", 503),
            ("retrieve_future", 422),
            ("get_info", 404),
            ("create_model", 422),
        ],
    ],
)
def test_what_failures_hold_is_freed_at_once(
    wire: Any, service: tinker.ServiceClient, datum: MakeDatum, name: str, status: int
) -> None:
    """Nothing of a failed attempt, such as the body of its request, waits for the garbage
    collector; nor does a dropped run.
    """
    gc.collect()
    gc.disable()
    others = set(map(id, gc.get_objects()))  # which a thread of an earlier test may still have
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        wire.fail(name, status)
        training = service.create_lora_training_client("tinker/toy", rank=2)
        for _ in range(2):
            training.forward_backward([datum()], "cross_entropy").exception(10)
            training.optim_step(ADAM).exception(10)  # behind a failure, it is not sent
        del training
        service.get_server_capabilities()
        gc.collect()
        assert [one for one in gc.garbage if is_of_the_client(one) and id(one) not in others] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


# Failures that are never received
# -----------------------------------------------------------------------------------------


def unseen(caplog: pytest.LogCaptureFixture, text: str) -> list[str]:
    """Return the log lines about unreceived failures with this text, after everything dropped is
    collected.
    """
    gc.collect()
    return [
        record.getMessage()
        for record in caplog.records
        if text in record.getMessage() and "never retrieved" in record.msg
    ]


def test_an_unreceived_error_is_logged_once(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed future that is dropped is logged with its operation; the requests it stopped are
    not.
    """
    wire.fail("forward_backward", 422, body={"detail": "dropped unseen"})
    futures = [training.forward_backward([datum()], "cross_entropy"), training.optim_step(ADAM)]
    finish(*futures)
    futures.clear()
    lines = unseen(caplog, "dropped unseen")
    for _ in range(20):
        if lines:
            break
        # let the queue and the I/O thread drop their references
        training.forward([datum()], "cross_entropy").exception(10)
        lines = unseen(caplog, "dropped unseen")
    assert len(lines) == 1
    assert lines[0].startswith(
        "forward_backward failed, and its error was never retrieved: UnprocessableEntityError"
    )
    assert re.search(r"; \d+ later requests? of the run did not run$", lines[0])


@pytest.mark.parametrize("collected", [True, False])
def test_an_unreceived_error_is_logged_at_exit(collected: bool) -> None:
    """An unreceived failure whose future lives until the process ends, or is never collected, is
    logged at exit, once.
    """
    script = (
        "import concurrent.futures, threading, tinker\n"
        "service = tinker.ServiceClient(base_url='local://toy')\n"
        "client = service.create_lora_training_client('no/such-model')\n"
        "concurrent.futures.wait([client.future()])\n"
    )
    if not collected:
        script += (
            "threading.Thread(target=lambda kept: threading.Event().wait(), args=(client,), "
            "daemon=True).start()\n"
        )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert (
        done.stderr.count(
            "create_lora_training_client failed, and its error was never retrieved: BadRequestError"
        )
        == 1
    )


@pytest.mark.parametrize("end", ["raise ValueError('mine')", "raise KeyboardInterrupt", ""])
def test_a_program_that_breaks_off_says_what_had_not_finished(end: str) -> None:
    """The warning at exit comes after an exception too."""
    script = (
        "import contextlib, tinker\nfrom tinker.testing import toy_server\n"
        "stack = contextlib.ExitStack()\nserver = stack.enter_context(toy_server())\n"
        "service = tinker.ServiceClient(base_url='http://toy', api_key='tml-key', "
        "transport=server.transport)\n"
        "training = service.create_lora_training_client('tinker/toy').result()\n"
        "server.hang_next('optim_step')\n"
        "step = training.optim_step(tinker.AdamParams(learning_rate=1e-3))\n"
        f"{end}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode == 0) == (not end)
    assert "optim_step had not finished when the " in done.stderr


def test_an_error_of_a_creation_is_logged_once() -> None:
    """A failed creation is logged, and not the requests that failed with it."""
    script = (
        "import concurrent.futures, tinker\n"
        "service = tinker.ServiceClient(base_url='local://toy')\n"
        "client = service.create_lora_training_client('no/such-model')\n"
        "futures = [client.optim_step(tinker.AdamParams(learning_rate=1e-3)) for _ in range(3)]\n"
        "sampler = service.create_sampling_client(base_model='no/such-model')\n"
        "prompt, params = tinker.ModelInput.from_ints([1]), tinker.SamplingParams(max_tokens=1)\n"
        "futures += [sampler.sample(prompt, 1, params) for _ in range(3)]\n"
        "concurrent.futures.wait(futures)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    lines = [
        line.partition(" failed")[0]
        for line in done.stderr.splitlines()
        if "never retrieved" in line
    ]
    assert sorted(lines) == ["create_lora_training_client", "create_sampling_client"]


def test_a_received_error_is_not_logged(
    wire: Any, training: tinker.TrainingClient, datum: MakeDatum, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that the user received is not logged."""
    wire.fail("forward_backward", 422, body={"detail": "looked at"})
    failed = training.forward_backward([datum()], "cross_entropy")
    assert failed.exception(10)
    del failed
    assert training.optim_step(ADAM).result(10)
    assert unseen(caplog, "looked at'") == []


@pytest.mark.parametrize("kept", [True, False])
def test_an_error_is_received_with_that_of_a_stopped_request(
    wire: Any,
    training: tinker.TrainingClient,
    datum: MakeDatum,
    caplog: pytest.LogCaptureFixture,
    kept: bool,
) -> None:
    """The error of a stopped request counts as receipt of the failed one's, whether its future is
    kept or dropped.
    """
    wire.fail("forward_backward", 422, body={"detail": "passed on"})
    release = wire.hold("forward_backward")
    futures = [training.forward_backward([datum()], "cross_entropy")] if kept else []
    if not kept:
        training.forward_backward([datum()], "cross_entropy")
    step = training.optim_step(ADAM)
    release()
    with pytest.raises(tinker.PrecedingRequestFailed, match="passed on"):
        step.result(10)
    futures.clear()
    assert training.optim_step(ADAM).result(10)
    assert unseen(caplog, "passed on") == []


@pytest.mark.parametrize(
    ("creation", "ask"),
    [
        (
            "create_model",
            lambda service: service.create_lora_training_client(MODEL).optim_step(ADAM),
        ),
        (
            "create_sampling_session",
            lambda service: service.create_sampling_client(base_model=MODEL).sample(
                PROMPT, 1, PARAMS
            ),
        ),
    ],
)
def test_an_error_of_a_creation_is_received_with_that_of_a_request(
    wire: Any,
    service: tinker.ServiceClient,
    caplog: pytest.LogCaptureFixture,
    creation: str,
    ask: Callable[[tinker.ServiceClient], Any],
) -> None:
    """The error of a request of a client that was not created counts as receipt of the creation's
    error.
    """
    wire.fail(creation, 403, body={"detail": "not created"})
    assert isinstance(ask(service).exception(10), tinker.PermissionDeniedError)
    for _ in range(3):  # until the loop has dropped what it had
        assert service.get_server_capabilities()
    assert unseen(caplog, "not created") == []


def test_a_sampler_of_a_failed_save(wire: Any, training: tinker.TrainingClient) -> None:
    """A save for a sampler with unknown outcome stops the run until the sampler's error is
    received.
    """
    wire.fail("save_weights_for_sampler", 503, headers={"x-should-retry": "false"})
    sampler = training.save_weights_and_get_sampling_client()
    finish(sampler.future())
    assert isinstance(training.optim_step(ADAM).exception(10), tinker.PrecedingRequestFailed)
    assert isinstance(sampler.exception(10), tinker.InternalServerError)
    assert training.optim_step(ADAM).result(10)
