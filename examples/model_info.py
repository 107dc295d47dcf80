"""What a run is, what the server offers, and how to free a model that is not needed any more.

python examples/model_info.py
"""

from __future__ import annotations

import os

import tinker

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    print("the server is", service.check_health().status)
    models = service.get_server_capabilities().supported_models
    for model in models:
        print(
            f"{model.model_name}: up to {model.max_context_length} tokens, trainable: "
            f"{model.trainable}"
        )

    training = service.create_lora_training_client(base_model=models[0].model_name or "", rank=8)
    info = training.get_info()  # waits until the model exists
    data = info.model_data
    print(f"run {info.model_id}")
    print(f"a LoRA adapter of rank {info.lora_rank} over {data.model_name}")
    print(f"the server names its tokenizer: {bool(data.tokenizer_id)}")

    path = training.save_state("before-unloading").result().path
    training.unload_model().result()  # the adapter leaves the server's memory; what is saved stays
    try:
        training.optim_step(tinker.AdamParams()).result()
        refused = None
    except tinker.TinkerError as error:
        refused = error
        print(f"after unloading: {type(error).__name__}")

    again = service.create_training_client_from_state_with_optimizer(path).result()
    print(f"its state is another run now: {again.model_id != info.model_id}")
    service.close().result()
    assert refused is not None
    assert again.model_id != info.model_id


if __name__ == "__main__":
    main()
