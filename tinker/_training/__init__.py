"""The requests of one training run: their order and numbers, how data is cut and put together, custom losses."""

from __future__ import annotations

from tinker._training.chunks import PROMPT_TOKEN_NBYTES, chunk_nbytes
from tinker._training.custom_loss import check_handle, create_handle, custom_step, prepare_step
from tinker._training.loss_requests import LossJob, loss_requests
from tinker._training.numbers import Numbers
from tinker._training.order import Place, Sequencer
from tinker._training.resume import LOADED, create_then_load
from tinker._training.tracing import trace

__all__ = [
    "LOADED",
    "LossJob",
    "Numbers",
    "PROMPT_TOKEN_NBYTES",
    "Place",
    "Sequencer",
    "check_handle",
    "chunk_nbytes",
    "create_handle",
    "create_then_load",
    "custom_step",
    "loss_requests",
    "prepare_step",
    "trace",
]
