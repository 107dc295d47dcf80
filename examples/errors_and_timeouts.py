"""What can go wrong, what causes it, and how a program handles it.

python examples/errors_and_timeouts.py
"""

from __future__ import annotations

import logging
import os
import pickle

import tinker
from tinker import types

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")


def main() -> None:
    # one line when a burst of retries begins, and when work is paused
    logging.basicConfig(level=logging.WARNING)
    service = tinker.ServiceClient(base_url=BASE_URL)
    base_model = service.get_server_capabilities().supported_models[0].model_name
    training = service.create_lora_training_client(base_model=base_model, rank=8)
    prompt = types.ModelInput.from_ints([1, 2, 3])

    # Wrong data is refused here, before anything is sent, naming the datum and the field. The run
    # is not harmed.
    bad = types.Datum(
        model_input=prompt,
        loss_fn_inputs={"target_tokens": [2, 3, 4], "weights": [1.0, float("nan"), 1.0]},
    )
    try:
        training.forward_backward([bad], "cross_entropy")
    except ValueError as error:
        print("refused:", error)

    # Misspelt parameters are refused by the constructor.
    try:
        types.SamplingParams(max_token=5)  # type: ignore[call-arg]
    except TypeError as error:
        print("refused:", error)

    # A timeout ends the waiting, not the operation; the same future can be waited for again.
    good = types.Datum(model_input=prompt, loss_fn_inputs={"target_tokens": [2, 3, 4]})
    future = training.forward_backward([good], "cross_entropy")
    try:
        future.result(timeout=0)
    except TimeoutError as error:
        print("not yet:", error)
    print("then:   ", future.result(timeout=60).loss)

    # What the server refuses: the class says what kind, `operation` which call, `body` what the
    # server said.
    try:
        service.create_lora_training_client(base_model="no/such-model").result(timeout=60)
    except tinker.BadRequestError as error:
        print("server: ", error.status_code, error.operation, error.body)
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 (it is ours)
        print("pickled:", again.status_code, again.operation)  # errors pass between processes

    # What the server accepts and then cannot do.
    try:
        # a token of no vocabulary
        far = tinker.Datum(tinker.ModelInput.from_ints([10**6]), {"target_tokens": [1]})
        training.forward_backward([far], "cross_entropy").result(timeout=60)
    except (tinker.RequestFailedError, tinker.APIStatusError) as error:
        print("server: ", type(error).__name__, error)

    # After the end of the session nothing is sent any more.
    service.close().result()
    try:
        service.create_sampling_client(base_model=base_model)
    except tinker.TinkerError as error:
        print("closed: ", error)


if __name__ == "__main__":
    main()
