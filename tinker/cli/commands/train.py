"""``tinker train``: supervised fine-tuning on a file, or GRPO with a reward function of the user's."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tinker.cli.commands.checkpoint.paths import parse_path
from tinker.cli.costs import cost_of, count_properties, prices_option, read_prices, to_value
from tinker.cli.errors import CommandFailed
from tinker.cli.models import TRAINED_CHECKPOINT, explain_refusal
from tinker.cli.options import GlobalOptions, check_chart_file, check_checkpoint_name, pass_options
from tinker.cli.output import format_count
from tinker.cli.training.plan import Plan, option_of

if TYPE_CHECKING:
    from tinker_wire.models import SupportedModel

    from tinker.cli.capacity import Capacity
    from tinker.cli.examples import ExampleRow
    from tinker.cli.training.grpo import GRPO, Reward
    from tinker.cli.training.position import Bookmark, Position
    from tinker.cli.training.report import RunReport
    from tinker.cli.training.supervised import Supervised
    from tinker.rest_client import RestClient
    from tinker.service_client import ServiceClient
    from tinker.training_client import TrainingClient
    from tinker.usage import Price, Usage

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_NEW_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)
_COUNT = click.IntRange(min=1)
_FOR_GRPO = ("group_size", "max_tokens", "temperature", "stop")


@click.command()
@click.argument("data", type=_FILE)
@click.option("-m", "--model", metavar="NAME", help="The base model. Default: the first that can be trained.")
@click.option("--from", "start", metavar="PATH", help="Start from this checkpoint instead of a new adapter.")
@click.option("--rank", type=_COUNT, default=32, show_default=True, help="Rank of the new LoRA adapter.")
@click.option(
    "--learning-rate", "--lr", type=click.FloatRange(min=0), default=1e-4, show_default=True, help="Peak learning rate."
)
@click.option(
    "--schedule",
    type=click.Choice(["linear", "cosine", "constant"]),
    default="linear",
    show_default=True,
    help="Learning rate schedule after the warm-up; `constant` does not decay.",
)
@click.option("--warmup", type=click.IntRange(min=0), default=0, show_default=True, help="Number of warm-up steps.")
@click.option("--batch-size", type=_COUNT, default=16, show_default=True, help="Examples per batch.")
@click.option("--accumulate", type=_COUNT, default=1, show_default=True, help="Batches per optimizer step.")
@click.option("--epochs", type=_COUNT, default=1, show_default=True, help="Number of passes over the file.")
@click.option("--max-steps", type=_COUNT, help="Stop after this many steps.")
@click.option("--max-length", type=click.IntRange(min=2), help="Truncate longer examples to this many tokens.")
@click.option(
    "--tokenizer",
    "tokenizer_id",
    metavar="NAME",
    help="Hugging Face name or folder of the tokenizer. Default: the model's own.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for shuffling and for initializing the adapter.")
@click.option(
    "--name",
    metavar="NAME",
    default="final",
    show_default=True,
    callback=check_checkpoint_name,
    help="Name of the run and of its checkpoints.",
)
@click.option("--save-every", type=_COUNT, metavar="STEPS", help="Save a resumable checkpoint every STEPS steps.")
@click.option("--resume", is_flag=True, help="Continue this run from its last checkpoint.")
@click.option("--eval-file", type=_FILE, metavar="FILE", help="Held-out examples; their loss is reported.")
@click.option(
    "--eval-every",
    type=_COUNT,
    metavar="STEPS",
    help="Evaluate every STEPS steps. Default: before the first step and at the end.",
)
@click.option("--grpo", type=_FILE, metavar="REWARD.py", help="Train with GRPO, using the function `reward` in this file.")
@click.option("--group-size", type=click.IntRange(min=2), default=8, show_default=True, help="GRPO: answers per prompt.")
@click.option("--max-tokens", type=_COUNT, default=128, show_default=True, help="GRPO: maximum number of tokens in an answer.")
@click.option("--temperature", type=click.FloatRange(min=0), default=1.0, show_default=True, help="GRPO: sampling temperature.")
@click.option(
    "--stop",
    multiple=True,
    metavar="TEXT",
    help="GRPO: end an answer before this text, instead of at the end-of-text token; may be repeated.",
)
@click.option("--log", "log_path", type=_NEW_FILE, metavar="FILE.jsonl", help="Append one line per step to this file.")
@click.option(
    "--plot",
    type=_NEW_FILE,
    metavar="FILE.svg",
    callback=check_chart_file,
    help="Plot the curve in this file and on the terminal.",
)
@click.option("--estimate", is_flag=True, help="Estimate tokens and cost without training.")
@prices_option
@pass_options
def train(options: GlobalOptions, /, data: Path, **values: Any) -> None:
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
    _check_options(values, given)
    plan = Plan.from_values({**values, "grpo": str(values["grpo"]) if values["grpo"] else None})
    job = _TrainingJob.open(options, data, plan, given, values)
    if values["estimate"]:
        job.estimate()
    else:
        job.run()


def _check_options(values: Mapping[str, Any], given: Collection[str]) -> None:
    needless = next((name for name in _FOR_GRPO if name in given), None)
    if needless and not (values["grpo"] or values["resume"]):  # a run that goes on has the --grpo that it began with
        raise click.UsageError(f"{option_of(needless)} needs --grpo.")
    if values["start"] and "rank" in given:
        raise click.UsageError("--rank cannot be used with --from: the checkpoint's adapter keeps its rank.")
    if values["start"] and "://" not in values["start"]:
        parse_path(values["start"])
    if values["grpo"] and (values["eval_file"] or values["estimate"]):
        raise click.UsageError("--eval-file and --estimate cannot be used with --grpo.")
    if values["eval_every"] and not values["eval_file"]:
        raise click.UsageError("--eval-every needs --eval-file.")
    for file in (values["log_path"], values["plot"]):
        if file is not None and not file.parent.is_dir():
            raise CommandFailed(f"There is no folder {file.parent}")


class _TrainingJob(NamedTuple):
    """A run that is about to begin: everything that can be checked without creating it has been.

    ``is_unlisted`` says that the server has a list of models and this one is not in it: some serve it all the same.
    """

    options: GlobalOptions
    data: Path
    plan: Plan
    values: Mapping[str, Any]
    bookmark: Bookmark
    position: Position | None
    reward: Reward | None
    capacity: Capacity
    is_unlisted: bool
    prices: Mapping[str, Price] | None

    @property
    def base_model(self) -> str:
        """Return the name of the model that is trained."""
        return self.capacity.model

    @classmethod
    def open(cls, options: GlobalOptions, data: Path, plan: Plan, given: set[str], values: Mapping[str, Any]) -> _TrainingJob:
        """Check the files, and ask the server what can be trained."""
        from tinker.cli.capacity import Capacity
        from tinker.cli.clients import rest_client
        from tinker.cli.examples import check_lines
        from tinker.cli.training.grpo import read_reward
        from tinker.usage import TokenCounts

        position, bookmark = None, _bookmark(options, data, plan.name)
        if values["resume"]:
            plan, position = bookmark.read(plan, given)
        reward = None
        if plan.grpo is not None:
            reward = read_reward(Path(plan.grpo))
        else:
            for file in filter(None, (data, values["eval_file"])):
                check_lines(file)
        prices = read_prices(values["prices_path"])
        rest = rest_client(options)
        offered = rest.get_server_capabilities().result().supported_models
        base_model = _find_model(rest, plan, offered)
        cost_of(prices, {base_model: TokenCounts()})  # a price that lacks is noticed now
        lengths = {entry.model_name: entry.max_context_length for entry in offered if entry.model_name}
        is_unlisted = bool(lengths) and base_model not in lengths
        capacity = Capacity(base_model, lengths.get(base_model))
        return cls(options, data, plan, values, bookmark, position, reward, capacity, is_unlisted, prices)

    def estimate(self) -> None:
        """Show what the run would take."""
        from tinker._tokenizers import resolve
        from tinker.cli.tokenizers import load_tokenizer

        tokenizer = load_tokenizer(self.plan.tokenizer_id or resolve(self.base_model, None))
        _show_estimate(self, self.plan.split(self._read(self.data, tokenizer)))

    def run(self) -> None:
        """Read the data as tokens, create the run, take its steps and save it."""
        from tinker.cli.clients import service_client
        from tinker.cli.training.report import RunReport
        from tinker.usage import Usage

        usage = Usage()
        log: Path | None = self.values["log_path"]
        with service_client(self.options) as service, log.open("a", encoding="utf-8") if log else nullcontext() as stream:
            service.add_observer(usage)
            recipe, held_out = self._prepare(self._load_tokenizer(service))
            self._tell_beginning(recipe.steps)
            report = RunReport(self.options, recipe.metric, recipe.steps, stream)
            training = self._create_client(service).result()
            self._take_steps(training, recipe, held_out, report)
            _finish(self, training, report, usage)

    def _tell_beginning(self, steps: int) -> None:
        """Say what begins, and which unfinished run it replaces."""
        if self.position is not None:
            self._tell(f"Continuing after step {self.position.step} of {steps}")
            return
        if (unfinished := self.bookmark.find()) is not None:
            click.echo(f"The first checkpoint of this run replaces an unfinished run of this name ({unfinished}).", err=True)
            click.echo("To continue that run instead, use --resume.", err=True)
        self._tell(f"Creating a run of {self.base_model}, {format_count(steps, 'step')}")

    def _tell(self, line: str) -> None:
        if self.options.format == "table":
            click.echo(line, err=True)

    def _load_tokenizer(self, service: ServiceClient) -> Any:
        """Load the tokenizer given, else the one that the server names for the model, else the one of the model's name."""
        from tinker._tokenizers import resolve
        from tinker.cli.tokenizers import find_tokenizer, load_tokenizer
        from tinker.errors import APIStatusError, RequestFailedError

        reading = f"Reading {self.data} with the tokenizer of {self.plan.tokenizer_id or self.base_model}"
        if self.plan.tokenizer_id is not None:
            self._tell(reading)
            return load_tokenizer(self.plan.tokenizer_id)
        try:
            with explain_refusal(service, self.base_model, TRAINED_CHECKPOINT):
                sampler = service.create_sampling_client(base_model=self.base_model).result()
            self._tell(reading)
            return find_tokenizer(sampler, None)
        except (APIStatusError, RequestFailedError):
            if self.is_unlisted:
                raise
            return load_tokenizer(resolve(self.base_model, None))  # a server that trains models which it does not sample

    def _prepare(self, tokenizer: Any) -> tuple[Supervised | GRPO, Sequence[ExampleRow]]:
        """Return the steps, and the examples of the evaluation file."""
        from tinker.cli.training.grpo import GRPO, read_prompts
        from tinker.cli.training.supervised import Supervised

        if self.reward is not None:
            return GRPO(self.plan, read_prompts(self.data, tokenizer, self.plan, self.capacity), self.reward, tokenizer), []
        rows = self._read(self.data, tokenizer)
        file: Path | None = self.values["eval_file"]
        return Supervised(self.plan, rows), [] if file is None else self._read(file, tokenizer)

    def _read(self, file: Path, tokenizer: Any) -> list[ExampleRow]:
        from tinker.cli.capacity import silence_length_warnings
        from tinker.cli.examples import read_examples

        with silence_length_warnings():
            return read_examples(file, tokenizer, self.plan.max_length, self.capacity)

    def _create_client(self, service: ServiceClient) -> TrainingClient:
        path = self.plan.start if self.position is None else self.position.checkpoint
        named = None if self.plan.name == Plan().name else {"name": self.plan.name}
        if path is not None:
            return service.create_training_client_from_state_with_optimizer(path, self.plan.model, user_metadata=named)
        return service.create_lora_training_client(
            self.base_model, rank=self.plan.rank, seed=self.plan.seed, user_metadata=named
        )

    def _take_steps(
        self, training: TrainingClient, recipe: Supervised | GRPO, held_out: Sequence[ExampleRow], report: RunReport
    ) -> None:
        from tinker.cli.output import progress
        from tinker.cli.training.loop import Cadence, Loop
        from tinker.cli.training.supervised import HeldOutLoss

        first = 0 if self.position is None else self.position.step
        evaluation = HeldOutLoss(held_out, self.plan.batch_size) if held_out else None
        cadence = Cadence(self.values["save_every"], self.values["eval_every"])
        facts = {"training_run_id": training.model_id, "base_model": self.base_model, "examples": recipe.examples}
        with progress(self.options, f"Training {self.base_model}", recipe.steps) as advance:
            report.begin(advance, facts, first)
            Loop(self.plan, recipe, training, report, self.bookmark, cadence, evaluation).run(first)


