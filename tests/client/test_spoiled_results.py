"""What something on the way has cut, emptied or replaced is never taken for a result."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import numpy as np
import pytest

import tinker
from tinker._wire import proto

Connect = Callable[..., tinker.ServiceClient]
ADAM = tinker.AdamParams()
PROMPT = tinker.ModelInput.from_ints([104, 105, 106, 107])
PARAMS = tinker.SamplingParams(max_tokens=4, stop=[], seed=1)
TARGETS = tinker.TensorData.from_numpy(np.zeros((3, 1), np.int64))


def data(count: int) -> list[tinker.Datum]:
    """Return datums whose outputs all differ."""
    return [
        tinker.Datum(PROMPT, {"target_tokens": [1 + i % 400, 2, 3, 4], "weights": [1.0] * 4})  # type: ignore[dict-item]
        for i in range(count)
    ]


class Clients:
    """A training client and a sampler of one session, both ready."""

    def __init__(self, service: tinker.ServiceClient, *, is_json: bool) -> None:
        self.scores: dict[str, Any] = {
            "include_prompt_logprobs": True,
            "topk_prompt_logprobs": 2,
            "topk_sample_logprobs": 2,
        }
        if not is_json:
            self.scores |= {"target_prompt_logprobs": TARGETS, "prompt_alt_tokens_k": 1}
        self.training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
        self.sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
        self.names = itertools.count()
        self.saved = self.training.save_state("saved").result(10).path


@tinker.with_gradients
def double(_: Any, logprobs: list[Any]) -> Any:
    loss = 2 * float(sum(one.sum() for one in logprobs))
    return loss, [np.full_like(one, 2) for one in logprobs], {"double:sum": loss}


def summarize_losses(future: tinker.APIFuture[tinker.ForwardBackwardOutput]) -> object:
    output = future.result(30)
    return [one["logprobs"].tolist() for one in output.loss_fn_outputs], dict(output.metrics)


def summarize_sample(future: tinker.APIFuture[tinker.SampleResponse]) -> object:
    """Return all of a response but the ids of its sequences, which are those of the request."""
    response = future.result(30)
    sequences = [
        (one.stop_reason, one.tokens, one.logprobs, one.topk_logprobs) for one in response.sequences
    ]
    targets, drawn = response.target_prompt_logprobs, response.prompt_alt_tokens
    tensors = [
        tensor.tolist() for tensor in (targets, drawn and drawn.tokens) if tensor is not None
    ]
    return sequences, response.prompt_logprobs, response.topk_prompt_logprobs, tensors


#: What is done, and what must come of it each time: no call changes what another computes.
CALLS: dict[str, Callable[[Clients], object]] = {
    "forward": lambda it: summarize_losses(it.training.forward(data(2), "cross_entropy")),
    "forward_backward": lambda it: summarize_losses(
        it.training.forward_backward(data(2), "cross_entropy")
    ),
    "forward_backward of several requests": lambda it: summarize_losses(
        it.training.forward_backward(data(5), "cross_entropy")
    ),
    "forward_backward_custom": lambda it: summarize_losses(
        it.training.forward_backward_custom(data(2), double)
    ),
    "sample": lambda it: summarize_sample(it.sampler.sample(PROMPT, 3, PARAMS)),
    "sample and scores": lambda it: summarize_sample(
        it.sampler.sample(PROMPT, 3, PARAMS, **it.scores)
    ),
    "compute_logprobs": lambda it: it.sampler.compute_logprobs(PROMPT).result(30),
}
#: What changes the run, and the fields that its result must have.
REQUIRED = {"save_state": {"path"}, "save_weights_for_sampler": {"path"}}
ARGUMENTS: dict[str, Callable[[Clients], object]] = {
    "optim_step": lambda it: ADAM,
    "save_state": lambda it: f"s{next(it.names)}",
    "save_weights_for_sampler": lambda it: f"s{next(it.names)}",
    "load_state": lambda it: it.saved,
    "load_state_with_optimizer": lambda it: it.saved,
}
STEPS: dict[str, Callable[[Clients], object]] = {
    name: lambda it, name=name, given=given: getattr(it.training, name)(given(it)).result(30)
    for name, given in ARGUMENTS.items()
}


def with_content(response: httpx.Response, content: bytes, status: int = 200) -> httpx.Response:
    headers = {"content-type": response.headers["content-type"]}
    return httpx.Response(status, headers=headers, content=content)


def spoilt(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield what is missing of a result, and what is left when a part of it is taken away."""
    if content.startswith(b"{"):
        whole = json.loads(content)
        yield from without_a_part(whole, whole)
        return
    fields = proto.split_fields(content)
    for at in range(len(fields)):
        yield f"all fields after the first {at}", b"".join(fields[:at])
        yield f"field {at}", b"".join(fields[:at] + fields[at + 1 :])


