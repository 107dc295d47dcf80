"""Samplers that are copied and pickled."""

from __future__ import annotations

import base64
import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import tinker
from tinker._sampling.portable import SEQ_IDS_PER_CLONE

PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=4, seed=7, stop=[])


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
    """A copy samples the same, in the same session, under numbers that cannot collide."""
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
