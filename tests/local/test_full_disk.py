"""A server with durability `step` on a disk that is full for a while: refused work is not done,
accepted work is not lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.api import Api, MakeApi, datum, loss_body, sample_body
from support.full_disk import FullDisk

import tinker
from tinker.local import Settings, running_server
from tinker.local.app import HANDLERS
from tinker.local.state import recover
from tinker.recovery import RecoveringTrainingClient, Recovery

RATE = 1e-2
STEPS = 2
LAST = 2 * STEPS + 2  # the number of the last request
DATA = [tinker.Datum(tinker.ModelInput.from_ints([1, 2, 3]), {"target_tokens": [2, 3, 4]})]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    """Return the disk of the servers."""
    return FullDisk(tmp_path / "data", monkeypatch)


class Client:
    """A client that resends each request under its number until it is accepted, and frees space
    after a failure.
    """

    def __init__(self, api: Api, disk: FullDisk) -> None:
        self.api, self._disk = api, disk
        self.refused = self.failed = 0

    def call(self, operation: str, body: Any, **path: str) -> Any:
        """Return the response to a request; resend it once when it is refused."""
        answer = self.api.call(operation, body, **path)
        if answer.status_code != 200:
            assert (answer.status_code, self._disk.was_full) == (500, True), answer.text
            assert "was not carried out" in answer.json()["detail"]
            self.refused += 1
            self._disk.free()
            answer = self.api.call(operation, body, **path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def run(self, operation: str, body: Any) -> Any:
        """Return the result of a request, None when it failed for lack of space."""
        future = self.call(operation, body)
        self.api.wait(future)
        result = self.api.result(future)
        if "error" not in result:
            return result
        assert self._disk.was_full, result
        assert "full" in result["error"] or "No space left" in result["error"]
        self.failed += 1
        self._disk.free()
        return None


def work(client: Client) -> str:
    """Train a run, with saves and samples in between; return its id."""
    session = client.call("create_session", {"tags": [], "sdk_version": "0"})["session_id"]
    base = {
        "session_id": session,
        "base_model": "tinker/toy",
        "lora_config": {"rank": 4, "seed": 1},
    }
    created = client.run("create_model", {**base, "model_seq_id": 0}) or client.run(
        "create_model", {**base, "model_seq_id": 1}
    )
    model: str = created["model_id"]
    for step in range(STEPS):
        first = 1 + 2 * step
        data = [datum([104 + step, 101], [101, 108 + step])]
        assert client.run("forward_backward", loss_body(model, first, data=data))
        assert client.run(
            "optim_step",
            {"model_id": model, "seq_id": first + 1, "adam_params": {"learning_rate": RATE}},
        )
    client.run("save_weights", {"model_id": model, "seq_id": LAST - 1, "path": "a"})
    client.run(
        "save_weights_for_sampler",
        {"model_id": model, "seq_id": LAST, "sampling_session_seq_id": 0},
    )
    body = {"session_id": session, "sampling_session_seq_id": 1, "base_model": "tinker/toy"}
    sampler = client.call("create_sampling_session", body)["sampling_session_id"]
    assert client.run("asample", sample_body(sampler, 0))
    return model


def logprobs(api: Api, model: str, seq_id: int) -> Any:
    """Return the log-probabilities that a run's weights give."""
    return api.result(api.ok("forward", forward_body(model, seq_id)))["loss_fn_outputs"]


def forward_body(model: str, seq_id: int) -> dict[str, Any]:
    body = loss_body(
        model, seq_id, data=[datum([104 + step, 101], [101, 108 + step]) for step in range(STEPS)]
    )
    return {"forward_input": body.pop("forward_backward_input"), **body}


