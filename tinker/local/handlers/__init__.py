"""One handler for each operation of the contract, in the file named after its tag."""

from __future__ import annotations

from tinker.local.handlers import sampling, service, training, weights
from tinker.local.handlers import sampling as futures
from tinker.local.handlers import service as admin
from tinker.local.handlers import service as auth
from tinker.local.handlers import service as telemetry

__all__ = ["admin", "auth", "futures", "sampling", "service", "telemetry", "training", "weights"]
