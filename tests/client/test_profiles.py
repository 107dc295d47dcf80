"""Server profiles: all main functions work on every server that the local one can imitate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinker
from tinker.local import Settings, State
from tinker.local.engines.toy import ToyEngine

MakeDatum = Callable[..., tinker.Datum]
ADAM = tinker.AdamParams(learning_rate=0.05)
PROMPT = tinker.ModelInput.from_ints([1, 2, 3])
PARAMS = tinker.SamplingParams(max_tokens=4, seed=7, stop="END")


@pytest.fixture(params=["official", "skyrl", "minimal-json", "strict", "plain-json"])
def profile(request: pytest.FixtureRequest) -> str:
    """Return the imitated server."""
    return str(request.param)


@pytest.fixture
def state(tmp_path: Path, profile: str) -> Iterator[State]:
    """Yield the state of a server that imitates another."""
    state = State(
        ToyEngine, Settings(data_dir=tmp_path / "server", hold_seconds=0.2, profile=profile)
    )
    yield state
    state.close()


@pytest.fixture
def wire(wire: Any, profile: str) -> Iterator[Any]:
    """Requests match the contract here too, but for refused fields; imitated responses need not."""
    yield wire
    if profile != "official":
        wire.judge.bad_answers.clear()
    if profile == "strict":
        left_out = (
            "optimizer_config",
            "kind",
            "topk_sample_logprobs",
            "prompt_alt_tokens_k",
            "record_stability_info",
        )
        missing = tuple(f'"{name}" is a required property' for name in left_out)
        wire.judge.bad_requests[:] = [
            fault for fault in wire.judge.bad_requests if not fault.endswith(missing)
        ]


def test_training_and_sampling(service: tinker.ServiceClient, datum: MakeDatum) -> None:
    """A run learns, its samplers sample and prompts are scored; no hosted server is needed."""
    training = service.create_lora_training_client("tinker/toy", rank=4)
    outputs = []
    for _ in range(15):
        outputs.append(training.forward_backward([datum(), datum([4, 5])], "cross_entropy"))
        training.optim_step(ADAM)
    first, last = (
        sum(sum(one["logprobs"].tolist()) for one in outputs[at].result(10).loss_fn_outputs)
        for at in (0, -1)
    )
    assert last > first
    assert len(training.forward([datum()], "cross_entropy").result(10).loss_fn_outputs) == 1
    path = training.save_weights_for_sampler("s").result(10).path
    sampler = service.create_sampling_client(model_path=path)
    response = sampler.sample(PROMPT, 2, PARAMS).result(10)
    assert len(response.sequences) == 2
    assert all(one.tokens and one.logprobs for one in response.sequences)
    assert (
        sampler.sample(PROMPT, 2, PARAMS).result(10).sequences[0].tokens
        == response.sequences[0].tokens
    )


def test_losses_of_reinforcement(service: tinker.ServiceClient) -> None:
    """Importance sampling and ppo run, with their configuration."""
    training = service.create_lora_training_client("tinker/toy", rank=4)
    inputs: dict[str, Any] = {
        "target_tokens": [2, 3, 4],
        "logprobs": [-1.0] * 3,
        "advantages": [1.0, -1.0, 0.5],
    }
    datum = tinker.Datum(model_input=PROMPT, loss_fn_inputs=inputs)
    config = {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}
    for future in (
        training.forward_backward([datum], "importance_sampling"),
        training.forward_backward([datum], "ppo", config),
    ):
        assert len(future.result(10).loss_fn_outputs[0]["logprobs"].tolist()) == 3


def test_custom_loss(service: tinker.ServiceClient, datum: MakeDatum) -> None:
    """A custom loss trains, even if the server does not send ``loss:sum``."""
    torch = pytest.importorskip("torch")

    def loss(data: list[tinker.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        total = -torch.cat(logprobs).sum()
        return total, {"mine": float(len(data))}

    training = service.create_lora_training_client("tinker/toy", rank=4)
    losses = []
    for _ in range(10):
        losses.append(training.forward_backward_custom([datum()], loss))
        training.optim_step(ADAM)
    assert losses[-1].result(20).loss < losses[0].result(20).loss
    assert losses[0].result().metrics["mine"] == 1.0


def test_runs_continue_from_a_saved_state(service: tinker.ServiceClient, datum: MakeDatum) -> None:
    """A run that continues from a saved state gives exactly the same results."""
    training = service.create_lora_training_client("tinker/toy", rank=4)
    for _ in range(3):
        training.forward_backward([datum()], "cross_entropy")
        training.optim_step(ADAM)
    path = training.save_state("three").result(10).path
    again = service.create_training_client_from_state_with_optimizer(path)
    for client in (training, again):
        client.forward_backward([datum()], "cross_entropy")
        client.optim_step(ADAM)
    one, other = (
        client.forward([datum()], "cross_entropy").result(10) for client in (training, again)
    )
    assert (
        one.loss_fn_outputs[0]["logprobs"].tolist() == other.loss_fn_outputs[0]["logprobs"].tolist()
    )


def test_sparse_targets(service: tinker.ServiceClient) -> None:
    """Mostly empty targets train, whether or not the server reads sparse tensors."""
    targets, weights = np.zeros((40, 20), np.int64), np.zeros((40, 20), np.float32)
    targets[:, 0], weights[:, 0] = 7, 1.0
    inputs: Any = {
        "target_tokens": tinker.TensorData.from_numpy_sparse(targets),
        "weights": tinker.TensorData.from_numpy_sparse(weights),
    }
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(range(40)), loss_fn_inputs=inputs)
    training = service.create_lora_training_client("tinker/toy", rank=4)
    assert training.forward_backward([datum], "cross_entropy").result(10).loss_fn_outputs


def test_failures_are_raised_at_once(service: tinker.ServiceClient, datum: MakeDatum) -> None:
    """A request that fails on the server fails its future with the server's text."""
    training = service.create_lora_training_client("tinker/toy", rank=4)
    with pytest.raises((tinker.RequestFailedError, tinker.APIStatusError)) as caught:
        training.forward_backward([datum([10**6])], "cross_entropy").result(10)
    assert "1000000" in str(caught.value)


def test_checkpoints(service: tinker.ServiceClient, connect: Any, wire: Any, profile: str) -> None:
    """If a server lists checkpoints, so does the client, whatever ids and times look like."""
    if profile == "minimal-json":
        return  # the core of the old servers has no lists
    training = service.create_lora_training_client("tinker/toy", rank=4)
    path = training.save_state("kept").result(10).path
    rest = tinker.RestClient(base_url="http://server", api_key="tml-secret", transport=wire)
    listed = rest.list_checkpoints(training.model_id).result(10).checkpoints
    assert [one.checkpoint_id.rpartition("/")[2] for one in listed] == ["kept"]
    assert rest.get_weights_info_by_tinker_path(path).result(10).base_model == "tinker/toy"
    rest.delete_checkpoint_from_tinker_path(path).result(10)
    assert rest.list_checkpoints(training.model_id).result(10).checkpoints == []
