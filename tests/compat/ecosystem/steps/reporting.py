"""Helpers of the scripts: the model's name, a run with checkpoints, and one line of JSON for each
step.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import tinker

MODEL = "Qwen/Qwen3-8B"  # any name: the server has one small model, and serves it under all of them
TOKENIZER_FOLDER = os.environ["TOKENIZER_FOLDER"]
PATIENCE_SECONDS = 600.0


class Run(NamedTuple):
    """A training run of one step, and where its checkpoints are."""

    id: str
    state: str
    weights: str


def train(name: str = "first") -> Run:
    """Train one step and save a state and weights for sampling, with either client."""
    service = tinker.ServiceClient()
    training = service.create_lora_training_client(base_model=MODEL, rank=8)
    tokens = [1, 2, 3, 4]
    datum = tinker.Datum(
        model_input=tinker.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={
            "target_tokens": tinker.TensorData(data=tokens[1:], dtype="int64", shape=[3]),
            "weights": tinker.TensorData(data=[1.0, 1.0, 1.0], dtype="float32", shape=[3]),
        },
    )
    training.forward_backward([datum], "cross_entropy").result(PATIENCE_SECONDS)
    training.optim_step(tinker.AdamParams(learning_rate=1e-3)).result(PATIENCE_SECONDS)
    state = training.save_state(name).result(PATIENCE_SECONDS).path
    weights = training.save_weights_for_sampler(name).result(PATIENCE_SECONDS).path
    return Run(state.removeprefix("tinker://").partition("/")[0], state, weights)


def register_tokenizer() -> None:
    """Give tinker-cookbook the packaged tokenizer under the model's name, by its hook."""
    from tinker_cookbook import tokenizer_utils

    tokenizer_utils.register_tokenizer(
        MODEL, lambda: tokenizer_utils.get_tokenizer(TOKENIZER_FOLDER)
    )


def report(steps: list[Callable[[], Any]]) -> None:
    """Run the steps in turn, each whatever became of those before it, and print how each ended."""
    for step in steps:
        why = ""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                _run(step)
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"
        print(json.dumps({"step": step.__name__, "passed": not why, "why": why}), flush=True)


def _run(step: Callable[[], Any]) -> None:
    result = step()
    if inspect.iscoroutine(result):
        asyncio.run(asyncio.wait_for(result, PATIENCE_SECONDS))
