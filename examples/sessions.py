"""Sessions: name one, find it again on the server with its runs and samplers, and end it with a
reason.

python examples/sessions.py
"""

from __future__ import annotations

import os

import tinker

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    service = tinker.ServiceClient(
        {"purpose": "example"}, display_name="a session to look at", base_url=BASE_URL
    )
    print("before the first request:", service.session_id)
    base_model = service.get_server_capabilities().supported_models[0].model_name or ""
    training = service.create_lora_training_client(base_model=base_model, rank=8).result()
    sampler = service.create_sampling_client(base_model=base_model).result()
    print("session:", service.session_id)
    print("its page on the hosted service:", service.get_console_url())

    rest = tinker.RestClient(base_url=BASE_URL)  # another client, without a session, sees it too
    found = rest.get_session(service.session_id or "").result()
    print("training runs:", [run == training.model_id for run in found.training_run_ids])
    print("samplers:", [one == sampler.sampling_session_id for one in found.sampler_ids])
    newest = rest.list_sessions(limit=3).result().sessions
    print("among the newest sessions:", service.session_id in newest)

    service.close("errored", "the example wants to show a reason").result()
    try:
        training.save_state("late").result()
        closed = False
    except tinker.ClientClosedError as error:
        closed = True
        print(f"after the end: {type(error).__name__}: {error}")
    assert found.training_run_ids == [training.model_id]
    assert closed


if __name__ == "__main__":
    main()
