"""Sampling: results, concurrency, rate limits, expired requests, and servers with
fewer features.
"""

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
    """Each sample has tokens, their logprobs, a stop reason and an id; the same seed gives the same
    tokens.
    """
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
def test_prompt_logprobs_and_topk(
    connect: Callable[..., tinker.ServiceClient], wire_form: str
) -> None:
    """Prompt logprobs begin with None, and top-k rows hold k pairs, over both wires."""
    sampler = connect(wire=wire_form).create_sampling_client(base_model="tinker/toy")
    response = sampler.sample(
        PROMPT,
        1,
        PARAMS,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
        topk_sample_logprobs=3,
    ).result(10)
    assert response.prompt_logprobs is not None
    assert response.prompt_logprobs[0] is None
    assert [type(value) for value in response.prompt_logprobs[1:]] == [float, float]
    assert response.topk_prompt_logprobs is not None
    assert response.topk_prompt_logprobs[0] is None
    assert [len(row or ()) for row in response.topk_prompt_logprobs[1:]] == [2, 2]
    assert [len(row or ()) for row in response.sequences[0].topk_logprobs or ()] == [3] * 4


def test_parameters_as_plain_data_and_numbers_of_numpy(sampler: tinker.SamplingClient) -> None:
    """Parameters given as a dictionary, and numpy numbers, sample as the plain values do."""
    plain: Any = {"max_tokens": 4, "seed": np.int64(7), "stop": []}
    wanted = sampler.sample(
        PROMPT, 2, PARAMS, include_prompt_logprobs=True, topk_prompt_logprobs=2
    ).result(10)
    numbers: tuple[Any, ...] = (np.int64(2), plain, np.bool_(True), np.array(2))
    response = sampler.sample(PROMPT, *numbers).result(10)
    assert [one.tokens for one in response.sequences] == [one.tokens for one in wanted.sequences]
    assert response.topk_prompt_logprobs == wanted.topk_prompt_logprobs


def test_a_flag_that_is_neither_true_nor_false(sampler: tinker.SamplingClient, wire: Any) -> None:
    """It is refused at the call, and nothing is sent."""
    wrong: Any = "perhaps"
    with pytest.raises(TypeError, match="include_prompt_logprobs must be True or False, got str"):
        sampler.sample(PROMPT, 1, PARAMS, include_prompt_logprobs=wrong)
    assert wire.requests("asample") == []


def test_compute_logprobs(sampler: tinker.SamplingClient) -> None:
    """The logprobs of a prompt equal those that sampling reports for it."""
    logprobs = sampler.compute_logprobs(PROMPT).result(10)
    response = sampler.sample(PROMPT, 1, PARAMS, include_prompt_logprobs=True).result(10)
    assert logprobs == response.prompt_logprobs
    assert asyncio.run(sampler.compute_logprobs_async(PROMPT)) == logprobs


