"""One handler for each operation of the contract, in the file named after its tag."""

from __future__ import annotations

from tinker.local.handlers import sampling, service, training, weights

__all__ = ["admin", "auth", "futures", "sampling", "service", "telemetry", "training", "weights"]

futures = sampling
admin = auth = telemetry = service
