"""The order of work: one thread for the engine, a queue for each model, and one for all samples."""

from __future__ import annotations

from tinker.local.scheduling.idempotency import enqueue_idempotent, fingerprint, fingerprint_protobuf, skip_rejected
from tinker.local.scheduling.models import ModelQueue, ModelTask
from tinker.local.scheduling.samples import SampleQueue, SampleTask
from tinker.local.scheduling.served import ServedModel, ServedModels
from tinker.local.scheduling.steps import OpenEngine, to_failure
from tinker.local.scheduling.worker import WORKER_CLOSED, PeriodicTask, Worker

__all__ = [
    "ModelQueue",
    "ModelTask",
    "OpenEngine",
    "PeriodicTask",
    "SampleQueue",
    "SampleTask",
    "ServedModel",
    "ServedModels",
    "WORKER_CLOSED",
    "Worker",
    "enqueue_idempotent",
    "fingerprint",
    "fingerprint_protobuf",
    "skip_rejected",
    "to_failure",
]