def test_a_thousand_concurrent_samples(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A thousand concurrent samples all return, from await and from as_completed, under distinct
    numbers.
    """

    async def scenario() -> list[tinker.types.SampleResponse]:
        return await asyncio.gather(*(sampler.sample(PROMPT, 1, PARAMS) for _ in range(500)))

    awaited = asyncio.run(scenario())
    futures = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(500)]
    done = [future.result() for future in concurrent.futures.as_completed(futures, timeout=30)]
    assert {tuple(response.sequences[0].tokens) for response in awaited + done} == {
        tuple(awaited[0].sequences[0].tokens)
    }
    assert sorted(one.seq_id for one in wire.requests("asample")) == list(range(1000))


def test_rate_limit_is_waited_out(sampler: tinker.SamplingClient, wire: Any, clock: Any) -> None:
    """On 429 the sample is sent again under the same number after the server's Retry-After."""
    wire.fail("asample", 429, headers={"retry-after": "3"}, times=2)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens
    assert [one.seq_id for one in wire.requests("asample")] == [0, 0, 0]
    assert sum(clock.slept) >= 6


def test_rate_limits_can_be_raised_at_once(
    connect: Callable[..., tinker.ServiceClient], wire: Any, clock: Any
) -> None:
    """A client that fails fast raises 429 with the Retry-After, sends nothing until then, and
    continues afterwards.
    """
    sampler = (
        connect(fail_fast=True, api_key="tml-fast")
        .create_sampling_client(base_model="tinker/toy")
        .result(10)
    )
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
    connect: Callable[..., tinker.ServiceClient], wire: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TINKER_FAIL_FAST does the same for every submission; the result of an accepted request is
    still waited for.
    """
    monkeypatch.setenv("TINKER_FAIL_FAST", "1")
    service = connect()
    wire.fail("create_model", 429)
    with pytest.raises(tinker.RateLimitError):
        service.create_lora_training_client("tinker/toy").result(10)
    training = service.create_lora_training_client("tinker/toy").result(10)
    wire.fail("retrieve_future", 429, times=2)
    assert training.optim_step(tinker.AdamParams()).result(10).metrics is not None


def test_expired_request_is_submitted_again(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A sample whose result has expired is submitted again, under a new number."""
    wire.fail("retrieve_future", 410, body={"detail": "expired"})
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens
    assert [one.seq_id for one in wire.requests("asample")] == [0, 1]


def test_results_that_are_always_lost(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A server that loses every result is not retried indefinitely: the error has its response."""
    wire.fail("retrieve_future", 410, body={"detail": "expired"}, times=RESUBMISSIONS + 1)
    with pytest.raises(tinker.APIStatusError, match="410"):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests("asample")) == RESUBMISSIONS + 1


FAILED = {"error": "a device was lost", "category": "server"}


def test_a_sample_that_the_server_failed_is_submitted_again(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """A sample that failed through a server error is submitted again, under a new number, after a
    delay, a few times.
    """
    wire.fail("retrieve_future", 200, body=FAILED, times=REPETITIONS)
    assert len(sampler.sample(PROMPT, 1, PARAMS).result(10).sequences) == 1
    numbers = [exchange.seq_id for exchange in wire.requests("asample")]
    assert numbers == list(range(numbers[0], numbers[0] + REPETITIONS + 1))
    wire.fail("retrieve_future", 200, body=FAILED, times=REPETITIONS + 1)
    with pytest.raises(tinker.RequestFailedError, match="a device was lost"):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests("asample")) == 2 * (REPETITIONS + 1)


@pytest.mark.parametrize("category", ["user", "unknown"])
def test_a_sample_that_fails_otherwise_is_not_submitted_again(
    sampler: tinker.SamplingClient, wire: Any, category: str
) -> None:
    """An error caused by the user is not retried, nor is one without a category."""
    wire.fail("retrieve_future", 200, body={**FAILED, "category": category})
    with pytest.raises(tinker.RequestFailedError):
        sampler.sample(PROMPT, 1, PARAMS).result(10)
    assert len(wire.requests("asample")) == 1


def test_a_failed_sample_without_retries(connect: Connect, wire: Any) -> None:
    """With retries disabled, the server's failure is raised at once."""
    for given, config in (({"max_retries": 0}, None), ({}, RetryConfig(enable_retry_logic=False))):
        sampler = connect(**given).create_sampling_client(
            base_model="tinker/toy", retry_config=config
        )
        sampler.result(10)
        before = len(wire.requests("asample"))
        wire.fail("retrieve_future", 200, body=FAILED)
        with pytest.raises(tinker.RequestFailedError):
            sampler.sample(PROMPT, 1, PARAMS).result(10)
        assert len(wire.requests("asample")) == before + 1


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
        ({"num_samples": 0}, "num_samples must be at least 1"),
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
    with pytest.raises(ValueError, match=message):
        sampler.sample(
            **{"prompt": PROMPT, "num_samples": 1, "sampling_params": PARAMS, **arguments}
        )
    assert wire.requests("asample") == []


def test_sampler_needs_a_model_or_a_path(service: tinker.ServiceClient) -> None:
    """A sampling client without model and path, or with an invalid path, is refused at once."""
    with pytest.raises(ValueError, match="pass model_path for saved weights, or base_model"):
        service.create_sampling_client()
    with pytest.raises(ValueError, match="must be a checkpoint path"):
        service.create_sampling_client(model_path="weights/1")


def test_saved_and_ephemeral_weights_sample_alike(
    service: tinker.ServiceClient, training: tinker.TrainingClient, datum: Any
) -> None:
    """Weights saved with a name and without one sample the same; later steps do not change them."""
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.5))
    ephemeral = training.save_weights_and_get_sampling_client()
    path = training.save_weights_for_sampler("now").result(10).path
    training.forward_backward([datum([9, 8])], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.5)).result(10)
    saved = service.create_sampling_client(model_path=path)
    moved = training.save_weights_and_get_sampling_client()
    one, other, later = (
        client.compute_logprobs(PROMPT).result(10) for client in (ephemeral, saved, moved)
    )
    assert one == other
    assert later != one
    assert saved.get_base_model() == ephemeral.get_base_model() == "tinker/toy"


def test_numpy_tokens(sampler: tinker.SamplingClient) -> None:
    """A prompt of numpy tokens equals the prompt of those tokens."""
    prompt = tinker.ModelInput.from_ints(np.asarray([1, 2, 3], np.int64))
    assert prompt == PROMPT
    assert (
        sampler.sample(prompt, 1, PARAMS).result(10).sequences[0].tokens
        == sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens
    )
