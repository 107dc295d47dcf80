"""Scripts for other versions: the session holder of a client, older arguments and calling forms."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import httpx
import pytest

import tinker
from tinker import types

Connect = Callable[..., tinker.ServiceClient]
PROMPT = types.ModelInput.from_ints([1, 2, 3])


def test_every_client_has_the_holder_of_its_session(
    wire: Any, connect: Connect, training: tinker.TrainingClient, service: tinker.ServiceClient
) -> None:
    """Every client of a session has the same holder, whose id is that of the service."""
    sampling = service.create_sampling_client(base_model="tinker/toy").result(10)
    clients: list[Any] = [service, training, sampling, service.create_rest_client()]
    created = [answer["session_id"] for answer in wire.answers("create_session")]
    assert {client.holder.get_session_id() for client in clients} == set(created)
    assert service.session_id == service.holder._session_id == created[0]
    other = connect()
    assert other.session_id is None
    assert other.holder.get_session_id() == other.session_id  # which starts the session
    assert sampling.sampling_session_id == sampling._sampling_session_id
    assert training._guaranteed_model_id() == training.model_id


def test_the_loop_of_the_holder_runs_coroutines(service: tinker.ServiceClient) -> None:
    """They run on the loop that ``get_loop`` returns; their result or error is returned."""
    holder = service.holder

    async def look() -> tuple[asyncio.AbstractEventLoop, str, asyncio.AbstractEventLoop]:
        return asyncio.get_running_loop(), threading.current_thread().name, holder.get_loop()

    async def fail() -> None:
        raise LookupError("of the user")

    loop, thread, seen_inside = holder.run_coroutine_threadsafe(look()).result(10)
    assert loop is seen_inside is holder.get_loop()
    assert thread == "tinker-loop"
    assert asyncio.run_coroutine_threadsafe(asyncio.sleep(0, 7), holder.get_loop()).result(10) == 7
    with pytest.raises(LookupError, match="of the user"):
        holder.run_coroutine_threadsafe(fail()).result(10)
    with pytest.raises(TypeError, match="takes a coroutine, got function"):
        holder.run_coroutine_threadsafe(look)  # type: ignore[arg-type]


def test_closing_the_holder_ends_the_session(
    wire: Any, service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """The server receives the end of the session, and the clients of the session are closed."""
    training.holder.close()
    wire.wait_for(f"sessions/{service.session_id}/finish")
    with pytest.raises(tinker.ClientClosedError):
        training.save_state("late").result(10)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("aclient", "use the client method"),
        ("execute_with_retries", "patience_seconds"),
        ("_client_config", "internal"),
    ],
)
def test_other_internals_name_their_replacement(
    service: tinker.ServiceClient, name: str, advice: str
) -> None:
    """Other internals of the official client raise an error that names the replacement."""
    with pytest.raises(AttributeError, match=f"holder has no attribute '{name}': .*{advice}"):
        getattr(service.holder, name)
    assert not hasattr(service.holder, name)


def test_subclasses_without_a_constructor_have_a_repr() -> None:
    """A subclass that does not call ``super().__init__()`` has a repr."""

    class Sampler(tinker.SamplingClient):
        def __init__(self) -> None: ...

    class Trainer(tinker.TrainingClient):
        def __init__(self) -> None: ...

    assert repr(Sampler()) == "<SamplingClient being created>"
    assert repr(Trainer()) == "<TrainingClient being created>"


@pytest.mark.parametrize(
    ("retries", "status", "failures", "error"),
    [
        (0, 503, 1, tinker.InternalServerError),
        (0, 429, 1, tinker.RateLimitError),
        (2, 503, 2, type(None)),
        (2, 503, 3, tinker.InternalServerError),
    ],
)
def test_retries_are_counted(
    wire: Any, connect: Connect, clock: Any, retries: int, status: int, failures: int, error: type
) -> None:
    """``max_retries`` is how often a request is made again; 0 raises the first failure."""
    wire.fail("get_server_capabilities", status, times=failures)
    rest = connect(max_retries=retries).create_rest_client()
    assert isinstance(rest.get_server_capabilities().exception(10), error)
    assert len(wire.requests("get_server_capabilities")) == retries + 1
    assert retries or clock.slept == []


@pytest.mark.parametrize("timeout", [7.5, httpx.Timeout(7.5), httpx.Timeout(1.0, read=7.5)])
def test_the_timeout_applies_to_all_requests_but_polls(
    wire: Any, connect: Connect, timeout: Any
) -> None:
    """It applies to every request except polls, which the server holds by design."""
    training = connect(timeout=timeout).create_lora_training_client("tinker/toy", rank=1).result(10)
    training.save_state("s").result(10)
    limits = {
        exchange.operation: exchange.request.extensions["timeout"]["read"]
        for exchange in wire.exchanges
    }
    assert limits["create_model"] == limits["save_weights"] == limits["client/config"] == 7.5
    assert limits["retrieve_future"] == 45.0


def test_default_headers_are_sent(wire: Any, connect: Connect) -> None:
    """They are sent with every request; those of the newer argument take precedence."""
    service = connect(
        default_headers={"X-One": "1", "X-Two": "1"}, default_headers_overrides={"x-two": "2"}
    )
    service.get_server_capabilities()
    headers = wire.requests("get_server_capabilities")[0].request.headers
    assert (headers["x-one"], headers.get_list("x-two")) == ("1", ["2"])


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"timeout": "60"}, TypeError, "timeout must be a number, got str"),
        ({"timeout": 0}, ValueError, "timeout must be above 0, got 0"),
        ({"max_retries": 1.5}, TypeError, "max_retries must be an integer, got float"),
        ({"max_retries": -1}, ValueError, "max_retries must be at least 0, got -1"),
        (
            {"default_headers": [("a", "b")]},
            TypeError,
            "default_headers must be a mapping of strings to strings, got list",
        ),
        ({"default_headers": {"a": 1}}, TypeError, "the header 'a' must be a string"),
        (
            {"http_client": httpx.Client()},
            TypeError,
            "http_client must be an httpx.AsyncClient or httpx2.AsyncClient, got Client",
        ),
    ],
)
def test_invalid_older_arguments(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    """Invalid values of older arguments are refused by the constructor, by name."""
    with pytest.raises(error, match=words):
        tinker.ServiceClient(base_url="http://server", **arguments)


def test_unknown_arguments_are_named_in_a_warning() -> None:
    """Unknown arguments are named in a warning; older arguments with an effect are not."""
    words = "^ServiceClient ignores unknown arguments: colour, size$"
    given: Any = {"base_url": "http://server", "timeout": 3, "max_retries": None}
    with pytest.warns(FutureWarning, match=words) as caught:
        tinker.ServiceClient(**given, colour="red", size=1)
    assert caught[0].filename == __file__


def test_warnings_of_twins_point_to_the_caller(
    service: tinker.ServiceClient, training: tinker.TrainingClient
) -> None:
    """The warnings of a method and its twin are of the line that calls or awaits it."""
    datum = types.Datum(PROMPT, {"target_tokens": [1, 2, 3]})
    path = training.save_weights_for_sampler("a").result(10).path

    async def use() -> None:
        await training.save_weights_and_get_sampling_client_async("x")
        await (await training.forward_backward_async([datum], "cross_entropy"))
        await service.create_sampling_client_async(path, base_model="tinker/toy")

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        asyncio.run(use())
        training.save_weights_and_get_sampling_client("x").result(10)
    told = [one for one in heard if re.search("no effect|targets equal", str(one.message))]
    kinds = [DeprecationWarning, UserWarning, UserWarning, DeprecationWarning]
    assert [one.category for one in told] == kinds
    assert {one.filename for one in told} == {__file__}


def test_extra_parameters_are_sent_with_the_others(
    wire: Any, service: tinker.ServiceClient
) -> None:
    """They are sent as members of the sampling parameters, and our server ignores them."""
    sampling = service.create_sampling_client(base_model="tinker/toy")
    params = types.SamplingParams(max_tokens=2, stop="x", extra={"min_p": 0.05, "bad-words": ["a"]})
    assert len(sampling.sample(PROMPT, 1, params).result(10).sequences) == 1
    sent = json.loads(wire.requests("asample")[0].body)["sampling_params"]
    plain = {"max_tokens": 2, "stop": ["x"], "temperature": 1.0, "top_k": -1, "top_p": 1.0}
    assert sent == {**plain, "min_p": 0.05, "bad-words": ["a"]}
    # the contract does not contain parameters of single servers
    assert len(wire.judge.bad_requests) == 1
    wire.judge.bad_requests.clear()


def test_inputs_above_a_known_context_length_are_refused(
    wire: Any, service: tinker.ServiceClient, datum: Any
) -> None:
    """The error names the index and both lengths, on the caller's line; nothing is sent."""
    training = service.create_lora_training_client("tinker/toy", rank=1).result(10)
    sampling = service.create_sampling_client(base_model="tinker/toy").result(10)
    longest = service.get_server_capabilities().supported_models[0].max_context_length
    assert longest is not None
    of_run = training.save_weights_and_get_sampling_client().result(10)  # has its base model
    fits, long = (types.ModelInput.from_ints([1] * (longest + more)) for more in (-1, 1))
    words = f"has {longest + 1} tokens, but the model accepts at most {longest}"
    one = types.SamplingParams(max_tokens=1)
    with pytest.raises(ValueError, match=rf"data\[1\]\.model_input {words}"):
        training.forward_backward([datum(), datum([1] * (longest + 1))], "cross_entropy")
    for call in (
        lambda: sampling.sample(long, 1, one),
        lambda: sampling.compute_logprobs(long),
        lambda: sampling.sample_stream(long, 1, one),
        lambda: of_run.sample(long, 1, one),
    ):
        with pytest.raises(ValueError, match=rf"^prompt {words}"):
            call()
    for operation in ("forward_backward", "asample", "stream_sample"):
        assert wire.requests(operation) == []
    assert len(sampling.compute_logprobs(fits).result(30)) == longest - 1


