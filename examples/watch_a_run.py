"""Watch a run: events with the ids and metadata of the run, counts of the client and your own, as a
table and for Prometheus, and reports to the server.

python examples/watch_a_run.py
"""

from __future__ import annotations

import logging
import os

from rich.console import Console

import tinker
from tinker.observing import CustomLossEvaluated, Event, LogObserver, Metrics

BASE_URL = os.environ.get("TINKER_BASE_URL", "local://")
STEPS = 5


@tinker.with_gradients
def likelihood(data, logprobs):  # type: ignore[no-untyped-def]
    return -sum(part.sum() for part in logprobs), [0 * part - 1 for part in logprobs]


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(message)s   [%(training_run_id)s]")
    metrics = Metrics()

    def note_losses(event: Event) -> None:
        if isinstance(event, CustomLossEvaluated) and event.loss is not None:
            metrics.record("loss", event.loss, buckets=(10, 20, 50, 100, 200))
            metrics.set_gauge("last_loss", event.loss)

    service = tinker.ServiceClient(
        {"experiment": "watched"},
        base_url=BASE_URL,
        observers=[metrics, note_losses],
        telemetry=True,
    )
    model = service.get_server_capabilities().supported_models[0].model_name
    assert model is not None
    training = service.create_lora_training_client(base_model=model, rank=8, seed=0).result()
    tokens = tinker.ModelInput.from_ints(range(1, 9))
    datum = tinker.Datum(tokens, {"target_tokens": list(range(2, 10))})

    log = LogObserver("example")
    telemetry = service.get_telemetry()
    assert telemetry is not None
    # what ends the program is reported before it does
    with telemetry.capture_exceptions(fatal=True):
        for step in range(STEPS):
            if step == STEPS - 1:
                service.add_observer(log)  # the last step in the log
            training.forward_backward_custom([datum], likelihood)
            training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result()
            metrics.increment("steps")
    telemetry.log("trained", {"steps": STEPS})
    service.remove_observer(log)
    assert telemetry.wait_until_drained(timeout_seconds=5.0)
    service.close().result()

    Console(width=120).print(metrics)
    print(metrics.prometheus())
    seen = metrics.snapshot()
    assert seen.counters["steps"] == seen.histograms["loss"].count == STEPS
    assert seen.gauges["last_loss"] < seen.histograms["loss"].largest
    assert f"loss_count {STEPS}" in metrics.prometheus()


if __name__ == "__main__":
    main()
