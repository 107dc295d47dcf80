"""Usage: the client counts the tokens that the server bills, and applies the user's price list."""

from __future__ import annotations

import concurrent.futures
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from support.tolerances import FLOAT64, near
from tinker_wire import models

import tinker
from tinker.observing import TokensUsed
from tinker.testing import toy_server
from tinker.usage import (
    Price,
    TokenCounts,
    Usage,
    count_billing,
    estimate_sampling,
    estimate_training,
    load_prices,
    price_of,
)

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=5)
ONE_BY_ONE = {"fwdbwd_max_chunk_len": 1}
PRICE = Price(train=3, prefill=1, sample=2)


def datum(length: int) -> tinker.Datum:
    tokens = np.arange(1, length + 1) % 50
    inputs: Any = {"target_tokens": tokens, "weights": np.ones(length, np.float32)}
    return tinker.Datum(tinker.ModelInput.from_ints(tokens), inputs)


@tinker.with_gradients
def push_up(data: Any, logprobs: Any) -> Any:
    return -sum(part.sum() for part in logprobs), [0 * part - 1 for part in logprobs]


def billed(service: tinker.ServiceClient) -> dict[str | None, TokenCounts]:
    """Return what the server bills in total, by model."""
    now = datetime.datetime.now(datetime.UTC).replace(minute=0, second=0, microsecond=0)
    hour = datetime.timedelta(hours=1)
    answer = service.create_rest_client().get_billing_usage(now - hour, now + 2 * hour).result(10)
    return count_billing(answer)


class Work:
    """Every operation that uses tokens, with distinct numbers; samples end at the stop token."""

    def __init__(self, service: tinker.ServiceClient) -> None:
        training = service.create_lora_training_client("tinker/toy", rank=4)
        training.forward([datum(3)], "cross_entropy").result(10)
        training.forward_backward([datum(5), datum(7)], "cross_entropy").result(10)
        training.forward_backward_custom([datum(11)], push_up).result(10)
        training.optim_step(ADAM).result(10)
        own = training.save_weights_and_get_sampling_client()
        of_run = own.sample(PROMPT, 2, PARAMS).result(10)
        own.compute_logprobs(PROMPT).result(10)
        path = training.save_weights_for_sampler("s").result(10).path
        saved = service.create_sampling_client(path).sample(PROMPT, 1, PARAMS).result(10)
        of_base = service.create_sampling_client(base_model="tinker/toy")
        base = of_base.sample(PROMPT, 3, PARAMS).result(10)
        self.model_id = training.model_id
        self.of_base = sampled(base)
        self.sampled = sampled(of_run) + sampled(saved) + self.of_base


def sampled(response: tinker.SampleResponse) -> int:
    return sum(len(one.tokens) for one in response.sequences)


def test_counts_match_the_bill(connect: Connect) -> None:
    """What is counted by operation, run and model adds up to the bill."""
    usage = Usage()
    service = connect(observers=[usage])
    done = Work(service)
    assert usage.by("operation") == {
        "forward": TokenCounts(trained=3),
        "forward_backward": TokenCounts(trained=12),
        "forward_backward_custom": TokenCounts(trained=22),
        "sample": TokenCounts(prefilled=9, sampled=done.sampled),
        "compute_logprobs": TokenCounts(prefilled=3, sampled=1),
    }
    runs = usage.by("training_run_id")
    assert runs.keys() == {done.model_id, None}
    assert runs[None] == TokenCounts(prefilled=3, sampled=done.of_base)
    assert usage.by("base_model") == billed(service) == {"tinker/toy": usage.total}
    assert usage.unconfirmed == TokenCounts()


@pytest.mark.parametrize("parallel", [False, True])
def test_chunks_and_retries_count_once(parallel: bool) -> None:
    """Chunked requests, and requests sent again after a failure, are counted as they are billed."""
    usage = Usage()
    config = models.ClientConfigResponse(fwdbwd_max_chunk_len=1, parallel_fwdbwd_chunks=parallel)
    with toy_server(client_config=config) as server:
        service = server.service(observers=[usage])
        training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
        server.fail_next("forward_backward", 503)
        training.forward_backward([datum(5), datum(7), datum(2)], "cross_entropy").result(10)
        sampler = service.create_sampling_client(base_model="tinker/toy")
        server.fail_next("asample", 503)
        count = sampled(sampler.sample(PROMPT, 2, PARAMS).result(10))
        expected = {"tinker/toy": TokenCounts(trained=14, prefilled=3, sampled=count)}
        assert usage.by("base_model") == billed(service) == expected
        requests = {line.operation: line.requests for line in usage.lines()}
        assert requests == {"forward_backward": 3, "sample": 1}


