"""The features of the client that its core can do without (``[guests]`` in tools/budget.toml)."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from structure import ROOT, read_guests

from tinker.testing import toy_server

GUESTS = read_guests(ROOT)
# Those that the core still imports.
NEEDED = {"hints"}
# The last has files that other processes are just writing.
LEFT_OUT = shutil.ignore_patterns("local", "cli", "__pycache__")
CORE_CALLS = """
import sys

import numpy as np
import tinker

service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-key")
training = service.create_lora_training_client("tinker/toy", rank=4)
prompt = tinker.ModelInput.from_ints([1, 2, 3])
inputs = {"target_tokens": np.array([2, 3, 4]), "weights": np.ones(3, np.float32)}
data = [tinker.Datum(model_input=prompt, loss_fn_inputs=inputs)]
assert training.forward_backward(data, "cross_entropy").result().metrics
training.optim_step(tinker.AdamParams()).result()
path = training.save_state("saved").result().path
sampler = training.save_weights_and_get_sampling_client(name="sampled")
assert sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=4)).result().sequences
rest = service.create_rest_client()
found = rest.list_checkpoints(training.model_id).result().checkpoints
assert path in {one.tinker_path for one in found}
try:
    service.create_sampling_client(model_path=path + "-not-there").result()
except tinker.NotFoundError as error:
    print(error)
service.close().result()
"""


@pytest.mark.parametrize("guest", sorted(GUESTS.keys() - NEEDED))
def test_the_core_works_without_a_guest(guest: str, tmp_path: Path) -> None:
    """Without a guest's files, a copy of the client does the work of the core, with its errors."""
    for name in ("tinker", "tinker_records", "generated"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=LEFT_OUT)
    for path in (tmp_path / name for name in GUESTS[guest]):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with toy_server() as server, server.on_port() as url:
        ran = subprocess.run(
            [sys.executable, "-c", CORE_CALLS, url],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'generated'}"},
            stdout=subprocess.PIPE,
            text=True,
        )
    assert (ran.returncode, "not-there" in ran.stdout) == (0, True)
