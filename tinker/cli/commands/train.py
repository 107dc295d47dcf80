"""``tinker train``: supervised fine-tuning on a file, or GRPO with a reward function of the user's."""

from __future__ import annotations

from collections.abc import Collection

import click

from tinker.cli.errors import CommandFailed
from tinker.cli.options import GivenFile, GlobalOptions, command
from tinker.cli.training.plan import Plan, RunOptions, option_of

_FOR_GRPO = ("group_size", "max_tokens", "temperature", "stop")


@command(
    "tinker train examples.jsonl --epochs 2 --save-every 50",
    "tinker train examples.jsonl --eval-file held_out.jsonl --plot loss.svg",
    "tinker train prompts.jsonl --grpo reward.py --group-size 16",
)
def train(options: GlobalOptions, data: GivenFile, plan: Plan, run: RunOptions) -> None:
    """Fine-tune a model on DATA, a file with one example per line, and save it.

    \b
    {"prompt": "2 + 2 =", "completion": " 4"}     also "answer" or "response"
    {"messages": [{"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "Hello!"}]}
    {"text": "To be, or not to be"}
    {"tokens": [5, 17, 3], "weights": [0, 1, 1]}

    The model learns the answers, not the prompts. The file is checked before anything is created. Each step shows the loss per
    token on its batch, before the model learns from it. At the end, two checkpoints are saved: one to continue training, one
    to sample from.

    Ctrl-C and failures save the run first. Run the same command with --resume to continue with the next example.

    With --grpo, a line needs only a prompt, and your reward function scores the answers: reward(answer, example) returns a
    number, and example is the line as a dict. Each step samples a group of answers per prompt and reinforces the better ones.
    """
    source_of = click.get_current_context().get_parameter_source
    given = {name for name in Plan._fields if source_of(name) is click.core.ParameterSource.COMMANDLINE}
    _check_options(plan, run, given)
    from tinker.cli.training.job import TrainingJob

    job = TrainingJob(options, data, plan, given, run)
    if run.estimate:
        job.estimate()
    else:
        job.run()


def _check_options(plan: Plan, run: RunOptions, given: Collection[str]) -> None:
    unused = next((name for name in _FOR_GRPO if name in given), None)
    if unused and not (plan.grpo or run.resume):  # a resumed run has the --grpo that it started with
        raise click.UsageError(f"{option_of(unused)} needs --grpo.")
    if plan.start and "rank" in given:
        raise click.UsageError("--rank cannot be used with --from: the checkpoint's adapter keeps its rank.")
    if plan.start and "://" not in plan.start:
        from tinker.cli.model_input import parse_path

        parse_path(plan.start)
    if plan.grpo and (run.eval_file or run.estimate):
        raise click.UsageError("--eval-file and --estimate cannot be used with --grpo.")
    if run.eval_every and not run.eval_file:
        raise click.UsageError("--eval-every needs --eval-file.")
    for file in (run.log_path, run.plot):
        if file is not None and not file.parent.is_dir():
            raise CommandFailed(f"There is no folder {file.parent}")