def test_nothing_is_refused_without_a_known_context_length(
    wire: Any, service: tinker.ServiceClient, datum: Any
) -> None:
    """A client that never requested the length, or received none or 0, sends any input."""
    training = service.create_lora_training_client("tinker/toy", rank=1).result(10)
    long = [1] * 40_000
    # the server's message
    with pytest.raises(tinker.RequestFailedError, match="it must have 1 to"):
        training.forward([datum(long)], "cross_entropy").result(10)
    ours = {"model_name": "tinker/toy"}
    for models in ([ours, {"max_context_length": 1}], [{**ours, "max_context_length": 0}]):
        body = {"supported_models": models}
        wire.fail("get_server_capabilities", 200, body=body, outside="no model takes nothing")
        service.get_server_capabilities()
        with pytest.raises(tinker.RequestFailedError, match="it must have 1 to"):
            training.forward([datum(long)], "cross_entropy").result(10)


@pytest.mark.parametrize(
    "create",
    ["create_training_client_from_state", "create_training_client_from_state_with_optimizer"],
)
def test_metadata_by_position(
    wire: Any, service: tinker.ServiceClient, training: tinker.TrainingClient, create: str
) -> None:
    """The second positional argument after a path is a model's name, or metadata as in 0.4."""
    path = training.save_state("0001").result(10).path
    getattr(service, create)(path, {"a": "b"}).result(10)
    getattr(service, create)(path, "tinker/toy", {"c": "d"}).result(10)
    first, second = (exchange.json for exchange in wire.requests("load_weights"))
    assert (first.get("base_model"), first["user_metadata"]) == (None, {"a": "b"})
    assert (second["base_model"], second["user_metadata"]) == ("tinker/toy", {"c": "d"})
