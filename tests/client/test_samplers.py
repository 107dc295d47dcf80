"""Samplers: what they know about their model, and what they ask of it."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker.types import TensorData

PROMPT, PARAMS = tinker.ModelInput.from_ints([1, 2, 3]), tinker.SamplingParams(max_tokens=2, seed=7)
Connect = Callable[..., tinker.ServiceClient]
BARE = {"sequences": [{"stop_reason": "stop", "tokens": [1], "logprobs": [-0.5]}]}


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a sampler of the toy model."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


def test_options_that_are_ignored(sampler: tinker.SamplingClient, wire: Any) -> None:
    """A sample fails if the server omits an option that was requested, and only then."""
    wire.fail("retrieve_future", 200, body=BARE, times=10)
    targets = TensorData([[1], [2]], "int64", [2, 1])
    asked: dict[str, Callable[[], tinker.APIFuture[Any]]] = {
        "target_prompt_logprobs": lambda: sampler.sample(
            PROMPT, 1, PARAMS, target_prompt_logprobs=targets
        ),
        "prompt_alt_tokens": lambda: sampler.sample(PROMPT, 1, PARAMS, prompt_alt_tokens_k=2),
        "prompt_logprobs": lambda: sampler.compute_logprobs(PROMPT),
    }
    for name, ask in asked.items():
        words = f"no {name}, which were asked for"
        with pytest.raises(tinker.APIResponseValidationError, match=words):
            ask().result(10)
    assert sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens == [1]


def test_options_are_sent_as_asked(sampler: tinker.SamplingClient, wire: Any) -> None:
    """Each argument of sample has its field, and only requested options are sent."""
    sampler.sample(PROMPT, 3, PARAMS, True, 4, 5, prompt_logprobs_last_n=2).result(10)
    sampler.compute_logprobs(PROMPT, 2).result(10)
    sampler.sample(PROMPT, 1, PARAMS).result(10)
    first, second, plain = (one.json for one in wire.requests("asample"))
    names = ("prompt_logprobs", "topk_prompt_logprobs", "topk_sample_logprobs")
    names += ("prompt_logprobs_last_n", "num_samples")
    assert [first[name] for name in names] == [True, 4, 5, 2, 3]
    assert [second[name] for name in names] == [True, 0, 0, 2, 1]
    assert second["sampling_params"]["max_tokens"] == 1
    unset = (*names[:4], "prompt_alt_tokens_k", "target_prompt_logprobs")
    assert not any(plain.get(name) for name in unset)
    assert [one["seq_id"] for one in (first, second, plain)] == [0, 1, 2]


@pytest.mark.parametrize("from_training", [False, True])
def test_the_base_model_in_coroutines(
    service: tinker.ServiceClient, training: tinker.TrainingClient, wire: Any, from_training: bool
) -> None:
    """Both forms of ``get_base_model`` return the same, and saved weights are asked about once."""
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
    asked_about = [one.operation for one in wire.exchanges[before:]]
    assert asked_about.count("weights_info") + asked_about.count("get_info") <= 1


def test_a_failed_request_for_the_model_is_not_pickled(
    sampler: tinker.SamplingClient, wire: Any
) -> None:
    """A sampler whose base model could not be fetched can be copied; the copy asks itself."""
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
    """A sampler of a run that is not described yet waits for the description."""
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
        ({"model_id": "m", "model_data": {}, "model_name": "answer"}, "answer"),
        ({"model_id": "m", "model_data": {"model_name": "data"}, "model_name": "answer"}, "data"),
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


@pytest.mark.parametrize(("allowed", "told"), [(True, 1), (False, 0)])
def test_a_cancelled_sample_is_given_up_where_the_server_allows_it(
    connect: Connect, wire: Any, allowed: bool, told: int
) -> None:
    """A cancelled sample is reported to servers that take it; a failure of that is ignored."""
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


def test_the_id_of_a_sampling_session(service: tinker.ServiceClient, wire: Any) -> None:
    """A sampler and its repr have the id of the sampling session once there is one."""
    release = wire.hold("create_sampling_session")
    sampler = service.create_sampling_client(base_model="tinker/toy")
    assert sampler.sampling_session_id is None
    assert "being created" in repr(sampler)
    release()
    found = sampler.result(10).sampling_session_id
    assert found == wire.answers("create_sampling_session")[0]["sampling_session_id"]
    assert str(found) in repr(sampler)


@pytest.mark.parametrize(("nbytes", "one_at_a_time"), [(60, False), (30, True)])
def test_prompts_share_a_budget_of_bytes(
    connect: Connect, wire: Any, nbytes: int, one_at_a_time: bool
) -> None:
    """Submissions wait while other prompts fill the server's byte limit; results do not count."""
    wire.fail("client/config", 200, body={"sample_dispatch_bytes_semaphore_size": nbytes})
    service = connect()
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    release = wire.hold("asample")
    # 30 bytes each, of which the first is held back
    futures = [sampler.sample(PROMPT, 1, PARAMS) for _ in range(4)]
    wire.wait_for("asample")
    for _ in range(3):
        service.create_rest_client().get_server_capabilities().result(10)
    assert (len(wire.requests("asample")) == 1) is one_at_a_time
    release()
    assert all(future.result(10).sequences for future in futures)
    assert len(wire.requests("asample")) == 4