def without_a_part(whole: Any, part: Any, path: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield JSON without each of its fields in turn, and with each list shortened or empty."""
    keys: list[Any] = list(part) if isinstance(part, dict) else [*range(len(part))][:1]
    for key in keys:
        value = part[key]
        for kept in ([], value[:-1]) if isinstance(value, list) and value else ():
            part[key] = kept
            yield f"{path}{key}: {len(kept)} of {len(value)}", json.dumps(whole).encode()
        if isinstance(part, dict):
            del part[key]
            yield f"{path}{key}", json.dumps(whole).encode()
        part[key] = value
        # of which a server may send fewer
        if isinstance(value, dict | list) and "topk" not in str(key):
            yield from without_a_part(whole, value, f"{path}{key}.")


@pytest.fixture(params=["proto", "json"])
def clients(request: pytest.FixtureRequest, connect: Connect, wire: Any) -> Clients:
    """Return the clients, on either wire, of a server that takes two datums in one request."""

    def limit(response: httpx.Response) -> httpx.Response:
        return httpx.Response(200, json={**response.json(), "fwdbwd_max_chunk_len": 2})

    wire.spoil("client/config", limit)
    return Clients(connect(wire=request.param), is_json=request.param == "json")


def results(
    wire: Any, call: Callable[[Clients], object], clients: Clients
) -> tuple[object, list[bytes]]:
    """Make a call; return what came of it, and the results as the server sent them."""
    before = len(wire.requests("retrieve_future"))
    outcome = call(clients)
    answers = [one.answer for one in wire.requests("retrieve_future")[before:]]
    return outcome, [one for one in answers if b"try_again" not in one]


@pytest.mark.parametrize("call", CALLS)
def test_a_part_of_a_result_is_asked_for_again(clients: Clients, wire: Any, call: str) -> None:
    """Whatever is missing from a result on its way, the poll is repeated until it is whole."""
    expected, sent = results(wire, CALLS[call], clients)
    for number, (what, _) in enumerate(spoilt(sent[0])):

        def spoil(response: httpx.Response, number: int = number) -> httpx.Response:
            return with_content(response, list(spoilt(response.content))[number][1])

        wire.spoil("retrieve_future", spoil)
        assert CALLS[call](clients) == expected, what


@pytest.mark.parametrize("status", [204, 200])
@pytest.mark.parametrize("call", {**CALLS, **STEPS})
def test_nothing_is_no_result(clients: Clients, wire: Any, call: str, status: int) -> None:
    """An answer without a body is asked for again, three times; then it is a typed error."""
    ask = {**CALLS, **STEPS}[call]
    change = partial(with_content, content=b"", status=status)
    if call in CALLS:
        expected = ask(clients)
        wire.spoil("retrieve_future", change, 2)
        assert ask(clients) == expected
    if "several" in call:
        return  # which of them would be asked three times is not known
    wire.spoil("retrieve_future", change, 3)
    with pytest.raises(tinker.APIResponseValidationError, match="body is empty"):
        ask(clients)


@pytest.mark.parametrize("call", STEPS)
def test_a_step_without_a_field(clients: Clients, wire: Any, call: str) -> None:
    """A result without a required field is a typed error; without an optional one, a result."""
    whole = json.loads(results(wire, STEPS[call], clients)[1][0])
    for name in whole:
        content = json.dumps({key: value for key, value in whole.items() if key != name}).encode()
        change = partial(with_content, content=content)
        if name not in REQUIRED.get(call, ()):
            wire.spoil("retrieve_future", change)
            STEPS[call](clients)
            continue
        wire.spoil("retrieve_future", change, 3)
        with pytest.raises(tinker.APIResponseValidationError, match=name):
            STEPS[call](clients)


def train(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return service.create_lora_training_client("tinker/toy", rank=2).result(30)


def sample(service: tinker.ServiceClient) -> object:
    sampler = service.create_sampling_client(base_model="tinker/toy").result(30)
    return sampler.sample(PROMPT, 1, PARAMS).result(30)


#: What asks for the response of each operation, of those that a program makes first.
ASKED: dict[str, Callable[[tinker.ServiceClient], object]] = {
    "client/config": train,
    "create_session": train,
    "create_model": train,
    "get_info": lambda service: train(service).get_info(),
    "forward_backward": lambda service: (
        train(service).forward_backward(data(1), "cross_entropy").result(30)
    ),
    "optim_step": lambda service: train(service).optim_step(ADAM).result(30),
    "save_weights": lambda service: train(service).save_state("a", overwrite=True).result(30),
    "save_weights_for_sampler": lambda service: (
        train(service).save_weights_and_get_sampling_client().result(30)
    ),
    "create_sampling_session": sample,
    "asample": sample,
    "get_server_capabilities": lambda service: service.get_server_capabilities(),
    "sessions": lambda service: service.create_rest_client().list_sessions().result(30),
    "training_runs": lambda service: service.create_rest_client().list_training_runs().result(30),
    "checkpoints": lambda service: service.create_rest_client().list_user_checkpoints().result(30),
}


@pytest.mark.parametrize("operation", ASKED)
def test_a_response_without_a_field(connect: Connect, wire: Any, operation: str) -> None:
    """A response that lacks a field once is asked for again or read; else the error is typed."""
    ASKED[operation](connect())
    whole = wire.answers(operation)[-1]
    for name in whole:

        def cut(response: httpx.Response, name: str = name) -> httpx.Response:
            kept = {key: value for key, value in response.json().items() if key != name}
            return httpx.Response(200, json=kept)

        wire.spoil(operation, cut)
        ASKED[operation](connect())
        wire.spoil(operation, cut, 100)
        with contextlib.suppress(tinker.TinkerError):
            ASKED[operation](connect())
        wire.faults[-1].times = 0