def test_failed_requests_use_nothing(connect: Connect) -> None:
    """A request that the server failed on is neither counted nor billed."""
    usage = Usage()
    service = connect(observers=[usage])
    training = service.create_lora_training_client("tinker/toy", rank=4)
    unknown = tinker.Datum(tinker.ModelInput.from_ints([10**6]), {"target_tokens": [1]})
    with pytest.raises(tinker.RequestFailedError):
        training.forward_backward([unknown], "cross_entropy").result(10)
    assert usage.total == usage.unconfirmed == TokenCounts()
    assert billed(service) == {}


def test_unknown_outcomes_are_counted_separately(connect: Connect, wire: Any) -> None:
    """The prompt of a sample that is accepted and then cancelled is counted as unconfirmed."""
    usage = Usage()
    service = connect(observers=[usage])
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    release = wire.hold("retrieve_future")
    future = sampler.sample(PROMPT, 1, PARAMS)
    wire.wait_for("retrieve_future")
    future.cancel()
    release()
    service.create_rest_client().list_sessions().result(10)
    assert usage.total == TokenCounts()
    assert usage.unconfirmed == TokenCounts(prefilled=3)


@pytest.mark.parametrize("together", [True, False])
def test_accepted_requests_of_a_failed_batch_are_counted_separately(
    connect: Connect, wire: Any, together: bool
) -> None:
    """If one request of a batch is refused, the tokens of accepted ones are unconfirmed."""
    usage = Usage()
    wire.fail("client/config", 200, body={**ONE_BY_ONE, "parallel_fwdbwd_chunks": together})
    training = connect(observers=[usage]).create_lora_training_client("tinker/toy", rank=4)
    refusal = httpx.Response(400, json={"detail": "no"})
    wire.answer("forward_backward", lambda *_: refusal, after=1)
    with pytest.raises(tinker.BadRequestError):
        training.forward_backward([datum(3), datum(5)], "cross_entropy").result(10)
    assert usage.total == TokenCounts()
    assert usage.unconfirmed == TokenCounts(trained=5 if together else 3)


def test_accepted_requests_of_a_cancelled_batch_are_counted_separately(
    connect: Connect, wire: Any
) -> None:
    """A batch cancelled while it is sent is sent completely, and its tokens are unconfirmed."""
    usage = Usage()
    wire.fail("client/config", 200, body={**ONE_BY_ONE, "parallel_fwdbwd_chunks": False})
    service = connect(observers=[usage])
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    begun: concurrent.futures.Future[tinker.APIFuture[Any]] = concurrent.futures.Future()

    def cancel(_: httpx.Request, __: bytes) -> httpx.Response:
        begun.result(10).cancel()
        return httpx.Response(503)

    wire.answer("forward_backward", cancel)
    begun.set_result(training.forward_backward([datum(3), datum(5)], "cross_entropy"))
    with pytest.raises(concurrent.futures.CancelledError):
        begun.result().result(10)
    training.optim_step(ADAM).result(10)
    assert usage.unconfirmed == TokenCounts(trained=8)


def test_streams_are_counted_by_model(connect: Connect, wire: Any) -> None:
    """A stream from saved weights counts for their base model, asked for only by observers."""
    usage = Usage()
    service = connect(observers=[usage])
    training = service.create_lora_training_client("tinker/toy", rank=4)
    path = training.save_weights_for_sampler("s").result(10).path
    list(service.create_sampling_client(path).sample_stream(PROMPT, 1, PARAMS))
    assert [(one.operation, one.base_model) for one in usage.lines()] == [
        ("sample_stream", "tinker/toy")
    ]
    asked = len(wire.requests("get_sampler"))
    list(connect().create_sampling_client(path).sample_stream(PROMPT, 1, PARAMS))
    assert len(wire.requests("get_sampler")) == asked


def test_cached_prompts_are_counted_separately(connect: Connect, wire: Any) -> None:
    """Tokens that the server reports as cached are not counted as read, and have a price."""
    usage = Usage()
    sampler = connect(observers=[usage]).create_sampling_client(base_model="tinker/toy").result(10)
    sequence = {"tokens": [7, 8], "logprobs": [-1.0, -1.0], "stop_reason": "length"}
    answer = {"type": "sample", "sequences": [sequence], "prompt_cache_hit_tokens": 2}
    wire.fail("retrieve_future", 200, body=answer)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert usage.total == TokenCounts(prefilled=1, cached=2, sampled=2)
    dear = Price(train=0, prefill=1_000_000, sample=0, cached=100_000)
    assert usage.cost({"tinker/toy": dear}) == 1.2


