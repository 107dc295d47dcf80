"""The requests of one training run: their order and numbers, how data is cut and put together,
custom losses.
"""

from __future__ import annotations

from tinker._training import requests as requests
from tinker._training.combine import REDUCTIONS as REDUCTIONS
from tinker._training.combine import combine as combine
from tinker._training.custom_loss import Evaluate as Evaluate
from tinker._training.custom_loss import Evaluated as Evaluated
from tinker._training.custom_loss import Logprobs as Logprobs
from tinker._training.custom_loss import check_evaluation as check_evaluation
from tinker._training.custom_loss import check_handle as check_handle
from tinker._training.custom_loss import create_handle as create_handle
from tinker._training.custom_loss import describe_value as describe_value
from tinker._training.custom_loss import evaluator as evaluator
from tinker._training.custom_loss import is_tuple as is_tuple
from tinker._training.custom_loss import make_leaves as make_leaves
from tinker._training.custom_loss import prepare_loss as prepare_loss
from tinker._training.custom_loss import read_gradients as read_gradients
from tinker._training.custom_loss import read_metrics as read_metrics
from tinker._training.custom_loss import read_number as read_number
from tinker._training.custom_loss import report as report
from tinker._training.custom_loss import require_torch as require_torch
from tinker._training.loss_requests import LossJob as LossJob
from tinker._training.run import Creation as Creation
from tinker._training.run import NewAdapter as NewAdapter
from tinker._training.run import SavedAdapter as SavedAdapter
from tinker._training.run import TrainingRun as TrainingRun
from tinker._training.tracing import trace as trace
