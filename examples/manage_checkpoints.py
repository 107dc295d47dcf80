"""Look through what the server keeps: runs and checkpoints, their size and age; let one expire,
delete another.

python examples/manage_checkpoints.py
"""

from __future__ import annotations

import os

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL, user_metadata={"purpose": "example"})
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8)
    training.save_state("first")  # no need to wait in between
    training.save_state("second", user_metadata={"note": "to be deleted"})
    sampler_path = training.save_weights_for_sampler("for-sampling").result().path

    rest = tinker.RestClient(base_url=BASE_URL)  # needs no session
    run = types.ParsedCheckpointTinkerPath.from_tinker_path(sampler_path).training_run_id
    for checkpoint in rest.list_checkpoints(run).result().checkpoints:
        print(
            f"{checkpoint.checkpoint_type:9} {checkpoint.size_bytes:>9} bytes  "
            f"{checkpoint.tinker_path}"
        )

    # gone in a day; None keeps it forever
    rest.set_checkpoint_ttl_from_tinker_path(sampler_path, 24 * 3600).result()
    rest.delete_checkpoint(run, "weights/second").result()
    left = {
        checkpoint.checkpoint_id: checkpoint
        for checkpoint in rest.list_checkpoints(run).result().checkpoints
    }
    for name, checkpoint in left.items():
        print(f"left: {name}, expires {checkpoint.expires_at or 'never'}")

    info = rest.get_weights_info_by_tinker_path(sampler_path).result()
    print(f"{sampler_path} is an adapter of rank {info.lora_rank} over {info.base_model}")
    service.close().result()
    assert set(left) == {"weights/first", "sampler_weights/for-sampling"}


if __name__ == "__main__":
    main()