def test_costs(connect: Connect) -> None:
    """A cost is the sum over models of tokens times prices; a model without one is an error."""
    usage = Usage()
    done = Work(connect(observers=[usage]))
    expected = (37 * 3 + 12 * 1 + (done.sampled + 1) * 2) / 1e6
    dear = Price(train=9, prefill=9, sample=9)
    for prices in ({"tinker/toy": PRICE}, {"*": PRICE, "other": dear}):
        assert usage.cost(prices) == near(expected, 6, unit=FLOAT64)
    with pytest.raises(ValueError, match="no price for tinker/toy; the price list has other"):
        usage.cost({"other": PRICE})
    with pytest.raises(ValueError, match="an unknown model"):
        price_of({}, None)


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        ({"train": -1.0}, ValueError, "train must be at least 0"),
        ({"sample": float("nan")}, ValueError, "sample must be at least 0"),
        ({"prefill": "1"}, TypeError, "prefill must be a number, got str"),
        ({"cached": True}, TypeError, "cached must be a number"),
    ],
)
def test_invalid_prices(wrong: dict[str, Any], error: type[Exception], match: str) -> None:
    """A price must be a number of at least 0."""
    with pytest.raises(error, match=match):
        Price(**{"train": 1.0, "prefill": 1.0, "sample": 1.0, **wrong})


def test_a_price_list_is_a_file(tmp_path: Path) -> None:
    """TOML and JSON work alike; an invalid list is refused with file, model and price."""
    toml, other = tmp_path / "prices.toml", tmp_path / "prices.json"
    toml.write_text('["a/b"]\ntrain = 3\nprefill = 1\nsample = 2.0\n')
    other.write_text(json.dumps({"a/b": {"train": 3, "prefill": 1, "sample": 2}}))
    assert load_prices(toml) == load_prices(str(other)) == {"a/b": PRICE}
    for file, text, match in (
        (toml, "[", "prices.toml is not a price list"),
        (toml, "a = 1", "the price of a must have"),
        (toml, "[a]\ntrain = 1", "the price of a: .*missing"),
        (toml, "[a]\ntrain = -1\nprefill = 1\nsample = 1", "the price of a: train must be at"),
        (other, "[]", "an object for each model"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=match):
            load_prices(file)


def test_estimates(connect: Connect) -> None:
    """The estimate before a run equals its usage; samples may use less."""
    usage = Usage()
    training = connect(observers=[usage]).create_lora_training_client("tinker/toy", rank=4)
    data = [datum(5), datum(7)]
    for _ in range(3):
        training.forward_backward(data, "cross_entropy").result(10)
    assert usage.total == estimate_training(data, passes=3) == TokenCounts(trained=36)
    sampled = estimate_sampling([PROMPT, PROMPT], max_tokens=5, num_samples=2)
    assert sampled == TokenCounts(prefilled=6, sampled=20)
    with pytest.raises(ValueError, match="passes must be at least 0"):
        estimate_training(data, passes=-1)
    with pytest.raises(ValueError, match="max_tokens must be at least 0"):
        estimate_sampling([PROMPT], max_tokens=-1)


def test_tables(connect: Connect) -> None:
    """A ledger prints as a table, also in a notebook, whatever names it has; a reset empties it."""
    usage = Usage()
    usage(TokensUsed(operation="<b>", base_model="m", trained=1234))
    assert usage.__rich__().row_count == 1
    html = usage._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert "&lt;b&gt;" in html
    assert "1,234" in html
    assert usage.lines()[0].cells == ("m", "-", "<b>", "1", "1,234", "0", "0", "0", "0")
    assert "1234" in repr(usage)
    with pytest.raises(ValueError, match="name must be base_model"):
        usage.by("model")  # type: ignore[arg-type]
    usage.reset()
    assert usage.lines() == ()


def test_adding_and_removing_observers(connect: Connect) -> None:
    """An observer can be added at any time, and hears nothing after it was removed."""
    service, early, late = connect(), Usage(), Usage()
    service.add_observer(early)
    sampler = service.create_sampling_client(base_model="tinker/toy")
    sampler.compute_logprobs(PROMPT).result(10)
    service.add_observer(late)
    sampler.compute_logprobs(PROMPT).result(10)
    service.remove_observer(early)
    for _ in range(2):
        sampler.compute_logprobs(PROMPT).result(10)
    assert (early.total.prefilled, late.total.prefilled) == (6, 9)
    with pytest.raises(ValueError, match="is not an observer of this client"):
        service.remove_observer(early)
    with pytest.raises(TypeError, match="an observer must be a function of one event, got int"):
        service.add_observer(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="an observer must be a function"):
        connect(observers=[None])
