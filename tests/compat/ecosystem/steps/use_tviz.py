"""tviz: rollouts of the cookbook's arithmetic, converted by its adapter and logged
for its viewer.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

from reporting import MODEL, TOKENIZER_FOLDER, register_tokenizer, report, train
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder
from tinker_cookbook.rl.rollouts import do_group_rollout
from tinker_cookbook.tokenizer_utils import get_tokenizer
from tviz import TvizLogger
from tviz.adapters.tinker import from_tinker_batch

import tinker

run = train()
groups: list[Any] = []
converted: list[dict[str, Any]] = []


async def rollouts() -> None:
    builder = ArithmeticDatasetBuilder(
        batch_size=2, model_name_for_tokenizer=MODEL, renderer_name="role_colon", n_batches=1, group_size=3
    )  # fmt: skip
    dataset, _ = await builder()
    sampler = await tinker.ServiceClient().create_sampling_client_async(model_path=run.weights)
    policy = TinkerTokenCompleter(sampler, max_tokens=8)
    groups.extend([await do_group_rollout(one, policy) for one in dataset.get_batch(0)])
    assert len(groups) == 2


def conversion() -> None:
    converted.extend(from_tinker_batch(groups, tokenizer=get_tokenizer(TOKENIZER_FOLDER)))
    assert [len(one["trajectories"]) for one in converted] == [3, 3]
    for trajectory in (each for one in converted for each in one["trajectories"]):
        assert len(trajectory["output_tokens"]) == len(trajectory["logprobs"])
        assert isinstance(trajectory["output_text"], str)
    json.dumps(converted)


def log() -> None:
    database = Path("tviz.db").resolve()
    logger = TvizLogger(db_path=str(database), run_name="arithmetic")
    logger.log_hparams({"model": MODEL})
    logger.log_metrics({"reward_mean": 0.5}, step=0)
    logger.log_rollouts(converted, step=0)
    logger.close()
    with sqlite3.connect(database) as read:
        assert read.execute("select count(*) from rollouts").fetchone() == (2,)
        assert read.execute(
            "select count(*) from trajectories where logprobs is not null"
        ).fetchone() == (6,)


if __name__ == "__main__":
    register_tokenizer()
    report([rollouts, conversion, log])
