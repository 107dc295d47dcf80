"""See why nothing happens: be told when requests wait in the server's queue, and why, and how long each part took.

python examples/queue_observer.py
"""

from __future__ import annotations

import tinker
from tinker.testing import FaultyServer


def main() -> None:
    # A server that says "paused" twice before it answers; with a real one, leave this out and give its address.
    told: list[tuple[str, str | None]] = []

    with FaultyServer(engine="toy") as server:
        paused = {"type": "try_again", "request_id": "r", "queue_state": "paused_capacity", "queue_state_reason": "all GPUs are busy"}
        service = server.service()
        training = service.create_lora_training_client(base_model="tinker/toy", rank=4).result(timeout=60)
        training.observe_queue(lambda state, reason: told.append((state, reason)))
        server.fail("retrieve_future", 408, body=paused, times=2)
        future = training.save_state("waited-for")
        future.result(timeout=60)
        print("told:", told)
        times = future.timings
        print("accepted after the call:", times.accepted is not None and times.called is not None)


if __name__ == "__main__":
    main()
