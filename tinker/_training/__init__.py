"""The requests of one training run: their order and numbers, how data is cut and put together, custom losses."""

from __future__ import annotations

from tinker._training import requests
from tinker._training.combine import REDUCTIONS, combine
from tinker._training.creation import Creation, NewAdapter, SavedAdapter
from tinker._training.custom_loss import check_handle, create_handle, prepare_loss
from tinker._training.evaluation import (
    Evaluate,
    Evaluated,
    Logprobs,
    check_evaluation,
    describe_value,
    evaluator,
    is_tuple,
    make_leaves,
    read_gradients,
    read_metrics,
    read_number,
    report,
    require_torch,
)
from tinker._training.loss_requests import LossJob
from tinker._training.run import TrainingRun
from tinker._training.tracing import trace

__all__ = [
    "Evaluate",
    "Evaluated",
    "Logprobs",
    "Creation",
    "LossJob",
    "NewAdapter",
    "REDUCTIONS",
    "SavedAdapter",
    "TrainingRun",
    "check_evaluation",
    "check_handle",
    "combine",
    "create_handle",
    "describe_value",
    "evaluator",
    "is_tuple",
    "make_leaves",
    "prepare_loss",
    "read_gradients",
    "read_metrics",
    "read_number",
    "report",
    "requests",
    "require_torch",
    "trace",
]
