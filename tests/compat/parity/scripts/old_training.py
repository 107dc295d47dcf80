"""Training as scripts of 0.4 to 0.7 have it: clients at once, values as pydantic models, results by
method or by await.
"""

import asyncio

from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"


def example(tokens: list[int], **inputs: types.TensorData) -> types.Datum:
    count = len(tokens) - 1
    return types.Datum(
        model_input=types.ModelInput(chunks=[types.EncodedTextChunk(tokens=tokens[:-1])]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=tokens[1:], dtype="int64", shape=[count]),
            **(
                inputs
                or {"weights": types.TensorData(data=[1.0] * count, dtype="float32", shape=[count])}
            ),
        },
    )


def shown(name: str, output: types.ForwardBackwardOutput) -> None:
    arrays = [
        {key: value.to_numpy() for key, value in one.items()} for one in output.loss_fn_outputs
    ]
    show(name, [output.loss_fn_output_type, arrays, output.metrics])


async def awaited(service: tinker.ServiceClient) -> None:
    client = await service.create_lora_training_client_async(base_model=MODEL, rank=4, seed=2)
    data = [example([1, 2, 3, 4])]
    first = await client.forward_backward_async(data, loss_fn="cross_entropy")
    step = await client.optim_step_async(types.AdamParams(learning_rate=0.01))
    shown("async", await first.result_async())
    show("async step", (await step).metrics)
    show("async info", (await client.get_info_async()).model_id)
    path = (await (await client.save_state_async("0001")).result_async()).path
    await (await client.load_state_async(path)).result_async()
    show("async again", (await (await client.forward_async(data, "cross_entropy"))).metrics)


def main() -> None:
    service = tinker.ServiceClient(user_metadata={"run": "parity"})
    client = service.create_lora_training_client(
        MODEL, 8, seed=7, train_unembed=False, user_metadata={"a": "b"}
    )
    info = client.get_info()
    show("info", [info.model_id, info.model_data.model_name, info.is_lora, info.lora_rank])
    data = [example([5, 17, 3, 40]), example([8, 21, 7])]
    shown("forward", client.forward(data, "cross_entropy").result())
    for _ in range(2):
        output, step = (
            client.forward_backward(data, "cross_entropy"),
            client.optim_step(types.AdamParams(learning_rate=0.01)),
        )
        shown("step", output.result())
        show("metrics", step.result().metrics)
    floats = {
        name: types.TensorData(data=[-1.0, 0.5, 1.0], dtype="float32", shape=[3])
        for name in ("logprobs", "advantages")
    }
    shown(
        "importance sampling",
        client.forward_backward(
            [example([5, 17, 3, 40], **floats)], "importance_sampling"
        ).result(),
    )
    shown(
        "ppo",
        client.forward_backward(
            [example([5, 17, 3, 40], **floats)], "ppo", {"clip_low_threshold": 0.8}
        ).result(),
    )
    show(
        "adam",
        client.optim_step(
            types.AdamParams(learning_rate=0.01, weight_decay=0.1, grad_clip_norm=1.0)
        )
        .result()
        .metrics,
    )
    shown(
        "many",
        client.forward(
            [example([1 + number % 7, 2, 3]) for number in range(200)], "cross_entropy"
        ).result(),
    )

    show("tokens", client.get_tokenizer().encode("hello"))
    asyncio.run(awaited(service))

    dumped = data[0].model_dump()
    show("dump", dumped["model_input"]["chunks"][0]["tokens"])
    show("validated", types.ModelInput.model_validate(dumped["model_input"]).to_ints())
    show(
        "copy",
        types.SamplingParams(max_tokens=3)
        .model_copy(update={"seed": 2})
        .model_dump(exclude_none=True)["seed"],
    )
    failure("unknown model", lambda: service.create_lora_training_client("no/such-model"))


main()
