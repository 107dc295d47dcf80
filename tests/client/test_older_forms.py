"""Calling forms that older versions had and 0.38.0 has not."""

from __future__ import annotations

from typing import Any

import pytest

import tinker


@pytest.mark.parametrize("create", ["create_training_client_from_state", "create_training_client_from_state_with_optimizer"])
def test_metadata_by_position(wire: Any, service: tinker.ServiceClient, training: tinker.TrainingClient, create: str) -> None:
    """What stands second after a state's path is the base model's name, or metadata as in 0.4 to 0.7."""
    path = training.save_state("0001").result(10).path
    getattr(service, create)(path, {"a": "b"}).result(10)
    getattr(service, create)(path, "tinker/toy", {"c": "d"}).result(10)
    first, second = (exchange.json for exchange in wire.requests("load_weights"))
    assert (first.get("base_model"), first["user_metadata"]) == (None, {"a": "b"})
    assert (second["base_model"], second["user_metadata"]) == ("tinker/toy", {"c": "d"})
