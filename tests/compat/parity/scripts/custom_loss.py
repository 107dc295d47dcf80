"""Losses of one's own: a function over log-probabilities, and one that is traced."""

import torch
from showing import failure, show

import tinker
from tinker import types

MODEL = "tinker/babble"
ADAM = types.AdamParams(learning_rate=0.01)


def main() -> None:
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(MODEL, rank=4, seed=4).result()

    def datum(tokens: list[int], **more: object) -> types.Datum:
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1), **more}
        return types.Datum(
            model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs
        )

    data = [datum([1, 2, 3, 4]), datum([4, 3, 2])]

    def squared(
        given: list[types.Datum], logprobs: list[torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        loss = sum((part**2).sum() for part in logprobs)
        return loss, {
            "mine:sum": float(len(given)),
            "longest:max": float(max(len(part) for part in logprobs)),
        }

    for _ in range(2):
        output = training.forward_backward_custom(data, squared)
        step = training.optim_step(ADAM)
        show("squared", [output.result().metrics, output.result().loss_fn_outputs])
        show("step", step.result().metrics)

    def weighted(
        logprobs: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = -(logprobs * weights).sum()
        return loss, {"custom/nll:sum": loss, "custom/length:mean": weights.sum()}

    handle = service.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}).result()
    show("handle", [handle.name, handle.input_names])
    output = training.forward_backward_custom(data, handle)
    step = training.optim_step(ADAM)
    show("traced", output.result().metrics)
    show("traced step", step.result().metrics)
    failure(
        "the same again",
        lambda: service.create_custom_loss(weighted, {"logprobs": 1, "weights": 1}),
    )
    failure(
        "another rank",
        lambda: training.forward_backward_custom(
            [datum([1, 2, 3], weights=torch.ones(2, 2))], handle
        ),
    )
    failure("a branch", lambda: service.create_custom_loss(branching, {"logprobs": 1}))
    service.close("success").result()


def branching(logprobs: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    return (logprobs.sum(), {}) if logprobs.sum() > 0 else (-logprobs.sum(), {})


main()
