"""The cookbook's training loops, unchanged, at the smallest size:
`python loops.py SERVER_URL FOLDER NAME ...`.

Only what a hub would have is made here: the tokenizer (the packaged one), and data. Prints a line
for each loop; what the cookbook says, and at the end why some failed, goes to the other stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import chz
import datasets
from tinker_cookbook import capture, tokenizer_utils, weights
from tinker_cookbook.completers import TinkerMessageCompleter
from tinker_cookbook.distillation import sdft, train_off_policy, train_on_policy
from tinker_cookbook.distillation.datasets import (
    DistillationDatasetConfig,
    PromptOnlyDataset,
    TeacherConfig,
)
from tinker_cookbook.preference import train_dpo
from tinker_cookbook.preference.dpo_datasets import DPODatasetBuilderFromComparisons
from tinker_cookbook.preference.preference_datasets import (
    ChatDatasetBuilderFromComparisons,
    ComparisonDatasetBuilder,
)
from tinker_cookbook.preference.types import Comparison, LabeledComparison
from tinker_cookbook.recipes import rl_loop
from tinker_cookbook.recipes.math_rl import train as math_rl
from tinker_cookbook.recipes.math_rl.arithmetic_env import ArithmeticDatasetBuilder, ArithmeticEnv
from tinker_cookbook.recipes.preference.shorter.env import (
    ShorterComparisonBuilder,
    ShorterPreferenceModelBuilder,
)
from tinker_cookbook.recipes.rubric import env as rubric_env
from tinker_cookbook.recipes.rubric import train as rubric
from tinker_cookbook.recipes.rubric.data import Rubric
from tinker_cookbook.recipes.sdft.datasets import SDFTDataset
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl import rollouts
from tinker_cookbook.rl import train as rl
from tinker_cookbook.rl.preference_envs import PairwisePreferenceRLDatasetBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.supervised import train as sft
from tinker_cookbook.supervised.data import FromConversationFileBuilder
from tinker_cookbook.supervised.types import ChatDatasetBuilderCommonConfig

import tinker

MODEL, RENDERER = "tinker/babble", "role_colon"
TOKENIZER_FOLDER = os.environ.get("TOKENIZER_FOLDER") or str(
    Path(tinker.__file__).parent / "local" / "base_model"
)
QUESTIONS = [
    ("Who are you?", "A model."),
    ("Say hi.", "hi"),
    ("And now?", "now"),
    ("What is 1 + 1?", "2"),
]
COMMON = ChatDatasetBuilderCommonConfig(
    model_name_for_tokenizer=MODEL, renderer_name=RENDERER, max_length=256, batch_size=2
)  # fmt: skip


def register_tokenizer() -> None:
    """The packaged tokenizer under the model's name, by the cookbook's own hook."""
    tokenizer_utils.register_tokenizer(
        MODEL, lambda: tokenizer_utils.get_tokenizer(TOKENIZER_FOLDER)
    )


def conversations(folder: Path) -> str:
    """Return a file of short chats."""
    chats = [
        [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
        for asked, said in QUESTIONS * 2
    ]
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return str(path)


def logged(folder: Path, name: str) -> list[Any]:
    """Return the values of a metric, in the order of the steps."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


async def supervised(url: str, folder: Path) -> None:
    """Train on chats with checkpoints; then resume the run, and begin another from its weights."""
    builder = FromConversationFileBuilder(
        common_config=COMMON, file_path=conversations(folder), test_size=2
    )

    def config(**changes: Any) -> sft.Config:
        given = {
            "log_path": str(folder / "run"), "model_name": MODEL, "recipe_name": "test", "renderer_name": RENDERER,
            "dataset_builder": builder, "learning_rate": 0.01, "lora_rank": 8, "base_url": url, "eval_every": 1,
            "save_every": 2, "enable_trace": True, "session_name": "sft", "submit_ahead": 2,
        }  # fmt: skip
        return sft.Config(**{**given, **changes})

    await sft.main(config(num_epochs=1))
    await sft.main(config(num_epochs=2, async_periodic_saves=True, rolling_save_every=1))
    losses = logged(folder / "run", "train_mean_nll")
    assert len(losses) == 6
    assert losses[-1] < losses[0]
    assert len(logged(folder / "run", "test/nll")) == 6
    records = [
        json.loads(line) for line in (folder / "run" / "checkpoints.jsonl").read_text().splitlines()
    ]
    assert [one["name"] for one in records if one["name"] == "final"] == ["final", "final"]
    again = config(
        log_path=str(folder / "again"), load_checkpoint_path=records[-1]["state_path"], max_steps=1
    )
    await sft.main(again)
    assert logged(folder / "again", "train_mean_nll")[0] < losses[0]