def _bookmark(options: GlobalOptions, data: Path, name: str) -> Bookmark:
    from tinker.cli.clients import config_of
    from tinker.cli.training.position import Bookmark

    config = config_of(options)
    server = config.base_url
    if config.is_local and config.local_dir is not None:  # a server for each folder
        server = f"{server} in {config.local_dir.expanduser().resolve()}"
    return Bookmark(config.credentials_file.parent / "train", server, data, name)


def _find_model(rest: RestClient, plan: Plan, offered: Sequence[SupportedModel]) -> str:
    """Return the model that is trained: the given one, that of the checkpoint to start from, or the first."""
    if plan.model is not None:
        return plan.model
    if plan.start is not None:
        return rest.get_weights_info_by_tinker_path(plan.start).result().base_model
    for entry in offered:
        if entry.model_name is not None and entry.trainable is not False:
            return str(entry.model_name)
    raise CommandFailed("The server offers no model to train")


def _show_estimate(job: _TrainingJob, steps: Sequence[Sequence[Sequence[ExampleRow]]]) -> None:
    from tinker.cli.output import show, show_properties
    from tinker.usage import estimate_training

    counts = estimate_training([row.datum() for batches in steps for batch in batches for row in batch])
    cost = cost_of(job.prices, {job.base_model: counts})
    value = {"base_model": job.base_model, "steps": len(steps), "tokens": to_value(counts), "cost": cost}
    properties = [("Base Model", job.base_model), ("Steps", str(len(steps))), *count_properties(counts, cost)]
    show(job.options, value, lambda: show_properties("Estimate", properties))


