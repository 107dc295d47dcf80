"""Save a run with its optimizer, continue elsewhere, and get the losses that the uninterrupted run
gets.

python examples/checkpoints.py
"""

from __future__ import annotations

import os
import time

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXT = "a checkpoint holds the weights, and with save_state the state of the optimizer too"
ADAM = types.AdamParams(learning_rate=2e-3)


def steps(training: tinker.TrainingClient, data: list[types.Datum], count: int) -> list[float]:
    """All requests are sent at once; the server runs them in this order."""
    outputs = []
    for _ in range(count):
        outputs.append(training.forward_backward(data, "cross_entropy"))
        training.optim_step(ADAM)
    return [output.result().loss for output in outputs]


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokens = training.get_tokenizer().encode(TEXT)
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]),
            loss_fn_inputs={"target_tokens": tokens[1:]},
        )
    ]

    name = f"step-3-{int(time.time())}"
    print("first steps        ", steps(training, data, 3))
    # without ttl_seconds it is kept until deleted
    saved = training.save_state(name, ttl_seconds=24 * 3600).result()
    straight_on = steps(training, data, 3)
    print("the run continues  ", straight_on)

    resumed = tinker.ServiceClient(
        base_url=BASE_URL
    ).create_training_client_from_state_with_optimizer(saved.path)
    again = steps(resumed, data, 3)
    print("resumed elsewhere  ", again)

    fresh = service.create_training_client_from_state(saved.path)
    print("with a new optimizer", steps(fresh, data, 3))

    snapshot = training.save_weights_for_sampler("for-sampling").result().path
    print("to sample from     ", snapshot)
    prompt = types.ModelInput.from_ints(tokens[:8])
    greedy = types.SamplingParams(max_tokens=16, temperature=0.0)
    sampler = service.create_sampling_client(model_path=snapshot)
    print("sampled tokens     ", sampler.sample(prompt, 1, greedy).result().sequences[0].tokens)

    try:
        training.save_state(name).result()
    except tinker.TinkerError as error:  # a name is not overwritten unless overwrite=True says so
        print("same name again    ", error)
    service.close().result()
    assert all(abs(a - b) < 1e-2 for a, b in zip(straight_on, again, strict=True))


if __name__ == "__main__":
    main()
