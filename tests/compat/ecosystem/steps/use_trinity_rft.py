"""trinity-rft: its TinkerModel and its TinkerTrainerWrapper, the two ends of a run with this SDK,
in one process.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from absent import kept
from reporting import TOKENIZER_FOLDER, report
from trinity.algorithm import ENTROPY_LOSS_FN, KL_FN, POLICY_LOSS_FN
from trinity.common.config import Config, InferenceModelConfig
from trinity.common.constants import SyncMethod
from trinity.common.models.tinker_model import TinkerModel
from trinity.trainer.tinker.tinker_trainer import TinkerTrainerWrapper

# a name as good as any to the server, and one whose tokenizer either client can load
MODEL = TOKENIZER_FOLDER
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
model = TinkerModel(
    InferenceModelConfig(
        model_path=MODEL, logprobs=0, max_response_tokens=8, seed=3, chat_template=TEMPLATE
    )
)
rollouts: list[Any] = []


def make_trainer() -> TinkerTrainerWrapper:
    """GRPO: PPO's loss, with the penalty k2 on the distance from the base model."""
    config = Config(checkpoint_job_dir=str(pathlib.Path("checkpoints").absolute()))
    config.model.model_path, config.model.tinker.seed = MODEL, 5
    chosen = config.algorithm
    chosen.algorithm_type, chosen.loss_agg_mode, chosen.optimizer.lr = "grpo", "token-mean", 3e-3
    chosen.policy_loss_fn, chosen.policy_loss_fn_args = (
        "ppo",
        POLICY_LOSS_FN.get("ppo").default_args(),
    )
    chosen.kl_penalty_fn, chosen.kl_penalty_fn_args = "none", {}
    chosen.kl_loss_fn, chosen.kl_loss_fn_args = "k2", KL_FN.get("k2").default_args()
    chosen.entropy_loss_fn, chosen.entropy_loss_fn_args = (
        "default",
        ENTROPY_LOSS_FN.get("default").default_args(),
    )
    return TinkerTrainerWrapper(config)


trainer = make_trainer()


async def samples() -> None:
    await model.prepare()
    *found, completion = await model.chat(
        [{"role": "user", "content": "Say hi."}], n=4, with_chat_completion=True
    )
    assert [choice.message.content for choice in completion.choices] == [
        one.response_text for one in found
    ]
    assert all(len(one.logprobs) == len(one.tokens) - one.prompt_length <= 8 for one in found)
    rollouts.extend(found)


async def sampled_logprobs() -> None:
    """Those of the samples are those of the same tokens as a prompt."""
    assert rollouts
    for one in rollouts:
        found = await model.logprobs(one.tokens.tolist())
        assert found[one.prompt_length - 1 :].tolist() == pytest.approx(
            one.logprobs.tolist(), abs=1e-3
        )


async def ppo_steps() -> None:
    """The first sample is the good one."""
    await trainer.prepare()
    for one, advantage in zip(rollouts, [1.5, -0.5, -0.5, -0.5], strict=True):
        one.reward, one.advantages = advantage, one.action_mask.float() * advantage
    found = [await trainer.train_step(rollouts) for _ in range(4)]
    assert found[0]["actor/ppo_kl"] == pytest.approx(0, abs=1e-3)
    assert found[-1]["actor/pg_loss"] < found[0]["actor/pg_loss"]
    assert found[-1]["actor/kl_loss"] > 0


async def weights_brought_over() -> None:
    """The trainer's uploaded weights make the good sample likelier."""
    best = rollouts[0]
    await trainer.upload_state_dict()
    assert (
        await model.sync_model_weights(trainer.train_step_num, SyncMethod.MEMORY)
        == kept[-1][1]
        == 4
    )
    after = (await model.logprobs(best.tokens.tolist()))[best.prompt_length - 1 :]
    assert after.sum() > best.logprobs.sum()
    assert model.get_model_path() == kept[-1][0]


async def resumed_run() -> None:
    """Two steps from a checkpoint with its optimizer equal those without a break."""
    await trainer.save_checkpoint()
    resumed = make_trainer()
    await resumed.prepare()
    assert resumed.train_step_num == 4
    for _ in range(2):
        straight, again = [await one.train_step(rollouts) for one in (trainer, resumed)]
        assert again["actor/final_loss"] == pytest.approx(straight["actor/final_loss"], rel=1e-3)


async def next_weights() -> None:
    """The next upload has a new path."""
    await trainer.upload_state_dict()
    await model.sync_model_weights(trainer.train_step_num, SyncMethod.MEMORY)
    assert [step for _, step in kept] == [4, 6]
    assert await model.generate("Say hi.", n=1)


if __name__ == "__main__":
    report([samples, sampled_logprobs, ppo_steps, weights_brought_over, resumed_run, next_weights])
