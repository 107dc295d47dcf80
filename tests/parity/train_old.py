"""A training run in the calling forms of 0.4 to 0.7, which wait in the constructor and hand out clients at once."""

import os
import sys

import tinker
from tinker import types

TEXTS = ["hello world", "hold the door", "help yourself"]


def main() -> int:
    service = tinker.ServiceClient(base_url=os.environ["TINKER_BASE_URL"], user_metadata={"test": "parity"})
    base_model = service.get_server_capabilities().supported_models[0].model_name
    client = service.create_lora_training_client(base_model=base_model, rank=8)
    tokenizer = client.get_tokenizer()
    data = [datum(tokenizer.encode(text)) for text in TEXTS]

    losses = []
    for _ in range(10):
        output = client.forward_backward(data, "cross_entropy")
        step = client.optim_step(types.AdamParams(learning_rate=0.01, beta1=0.9, beta2=0.95, eps=1e-8))
        losses.append(output.result().metrics["loss:sum"])
        step.result()
    forward = client.forward(data, "cross_entropy").result()
    assert len(forward.loss_fn_outputs) == len(data)

    path = client.save_state("parity").result().path
    again = service.create_training_client_from_state(path)
    assert abs(again.forward(data, "cross_entropy").result().metrics["loss:sum"] - forward.metrics["loss:sum"]) < 1e-2

    sampler = client.save_weights_and_get_sampling_client(name="parity")
    prompt = types.ModelInput.from_ints(tokenizer.encode("he"))
    params = types.SamplingParams(max_tokens=8, temperature=0.0, seed=1)
    sample = sampler.sample(prompt=prompt, num_samples=2, sampling_params=params).result()
    logprobs = sampler.compute_logprobs(prompt).result()
    assert len(sample.sequences) == 2
    assert logprobs[0] is None
    print(f"loss {losses[0]:.1f} -> {losses[-1]:.1f}; sampled {tokenizer.decode(sample.sequences[0].tokens)!r}")
    return 0 if losses[-1] < 0.7 * losses[0] else 1


def datum(tokens: list[int]) -> types.Datum:
    targets = types.TensorData(data=tokens[1:], dtype="int64", shape=[len(tokens) - 1])
    weights = types.TensorData(data=[1.0] * len(targets.data), dtype="float32", shape=[len(targets.data)])
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )


if __name__ == "__main__":
    sys.exit(main())