def _finish(job: _TrainingJob, training: TrainingClient, report: RunReport, usage: Usage) -> None:
    """Save the run twice, forget where it could be resumed, and show the result."""
    state, sampler = training.save_state(job.plan.name), training.save_weights_for_sampler(job.plan.name)
    paths = state.result().path, sampler.result().path
    job.bookmark.remove()
    cost = cost_of(job.prices, usage.by("base_model"))
    values = [value for _, value in report.curve]
    facts = {
        **report.facts,
        "steps": len(values),
        {"loss": "losses", "reward": "rewards"}[report.metric]: values,
        "checkpoint_path": paths[0],
        "sampler_path": paths[1],
        "tokens": to_value(usage.total),
        "cost": cost,
    }
    report.end(facts)
    if job.values["plot"] is not None:
        report.draw(job.values["plot"], job.plan.name)
    if job.options.format == "table":
        _show_result(facts, values, report.metric, count_properties(usage.total, cost))


def _show_result(facts: Mapping[str, Any], values: Sequence[float], metric: str, counts: Sequence[tuple[str, str]]) -> None:
    from tinker.cli.output import show_properties

    properties = [
        ("Training Run ID", facts["training_run_id"]),
        ("Steps", str(len(values))),
        *([(metric.capitalize(), f"{values[0]:.4f} -> {values[-1]:.4f}")] if values else []),
        ("To train on", facts["checkpoint_path"]),
        ("To sample from", facts["sampler_path"]),
        *counts,
    ]
    show_properties("Training", properties)
