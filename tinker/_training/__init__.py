"""The requests of one training run: their order and numbers, how data is cut and put together, custom losses."""

from __future__ import annotations

from tinker._training import requests
from tinker._training.chunks import PROMPT_TOKEN_NBYTES, chunk_nbytes
from tinker._training.combine import REDUCTIONS, combine
from tinker._training.creation import NewAdapter, SavedAdapter
from tinker._training.custom_loss import check_handle, create_handle, prepare_loss
from tinker._training.loss_requests import LossJob
from tinker._training.run import TrainingRun
from tinker._training.tracing import trace

__all__ = [
    "LossJob",
    "NewAdapter",
    "PROMPT_TOKEN_NBYTES",
    "REDUCTIONS",
    "SavedAdapter",
    "TrainingRun",
    "check_handle",
    "chunk_nbytes",
    "combine",
    "create_handle",
    "prepare_loss",
    "requests",
    "trace",
]
