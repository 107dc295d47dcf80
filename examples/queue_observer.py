"""See why nothing happens: be told when requests wait in the server's queue, and why, and how long
each part took.

python examples/queue_observer.py
"""

from __future__ import annotations

from tinker.testing import SteppedClock, toy_server


def main() -> None:
    told: list[tuple[str, str | None]] = []

    # A server that says twice that it is busy. With a real one: tinker.ServiceClient(base_url=...),
    # and patience.
    with toy_server(clock=SteppedClock()) as server:
        training = (
            server.service().create_lora_training_client("tinker/toy", rank=4).result(timeout=60)
        )
        training.observe_queue(lambda state, reason: told.append((state, reason)))
        busy = {"queue_state": "paused_capacity", "queue_state_reason": "all machines are busy"}
        server.fail_next("retrieve_future", status=408, body=busy, times=2)
        future = training.save_state("waited-for")
        print("saved as", future.result(timeout=60).path.rpartition("/")[2])
        for state, reason in told:
            print(f"told: {state}: {reason}")
        print("its times:", future.timings)
    assert ("paused_capacity", "all machines are busy") in told


if __name__ == "__main__":
    main()