async def program_of_the_page(url: str, folder: Path) -> None:
    """Run the program that docs/migrating.md has for users of the cookbook."""
    page = (Path(__file__).parents[3] / "docs" / "migrating.md").read_text()
    (program,) = re.findall(r"```text\n(import asyncio\n.*?tinker_cookbook.*?)```", page, re.DOTALL)
    names = {
        "http://127.0.0.1:8000": url, "runs/first": str(folder / "run"), "chats.jsonl": conversations(folder),
        'str(Path(tinker.__file__).parent / "local" / "base_model")': repr(TOKENIZER_FOLDER),
    }  # fmt: skip
    for name, ours in names.items():
        assert program.count(name) == 1
        program = program.replace(name, ours)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=sys.stderr)
    assert await process.wait() == 0
    assert len(logged(folder / "run", "train_mean_nll")) == 2


def arithmetic(batches: int = 2) -> ArithmeticDatasetBuilder:
    """Sums to learn, four tries at each of two."""
    return ArithmeticDatasetBuilder(
        batch_size=2, model_name_for_tokenizer=MODEL, renderer_name=RENDERER, n_batches=batches, group_size=4
    )  # fmt: skip


def rl_config(url: str, folder: Path, **changes: Any) -> rl.Config:
    given = {
        "learning_rate": 1e-3, "dataset_builder": arithmetic(), "model_name": MODEL, "recipe_name": "test", "max_tokens": 8,
        "log_path": str(folder / "run"), "renderer_name": RENDERER, "lora_rank": 8, "base_url": url, "save_every": 1,
        "eval_every": 0,
    }  # fmt: skip
    return rl.Config(**{**given, **changes})


async def reinforcement(url: str, folder: Path) -> None:
    """Train on-policy with two steps a batch and a KL penalty to the base model; then resume."""
    reference = rl.KLReferenceConfig(base_model=MODEL)
    how: dict[str, Any] = {
        "num_substeps": 2,
        "compute_post_kl": True,
        "kl_penalty_coef": 0.1,
        "kl_reference_config": reference,
    }
    await rl.main(rl_config(url, folder, dataset_builder=arithmetic(1), **how))
    await rl.main(rl_config(url, folder, rolling_save_every=1, **how))
    assert len(logged(folder / "run", "kl_policy_base")) == 2


