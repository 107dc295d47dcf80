"""A script as they were written for older versions of the SDK: it runs as it is.

python examples/older_script.py
"""

from __future__ import annotations

import os

import tinker
from tinker.lib.public_interfaces.service_client import RetryConfig
from tinker.types.loss_fn_type import LossFnType
from tinker.types.sampling_params import SamplingParams

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
LOSS: LossFnType = "cross_entropy"


def main() -> None:
    service = tinker.ServiceClient(
        base_url=BASE_URL, timeout=60, max_retries=3, default_headers={"X-Team": "example"}
    )
    print("session:", service.holder.get_session_id() == service.session_id)
    base_model = service.get_server_capabilities().supported_models[0].model_name or ""
    training = service.create_lora_training_client(base_model=base_model, rank=8)
    print("run:", training._guaranteed_model_id() == training.model_id)

    tokens = tinker.get_tokenizer(base_model).encode(
        "the quick brown fox", add_special_tokens=False
    )
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:]},
    )
    print("loss:", round(training.forward_backward([datum], LOSS).result().metrics["loss:sum"], 2))

    params = SamplingParams(max_tokens=4).copy(update={"temperature": 0.0})
    print("parameters:", params.dict())
    sampler = service.create_sampling_client(
        base_model=base_model, retry_config=RetryConfig(progress_timeout=600)
    )
    sampled = sampler.sample(
        prompt=datum.model_input, num_samples=1, sampling_params=params
    ).result()
    print("tokens:", len(sampled.sequences[0].tokens))
    service.holder.close()
    assert params.max_tokens == 4


if __name__ == "__main__":
    main()
