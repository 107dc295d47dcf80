"""A server that stops responding: every wait ends by its deadline, with an error that names the
awaited operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker._http.messages import Purpose
from tinker._http.retry import POLL, REST, SAMPLE, START, SUBMIT, Policy
from tinker._http.transport import SHORTEST_PATIENCE_SECONDS
from tinker._session import SHUTDOWN_SECONDS
from tinker.testing import FaultyServer, SteppedClock, toy_server

PROMPT, PARAMS, ADAM = (
    tinker.ModelInput.from_ints([104, 105]),
    tinker.SamplingParams(max_tokens=4),
    tinker.AdamParams(),
)
PATH = "tinker://nobody:train:0/weights/none"
LONGEST_DELAY = 10.0


@pytest.fixture
def clock() -> SteppedClock:
    """Simulated time."""
    return SteppedClock()


@pytest.fixture
def server(clock: SteppedClock, tmp_path: Path) -> Iterator[FaultyServer]:
    """Yield a server in simulated time."""
    with toy_server(tmp_path, clock=clock) as server:
        yield server


def datum() -> tinker.Datum:
    return tinker.Datum(
        model_input=PROMPT, loss_fn_inputs={"target_tokens": [1, 2], "weights": [1.0, 1.0]}
    )  # type: ignore[dict-item]


def ended(future: Any, clock: SteppedClock, policy: Policy, purpose: Purpose) -> None:
    """The future fails with a time-out, no later than its policy allows: its seconds, and one last
    try.
    """
    began = clock.now
    error = future.exception(60)
    assert isinstance(error, tinker.APITimeoutError), repr(error)
    assert error.operation
    assert clock.now - began <= policy.total_seconds + purpose.read_seconds + LONGEST_DELAY


Service, Training, Sampling = tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient


def create_run(service: Service) -> Training:
    return service.create_lora_training_client("tinker/toy", rank=2)


def create_sampler(service: Service) -> Sampling:
    return service.create_sampling_client(base_model="tinker/toy")


@pytest.mark.parametrize(
    "call",
    [
        create_run,
        lambda service: service.create_training_client_from_state(PATH),
        lambda service: service.create_training_client_from_state_with_optimizer(PATH),
        create_sampler,
        lambda service: create_run(service).optim_step(ADAM),
        lambda service: create_run(service).forward_backward([datum()], "cross_entropy"),
        lambda service: create_run(service).save_weights_and_get_sampling_client(),
        lambda service: create_sampler(service).sample(PROMPT, 1, PARAMS),
        lambda service: create_sampler(service).compute_logprobs(PROMPT),
    ],
)
@pytest.mark.parametrize("silent", ["client_config", "create_session"])
def test_a_server_that_is_silent_from_the_start(
    server: FaultyServer, clock: SteppedClock, silent: str, call: Callable[[Service], Any]
) -> None:
    """Nothing that needs a session waits longer than the start of one is tried."""
    server.hang_next(silent, times=1000)
    ended(call(server.service()), clock, START, Purpose.START)


Call = Callable[[Service, Training, Sampling], Any]
SUBMISSIONS: list[tuple[str, Call]] = [
    ("create_model", lambda service, _, __: create_run(service)),
    ("load_weights", lambda service, _, __: service.create_training_client_from_state(PATH)),
    ("create_sampling_session", lambda service, _, __: create_sampler(service)),
    ("create_sampling_session", lambda _, training, __: training.create_sampling_client(PATH)),
    ("forward_backward", lambda _, training, __: training.forward([datum()], "cross_entropy")),
    (
        "forward_backward",
        lambda _, training, __: training.forward_backward([datum()], "cross_entropy"),
    ),
    ("optim_step", lambda _, training, __: training.optim_step(ADAM)),
    ("save_weights", lambda _, training, __: training.save_state("a")),
    ("save_weights_for_sampler", lambda _, training, __: training.save_weights_for_sampler("a")),
    (
        "save_weights_for_sampler",
        lambda _, training, __: training.save_weights_and_get_sampling_client(),
    ),
    ("asample", lambda _, __, sampling: sampling.sample(PROMPT, 1, PARAMS)),
    ("asample", lambda _, __, sampling: sampling.compute_logprobs(PROMPT)),
]
#: Those that are not tried like the others, or that wait otherwise for an answer.
POLICIES = {"asample": SAMPLE}
PURPOSES = {"forward_backward": Purpose.UPLOAD, "asample": Purpose.SAMPLE}


@pytest.fixture
def clients(server: FaultyServer) -> tuple[Service, Training, Sampling]:
    """Return a session with a training run and a sampler, all ready."""
    service = server.service()
    return service, create_run(service).result(30), create_sampler(service).result(30)


@pytest.mark.parametrize(("operation", "call"), SUBMISSIONS)
def test_a_server_that_falls_silent(
    server: FaultyServer,
    clock: SteppedClock,
    clients: tuple[Service, Training, Sampling],
    operation: str,
    call: Call,
) -> None:
    """A request to a server that no longer responds fails at its deadline."""
    server.go_silent()
    policy = POLICIES.get(operation, SUBMIT)
    ended(call(*clients), clock, policy, PURPOSES.get(operation, Purpose.SESSION))
    assert server.requests(operation)


@pytest.mark.parametrize(
    ("operation", "call"), [row for row in SUBMISSIONS if row[0] != "create_sampling_session"]
)
def test_a_server_that_accepts_and_falls_silent(
    server: FaultyServer,
    clock: SteppedClock,
    clients: tuple[Service, Training, Sampling],
    operation: str,
    call: Call,
) -> None:
    """An accepted request is polled until the server has been silent for minutes."""
    if operation == "load_weights":
        path = clients[1].save_state("saved").result(30).path
        call = lambda service, _, __: service.create_training_client_from_state(path)  # noqa: E731
    server.hang_next("retrieve_future", times=1000)
    ended(call(*clients), clock, POLL, Purpose.POLL)


@pytest.mark.parametrize("patience", [0.0, 3.0, 30.0])
@pytest.mark.parametrize(("silent", "call"), SUBMISSIONS)
def test_patience_bounds_every_submission(
    server: FaultyServer,
    clock: SteppedClock,
    silent: str,
    call: Call,
    patience: float,
) -> None:
    """A client told to be patient for some seconds waits no longer for a silent server, whatever it
    asks for; but for five.
    """
    error, seconds = impatient(server, clock, silent, call, patience)
    assert isinstance(error, tinker.APITimeoutError), repr(error)
    assert seconds <= max(patience, SHORTEST_PATIENCE_SECONDS) + 0.001


@pytest.mark.parametrize(
    "call",
    [
        lambda _, training, __: training.optim_step(ADAM),
        lambda _, __, sampling: sampling.sample(PROMPT, 1, PARAMS),
    ],
)
def test_patience_leaves_polls_their_time(
    server: FaultyServer, clock: SteppedClock, call: Call
) -> None:
    """A server may hold a poll for most of a minute, so each is waited for; after the time of one
    there is no other.
    """
    error, seconds = impatient(server, clock, "retrieve_future", call, 3.0)
    assert isinstance(error, tinker.APITimeoutError), repr(error)
    assert seconds <= Purpose.POLL.read_seconds + 0.001


def impatient(
    server: FaultyServer,
    clock: SteppedClock,
    silent: str,
    call: Call,
    patience: float,
) -> tuple[BaseException | None, float]:
    """Return how a call fails that gets no response, and how long that takes."""
    service = server.service(patience_seconds=patience)
    clients = service, create_run(service).result(30), create_sampler(service).result(30)
    server.hang_next(silent, times=1000)
    began = clock.now
    return call(*clients).exception(60), clock.now - began


def test_a_server_that_is_silent_about_completions(clock: SteppedClock, tmp_path: Path) -> None:
    """The shared poller of a sampling client gives up at its deadline, for every waiting sample."""
    config = {"sample_use_retrieve_futures": True}
    with toy_server(tmp_path, clock=clock) as server:
        server.fail_next("client_config", 200, body=config)
        sampling = server.service().create_sampling_client(base_model="tinker/toy").result(30)
        server.hang_next("retrieve_futures", times=1000)
        futures = [sampling.sample(PROMPT, 1, PARAMS) for _ in range(20)]
        for future in futures:
            ended(future, clock, POLL, Purpose.POLL)


@pytest.mark.parametrize(
    "call",
    [
        lambda rest: rest.get_server_capabilities(),
        lambda rest: rest.get_sampler("a:sample:0"),
        lambda rest: rest.list_user_checkpoints(),
    ],
)
def test_reads_of_a_silent_server(
    server: FaultyServer, clock: SteppedClock, call: Callable[[Any], Any]
) -> None:
    """An interactive read ends within a minute and one retry."""
    rest = server.service().create_rest_client()
    server.go_silent()
    ended(call(rest), clock, REST, Purpose.SESSION)


def test_closing_on_a_silent_server(
    server: FaultyServer, clock: SteppedClock, clients: tuple[Service, Training, Sampling]
) -> None:
    """Closing sends one request and waits briefly for its response, whatever was pending before."""
    server.go_silent()
    began = clock.now
    clients[0].close().result(60)
    assert clock.now - began <= SHUTDOWN_SECONDS
    assert server.requests("finish_session")


@pytest.mark.parametrize("silent", ["client_config", "create_session"])
def test_closing_while_the_start_hangs(
    server: FaultyServer, clock: SteppedClock, silent: str
) -> None:
    """Closing does not wait for a session that cannot be started, and fails the requests that wait
    for it.
    """
    server.hang_next(silent, times=1000)
    service = server.service()
    with clock.busy():
        training = service.create_lora_training_client("tinker/toy")
        step = training.optim_step(ADAM)
        server.wait_for(silent)
        began, closed = clock.now, service.close()
    closed.result(60)
    assert clock.now - began <= SHUTDOWN_SECONDS
    for future in (training, step):
        with pytest.raises(tinker.errors.ClientClosedError):
            future.result(30)


@pytest.mark.parametrize("silent", ["client_config", "create_session"])
def test_one_connection_that_dies_does_not_fail_the_start(
    server: FaultyServer, silent: str
) -> None:
    """A session start survives a connection that says nothing: there is time for another try."""
    server.hang_next(silent)
    server.service().create_lora_training_client("tinker/toy").result(30)
    server.verify()


def test_errors_of_many_waiters_are_their_own(server: FaultyServer) -> None:
    """Every waiter of a failed creation gets the error with a separate traceback, not the sum of
    all.
    """
    server.fail_next("create_sampling_session", 400)
    sampling = server.service().create_sampling_client(base_model="tinker/toy")
    errors = [
        future.exception(30) for future in [sampling.sample(PROMPT, 1, PARAMS) for _ in range(50)]
    ]
    assert len({id(error) for error in errors}) == 50
    for error in errors:
        assert isinstance(error, tinker.BadRequestError)
        assert length(error) < 20


def test_errors_of_a_failed_start_are_their_own(server: FaultyServer) -> None:
    """Every waiter of a session that could not be started gets the error with a
    separate traceback.
    """
    server.fail_next("create_session", 401, times=100)
    service = server.service()
    clients = [service.create_lora_training_client("tinker/toy") for _ in range(10)]
    assert len({id(client.exception(30)) for client in clients}) == 10


def length(error: BaseException) -> int:
    frames, traceback = 0, error.__traceback__
    while traceback is not None:
        frames, traceback = frames + 1, traceback.tb_next
    return frames
