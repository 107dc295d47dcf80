"""Code as users write it. Type checkers must accept every line."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
from collections.abc import Mapping
from typing import assert_type, cast

import numpy as np
import numpy.typing as npt
import torch

import tinker
from tinker import types

service = tinker.ServiceClient(user_metadata={"run": "1"}, base_url="local://")
training = service.create_lora_training_client(base_model="tinker/babble", rank=16)
assert_type(training, tinker.TrainingClient)
assert_type(training.result(), tinker.TrainingClient)

datum = types.Datum(
    model_input=types.ModelInput.from_ints([1, 2, 3]),
    loss_fn_inputs={
        "target_tokens": [2, 3, 4],
        "weights": np.ones(3, np.float32),
        "advantages": torch.ones(3),
        "logprobs": types.TensorData(data=[0.0, 0.0, 0.0], dtype="float32", shape=[3]),
    },
)
inputs: dict[str, types.TensorData] = datum.loss_fn_inputs

forward_backward = training.forward_backward(
    [datum], "importance_sampling", {"clip_low_threshold": 0.8}
)
loss_fn: types.LossFnType = "ppo"
training.forward([datum], loss_fn)
training.forward([datum], cast("types.LossFnType", "dppo"))
optim_step = training.optim_step(types.AdamParams(learning_rate=1e-4))
assert_type(forward_backward, tinker.APIFuture[types.ForwardBackwardOutput])
assert_type(forward_backward.result(timeout=10).metrics, dict[str, float])
assert_type(optim_step.result(), types.OptimStepResponse)
training.optim_step(adam_params=types.AdamParams(beta1=0.8))
training.optim_step(types.DimuonParams(learning_rate=0.1))


def loss(
    data: list[types.Datum], logprobs: list[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, float]]:
    total = torch.stack([part.sum() for part in logprobs]).sum()
    return -total, {"datums": float(len(data))}


@tinker.with_gradients
def numpy_loss(
    data: list[types.Datum], logprobs: list[npt.NDArray[np.float32]]
) -> tuple[float, list[npt.NDArray[np.float32]], Mapping[str, float]]:
    return 0.0, [np.zeros_like(part) for part in logprobs], {}


training.forward_backward_custom([datum], loss)
training.forward_backward_custom([datum], numpy_loss)

sampler = training.save_weights_and_get_sampling_client()
assert_type(sampler, tinker.SamplingClient)
params = types.SamplingParams(max_tokens=8, temperature=0.7, stop=["\n"])
sample = sampler.sample(types.ModelInput.from_ints([1]), num_samples=2, sampling_params=params)
assert_type(sample, tinker.APIFuture[types.SampleResponse])
for sequence in sample.result().sequences:
    assert_type(sequence.tokens, list[int])
    assert_type(sequence.logprobs, list[float] | None)
assert_type(sampler.compute_logprobs(types.ModelInput.from_ints([1])).result(), list[float | None])
samples = [sampler.sample(types.ModelInput.from_ints([token]), 1, params) for token in range(3)]
assert_type(tinker.progress(samples, "Sampling").results(), list[types.SampleResponse])
done, pending = concurrent.futures.wait(
    [sample, sampler.sample(types.ModelInput.empty(), 1, params)]
)

warmer = dataclasses.replace(params, temperature=1.0)
assert_type(warmer, types.SamplingParams)
assert_type(types.AdamParams().model_copy(update={"eps": 1e-8}), types.AdamParams)


async def forms() -> None:
    """Use the forms of every version: await a method's result, or call its coroutine twin."""
    client = await service.create_lora_training_client_async(base_model="tinker/babble")
    assert_type(client, tinker.TrainingClient)
    assert_type(await client, tinker.TrainingClient)
    future = await client.forward_backward_async([datum], "cross_entropy")
    assert_type(await future, types.ForwardBackwardOutput)
    assert_type(await future.result_async(timeout=5), types.ForwardBackwardOutput)
    step = await client.optim_step_async(types.AdamParams())
    assert_type(await step.result_async(), types.OptimStepResponse)
    answer = await sampler.sample_async(
        prompt=types.ModelInput.empty(), num_samples=1, sampling_params=params
    )
    assert_type(answer, types.SampleResponse)
    both = await asyncio.gather(
        sampler.compute_logprobs(types.ModelInput.empty()), client.get_info_async()
    )
    assert_type(both, tuple[list[float | None], types.GetInfoResponse])
    assert_type((await client.save_state("a")).path, str)
    async with tinker.ServiceClient() as inner:
        assert_type(
            await inner.get_server_capabilities_async(), types.GetServerCapabilitiesResponse
        )


print(
    tinker.checkpoints.download,
    tinker.recovery.RecoveryPolicy,
    tinker.errors.TinkerError,
    tinker.wire.JSON,
)
print(
    tinker.testing.toy_server,
    tinker.local.serve,
    tinker.observing.Metrics,
    tinker.circuit_breaker.CircuitBreaker,
)

rest = tinker.RestClient(api_key="tml-key")
assert_type(rest.list_training_runs(limit=5).result().training_runs, list[types.TrainingRun])

try:
    training.load_state("tinker://run/weights/1").result()
except tinker.RateLimitError as error:
    assert_type(error.status_code, int)
    assert_type(error.retry_after, float | None)
except tinker.RequestFailedError as error:
    print(error.request_id, error.category)