@pytest.fixture
def kept(make_api: MakeApi, disk: FullDisk) -> Callable[[], Client]:
    """Make servers with durability `step`, each with a separate folder, and their clients."""
    numbers = iter(range(1000))

    def make() -> Client:
        data_dir = Path(disk.root) / str(next(numbers))
        return Client(make_api(durability="step", data_dir=data_dir), disk)

    return make


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_whichever_write_fails(
    every: int,
    kept: Callable[[], Client],
    make_api: MakeApi,
    disk: FullDisk,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Once there is space again, the weights are those of an undisturbed run, also after the server
    is killed.
    """
    caplog.set_level(logging.CRITICAL, "tinker.local")
    quiet = kept()
    before = disk.writes
    expected = logprobs(quiet.api, work(quiet), LAST + 1)
    count = disk.writes - before
    assert count > 40
    refused = failed = 0
    for index in range(0, count, every):
        client = kept()
        disk.first, disk.rolls_back = disk.writes + index, index % 2 == 0
        model = work(client)
        disk.free()
        assert logprobs(client.api, model, LAST + 1) == expected, index
        client.api.state.journal.close()
        again = make_api(durability="step", data_dir=client.api.state.settings.data_dir)
        again.runner.run(recover(again.state, HANDLERS))
        assert logprobs(again, model, LAST + 2) == expected, index
        refused, failed = refused + client.refused, failed + client.failed
    assert refused * every > 20
    assert failed * every > 3


def test_a_recovering_client_goes_on(disk: FullDisk, caplog: pytest.LogCaptureFixture) -> None:
    """A step that the server cannot store is carried out all the same, and the run's weights can be
    saved afterwards.
    """
    settings = Settings(data_dir=Path(disk.root), durability="step")
    recoveries: list[Recovery] = []
    with running_server(settings) as url:
        service = tinker.ServiceClient(base_url=url)
        training = service.create_lora_training_client("tinker/toy", rank=4)
        client = RecoveringTrainingClient(training, on_recovery=recoveries.append)
        for step in client.steps(3, save_every=100):
            with step:
                client.forward_backward(DATA, "cross_entropy").result(timeout=30)
                disk.first = disk.writes + 2  # the request is written down, its weights are not
                client.optim_step(tinker.AdamParams(learning_rate=RATE)).result(timeout=30)
                assert disk.was_full
                disk.free()
        assert client.save_state("after").result(timeout=30).path
        service.close().result(timeout=30)
    assert not recoveries
    assert "cannot keep the weights of" in caplog.text


Send = Callable[[tinker.TrainingClient], Any]
NUMBERED: dict[str, Send] = {
    "forward": lambda run: run.forward(DATA, "cross_entropy"),
    "forward_backward": lambda run: run.forward_backward(DATA, "cross_entropy"),
    "forward_backward in parts": lambda run: run.forward_backward(DATA * 1500, "cross_entropy"),
    "optim_step": lambda run: run.optim_step(tinker.AdamParams(learning_rate=RATE)),
    "save_weights": lambda run: run.save_state("late"),
    "save_weights_for_sampler": lambda run: run.save_weights_for_sampler("late"),
    "load_weights": lambda run: run.load_state("tinker://missing"),
}


@pytest.mark.parametrize("operation", NUMBERED)
def test_a_run_goes_on_at_once_after_a_refusal(
    operation: str, disk: FullDisk, caplog: pytest.LogCaptureFixture
) -> None:
    """After any numbered request that could not be written down, the next ones have results though
    no gap is ever given up.
    """
    caplog.set_level(logging.CRITICAL, "tinker.local")
    settings = Settings(data_dir=Path(disk.root), durability="step", gap_seconds=10_000.0)
    with running_server(settings) as url:
        service = tinker.ServiceClient(base_url=url, max_retries=0)
        run = service.create_lora_training_client("tinker/toy", rank=4)
        path = run.save_state("early").result(timeout=30).path
        send = (
            (lambda run: run.load_state(path))
            if operation == "load_weights"
            else NUMBERED[operation]
        )
        disk.first = disk.writes
        with pytest.raises(tinker.InternalServerError, match="was not carried out") as refused:
            send(run).result(timeout=30)
        assert refused.value.code == "seq_id_free"
        disk.free()
        assert send(run).result(timeout=30) is not None
        assert run.forward(DATA, "cross_entropy").result(timeout=30).loss_fn_outputs
        service.close().result(timeout=30)


def test_a_client_that_leaves_numbers_out_goes_on_at_once(
    kept: Callable[[], Client], disk: FullDisk
) -> None:
    """Without the header of this client, which uses a free number again, a later request runs
    without the refused one.
    """
    api = kept().api
    model = api.model()
    disk.first = disk.writes
    assert api.call("forward_backward", loss_body(model, 1)).status_code == 500
    disk.free()
    assert logprobs(api, model, 2)
    assert api.call("forward_backward", loss_body(model, 1)).status_code == 409


def test_a_client_that_says_what_it_knows_may_send_a_free_number_late(
    kept: Callable[[], Client], disk: FullDisk
) -> None:
    """Parts of one request that are sent at once stay in their order: the refused one is waited
    for.
    """
    api = kept().api
    model, known = api.model(), {"x-tinker-known-failure": "0"}
    disk.first = disk.writes
    assert api.call("forward_backward", loss_body(model, 1), headers=known).status_code == 500
    disk.free()
    second = api.ok("forward_backward", loss_body(model, 2), headers=known)
    api.model()  # when it is there, what could run has run
    assert not api.has_outcome(second)
    first = api.ok("forward_backward", loss_body(model, 1), headers=known)
    for result in api.results((first, second)):
        assert "error" not in result
