"""Three adapters over one base model in one session, trained side by side, each on a text of its
own.

python examples/several_adapters.py
"""

from __future__ import annotations

import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
TEXTS = {
    "pirate": "arr, me hearties, hoist the sails",
    "lawyer": "pursuant to the clause stated above",
    "cook": "simmer the onions until they are soft",
}
STEPS = 20


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    runs = {
        name: service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
        for name in TEXTS
    }
    tokenizer = runs["pirate"].get_tokenizer()
    tokens = {name: tokenizer.encode(text) for name, text in TEXTS.items()}
    data = {
        name: [
            types.Datum(
                model_input=types.ModelInput.from_ints(one[:-1]),
                loss_fn_inputs={"target_tokens": one[1:]},
            )
        ]
        for name, one in tokens.items()
    }

    # The requests of one run keep their order; the runs do not wait for each other.
    for _ in range(STEPS):
        for name, training in runs.items():
            training.forward_backward(data[name], "cross_entropy")
            training.optim_step(types.AdamParams(learning_rate=5e-3))

    losses = {
        # futures; every run on every text
        (run, text): runs[run].forward(data[text], "cross_entropy")
        for run in runs
        for text in TEXTS
    }
    print("loss of      " + "".join(f"{text:>10}" for text in TEXTS))
    for run in runs:
        print(
            f"  {run:10} " + "".join(f"{losses[run, text].result().loss:10.1f}" for text in TEXTS)
        )
        assert (
            min(TEXTS, key=lambda text: losses[run, text].result().loss / len(tokens[text])) == run
        )
    service.close().result()


if __name__ == "__main__":
    main()
