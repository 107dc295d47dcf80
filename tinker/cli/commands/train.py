"""``tinker train``: supervised fine-tuning on a file, DPO on pairs, or GRPO with a reward function
of the user's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

import tinker
from tinker._chat import read_options
from tinker._tokenizers import resolve
from tinker.cli.clients import RESUMED, config_of, rest_client, service_client
from tinker.cli.costs import cost_of, count_properties, read_prices, to_value
from tinker.cli.errors import CommandFailed
from tinker.cli.examples import check_lines, read_examples
from tinker.cli.model_input import (
    TRAINED_CHECKPOINT,
    Capacity,
    check_start,
    explain_refusal,
    find_path,
    find_tokenizer,
    has_template,
    load_tokenizer,
    parse_path,
    train_from,
)
from tinker.cli.options import DataFile, GlobalOptions, command
from tinker.cli.output import format_count, format_metric, note, progress, say, show_properties
from tinker.cli.training.loop import Loop
from tinker.cli.training.plan import Bookmark, Plan, Position, RunOptions, option_of
from tinker.cli.training.recipes import GRPO, Preferences, Recipe, Reward, Supervised, read_prompts
from tinker.cli.training.report import RunReport

_NO_TEMPLATE = (
    "The tokenizer has no chat template: messages become lines such as `User: Hi`, and `tinker "
    "chat` writes them so too."
)
_NO_PENALTY = " GRPO has no KL penalty: see 'Stay near a reference model' in the documentation."
_FOR_GRPO = ("group_size", "max_tokens", "temperature", "stop")


@command(
    "tinker train examples.jsonl --epochs 2 --save-every 50",
    "tinker train examples.jsonl --eval-file held_out.jsonl --plot loss.svg",
    "tinker train pairs.jsonl --dpo --lr 1e-5",
    "tinker train prompts.jsonl --grpo reward.py --group-size 16",
)
def train(options: GlobalOptions, data: DataFile, plan: Plan, run: RunOptions) -> None:
    """Fine-tune a model on DATA, a file with one example per line (- is standard input), and save
    it.

    \b
    {"prompt": "2 + 2 =", "completion": " 4"}     also "answer" or "response"
    {"messages": [{"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "Hello!"}]}
    {"prompt": [MESSAGES], "completion": [MESSAGES]}
    {"text": "To be, or not to be"}
    {"tokens": [5, 17, 3], "weights": [0, 1, 1]}
    Files of ShareGPT and Alpaca are read as messages.

    The model learns the answers, not the prompts. The file is checked before anything is created.
    Each step shows the loss per token on its batch, before the model learns from it. At the end,
    two checkpoints are saved: one to continue training, one to sample from.

    Ctrl-C and failures save the run first. Run the same command with --resume to continue with the
    next example.

    With --dpo, a line is a pair of answers, texts or messages, and the model learns to prefer the
    chosen one, compared with the weights that the run starts from:

    \b
    {"prompt": "2 + 2 =", "chosen": " 4", "rejected": " 5"}
    {"chosen": [MESSAGES], "rejected": [MESSAGES]}

    With --grpo, a line needs only a prompt, and your reward function scores the answers:
    reward(answer, example) returns a number, and example is the line as a dict. Each step samples a
    group of answers per prompt and reinforces the better ones.
    """
    source_of = click.get_current_context().get_parameter_source
    given = {
        name for name in Plan._fields if source_of(name) is not click.core.ParameterSource.DEFAULT
    }
    _check_options(plan, run, given)
    job = _TrainingJob(options, data, plan, given, run)
    if run.estimate:
        job.estimate()
    else:
        job.run()


def _check_options(plan: Plan, run: RunOptions, given: Collection[str]) -> None:
    for needed, is_given, names in (
        ("--grpo", plan.grpo, _FOR_GRPO),
        ("--dpo", plan.dpo, ("beta",)),
    ):
        unused = next((name for name in names if name in given), None)
        # a resumed run has the one that it started with
        if unused and not (is_given or run.resume):
            raise click.UsageError(
                f"{option_of(unused)} needs {needed}.{_NO_PENALTY if plan.grpo else ''}"
            )
    if plan.grpo and plan.dpo:
        raise click.UsageError("--dpo and --grpo are two ways to train: give one of them.")
    if plan.grpo and "max_length" in given:
        raise click.UsageError(
            "--max-length cannot be used with --grpo: prompts are not truncated. "
            "Shorten them in the file."
        )
    if plan.start and "rank" in given:
        raise click.UsageError(
            "--rank cannot be used with --from: the checkpoint's adapter keeps its rank."
        )
    read_options(plan.chat_template_kwargs)
    check_start(plan.model, plan.start)
    if plan.grpo and (run.eval_file or run.estimate):
        raise click.UsageError("--eval-file and --estimate cannot be used with --grpo.")
    if run.keep_last and not run.save_every:
        raise click.UsageError("--keep-last needs --save-every.")
    if run.eval_every and not run.eval_file:
        raise click.UsageError("--eval-every needs --eval-file.")


class _TrainingJob:
    """A run that is not created yet. The constructor checks the files, the options
    and the model.
    """

    def __init__(
        self,
        options: GlobalOptions,
        data: Path,
        plan: Plan,
        given: Collection[str],
        run: RunOptions,
    ) -> None:
        self._options, self._data, self._run = options, data, run
        self._bookmark = _open_bookmark(options, data, plan.name)
        self._plan, self._position = (
            self._bookmark.read(plan, given) if run.resume else (plan, Position())
        )
        self._reward = None if self._plan.grpo is None else Reward(self._plan.grpo)
        files = [data, run.eval_file] if self._reward is None else []
        self._has_chats = True in [
            check_lines(file, is_pairs=self._plan.dpo) for file in files if file is not None
        ]
        self._prices = read_prices(run.prices_path)
        rest = rest_client(options)
        offered = rest.get_server_capabilities().result().supported_models
        self._origin = self._position.origin
        if self._plan.start is not None and not run.resume:
            self._origin = find_path(rest, self._plan.start, to_train=True).tinker_path
        self._start = self._position.checkpoint or self._origin
        self._model = _find_model(rest, self._plan, self._start, offered)
        # fail now if a price is missing
        cost_of(self._prices, {self._model: tinker.usage.TokenCounts()})
        lengths = {
            entry.model_name: entry.max_context_length for entry in offered if entry.model_name
        }
        # some servers train models that they do not list
        self._is_unlisted = bool(lengths) and self._model not in lengths
        self._capacity = Capacity(self._model, lengths.get(self._model))

    def estimate(self) -> None:
        """Show the steps, tokens and cost of the run."""
        recipe = self._read(load_tokenizer(self._plan.tokenizer_id or resolve(self._model, None)))
        counts = tinker.usage.estimate_training([row.datum() for row in recipe.rows()])
        cost = cost_of(self._prices, {self._model: counts})
        value = {
            "base_model": self._model,
            "steps": recipe.steps,
            "tokens": to_value(counts),
            "cost": cost,
        }
        properties = [
            ("Base Model", self._model),
            ("Steps", str(recipe.steps)),
            *count_properties(self._options, counts, cost),
        ]
        show_properties(self._options, value, "Estimate", properties)

    def run(self) -> None:
        """Read the data as tokens, create the run, take its steps and save it."""
        usage, log = tinker.usage.Usage(), self._run.log_path
        # for its checkpoints
        is_home_needed = (config := config_of(self._options)).is_local and config.local_dir is None
        self._bookmark.check(
            is_needed=is_home_needed or self._run.resume or self._run.save_every is not None
        )
        with (
            service_client(self._options, reports=True) as service,
            log.open("a", encoding="utf-8") if log else nullcontext() as stream,
        ):
            service.add_observer(usage)
            tokenizer = self._load_tokenizer(service)
            note(
                self._options,
                f"Reading {self._data} with the tokenizer of "
                f"{self._plan.tokenizer_id or self._model}",
            )
            recipe = self._prepare(tokenizer)
            self._announce(recipe.steps)
            self._note_what_is_unusual(recipe.steps)
            report = RunReport(self._options, recipe.metric, recipe.steps, stream)
            metadata = {} if self._plan.name == Plan().name else {"name": self._plan.name}
            if self._run.resume:
                metadata[RESUMED] = parse_path(self._position.checkpoint).training_run_id
            training = self._create_client(service, self._start, metadata).result()
            if isinstance(recipe, Preferences):
                at_start = (
                    self._create_client(service, self._origin, {}) if self._run.resume else training
                )
                recipe.compute_references(at_start)
            self._take_steps(training, recipe, report)
            self._finish(training, report, usage)

    def _announce(self, steps: int) -> None:
        """Print what starts, and which unfinished run it replaces."""
        if self._run.resume:
            note(self._options, f"Continuing after step {self._position.step} of {steps}")
            return
        if (unfinished := self._bookmark.find()) is not None:
            say(
                "The first checkpoint of this run replaces an unfinished run "
                f"of this name ({unfinished})."
            )
            say("To continue that run instead, use --resume.")
        note(self._options, f"Creating a run of {self._model}, {format_count(steps, 'step')}")

    def _note_what_is_unusual(self, steps: int) -> None:
        """Print what is allowed, and seldom meant."""
        if self._plan.max_steps is not None and steps < self._plan.max_steps:
            whole = format_count(steps, "step")
            say(
                f"The data ends after {whole}, before --max-steps {self._plan.max_steps}; for "
                "more, increase --epochs."
            )
        if (
            self._run.eval_file is not None
            and self._run.eval_file.resolve() == self._data.resolve()
        ):
            say(
                "--eval-file is the training file: its loss does not tell how well the model does "
                "on other examples."
            )

    def _load_tokenizer(self, service: tinker.ServiceClient) -> Any:
        """Load the tokenizer given, else the one that the server names for the model, else the one
        of the model's name.
        """
        if self._plan.tokenizer_id is None:
            try:
                with explain_refusal(service, self._model, TRAINED_CHECKPOINT):
                    return find_tokenizer(
                        service.create_sampling_client(base_model=self._model).result(), None
                    )
            except (tinker.APIStatusError, tinker.RequestFailedError):
                if self._is_unlisted:  # other servers may train a model without sampling it
                    raise
        return load_tokenizer(self._plan.tokenizer_id or resolve(self._model, None))

    def _prepare(self, tokenizer: Any) -> Recipe:
        prompts = (
            []
            if self._reward is None
            else read_prompts(self._data, tokenizer, self._plan, self._capacity)
        )
        has_chats = self._has_chats or any(prompt.is_chat for prompt in prompts)
        if has_chats and not has_template(tokenizer):
            note(self._options, _NO_TEMPLATE)
        return (
            GRPO(self._plan, prompts, self._reward, tokenizer)
            if self._reward
            else self._read(tokenizer)
        )

    def _read(self, tokenizer: Any) -> Supervised:
        """Read the examples, and those of the evaluation file."""
        plan, options = self._plan, read_options(self._plan.chat_template_kwargs)
        rows, held_out = (
            []
            if file is None
            else read_examples(
                file, tokenizer, plan.max_length, self._capacity, options, is_pairs=plan.dpo
            )
            for file in (self._data, self._run.eval_file)
        )
        return (Preferences if plan.dpo else Supervised)(plan, rows, held_out)

    def _create_client(
        self, service: tinker.ServiceClient, start: str | None, metadata: dict[str, str]
    ) -> tinker.TrainingClient:
        plan, given = self._plan, metadata or None
        if start is not None:
            return train_from(service, start, plan.model, given)
        return service.create_lora_training_client(
            self._model,
            rank=plan.rank,
            seed=plan.seed,
            train_unembed=plan.train_unembed,
            user_metadata=given,
        )

    def _take_steps(
        self, training: tinker.TrainingClient, recipe: Recipe, report: RunReport
    ) -> None:
        facts = {
            "training_run_id": training.model_id,
            "base_model": self._model,
            "examples": recipe.examples,
        }
        with progress(self._options, f"Training {self._model}", recipe.steps) as advance:
            report.begin(advance, facts, self._position.step, training.get_telemetry())
            Loop(self._plan, self._run, recipe, training, report, self._bookmark, self._origin).run(
                self._position.step
            )

    def _finish(
        self, training: tinker.TrainingClient, report: RunReport, usage: tinker.usage.Usage
    ) -> None:
        """Save both checkpoints, remove the resume file, and show the result."""
        name = self._plan.name
        state, sampler = training.save_state(name), training.save_weights_for_sampler(name)
        path, sampler_path = state.result().path, sampler.result().path
        self._bookmark.remove()
        cost = cost_of(self._prices, usage.by("base_model"))
        values = [value for _, value in report.curve]
        facts = {
            **report.facts,
            "steps": len(values),
            {"loss": "losses", "reward": "rewards"}[report.metric]: values,
            "checkpoint_path": path,
            "sampler_path": sampler_path,
            "tokens": to_value(usage.total),
            "cost": cost,
        }
        report.end(facts)
        if self._run.plot is not None:
            report.draw(self._run.plot, name)
        if self._options.format == "table":
            ends = [values[0], values[-1]] if len(values) > 1 else values
            earlier = f", after {self._position.step} earlier" if self._run.resume else ""
            properties = [
                ("Training Run ID", training.model_id),
                ("Steps", f"{len(values)}{earlier}"),
                *(
                    [(report.metric.capitalize(), " -> ".join(map(format_metric, ends)))]
                    if values
                    else []
                ),
                *report.summarize_evaluations(),
                ("To train on", path),
                ("To sample from", sampler_path),
                *count_properties(self._options, usage.total, cost),
            ]
            show_properties(self._options, facts, "Training", properties)
        if report.metric == "loss" and not self._run.resume and values and values[-1] > values[0]:
            from tinker.local.engines.opening import PACKAGED_MODEL

            advice = (
                " For this model, start with 1e-3 to 1e-2." if self._model == PACKAGED_MODEL else ""
            )
            say(f"The loss did not fall: try another --learning-rate (--lr).{advice}")


def _open_bookmark(options: GlobalOptions, data: Path, name: str) -> Bookmark:
    config = config_of(options)
    server = config.base_url
    if config.is_local and config.local_dir is not None:  # each folder is a server of its own
        server = f"{server} in {config.local_dir.expanduser().resolve()}"
    return Bookmark(config.credentials_file.parent / "train", server, data, name)


def _find_model(
    rest: tinker.RestClient,
    plan: Plan,
    start: str | None,
    offered: Sequence[tinker.types.SupportedModel],
) -> str:
    """Return the model to train: the given one, that of the checkpoint to start from, or the first
    of the server.
    """
    if plan.model is not None:
        return plan.model
    if start is not None:
        return rest.get_weights_info_by_tinker_path(start).result().base_model
    for entry in offered:
        if entry.model_name is not None and entry.trainable is not False:
            return entry.model_name
    raise CommandFailed("The server offers no model to train")
