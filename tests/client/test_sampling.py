"""Sampling: results, concurrency, rate limits, lost results, and servers with fewer features."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tinker
from tinker._http.retry import REPETITIONS, RESUBMISSIONS
from tinker.lib.retry_handler import RetryConfig

Connect = Callable[..., tinker.ServiceClient]
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=4, seed=7, stop=[])


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a ready sampling client for the base model."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


def test_sample(sampler: tinker.SamplingClient) -> None:
    """Each sample has tokens, logprobs, a stop reason and an id; a seed repeats the tokens."""
    response = sampler.sample(PROMPT, 2, PARAMS).result(10)
    again = sampler.sample(PROMPT, 2, PARAMS).result(10)
    assert [one.tokens for one in response.sequences] == [one.tokens for one in again.sequences]
    for one in response.samples:
        assert one.logprobs is not None
        assert len(one.tokens) == len(one.logprobs) == 4
        assert one.stop_reason == "length"
    assert len({one.sequence_id for one in response.sequences}) == 2
    assert response.prompt_logprobs is None


@pytest.mark.parametrize("wire_form", ["proto", "json"])
def test_prompt_logprobs_and_topk(connect: Connect, wire_form: str) -> None:
    """Prompt logprobs begin with None, and top-k rows hold k pairs, over both wires."""
    sampler = connect(wire=wire_form).create_sampling_client(base_model="tinker/toy")
    response = sampler.sample(PROMPT, 1, PARAMS, True, 2, 3).result(10)
    assert response.prompt_logprobs is not None
    assert response.prompt_logprobs[0] is None
    assert [type(value) for value in response.prompt_logprobs[1:]] == [float, float]
    assert response.topk_prompt_logprobs is not None
    assert response.topk_prompt_logprobs[0] is None
    assert [len(row or ()) for row in response.topk_prompt_logprobs[1:]] == [2, 2]
    assert [len(row or ()) for row in response.sequences[0].topk_logprobs or ()] == [3] * 4


def test_parameters_as_plain_data_and_numbers_of_numpy(sampler: tinker.SamplingClient) -> None:
    """Parameters as a dictionary, and tokens and numbers of numpy, sample as plain values do."""
    plain: Any = {"max_tokens": 4, "seed": np.int64(7), "stop": []}
    wanted = sampler.sample(PROMPT, 2, PARAMS, True, 2).result(10)
    numbers: tuple[Any, ...] = (np.int64(2), plain, np.bool_(True), np.array(2))
    prompt = tinker.ModelInput.from_ints(np.asarray([1, 2, 3], np.int64))
    response = sampler.sample(prompt, *numbers).result(10)
    assert [one.tokens for one in response.sequences] == [one.tokens for one in wanted.sequences]
    assert response.topk_prompt_logprobs == wanted.topk_prompt_logprobs


def test_compute_logprobs(sampler: tinker.SamplingClient) -> None:
    """The logprobs of a prompt equal those that sampling reports for it."""
    logprobs = sampler.compute_logprobs(PROMPT).result(10)
    response = sampler.sample(PROMPT, 1, PARAMS, include_prompt_logprobs=True).result(10)
    assert logprobs == response.prompt_logprobs
    assert asyncio.run(sampler.compute_logprobs_async(PROMPT)) == logprobs


def test_a_thousand_concurrent_samples(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A thousand concurrent samples return, from await and as_completed, under own numbers."""

    async def scenario() -> list[tinker.types.SampleResponse]:
        return await asyncio.gather(*(sampler.sample(PROMPT, 1, PARAMS) for _ in range(500)))

    awaited = asyncio.run(scenario())
    futures = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(500)]
    done = [future.result() for future in concurrent.futures.as_completed(futures, timeout=30)]
    assert len({tuple(response.sequences[0].tokens) for response in awaited + done}) == 1
    assert sorted(one.seq_id for one in wire.requests("asample")) == list(range(1000))


def test_rate_limit_is_waited_out(sampler: tinker.SamplingClient, wire: Any, clock: Any) -> None:
    """On 429 the sample is sent again under the same number after the server's Retry-After."""
    wire.fail("asample", 429, headers={"retry-after": "3"}, times=2)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens
    assert [one.seq_id for one in wire.requests("asample")] == [0, 0, 0]
    assert sum(clock.slept) >= 6


def test_rate_limits_can_be_raised_at_once(connect: Connect, wire: Any, clock: Any) -> None:
    """A client that fails fast raises 429 with its Retry-After, and sends nothing until then."""
    service = connect(fail_fast=True, api_key="tml-fast")
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("asample", 429, headers={"retry-after": "300"})
    with pytest.raises(tinker.RateLimitError) as caught:
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert caught.value.retry_after == 300
    clock.now += 5
    with pytest.raises(tinker.RateLimitError) as again:
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert again.value.retry_after is not None
    assert 50 < again.value.retry_after < 60
    assert len(wire.requests("asample")) == 1
    clock.now += 60
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences


