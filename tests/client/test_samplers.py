"""Samplers: what they know about their model, and how they handle servers that omit requested
options.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker._http.retry import RESUBMISSIONS
from tinker.types import TensorData

PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2, seed=7)
Connect = Callable[..., tinker.ServiceClient]
BARE = {"sequences": [{"stop_reason": "stop", "tokens": [1], "logprobs": [-0.5]}]}


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampler of the toy model."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


def test_options_that_are_ignored(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A sample fails if the server omits a requested option each time; it does not if the option
    was not requested.
    """
    wire.fail("retrieve_future", 200, body=BARE, times=10)
    targets = TensorData([[1], [2]], "int64", [2, 1])
    with pytest.raises(
        tinker.APIResponseValidationError, match="no target_prompt_logprobs, which were asked for"
    ):
        sampler.sample(PROMPT, 1, PARAMS, target_prompt_logprobs=targets).result(10)
    with pytest.raises(
        tinker.APIResponseValidationError, match="no prompt_alt_tokens, which were asked for"
    ):
        sampler.sample(PROMPT, 1, PARAMS, prompt_alt_tokens_k=2).result(10)
    with pytest.raises(
        tinker.APIResponseValidationError, match="no prompt_logprobs, which were asked for"
    ):
        sampler.compute_logprobs(PROMPT).result(10)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens == [1]


def test_options_are_sent_as_asked(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Each argument of sample has its field; prompt log-probabilities are requested
    with one token.
    """
    sampler.sample(PROMPT, 3, PARAMS, True, 4, 5, prompt_logprobs_last_n=2).result(10)
    sampler.compute_logprobs(PROMPT, 2).result(10)
    first, second = (one.json for one in wire.requests("asample"))
    names = (
        "num_samples",
        "prompt_logprobs",
        "topk_prompt_logprobs",
        "topk_sample_logprobs",
        "prompt_logprobs_last_n",
    )
    assert [first[name] for name in names] == [3, True, 4, 5, 2]
    assert (
        second["num_samples"],
        second["sampling_params"]["max_tokens"],
        second["prompt_logprobs"],
    ) == (1, 1, True)
    assert second["prompt_logprobs_last_n"] == 2
    assert first["seq_id"] + 1 == second["seq_id"]


def test_only_requested_options_are_sent(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A sample without options requests only the continuations."""
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    (sent,) = (one.json for one in wire.requests("asample"))
    fields = {
        "prompt_logprobs",
        "topk_prompt_logprobs",
        "topk_sample_logprobs",
        "prompt_alt_tokens_k",
        "prompt_logprobs_last_n",
    }
    assert {name: sent[name] for name in fields & sent.keys() if sent[name]} == {}
    assert not sent.get("target_prompt_logprobs")


@pytest.mark.parametrize("from_training", [False, True])
def test_the_base_model_in_coroutines(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, from_training: bool
) -> None:
    """``get_base_model_async`` and ``get_base_model`` return the same, and the model of saved
    weights is requested once.
    """
    path = training.save_weights_for_sampler("a").result(10).path
    sampler = (
        training.save_weights_and_get_sampling_client()
        if from_training
        else service.create_sampling_client(model_path=path)
    )

    async def asked() -> list[str]:
        return await asyncio.gather(sampler.get_base_model_async(), sampler.get_base_model_async())

    before = len(wire.exchanges)
    assert asyncio.run(asked()) == ["tinker/toy"] * 2
    assert sampler.get_base_model() == "tinker/toy"
    asked_about = [
        one.operation
        for one in wire.exchanges[before:]
        if one.operation in ("weights_info", "get_info")
    ]
    assert len(asked_about) <= 1


def test_a_failed_request_for_the_model_is_not_pickled(
    service: tinker.ServiceClient, wire: Any
) -> None:
    """A sampler whose base model could not be fetched can be pickled, and its copy sends its own
    request.
    """
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    handed = pickle.loads(pickle.dumps(sampler))
    assert handed.get_base_model() == "tinker/toy"
    wire.fail("samplers/" + str(handed._sampling_session_id), 403, times=1)
    fresh = copy.deepcopy(sampler)
    failed = fresh._sampler.base_model().exception(10)
    assert isinstance(failed, tinker.PermissionDeniedError)
    assert copy.deepcopy(fresh).get_base_model() == "tinker/toy"


@pytest.mark.parametrize("question", ["base_model", "tokenizer"])
def test_a_failed_request_for_the_model_is_repeated(
    service: tinker.ServiceClient, wire: Any, question: str
) -> None:
    """A failed request for the base model is not cached; a response is."""
    training = service.create_lora_training_client("tinker/toy", rank=4).result(10)
    path = training.save_weights_for_sampler("s").result(10).path
    sampler = service.create_sampling_client(model_path=path).result(10)._sampler
    ask = getattr(sampler, question)
    wire.fail(f"samplers/{sampler.session_id}", 403)
    assert isinstance(ask().exception(10), tinker.PermissionDeniedError)
    assert ask().result(10)
    assert ask() is ask()


def test_the_base_model_of_a_run_that_is_being_created(
    service: tinker.ServiceClient, wire: Any
) -> None:
    """A sampler of a run whose model is not described yet waits for the description, and then knows
    its base model.
    """
    told = wire.hold("get_info")
    training = service.create_lora_training_client("tinker/toy")
    sampler = training.save_weights_and_get_sampling_client()
    asked = sampler._sampler.base_model()
    wire.wait_for("save_weights_for_sampler")
    service.get_server_capabilities()
    told()
    assert asked.result(10) == "tinker/toy"


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (None, "tinker/toy"),
        ({"model_id": "m", "model_data": {}}, "tinker/toy"),
        ({"model_id": "m", "model_data": {}, "model_name": "of the answer"}, "of the answer"),
        (
            {
                "model_id": "m",
                "model_data": {"model_name": "of its data"},
                "model_name": "of the answer",
            },
            "of its data",
        ),
    ],
)
def test_sources_of_the_base_model_of_a_run(
    service: tinker.ServiceClient, wire: Any, told: object, known: str
) -> None:
    """The server's description takes precedence; without one the model is the requested one."""
    wire.fail("get_info", 404 if told is None else 200, body=told)
    training = service.create_lora_training_client("tinker/toy", rank=4)
    assert training.save_weights_and_get_sampling_client().get_base_model() == known


