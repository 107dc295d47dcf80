"""Mistakes of users. Type checkers must refuse each line that ends in "# refused", and no other."""

from __future__ import annotations

import tinker
from tinker import types

tinker.ServiceCleint()  # refused
print(tinker.testing.toy_sever)  # refused
print(tinker.observing.Metric)  # refused
print(tinker.local.serv)  # refused
tinker.ServiceClient(base_url=8000)  # refused
service = tinker.ServiceClient()
service.create_lora_training_client(rank=16)  # refused
service.create_lora_training_client(base_model="m", rank="16")  # refused
training = service.create_lora_training_client(base_model="m")
service.create_lora_training_client(base_model="m", ranks=16)  # refused
datum = types.Datum(
    model_input=types.ModelInput.from_ints([1]), loss_fn_inputs={"target_tokens": [2]}
)
types.Datum(model_input=[1, 2, 3], loss_fn_inputs={})  # refused
types.ModelInput.from_ints("text")  # refused
types.SamplingParams(max_token=5)  # refused
types.SamplingParams(temperature="hot")  # refused
types.AdamParams(1e-4)  # refused
types.AdamParams().learning_rate = 0.1  # refused
types.TensorData(data=[1.0], dtype="float64")  # refused
types.ImageChunk(data=b"", format="webp")  # refused
training.forward_backward(datum, "cross_entropy")  # refused
training.forward_backward([datum], loss="cross_entropy")  # refused
training.forward_backward([datum], "crossentropy")  # refused
training.forward([datum], "crossentropy")  # refused
training.optim_step({"learning_rate": 1e-4})  # refused
sampler = training.save_weights_and_get_sampling_client()
sampler.sample(prompt="text", num_samples=1, sampling_params=types.SamplingParams())  # refused
sampler.sample(types.ModelInput.empty(), 1).result()  # refused
future = training.forward_backward([datum], "cross_entropy")
print(future.metrics)  # refused
print(future.result().los)  # refused
sequence = sampler.sample(types.ModelInput.empty(), 1, types.SamplingParams()).result().sequences[0]
print(sequence.tokens + "text")  # refused
for logprob in sequence.logprobs:  # refused
    print(logprob)


async def awaited_too_little() -> None:
    """Forgetting an `await` does not go unnoticed."""
    client = service.create_lora_training_client_async(base_model="m")
    client.forward_backward([datum], "cross_entropy")  # refused
    future = await training.forward_backward_async([datum], "cross_entropy")
    print(future.loss)  # refused
    await training.forward_backward_async([datum], "crossentropy")  # refused
    await training.forward_async([datum], "crossentropy")  # refused
