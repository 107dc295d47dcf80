"""Point the same program at any server of this API: by arguments, or by the environment and no
change of the program.

    python examples/other_servers.py # starts a server of its own
    TINKER_BASE_URL=https://host/prefix TINKER_API_KEY=... python examples/other_servers.py

Says what the server offers and trains one step there.
"""

from __future__ import annotations

import os

import tinker
from tinker import types


def one_step(service: tinker.ServiceClient) -> None:
    models = service.get_server_capabilities().supported_models
    print("offers:", ", ".join(model.model_name for model in models[:5]))
    training = service.create_lora_training_client(base_model=models[0].model_name, rank=8)
    datum = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3]),
        loss_fn_inputs={"target_tokens": [2, 3, 4]},
    )
    output = training.forward_backward([datum], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-4)).result(timeout=600)
    print("loss:  ", output.result().loss)


def main() -> None:
    if os.environ.get("TINKER_BASE_URL", "local://") != "local://":
        # TINKER_BASE_URL, TINKER_API_KEY, TINKER_WIRE are read here
        with tinker.ServiceClient() as service:
            one_step(service)
        return

    from tinker.local import Settings, running_server

    # what `tinker serve --api-key ...` does
    with running_server(Settings(api_key="any text will do")) as url:
        for wire in ("auto", "proto", "json"):
            print(f"wire {wire}")
            with tinker.ServiceClient(
                base_url=url,
                api_key="any text will do",  # keys need no prefix
                wire=wire,  # auto: protobuf where the server reads it, else JSON
                default_headers_overrides={"X-Team": "research"},  # sent with every request
            ) as service:
                one_step(service)
        with tinker.ServiceClient(base_url=url, api_key="another key") as service:
            try:
                service.get_server_capabilities()
            except tinker.AuthenticationError as error:
                print("refused:", error)


if __name__ == "__main__":
    main()
