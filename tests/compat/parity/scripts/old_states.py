"""Runs from saved states as scripts of 0.4 to 0.7 begin them, with
``user_metadata`` by position.
"""

from showing import show

import tinker
from tinker import types

MODEL = "tinker/babble"
DATA = [
    types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={
            "target_tokens": types.TensorData(data=[2, 3, 4], dtype="int64", shape=[3]),
            "weights": types.TensorData(data=[1.0] * 3, dtype="float32", shape=[3]),
        },
    )
]


def main() -> None:
    service = tinker.ServiceClient()
    client = service.create_lora_training_client(base_model=MODEL, rank=4, seed=3)
    client.forward_backward(DATA, "cross_entropy").result()
    client.optim_step(types.AdamParams(learning_rate=0.01)).result()
    path = client.save_state("0001").result().path
    again = service.create_training_client_from_state(path, {"from": "state"})
    show("again", again.forward(DATA, "cross_entropy").result().metrics)
    run = service.create_rest_client().get_training_run(again.model_id).result()
    show("run", [run.base_model, run.lora_rank])
    rest = service.create_training_client_from_state_with_optimizer(
        path, user_metadata={"from": "state"}
    )
    rest.forward_backward(DATA, "cross_entropy").result()
    show("optimizer", rest.optim_step(types.AdamParams(learning_rate=0.01)).result().metrics)
    show("trained on", rest.forward(DATA, "cross_entropy").result().metrics)


main()
