"""``tinker train``: supervised fine-tuning on a file."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from tinker.cli.costs import cost_of, count_properties, prices_option, read_prices, to_value
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, pass_options

if TYPE_CHECKING:
    from tinker.cli.examples import ExampleRow
    from tinker.futures import APIFuture
    from tinker.rest_client import RestClient
    from tinker.service_client import ServiceClient
    from tinker.training_client import TrainingClient
    from tinker.types import AdamParams, ForwardBackwardOutput, OptimStepResponse
    from tinker.usage import Price, Usage

# Steps in flight at once, so that the server never waits for the next one.
STEPS_AHEAD = 2


class _Plan(NamedTuple):
    """The options of one run."""

    model: str | None
    start: str | None
    rank: int
    learning_rate: float
    batch_size: int
    epochs: int
    max_steps: int | None
    seed: int
    name: str


class _StepReport(NamedTuple):
    """One step that is in flight."""

    batch: Sequence[ExampleRow]
    loss: APIFuture[ForwardBackwardOutput]
    done: APIFuture[OptimStepResponse]


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-m", "--model", metavar="NAME", help="The base model. Default: the first that can be trained.")
@click.option("--from", "start", metavar="PATH", help="Continue from this checkpoint instead of a new adapter.")
@click.option("--rank", type=click.IntRange(min=1), default=32, show_default=True, help="Rank of the new LoRA adapter.")
@click.option("--learning-rate", type=click.FloatRange(min=0), default=1e-4, show_default=True, help="Decays linearly to 0.")
@click.option("--batch-size", type=click.IntRange(min=1), default=16, show_default=True, help="Examples for each step.")
@click.option("--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Number of passes over the file.")
@click.option("--max-steps", type=click.IntRange(min=1), help="Stop after this many steps.")
@click.option("--max-length", type=click.IntRange(min=2), help="Cut longer examples to this many tokens.")
@click.option("--tokenizer", "tokenizer_id", metavar="NAME", help="A name on the hub, or a folder. Default: the model's own.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the order of the examples, and of the adapter.")
@click.option("--name", default="final", show_default=True, help="The name of the checkpoints at the end.")
@click.option("--estimate", is_flag=True, help="Train nothing: count the tokens that it would take, and what they cost.")
@prices_option
@pass_options
def train(
    options: GlobalOptions,
    data: Path,
    model: str | None,
    start: str | None,
    rank: int,
    learning_rate: float,
    batch_size: int,
    epochs: int,
    max_steps: int | None,
    max_length: int | None,
    tokenizer_id: str | None,
    seed: int,
    name: str,
    estimate: bool,
    prices_path: Path | None,
) -> None:
    """Fine-tune a model on DATA, a file with an example on each line, and save it.

    \b
    {"prompt": "2 + 2 =", "completion": " 4"}     also "answer" or "response"
    {"messages": [{"role": "user", "content": "Hi"},
                  {"role": "assistant", "content": "Hello!"}]}
    {"text": "To be, or not to be"}
    {"tokens": [5, 17, 3], "weights": [0, 1, 1]}

    Answers are learned, prompts are not. Shows the loss per token of each step, on examples that the model has not seen in this
    epoch. At the end it is saved twice: to train on, and to sample from. The tokens that it used are shown, and with --prices
    their cost; --estimate shows both before anything is spent.
    """
    from tinker._tokenizers import load, resolve
    from tinker.cli.clients import rest_client, service_client
    from tinker.cli.examples import read_examples
    from tinker.usage import TokenCounts, Usage

    plan = _Plan(model, start, rank, learning_rate, batch_size, epochs, max_steps, seed, name)
    prices, rest = read_prices(prices_path), rest_client(options)
    models = rest.get_server_capabilities().result().supported_models
    if estimate:
        base_model = _base_model(rest, plan, models)
        examples = read_examples(data, load(tokenizer_id or resolve(base_model, None)), max_length)
        _show_estimate(options, base_model, list(_batches(plan, examples)), prices)
        return
    usage = Usage()
    with service_client(options) as service:
        service.add_observer(usage)
        training = _create_client(service, plan, models).result()
        cost_of(prices, {training.get_info().model_data.model_name: TokenCounts()})  # a price that lacks is noticed now
        examples = read_examples(data, load(tokenizer_id) if tokenizer_id else training.get_tokenizer(), max_length)
        losses = _learn(options, training, plan, examples)
        _report(options, training, plan, examples, losses, usage, prices)


def _base_model(rest: RestClient, plan: _Plan, models: Sequence[Any]) -> str:
    """Return the model that would be trained: that of the checkpoint to start from, the given one, or the first."""
    if plan.start is not None and plan.model is None:
        return rest.get_weights_info_by_tinker_path(plan.start).result().base_model
    return plan.model or _first_trainable(models)


def _show_estimate(
    options: GlobalOptions, base_model: str, batches: Sequence[Sequence[ExampleRow]], prices: Mapping[str, Price] | None
) -> None:
    from tinker.cli.output import show, show_properties
    from tinker.usage import estimate_training

    counts = estimate_training([example.datum() for batch in batches for example in batch])
    cost = cost_of(prices, {base_model: counts})
    value = {"base_model": base_model, "steps": len(batches), "tokens": to_value(counts), "cost": cost}
    properties = [("Base Model", base_model), ("Steps", str(len(batches))), *count_properties(counts, cost)]
    show(options, value, lambda: show_properties("Estimate", properties))


def _create_client(service: ServiceClient, plan: _Plan, models: Sequence[Any]) -> TrainingClient:
    if plan.start is not None:
        return service.create_training_client_from_state_with_optimizer(plan.start, plan.model)
    return service.create_lora_training_client(plan.model or _first_trainable(models), rank=plan.rank, seed=plan.seed)


def _first_trainable(models: Sequence[Any]) -> str:
    for entry in models:
        if entry.model_name is not None and entry.trainable is not False:
            return str(entry.model_name)
    raise CommandFailed("The server offers no model to train")


def _learn(options: GlobalOptions, training: TrainingClient, plan: _Plan, examples: Sequence[ExampleRow]) -> list[float]:
    """Run every step; return the loss per token of each. Steps are sent ahead of their results."""
    from tinker.cli.output import progress
    from tinker.types import AdamParams

    batches = list(_batches(plan, examples))
    ahead: deque[_StepReport] = deque()
    losses: list[float] = []
    with progress(options, f"Training {training.get_info().model_data.model_name or plan.model}", len(batches)) as advance:

        def finish() -> None:
            losses.append(_wait_for_loss(ahead.popleft()))
            advance(len(losses), description=f"loss {losses[-1]:.4f}")
            if options.format == "table" and not sys.stderr.isatty():
                click.echo(f"step {len(losses)}/{len(batches)} loss {losses[-1]:.4f}", err=True)

        for number, batch in enumerate(batches):
            adam = AdamParams(learning_rate=plan.learning_rate * (1 - number / len(batches)))
            ahead.append(_submit(training, batch, adam))
            if len(ahead) > STEPS_AHEAD:
                finish()
        while ahead:
            finish()
    return losses


def _batches(plan: _Plan, examples: Sequence[ExampleRow]) -> Iterator[Sequence[ExampleRow]]:
    """Yield the batches; each epoch has its own order, and its last batch may be smaller."""
    shuffle = random.Random(plan.seed)  # noqa: S311  (an order, not a secret)
    count = 0
    for _ in range(plan.epochs):
        order = shuffle.sample(range(len(examples)), len(examples))
        for start in range(0, len(order), plan.batch_size):
            if count == plan.max_steps:
                return
            count += 1
            yield [examples[index] for index in order[start : start + plan.batch_size]]


def _submit(training: TrainingClient, batch: Sequence[ExampleRow], adam: AdamParams) -> _StepReport:
    loss = training.forward_backward([example.datum() for example in batch], "cross_entropy")
    return _StepReport(batch, loss, training.optim_step(adam))


def _wait_for_loss(step: _StepReport) -> float:
    """Compute the loss per token from log-probabilities, as servers do not agree on the names of their metrics."""
    outputs = step.loss.result().loss_fn_outputs
    step.done.result()
    loss = -sum(_likelihood(example, output["logprobs"].tolist()) for example, output in zip(step.batch, outputs))
    return loss / sum(example.weight for example in step.batch)


def _likelihood(example: ExampleRow, logprobs: Sequence[float]) -> float:
    return sum(weight * value for weight, value in zip(example.weights[1:], logprobs) if weight)


def _report(
    options: GlobalOptions,
    training: TrainingClient,
    plan: _Plan,
    examples: Sequence[ExampleRow],
    losses: Sequence[float],
    usage: Usage,
    prices: Mapping[str, Price] | None,
) -> None:
    from tinker.cli.output import show, show_properties

    state, sampler = training.save_state(plan.name), training.save_weights_for_sampler(plan.name)
    paths = state.result().path, sampler.result().path
    cost = cost_of(prices, usage.by("base_model"))
    value = {
        "training_run_id": training.model_id,
        "base_model": training.get_info().model_data.model_name,
        "examples": len(examples),
        "steps": len(losses),
        "losses": losses,
        "checkpoint_path": paths[0],
        "sampler_path": paths[1],
        "tokens": to_value(usage.total),
        "cost": cost,
    }
    properties = {
        "Training Run ID": training.model_id,
        "Steps": str(len(losses)),
        "Loss": f"{losses[0]:.4f} -> {losses[-1]:.4f}",
        "To train on": paths[0],
        "To sample from": paths[1],
        **dict(count_properties(usage.total, cost)),
    }
    show(options, value, lambda: show_properties("Training", properties))
