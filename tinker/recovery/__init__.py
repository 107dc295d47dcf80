"""Continue with training when the server has lost the run: from a checkpoint, with exactly the work
that was lost repeated.

    training = service.create_lora_training_client("tinker/toy", rank=4, seed=1)
    client = tinker.recovery.RecoveringTrainingClient(training)
    for step in client.steps(200, save_every=10):
        with step:
            client.forward_backward(batches[step], "cross_entropy")
            client.optim_step(params)

Nothing of this is used unless you ask for it.
"""

from __future__ import annotations

from tinker.recovery.client import RecoveringTrainingClient
from tinker.recovery.many import RecoveredRun, RecoveryExecutor, RecoveryMonitor, RunMarkedCorrupted
from tinker.recovery.policy import (
    CheckpointChoice,
    Recovery,
    RecoveryFailedError,
    RecoveryPolicy,
    SavePoint,
)
from tinker.recovery.steps import Steps, TrainingStep

__all__ = [
    "CheckpointChoice",
    "RecoveringTrainingClient",
    "RecoveredRun",
    "Recovery",
    "RecoveryExecutor",
    "RecoveryFailedError",
    "RecoveryMonitor",
    "RecoveryPolicy",
    "RunMarkedCorrupted",
    "SavePoint",
    "Steps",
    "TrainingStep",
]
