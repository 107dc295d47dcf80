"""Training: losses, their inputs in every form, optimizers, order, large batches."""

import asyncio

import numpy as np
import torch
from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"
ADAM = types.AdamParams(
    learning_rate=0.01, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0
)


def example(tokens: list[int], **inputs: object) -> types.Datum:
    count = len(tokens) - 1
    given = inputs or {"weights": [1.0] * count}
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **given},
    )


def shown(name: str, output: types.ForwardBackwardOutput) -> None:
    show(name, [output.loss_fn_output_type, output.loss_fn_outputs, output.metrics])


def main() -> None:
    service = tinker.ServiceClient(
        user_metadata={"run": "parity", "number": "1"}, display_name="training"
    )
    client = service.create_lora_training_client(
        MODEL, rank=8, seed=7, train_unembed=False, user_metadata={"a": "b"}
    ).result()
    info = client.get_info()
    show(
        "info",
        [info.model_id, info.model_name, info.is_lora, info.lora_rank, info.optimizer_config],
    )
    show("console", client.get_console_url())

    tokens = [5, 17, 3, 40, 8, 21]
    lists = example(tokens)
    arrays = example(tokens, weights=np.asarray([0, 0, 1, 1, 1], np.float32))
    tensors = example(tokens, weights=torch.ones(5, dtype=torch.bfloat16))
    shown("forward", client.forward([lists, arrays, tensors], "cross_entropy").result())
    losses = []
    for _ in range(3):
        output = client.forward_backward([lists, arrays], "cross_entropy")
        step = client.optim_step(ADAM)
        losses.append(output.result().metrics)
        show("step", step.result().metrics)
    show("losses", losses)

    soft = example(tokens, weights=torch.tensor([[0.5, 0.5]] * 5))
    targets = torch.tensor([[token, 1] for token in tokens[1:]])
    soft = types.Datum(
        model_input=soft.model_input,
        loss_fn_inputs={"target_tokens": targets, "weights": torch.full((5, 2), 0.5)},
    )
    shown("soft targets", client.forward_backward([soft], "cross_entropy").result())
    sparse = types.Datum(
        model_input=types.ModelInput.from_ints(list(range(1, 9))),
        loss_fn_inputs={
            "target_tokens": torch.eye(8, 16).to(torch.int64) * 3,
            "weights": torch.eye(8, 16),
        },
    )
    shown("sparse", client.forward_backward([sparse], "cross_entropy").result())

    sampled = {"logprobs": [-1.0] * 5, "advantages": [0.5, -0.5, 1.0, 0.0, 2.0]}
    span = types.SampledProvenanceSpan(sequence_id="s", length=5)
    reinforced = example(tokens, **sampled).with_provenance([span], [span])
    shown(
        "importance sampling", client.forward_backward([reinforced], "importance_sampling").result()
    )
    clip = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    shown(
        "ppo",
        client.forward_backward([example(tokens, **sampled)], "ppo", loss_fn_config=clip).result(),
    )
    shown("cispo", client.forward_backward([example(tokens, **sampled)], "cispo", clip).result())
    show("dimuon", client.optim_step(adam_params=types.AdamParams()).result().metrics)

    many = [example([1 + number % 7, 2, 3]) for number in range(1030)]
    output = client.forward_backward(many, "cross_entropy").result()
    show("many", [len(output.loss_fn_outputs), output.loss_fn_outputs[-1], output.metrics])
    show("after", client.optim_step(types.AdamParams(learning_rate=0)).result().metrics)

    async def awaited() -> None:
        again = await service.create_lora_training_client_async(base_model=MODEL, rank=4, seed=1)
        first, second = (
            await again.forward_backward_async([lists], "cross_entropy"),
            await again.optim_step_async(ADAM),
        )
        shown("async", await first)
        show("async step", (await second).metrics)

    asyncio.run(awaited())
    chunks = [types.EncodedTextChunk(tokens=tokens[:3]), types.EncodedTextChunk(tokens=tokens[3:5])]
    parts = types.Datum(
        model_input=types.ModelInput(chunks=chunks), loss_fn_inputs=dict(lists.loss_fn_inputs)
    )
    shown("chunks", client.forward([parts], "cross_entropy").result())

    failure(
        "no layers",
        lambda: service.create_lora_training_client(
            MODEL, train_mlp=False, train_attn=False, train_unembed=False
        ),
    )
    failure("unknown model", lambda: service.create_lora_training_client("no/such-model"))
    failure("no data", lambda: client.forward_backward([], "cross_entropy"))
    failure("no optimizer", lambda: client.optim_step())
    unknown = types.Datum(
        model_input=types.ModelInput.from_ints([10**6]),
        loss_fn_inputs={"target_tokens": [1], "weights": [1.0]},
    )
    failure("unknown token", lambda: client.forward_backward([unknown], "cross_entropy"))
    service.close("success").result()


main()
