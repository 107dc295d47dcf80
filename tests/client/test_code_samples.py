"""The samples in the contract: each runs, and asks the operation that it stands at."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.contract import ROOT, load

import tinker
from tinker import checkpoints

METHODS = ("get", "put", "post", "patch", "delete")
CONTRACT = load()
OPERATIONS = {
    operation["operationId"]: operation
    for item in CONTRACT["paths"].values()
    for method, operation in item.items()
    if method in METHODS
}


@pytest.fixture
def names(
    connect: Callable[..., tinker.ServiceClient], wire: Any, clock: Any, datum: Any, tmp_path: Path
) -> dict[str, Any]:
    """What the contract says that samples find, with a server that asks for traced losses."""
    wire.fail("client/config", 200, body={"custom_loss_server_side": True})
    service = connect(wire="json")
    training = service.create_lora_training_client("tinker/toy", rank=4, seed=1)
    training.forward_backward([datum()], "cross_entropy")
    training.optim_step(tinker.AdamParams(learning_rate=0.1))
    saved = training.save_weights_external("e", ttl_seconds=3600).result(10)
    return {
        "tinker": tinker,
        "datetime": datetime,
        "service": service,
        "rest": service.create_rest_client(),
        "admin": tinker.AdminClient(
            base_url="http://server", api_key="tml-secret", transport=wire, clock=clock.clock()
        ),
        "training": training,
        "sampler": training.save_weights_and_get_sampling_client(),
        "base_model": "tinker/toy",
        "data": [datum()],
        "prompt": tinker.ModelInput.from_ints([104, 105]),
        "path": training.save_state("first").result(10).path,
        "folder": checkpoints.download(saved.path, tmp_path, service=service)
        .result(10)
        .destination,
    }


@pytest.mark.parametrize(
    "name", [name for name, operation in OPERATIONS.items() if "x-codeSamples" in operation]
)
def test_a_sample_asks_its_operation(names: dict[str, Any], wire: Any, name: str) -> None:
    """The sample runs as it stands, and its requests, also to its operation, are answered."""
    if name == "create_custom_loss":
        pytest.importorskip("torch")
    wire.judge.succeeded.clear()
    (sample,) = OPERATIONS[name]["x-codeSamples"]
    exec(compile(sample["source"], f"the sample of {name}", "exec"), names)
    assert sample["lang"] == "Python"
    assert name in wire.judge.succeeded


def test_every_operation_of_users_has_a_sample() -> None:
    """An operation that a method of a client asks has a sample, and no other has one."""
    advice = (
        "write `x-codeSamples` beside its `operationId` in openapi.yaml, where a "
        "method of a client asks it"
    )
    of_users = {
        name
        for name, operation in OPERATIONS.items()
        if "x-methods" in operation or "x-client" in operation
    }
    with_sample = {name for name, operation in OPERATIONS.items() if "x-codeSamples" in operation}
    assert [f"{name}: {advice}" for name in sorted(of_users ^ with_sample)] == []


def test_every_operation_has_a_page() -> None:
    """Each operation links the page that tells what it is for."""
    pages = {
        name: operation.get("externalDocs", {}).get("url", "")
        for name, operation in OPERATIONS.items()
    }
    advice = "write `externalDocs: {url: docs/PAGE.md}` beside its `operationId` in openapi.yaml"
    assert [
        f"{name}: {advice}" for name, page in pages.items() if not (ROOT / page).is_file()
    ] == []
