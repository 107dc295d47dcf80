"""Look into an adapter: download it, list its matrices, and see how far training has moved it.

python examples/weights_inspection.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np

import tinker
from tinker import checkpoints, types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """Return the float32 tensors of a file, without a library."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    tensors = {}
    for name, facts in header.items():
        if name != "__metadata__":
            assert facts["dtype"] == "F32", facts["dtype"]
            first, last = facts["data_offsets"]
            tensors[name] = np.frombuffer(
                content[start + first : start + last], np.float32
            ).reshape(facts["shape"])
    return tensors


def main() -> None:
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name or ""
    training = service.create_lora_training_client(base_model=base_model, rank=4)
    tokens = training.get_tokenizer().encode(
        "the quick brown fox jumps over the lazy dog", add_special_tokens=False
    )
    datum = types.Datum(types.ModelInput.from_ints(tokens[:-1]), {"target_tokens": tokens[1:]})

    before = training.save_weights_for_sampler("before").result().path
    for _ in range(5):
        training.forward_backward([datum], "cross_entropy")
        training.optim_step(tinker.AdamParams(learning_rate=1e-2))
    after = training.save_weights_for_sampler("after").result().path

    with tempfile.TemporaryDirectory() as folder:
        downloads = [
            checkpoints.download(path, folder, service=service) for path in (before, after)
        ]
        folders = [download.result().destination for download in downloads]
        files = sorted(file.name for file in folders[0].iterdir())
        print("files:", ", ".join(files))
        old, new = (read_safetensors(next(one.glob("*.safetensors"))) for one in folders)

    for name in sorted(old)[:6]:
        moved = float(np.linalg.norm(new[name] - old[name]))
        print(f"{name[-60:]:60} {'x'.join(map(str, old[name].shape)):>9} moved by {moved:.4f}")
    print(f"{len(old)} matrices, {sum(tensor.size for tensor in old.values())} numbers")
    service.close().result()
    assert old.keys() == new.keys()
    assert any(not np.array_equal(old[name], new[name]) for name in old)


if __name__ == "__main__":
    main()
