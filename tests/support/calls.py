"""A call of the client for each of the operations that its usual work consists of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tinker

PROMPT = tinker.ModelInput.from_ints([104, 105])
PARAMS = tinker.SamplingParams(max_tokens=2, stop=[])
DATUM = tinker.Datum(PROMPT, {"target_tokens": [1, 2], "weights": [1.0, 1.0]})  # type: ignore[dict-item]


def train(service: tinker.ServiceClient) -> tinker.TrainingClient:
    return service.create_lora_training_client("tinker/toy", rank=2)


def sampling(service: tinker.ServiceClient) -> tinker.SamplingClient:
    return service.create_sampling_client(base_model="tinker/toy")


#: What is called, by the operation that it asks.
CALLS: dict[str, Callable[[tinker.ServiceClient], Any]] = {
    "client_config": train,
    "create_session": train,
    "create_model": train,
    "create_sampling_session": sampling,
    "forward_backward": lambda service: train(service).forward_backward([DATUM], "cross_entropy"),
    "optim_step": lambda service: train(service).optim_step(tinker.AdamParams()),
    "save_weights": lambda service: train(service).save_state("a", overwrite=True),
    "asample": lambda service: sampling(service).sample(PROMPT, 1, PARAMS),
    "retrieve_future": lambda service: sampling(service).sample(PROMPT, 1, PARAMS),
    "get_server_capabilities": lambda service: (
        service.create_rest_client().get_server_capabilities()
    ),
    "list_training_runs": lambda service: service.create_rest_client().list_training_runs(),
    "list_sessions": lambda service: service.create_rest_client().list_sessions(),
    "weights_info": lambda service: service.create_rest_client().get_weights_info_by_tinker_path(
        "tinker://a/weights/b"
    ),
}