def test_failing_fast_by_the_environment(
    connect: Connect, wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TINKER_FAIL_FAST does so for every submission, not for the result of an accepted one."""
    monkeypatch.setenv("TINKER_FAIL_FAST", "1")
    service = connect()
    wire.fail("create_model", 429)
    with pytest.raises(tinker.RateLimitError):
        service.create_lora_training_client("tinker/toy").result(10)
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("retrieve_future", 429, times=2)
    assert training.optim_step(tinker.AdamParams()).result(10).metrics is not None


FAILED = {"error": "a device was lost", "category": "server"}


@pytest.mark.parametrize(
    ("status", "body", "again", "error"),
    [
        (410, {"detail": "expired"}, RESUBMISSIONS, tinker.APIStatusError),
        (200, FAILED, REPETITIONS, tinker.RequestFailedError),
    ],
    ids=["lost", "failed"],
)
def test_a_sample_without_a_result_is_submitted_again(
    sampler: tinker.SamplingClient,
    wire: Any,
    status: int,
    body: object,
    again: int,
    error: type[Exception],
) -> None:
    """A sample that expired or failed on the server is submitted again, a few times."""
    wire.fail("retrieve_future", status, body=body, times=again)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens
    assert [one.seq_id for one in wire.requests("asample")] == list(range(again + 1))
    wire.fail("retrieve_future", status, body=body, times=again + 1)
    with pytest.raises(error, match=r"410|a device was lost"):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests("asample")) == 2 * (again + 1)


@pytest.mark.parametrize(
    ("category", "given", "config"),
    [
        ("user", {}, None),
        ("unknown", {}, None),
        ("server", {"max_retries": 0}, None),
        ("server", {}, RetryConfig(enable_retry_logic=False)),
    ],
)
def test_a_failed_sample_is_raised_at_once(
    connect: Connect, wire: Any, category: str, given: dict[str, Any], config: Any
) -> None:
    """A failure that the user caused or has no category, or with retries off, is not retried."""
    service = connect(**given)
    sampler = service.create_sampling_client(base_model="tinker/toy", retry_config=config)
    sampler.result(10)
    wire.fail("retrieve_future", 200, body={**FAILED, "category": category})
    with pytest.raises(tinker.RequestFailedError):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests("asample")) == 1


def test_server_without_sequence_ids(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A submit response without sequence ids is accepted; the sequences then have no id."""
    original = sampler.sample(PROMPT, 1, PARAMS)
    original.result(10)
    wire.fail("asample", 200, body={"request_id": original.request_id})
    (sequence,) = sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert sequence.sequence_id is None
    assert sequence.tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include_prompt_logprobs": "perhaps"}, "must be True or False, got str"),
        ({"topk_prompt_logprobs": -1}, "topk_prompt_logprobs must not be negative"),
        ({"prompt_logprobs_last_n": 1}, "needs include_prompt_logprobs"),
        ({"prompt_logprobs_last_n": 0, "include_prompt_logprobs": True}, "at least 1"),
        ({"target_prompt_logprobs": tinker.TensorData([1.0], "float32")}, "int64 tensor of shape"),
        (
            {"target_prompt_logprobs": tinker.TensorData([[1], [2], [3]], "int64", [3, 1])},
            "must have 2 rows",
        ),
    ],
)
def test_impossible_arguments_are_refused(
    sampler: tinker.SamplingClient, wire: Any, arguments: dict[str, Any], message: str
) -> None:
    """Arguments that no server can process are refused on the user's line and nothing is sent."""
    with pytest.raises((ValueError, TypeError), match=message):
        sampler.sample(PROMPT, 1, PARAMS, **arguments)
    assert wire.requests("asample") == []


def test_saved_and_ephemeral_weights_sample_alike(
    service: tinker.ServiceClient, training: tinker.TrainingClient, datum: Any
) -> None:
    """Weights saved with a name and without one sample the same; later steps do not change them."""
    made = []
    for tokens in ([1, 2, 3], [9, 8]):
        training.forward_backward([datum(tokens)], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=0.5)).result(10)
        made.append(training.save_weights_and_get_sampling_client())
        path = training.save_weights_for_sampler(f"after-{len(made)}").result(10).path
        made.append(service.create_sampling_client(model_path=path))
    one, same, *later = (client.compute_logprobs(PROMPT).result(10) for client in made)
    assert one == same
    assert later[0] == later[1] != one
    ephemeral, saved = made[:2]
    assert saved.get_base_model() == ephemeral.get_base_model() == "tinker/toy"