def test_an_unknown_base_model(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any
) -> None:
    """A run from a checkpoint has no base model if the server describes neither."""
    path = training.save_state("s").result(10).path
    wire.fail("get_info", 404)
    again = service.create_training_client_from_state(path)
    with pytest.raises(LookupError, match="does not report the base model of the run"):
        again.save_weights_and_get_sampling_client().get_base_model()


def test_lost_results_are_submitted_again_a_few_times(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """A lost result is submitted again, one time for each loss within the limit, and finally
    arrives.
    """
    wire.fail("retrieve_future", 410, body={"detail": "expired"}, times=RESUBMISSIONS)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert [one.seq_id for one in wire.requests("asample")] == list(range(RESUBMISSIONS + 1))


@pytest.mark.parametrize(("allowed", "told"), [(True, 1), (False, 0)])
def test_a_cancelled_sample_is_given_up_where_the_server_allows_it(
    connect: Connect, wire: Any, allowed: bool, told: int
) -> None:
    """If the server supports it, a cancelled sample is reported to it; a failure of this request is
    ignored.
    """
    wire.fail("client/dynamic_config", 200, body={"sample_cancel_enabled": allowed})
    wire.fail("cancel_future", 403, times=told)
    sampler = connect().create_sampling_client(base_model="tinker/toy").result(10)
    wire.wait_for("client/dynamic_config")
    release = wire.hold("retrieve_future")
    future = sampler.sample(PROMPT, 1, PARAMS)
    wire.wait_for("retrieve_future")
    assert future.cancel()
    if told:
        assert wire.wait_for("cancel_future")[0].json == {"request_id": future.request_id}
    release()
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences
    assert len(wire.requests("cancel_future")) == told


def test_repr_of_samplers(service: tinker.ServiceClient, wire: Any) -> None:
    """The repr shows the id of the sampling session once there is one."""
    release = wire.hold("create_sampling_session")
    sampler = service.create_sampling_client(base_model="tinker/toy")
    assert "being created" in repr(sampler)
    release()
    sampler.result(10)
    assert str(wire.answers("create_sampling_session")[0]["sampling_session_id"]) in repr(sampler)


@pytest.mark.parametrize(("nbytes", "at_once"), [(60, 2), (30, 1), (1000, 4)])
def test_prompts_share_a_budget_of_bytes(
    connect: Connect, wire: Any, nbytes: int, at_once: int
) -> None:
    """Submissions wait while other prompts fill the server's byte limit; results do not count."""
    wire.fail("client/config", 200, body={"sample_dispatch_bytes_semaphore_size": nbytes})
    service = connect()
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    arrived: list[int] = []
    release = wire.hold("asample")
    # 30 bytes each, of which the first is held back
    futures = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(4)]
    wire.wait_for("asample")
    for _ in range(3):
        service.create_rest_client().get_server_capabilities().result(10)
    arrived.append(len(wire.requests("asample")))
    release()
    assert all(future.result(10).sequences for future in futures)
    assert (arrived[0] == 1) is (at_once == 1)
    assert len(wire.requests("asample")) == 4
