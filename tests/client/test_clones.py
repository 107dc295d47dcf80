"""Samplers that are copied, pickled and sent to other processes; clients after fork."""

from __future__ import annotations

import base64
import copy
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tinker
from tinker._sampling.portable import SEQ_IDS_PER_CLONE
from tinker.local import Settings, running_server

PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=4, seed=7, stop=[])


@pytest.fixture
def sampler(service: tinker.ServiceClient) -> tinker.SamplingClient:
    """Return a ready sampling client for the base model."""
    return service.create_sampling_client(base_model="tinker/toy").result(10)


def tokens_of(sampler: tinker.SamplingClient) -> list[int]:
    return sampler.sample(PROMPT, 1, PARAMS).result(10).sequences[0].tokens


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda sampler: pickle.loads(pickle.dumps(sampler)),
        lambda sampler: tinker.SamplingClient.from_sampler_handle(sampler.get_sampler_handle()),
    ],
)
def test_copies_sample_the_same_under_distinct_numbers(
    sampler: tinker.SamplingClient, wire: Any, copied: Callable[..., Any]
) -> None:
    """A copy of a sampler samples the same, in the same sampling session, under numbers that cannot
    collide.
    """
    original = tokens_of(sampler)
    clone = copied(sampler)
    assert tokens_of(clone) == original
    assert clone.get_base_model() == "tinker/toy"
    first, second = wire.requests("asample")
    assert first.json["sampling_session_id"] == second.json["sampling_session_id"]
    assert first.seq_id == 0
    assert second.seq_id >= SEQ_IDS_PER_CLONE
    assert len(wire.requests("create_session")) == 1


def test_numbers_of_clones_from_the_server(connect: Callable[..., Any], wire: Any) -> None:
    """If the server counts clones, their numbers follow its counter."""
    wire.fail("client/config", 200, body={"sample_join_sampling_session": True})
    sampler = connect().create_sampling_client(base_model="tinker/toy").result(10)
    wire.fail("join_sampling_session", 200, body={"client_counter": 7})
    tokens_of(pickle.loads(pickle.dumps(sampler)))
    assert wire.requests("asample")[0].seq_id == 7 * SEQ_IDS_PER_CLONE


def test_pickles_and_handles_hold_no_credential(sampler: tinker.SamplingClient) -> None:
    """Neither a pickle nor a handle contains the key."""
    assert b"tml-secret" not in pickle.dumps(sampler)
    assert b"tml-secret" not in base64.urlsafe_b64decode(sampler.get_sampler_handle())
    with pytest.raises(ValueError, match="not a sampler handle"):
        tinker.SamplingClient.from_sampler_handle("nonsense")


@pytest.fixture
def live_server(tmp_path: Path) -> Iterator[str]:
    """Yield a server that other processes can reach; it requires a key."""
    with running_server(Settings(data_dir=tmp_path, api_key="tml-live"), "toy") as url:
        yield url


IN_ANOTHER_PROCESS = """
import pickle, sys, tinker
sampler = pickle.loads(sys.stdin.buffer.read())
params = tinker.SamplingParams(max_tokens=4, seed=7, stop=[])
print(sampler.sample(tinker.ModelInput.from_ints([1, 2, 3]), 1, params).result(30).sequences[0].tokens)
"""


def test_another_process_uses_its_own_credential(live_server: str) -> None:
    """A pickled sampler works in another process that has a key, and raises an error in one
    without.
    """
    service = tinker.ServiceClient(base_url=live_server, api_key="tml-live")
    sampler = service.create_sampling_client(base_model="tinker/toy").result(10)
    data, expected = pickle.dumps(sampler), tokens_of(sampler)
    environment = {**os.environ, "TINKER_API_KEY": "tml-live"}
    found = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        input=data,
        capture_output=True,
        env=environment,
        check=True,
    )
    assert found.stdout.decode().strip() == str(expected)
    environment.pop("TINKER_API_KEY")
    refused = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        input=data,
        capture_output=True,
        env=environment,
        check=False,
    )
    assert b"AuthenticationError" in refused.stderr
    service.close().result(10)


AFTER_FORK = """
import asyncio, os, sys, warnings, tinker
warnings.simplefilter("ignore")
service = tinker.ServiceClient()
training = service.create_lora_training_client("tinker/toy", rank=2).result(30)
rest = service.create_rest_client()
models = rest.get_server_capabilities().result(30).supported_models
sampler = training.save_weights_and_get_sampling_client().result(30)
params = tinker.SamplingParams(max_tokens=4, seed=7, stop=[])
def sample(client):
    return client.sample(tinker.ModelInput.from_ints([1, 2, 3]), 1, params).result(30).sequences[0].tokens
expected = sample(sampler)
pending = tinker.APIFuture()
child = os.fork()
if child == 0:
    code = 2
    try:
        assert sample(sampler) == expected
        assert rest.get_server_capabilities().result(30).supported_models == models
        assert sample(service.create_sampling_client(base_model="tinker/toy"))
        for call, reason in (
            (lambda: training.optim_step(tinker.AdamParams()), "belongs to the parent process"),
            (lambda: asyncio.run(asyncio.wait_for(pending.wait(), 30)), "called in the parent process"),
        ):
            try:
                call()
            except RuntimeError as error:
                assert reason in str(error)
                code -= 1
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert sample(sampler) == expected
training.optim_step(tinker.AdamParams()).result(30)
service.close().result(30)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_after_fork(live_server: str) -> None:
    """A forked child can use the parent's samplers and REST calls, over new connections; a run and
    its futures work only in the parent.
    """
    environment = {**os.environ, "TINKER_API_KEY": "tml-live", "TINKER_BASE_URL": live_server}
    done = subprocess.run(
        [sys.executable, "-c", AFTER_FORK],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
