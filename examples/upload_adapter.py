"""An adapter on this machine continues elsewhere: downloaded from one server, uploaded to another
one, trained on there.

The folder is what PEFT's ``save_pretrained`` writes, so an adapter that was trained without any
server goes the same way.

python examples/upload_adapter.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import tinker
from tinker import checkpoints, types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8, seed=0)
    tokens = training.encode("the adapter remembers this sentence")
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )
    for _ in range(5):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(types.AdamParams(learning_rate=1e-2))
    before = training.forward([datum], "cross_entropy").result().loss

    with tempfile.TemporaryDirectory() as folder:
        saved = training.save_weights_external("to-take-away", ttl_seconds=3600).result().path
        adapter = checkpoints.download(saved, folder, service=service).result().destination
        print("on this machine:", ", ".join(sorted(file.name for file in adapter.iterdir())))
        brought = checkpoints.upload(
            adapter, service=service, **describe(adapter, base_model)
        ).result()
    print(f"in the service: {brought.checkpoint_path}, {brought.nbytes} bytes")

    continued = service.create_training_client_from_state(brought.checkpoint_path)
    after = continued.forward([datum], "cross_entropy").result().loss
    print(f"loss before {before:.4f}, after the journey {after:.4f}")
    service.close().result()
    assert abs(before - after) < 1e-4


def describe(adapter: Path, base_model: str) -> dict[str, object]:
    """Say what PEFT's files say themselves, where the server's model is a toy that has no such
    files.
    """
    if (adapter / "adapter_config.json").exists():
        print("rank:", json.loads((adapter / "adapter_config.json").read_text())["r"])
        return {"base_model": base_model}
    return {"base_model": base_model, "lora_config": types.LoraConfig(rank=8)}


if __name__ == "__main__":
    main()
