"""tinker-cookbook: how it calls clients, and which methods it replaces on the classes."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker import types

PROMPT = types.ModelInput.from_ints([1, 2, 3])
PARAMS = types.SamplingParams(max_tokens=2, temperature=1.0, top_p=1.0, top_k=-1, seed=1, stop=[])
MakeDatum = Callable[..., tinker.Datum]


def test_a_step_ahead(connect: Callable[..., tinker.ServiceClient], datum: MakeDatum) -> None:
    """The supervised loop works, two steps ahead and with awaited clients and checkpoints."""

    async def run() -> None:
        with connect(user_metadata={"recipe_name": "sft"}, display_name="sft") as service:
            training = await service.create_lora_training_client(
                base_model="tinker/toy", rank=4, user_metadata={"renderer_name": "role_colon"}
            )
            adam = tinker.AdamParams(learning_rate=1e-3, beta1=0.9, beta2=0.95, eps=1e-8)
            steps = [
                (
                    training.forward_backward([datum()], loss_fn="cross_entropy"),
                    training.optim_step(adam),
                )
                for _ in range(2)
            ]
            for forward_backward, step in steps:
                assert len((await forward_backward).loss_fn_outputs[0]["logprobs"].tolist()) == 3
                await step
            saved = await asyncio.gather(
                training.save_state("0001", ttl_seconds=3600).coroutine(),
                training.save_weights_for_sampler("0001", ttl_seconds=3600).coroutine(),
            )
            run = await service.create_rest_client().get_training_run_by_tinker_path(saved[0].path)
            assert run.user_metadata == {"renderer_name": "role_colon"}
            for create in (
                service.create_training_client_from_state,
                service.create_training_client_from_state_with_optimizer,
            ):
                again = await create(saved[0].path, user_metadata={"a": "b"})
                assert (await again.forward([datum()], loss_fn="cross_entropy")).metrics
            sampler = await service.create_sampling_client(
                model_path=saved[1].path, record_stability_info=True
            )
            assert (
                await sampler.sample(prompt=PROMPT, num_samples=1, sampling_params=PARAMS)
            ).sequences

    asyncio.run(run())


def test_calling_forms_of_samples(training: tinker.TrainingClient) -> None:
    """Samples take keywords and positions, with the options that the recipes use."""
    sampler = training.save_weights_and_get_sampling_client(record_stability_info=True).result(10)
    keywords = sampler.sample(
        prompt=PROMPT,
        num_samples=1,
        sampling_params=PARAMS,
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
    ).result(timeout=10)
    targets = types.TensorData(data=[2, 3], dtype="int64", shape=[2, 1])
    positions = sampler.sample(PROMPT, 1, PARAMS, target_prompt_logprobs=targets).result(timeout=10)
    assert [len(row or ()) for row in keywords.topk_prompt_logprobs or ()] == [0, 2, 2]
    assert positions.target_prompt_logprobs is not None
    assert positions.prompt_cache_hit_tokens == 0
    assert sampler.compute_logprobs(PROMPT).result(timeout=10) == keywords.prompt_logprobs


def test_replaced_methods(
    monkeypatch: pytest.MonkeyPatch, service: tinker.ServiceClient, datum: MakeDatum
) -> None:
    """A method replaced on its class sees every call once, also those of its async twin."""
    seen: list[str] = []

    def replace(client: Any, name: str) -> None:
        original = getattr(client, name)

        def replacement(self: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(name)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(client, name, replacement)

    names = ("forward_backward", "optim_step", "save_weights_for_sampler")
    for name in names:
        replace(tinker.TrainingClient, name)
    replace(tinker.SamplingClient, "sample")

    async def run() -> None:
        training = await service.create_lora_training_client("tinker/toy", rank=4)
        await training.forward_backward([datum()], "cross_entropy")
        await (await training.forward_backward_async([datum()], "cross_entropy"))
        await (await training.optim_step_async(tinker.AdamParams()))
        await (await training.save_weights_for_sampler_async("0001"))
        sampler = await service.create_sampling_client(base_model="tinker/toy")
        await sampler.sample_async(PROMPT, 1, PARAMS)

    asyncio.run(run())
    assert seen == ["forward_backward", *names, "sample"]


def test_what_captures_read(sampler: tinker.SamplingClient) -> None:
    """A sampler's session has an id, and the callbacks of ``future()`` receive the result."""
    called: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future = sampler.sample(PROMPT, 1, PARAMS).future()
    future.add_done_callback(called.set_result)
    assert called.result(10).exception() is None
    assert called.result(10).result().sequences
    assert isinstance(getattr(sampler, "_sampling_session_id", None), str)


def test_replaced_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests can replace the constructor of a client, and create it with any arguments."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(
        tinker.ServiceClient, "__init__", lambda self, **kwargs: given.append(kwargs)
    )
    tinker.ServiceClient(base_url="http://server", anything=1)
    assert given == [{"base_url": "http://server", "anything": 1}]