async def reinforcement_ppo(url: str, folder: Path) -> None:
    """With clipping and settings of the loss."""
    await rl.main(
        rl_config(
            url,
            folder,
            loss_fn="ppo",
            loss_fn_config={"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
        )
    )


async def reinforcement_streamed(url: str, folder: Path) -> None:
    """Training begins before the batch is complete."""
    streamed = rl.StreamMinibatchConfig(groups_per_batch=2, num_minibatches=2)
    await rl.main(rl_config(url, folder, stream_minibatch_config=streamed))


def counting_letters(kind: type, method: str) -> Any:
    """Rewards that a model of letters earns: it writes no numbers, which the recipe rewards."""
    return mock.patch.object(kind, method, lambda _, text: text.count("e"))


async def reinforcement_async(url: str, folder: Path) -> None:
    """Samples of older weights, with the loss that is made for them and is the default here."""
    ahead = rl.AsyncConfig(max_steps_off_policy=1, groups_per_batch=2)
    assert ahead.loss_fn == "stable_reinforce"
    with counting_letters(ArithmeticEnv, "check_answer"):
        await rl.main(rl_config(url, folder, async_config=ahead))
    assert max(logged(folder / "run", "grad_norm:mean")) > 0


async def reinforcement_async_ppo(url: str, folder: Path) -> None:
    """Samples of older weights, with a loss that takes their log-probabilities from the datum."""
    ahead = rl.AsyncConfig(max_steps_off_policy=1, groups_per_batch=2, loss_fn="ppo")
    await rl.main(rl_config(url, folder, async_config=ahead))


async def recipe_math_rl(url: str, folder: Path) -> None:
    """The recipe's command, with its default loss."""
    config = math_rl.CLIConfig(
        env="arithmetic", model_name=MODEL, renderer_name=RENDERER, lora_rank=8, groups_per_batch=2, group_size=4, max_tokens=8,
        max_steps=2, learning_rate=1e-3, eval_every=0, save_every=0, log_path=str(folder / "run"), base_url=url,
    )  # fmt: skip
    assert config.loss_fn == "stable_reinforce"
    with counting_letters(ArithmeticEnv, "check_answer"):
        await math_rl.cli_main(config)
    assert max(logged(folder / "run", "grad_norm:mean")) > 0


async def recipe_rl_loop(url: str, folder: Path) -> None:
    """The recipe with its default loss."""
    rows = datasets.Dataset.from_list(
        [{"question": asked, "answer": said} for asked, said in QUESTIONS]
    )
    config = rl_loop.Config(
        base_url=url, log_path=str(folder / "run"), model_name=MODEL, batch_size=2, group_size=4, max_tokens=8, lora_rank=8,
        learning_rate=1e-3, max_steps=2,
    )  # fmt: skip
    assert config.loss_fn == "stable_reinforce"
    with (
        mock.patch.object(
            rl_loop.datasets, "load_dataset", return_value=datasets.DatasetDict(train=rows)
        ),
        mock.patch.object(
            rl_loop.model_info, "get_recommended_renderer_name", return_value=RENDERER
        ),
        mock.patch.object(rl_loop, "get_reward", lambda response, _: float(response.count("e"))),
    ):
        await asyncio.to_thread(rl_loop.main, config)
    assert min(logged(folder / "run", "grad_norm:mean")) > 0


def brief_completer(**options: Any) -> TinkerMessageCompleter:
    """Return a grader whose model has a shorter context than the recipe's answers."""
    return TinkerMessageCompleter(**{**options, "max_tokens": 8})


async def recipe_rubric(url: str, folder: Path) -> None:
    """Run the recipe's command with its default loss; the model grades itself."""
    items = [
        {
            "rubric_str": "Be brief.",
            "extraction_regex": "(0)",
            "grader_output_format_instruction": "Say a number.",
        }
    ]
    data = folder / "rubric.jsonl"
    lines = [
        json.dumps({"convo": [{"role": "user", "content": asked}], "rubric_items": items})
        for asked, _ in QUESTIONS
    ]
    data.write_text("".join(line + "\n" for line in lines))
    config = rubric.CLIConfig(
        model_name=MODEL, renderer_name=RENDERER, grader_llm_name=MODEL, grader_renderer_name=RENDERER, lora_rank=8,
        train_group_size=4, groups_per_batch=2, max_tokens=8, learning_rate=1e-3, train_jsonl_path=str(data),
        test_jsonl_path=str(data), eval_every=0, save_every=0, max_steps=2, log_path=str(folder / "run"), base_url=url,
    )  # fmt: skip
    assert config.loss_fn == "stable_reinforce"
    brief = mock.patch.object(rubric_env, "TinkerMessageCompleter", brief_completer)
    with (
        mock.patch.dict(os.environ, TINKER_BASE_URL=url),
        counting_letters(Rubric, "extract_score"),
        brief,
    ):
        await rubric.cli_main(config)
    assert max(logged(folder / "run", "grad_norm:mean")) > 0


async def reinforcement_in_processes(url: str, folder: Path) -> None:
    """Samplers travel to spawned processes."""
    with ProcessPoolExecutor(
        2, mp_context=get_context("spawn"), initializer=register_tokenizer
    ) as pool:
        rollouts.set_rollout_executor(pool)
        try:
            await rl.main(rl_config(url, folder))
        finally:
            rollouts.set_rollout_executor(None)


async def preferences_by_reward(url: str, folder: Path) -> None:
    """Samples are compared with each other, and the shorter one wins."""
    builder = PairwisePreferenceRLDatasetBuilder(
        comparison_builder=ShorterComparisonBuilder(), batch_size=2, policy_renderer_name=RENDERER, policy_model_name=MODEL,
        group_size=2, preference_model_builder=ShorterPreferenceModelBuilder(),
    )  # fmt: skip
    await rl.main(rl_config(url, folder, dataset_builder=builder, max_steps=1))


@chz.chz
class Answers(ComparisonDatasetBuilder):
    """The first answer is the better one."""

    def get_train_and_test_datasets(self) -> tuple[datasets.Dataset, datasets.Dataset | None]:
        """Return the questions, and nothing held out."""
        return datasets.Dataset.from_list(
            [{"question": asked, "answer": said} for asked, said in QUESTIONS]
        ), None

    def example_to_labeled_comparison(self, example: dict[str, Any]) -> LabeledComparison | None:
        """Return the answer, and another one."""
        return LabeledComparison(
            comparison=Comparison(
                prompt_conversation=[{"role": "user", "content": example["question"]}],
                completion_A=[{"role": "assistant", "content": example["answer"]}],
                completion_B=[{"role": "assistant", "content": "no idea"}],
            ),
            label="A",
        )


async def direct_preferences(url: str, folder: Path) -> None:
    """The custom loss of pairs, learned on a thread, as the loop blocks; evaluated as chats."""
    config = train_dpo.Config(
        log_path=str(folder / "run"), model_name=MODEL, recipe_name="test", renderer_name=RENDERER, learning_rate=1e-3,
        dataset_builder=DPODatasetBuilderFromComparisons(common_config=COMMON, comparison_builder=Answers()),
        lora_rank=8, base_url=url, save_every=1, num_epochs=3,
    )  # fmt: skip
    await asyncio.to_thread(train_dpo.main, config)
    losses = logged(folder / "run", "dpo_loss")
    assert losses[-1] < losses[0]


async def reward_model(url: str, folder: Path) -> None:
    """Comparisons as chats whose answer is the label."""
    builder = ChatDatasetBuilderFromComparisons(common_config=COMMON, comparison_builder=Answers())
    config = sft.Config(
        log_path=str(folder / "run"), model_name=MODEL, recipe_name="test", renderer_name=RENDERER, dataset_builder=builder,
        lora_rank=8, base_url=url, save_every=0, max_steps=1,
    )  # fmt: skip
    await sft.main(config)


@chz.chz
class Prompts(RLDatasetBuilder):
    """The questions without rewards."""

    async def __call__(self) -> tuple[RLDataset, RLDataset | None]:
        """All of them, two in a batch."""
        tokenizer = tokenizer_utils.get_tokenizer(MODEL)
        prompts = [asked for asked, _ in QUESTIONS]
        return PromptOnlyDataset(
            prompts, 2, 2, get_renderer(RENDERER, tokenizer), tokenizer, 64
        ), None


async def distillation_on_policy(url: str, folder: Path) -> None:
    """The student samples, and the teacher says how likely that is."""
    data = DistillationDatasetConfig(
        dataset_builder=Prompts(),
        teacher_config=TeacherConfig(base_model=MODEL),
        groups_per_batch=2,
    )
    config = train_on_policy.Config(
        learning_rate=1e-3, dataset_configs=[data], model_name=MODEL, recipe_name="test", renderer_name=RENDERER, max_tokens=8,
        lora_rank=8, log_path=str(folder / "run"), base_url=url, eval_every=0, save_every=1, max_steps=2,
    )  # fmt: skip
    await train_on_policy.main(config)


async def distillation_off_policy(url: str, folder: Path) -> None:
    """The teacher's most likely tokens are soft targets."""
    builder = FromConversationFileBuilder(common_config=COMMON, file_path=conversations(folder))
    data = train_off_policy.DatasetWithTeacher(
        dataset_builder=builder, teacher_config=TeacherConfig(base_model=MODEL)
    )
    config = train_off_policy.Config(
        learning_rate=1e-3, dataset_configs=[data], model_name=MODEL, recipe_name="test", renderer_name=RENDERER, lora_rank=8,
        n_teacher_targets=4, batch_size=2, save_every=1, eval_every=0, max_steps=2, log_path=str(folder / "run"), base_url=url,
    )  # fmt: skip
    await train_off_policy.main(config)


async def _self_distillation(url: str, folder: Path, topk: int, loss_fn: Any) -> None:
    renderer = get_renderer(RENDERER, tokenizer_utils.get_tokenizer(MODEL))
    questions, answers = zip(*QUESTIONS, strict=True)
    data = SDFTDataset(list(questions), list(answers), 2, 2, renderer)
    config = sdft.Config(
        model_name=MODEL, recipe_name="test", renderer_name=RENDERER, lora_rank=8, base_url=url, learning_rate=1e-3, max_tokens=8,
        topk=topk, loss_fn=loss_fn, teacher_sync_every=1, eval_every=0, save_every=1, max_steps=2, log_path=str(folder / "run"),
        max_context_length=256,
    )  # fmt: skip
    await sdft.main(config, data)


async def self_distillation(url: str, folder: Path) -> None:
    """Soft targets of the model itself, which has seen the answer."""
    await _self_distillation(url, folder, 4, "cross_entropy")


async def self_distillation_sampled(url: str, folder: Path) -> None:
    """The same with sampled tokens only."""
    await _self_distillation(url, folder, 0, "importance_sampling")


class Kept:
    """Keeps the records of calls."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def export(self, records: Sequence[dict[str, Any]], timeout: float | None = None) -> None:
        """Take these."""
        self.records += records


async def captured(url: str, folder: Path) -> None:
    """The cookbook's record of every call, made by replacing methods of the clients."""
    kept = Kept()
    exporter = capture.CaptureExporter(kept)
    capture.instrument_tinker(exporter)
    try:
        await rl.main(rl_config(url, folder, dataset_builder=arithmetic(1)))
        service = tinker.ServiceClient(base_url=url)
        sampler = await service.create_sampling_client_async(base_model=MODEL)
        renderer = get_renderer(RENDERER, tokenizer_utils.get_tokenizer(MODEL))
        said = await TinkerMessageCompleter(sampler, renderer, max_tokens=4)(
            [{"role": "user", "content": "hi"}]
        )
        assert said["role"] == "assistant"
        await sampler.sample_async(
            tinker.ModelInput.from_ints([1]), 1, tinker.SamplingParams(max_tokens=1)
        )
        exporter.force_flush()
    finally:
        capture.uninstrument_tinker()
        exporter.shutdown()
    assert len(kept.records) >= 8 + 2 + 2
    assert {record["status"] for record in kept.records} == {"ok"}


async def download(url: str, folder: Path) -> None:
    """The weights of a training run come to the disk."""
    service = tinker.ServiceClient(base_url=url)
    training = await service.create_lora_training_client(MODEL, rank=8)
    path = (await training.save_weights_external("export")).path
    got = await asyncio.to_thread(
        weights.download, tinker_path=path, output_dir=str(folder / "weights"), base_url=url
    )
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        one.name for one in Path(got).iterdir()
    }


def main() -> int:
    """Return the number of loops that failed; with `--list` alone, print their names."""
    if sys.argv[1:] == ["--list"]:
        print(*re.findall(r"^async def ([a-z]\w+)\(url", Path(__file__).read_text(), re.MULTILINE))
        return 0
    register_tokenizer()
    url, folder, *names = sys.argv[1:]
    failures: dict[str, str] = {}
    for name in names:
        began = time.monotonic()
        (Path(folder) / name).mkdir(parents=True)
        try:
            with contextlib.redirect_stdout(sys.stderr):
                asyncio.run(globals()[name](url, Path(folder) / name))
        except Exception:
            failures[name] = traceback.format_exc()
        print(
            f"{name:30} {'failed' if name in failures else 'passed'} "
            f"{time.monotonic() - began:6.1f} s",
            flush=True,
        )
    for name, why in failures.items():
        print(f"\n{name}\n{why}", file=sys.stderr)
    return len(failures)


if __name__ == "__main__":
    sys.exit(main())
