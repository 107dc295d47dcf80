"""``tinker checkpoint publish``, ``unpublish``, ``set-ttl``, ``create`` and ``delete``."""

from __future__ import annotations

import concurrent.futures
import datetime
from collections.abc import Sequence
from typing import Annotated

import click

import tinker
from tinker.cli.clients import find_run, rest_client, service_client
from tinker.cli.commands.checkpoint.show import find_checkpoint, parse_pair
from tinker.cli.errors import CommandFailed, read_message
from tinker.cli.model_input import check_start, find_path, parse_path, train_from
from tinker.cli.options import (
    CheckpointName,
    ExpiryOption,
    GlobalOptions,
    Option,
    Positive,
    command,
    parse_time,
    with_zone,
)
from tinker.cli.output import (
    format_count,
    format_size,
    format_timestamp,
    progress,
    say,
    show_json,
    show_lines,
    show_properties,
)

_RANK = 32
_TYPES = {"weights": "training", "sampler_weights": "sampler", "external_weights": "external"}
_ALIASES = {**_TYPES, **{kind: kind for kind in _TYPES.values()}}


@command("tinker checkpoint publish tinker://RUN/weights/final")
def publish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a checkpoint public: everybody can load, sample and download it. Only the owner of its
    run can do this.
    """
    path = parse_path(checkpoint_path).tinker_path
    rest_client(options).publish_checkpoint_from_tinker_path(path).result()
    _confirm(options, f"{path} is public.")


@command("tinker checkpoint unpublish tinker://RUN/weights/final")
def unpublish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a public checkpoint private again. Only the owner of its run can do this."""
    path = parse_path(checkpoint_path).tinker_path
    rest_client(options).unpublish_checkpoint_from_tinker_path(path).result()
    _confirm(options, f"{path} is private.")


@command("tinker checkpoint set-ttl tinker://RUN/weights/final --ttl 86400")
def set_ttl(
    options: GlobalOptions,
    checkpoint_path: str,
    ttl: ExpiryOption = None,
    remove: Annotated[bool, Option("Never expire.")] = False,
) -> None:
    """Set when a checkpoint expires (--ttl), or keep it forever (--remove)."""
    path = parse_path(checkpoint_path).tinker_path
    if remove == (ttl is not None):
        raise CommandFailed("Give either --ttl or --remove")
    rest_client(options).set_checkpoint_ttl_from_tinker_path(path, ttl).result()
    _confirm(
        options,
        f"{path} never expires."
        if ttl is None
        else f"{path} expires in {format_count(ttl, 'second')}.",
    )


def _confirm(options: GlobalOptions, text: str) -> None:
    if options.format == "table":
        say(text)


@command("tinker checkpoint create --model Qwen/Qwen3-8B --name start --sampler")
def create(
    options: GlobalOptions,
    model: Annotated[
        str | None, Option("Base model of the new adapter.", "-m", "--model", metavar="NAME")
    ] = None,
    start: Annotated[
        str | None,
        Option(
            "Checkpoint or run to load instead, with its optimizer state.",
            "--from",
            metavar="PATH_OR_RUN",
        ),
    ] = None,
    rank: Annotated[
        Positive | None, Option(f"Rank of the new LoRA adapter. Default: {_RANK}.")
    ] = None,
    seed: Annotated[
        int | None, Option("Seed for initializing the adapter. Default: chosen by the server.")
    ] = None,
    train_mlp: Annotated[
        bool | None,
        Option(
            "Whether the MLP layers get an adapter. Default: yes.", "--train-mlp/--no-train-mlp"
        ),
    ] = None,
    train_attn: Annotated[
        bool | None,
        Option(
            "Whether the attention layers get one. Default: yes.", "--train-attn/--no-train-attn"
        ),
    ] = None,
    train_unembed: Annotated[
        bool | None,
        Option(
            "Whether the output layer gets one. Default: yes.", "--train-unembed/--no-train-unembed"
        ),
    ] = None,
    metadata: Annotated[
        tuple[str, ...], Option("Metadata of the checkpoint; may be repeated.", metavar="KEY=VALUE")
    ] = (),
    name: Annotated[CheckpointName, Option("Name of the checkpoint.", metavar="NAME")] = "initial",
    sampler: Annotated[bool, Option("Also save a checkpoint to sample from.")] = False,
    ttl: ExpiryOption = None,
) -> None:
    """Create a training run and save it immediately.

    The checkpoint is an untrained adapter from which several runs can start, or a copy of another
    checkpoint.
    """
    layers = (train_mlp, train_attn, train_unembed)
    if (model is None) == (start is None):
        raise click.UsageError(
            "Give either --model NAME for a new adapter (see `tinker model list`), "
            "or --from PATH for a copy."
        )
    if start is not None and any(value is not None for value in (rank, seed, *layers)):
        raise click.UsageError(
            "--rank, --seed and --train-... cannot be used with --from: the adapter is a copy."
        )
    check_start(model, start)
    pairs = dict(map(parse_pair, metadata)) or None
    with service_client(options) as service:
        if start is not None:
            path = find_path(service.create_rest_client(), start, to_train=True).tinker_path
            training = train_from(service, path)
        else:
            mlp, attn, unembed = (value is not False for value in layers)
            training = service.create_lora_training_client(
                model or "", rank or _RANK, seed, mlp, attn, unembed
            ).result()
        saved = training.save_state(name, ttl, user_metadata=pairs)
        sampled = (
            training.save_weights_for_sampler(name, ttl, user_metadata=pairs) if sampler else None
        )
        path, sampler_path = saved.result().path, None if sampled is None else sampled.result().path
    value = {
        "training_run_id": training.model_id,
        "checkpoint_path": path,
        "sampler_path": sampler_path,
    }
    properties = [("Training Run ID", training.model_id), ("To train on", path)]
    properties += [] if sampler_path is None else [("To sample from", sampler_path)]
    show_properties(options, value, "Checkpoint", properties)


@command(
    "tinker checkpoint delete tinker://RUN/weights/final",
    "tinker checkpoint delete --run-id RUN --before 2026-01-31T08:00Z",
)
def delete(
    options: GlobalOptions,
    checkpoint_paths: tuple[str, ...] = (),
    run_id: Annotated[
        str | None,
        Option("Delete the checkpoints of this training run, by its ID or name.", metavar="ID"),
    ] = None,
    checkpoint_type: Annotated[
        str | None,
        Option(
            "With --run-id: only weights, sampler_weights or external_weights.",
            "--type",
            metavar="KIND",
        ),
    ] = None,
    before: Annotated[
        str | None,
        Option(
            "With --run-id: only those created before this time, such as 2026-01-31T08:00Z.",
            metavar="TIME",
        ),
    ] = None,
    after: Annotated[
        str | None, Option("With --run-id: only those created after this time.", metavar="TIME")
    ] = None,
    yes: Annotated[bool, Option("Delete without asking.", "-y", "--yes")] = False,
) -> None:
    """Permanently delete the given checkpoints, or those of a run that match every condition.

    Times without a zone are UTC. Exits with 1 if a checkpoint could not be deleted; the others are
    deleted.
    """
    if checkpoint_paths and run_id is not None:
        raise CommandFailed("Give either checkpoint paths or --run-id")
    if run_id is None and (checkpoint_type or before or after):
        raise CommandFailed("--type, --before and --after need --run-id")
    if run_id is None and not checkpoint_paths:
        raise CommandFailed("Nothing to delete", "Give checkpoint paths or --run-id.")
    if run_id is None:
        parsed = {(one := parse_path(path)).tinker_path: one for path in checkpoint_paths}
        rest, paths = rest_client(options), list(parsed)
        chosen = [] if yes else [find_checkpoint(rest, one) for one in parsed.values()]
    else:
        earliest, latest = (None if text is None else parse_time(text) for text in (after, before))
        conditions = _parse_kind(checkpoint_type), latest, earliest
        run_id = find_run(rest := rest_client(options), run_id)
        chosen = [
            one
            for one in rest.list_checkpoints(run_id).result().checkpoints
            if _matches(one, *conditions)
        ]
        paths = [one.tinker_path for one in chosen]
    if not paths and options.format == "table":
        show_lines(
            "No checkpoints found for run "
            f"{run_id}{' matching filters' if checkpoint_type or before or after else ''}"
        )
    elif yes or not paths or _ask(chosen):
        _delete(options, rest, paths)
    else:
        say("Nothing was deleted.")


def _parse_kind(text: str | None) -> str | None:
    if text is not None and text not in _ALIASES:
        raise CommandFailed(f"Invalid checkpoint type: {text}", f"Valid types: {', '.join(_TYPES)}")
    return None if text is None else _ALIASES[text]


def _matches(
    checkpoint: tinker.Checkpoint,
    kind: str | None,
    before: datetime.datetime | None,
    after: datetime.datetime | None,
) -> bool:
    time = with_zone(checkpoint.time)
    return (
        kind in (None, checkpoint.checkpoint_type)
        and (before is None or time < before)
        and (after is None or time > after)
    )


def _ask(chosen: Sequence[tinker.Checkpoint]) -> bool:
    """Ask the user; CommandFailed when the input ends without an answer."""
    say(f"{format_count(len(chosen), 'checkpoint')} would be deleted:")
    for one in chosen:
        say(
            f"  - {one.tinker_path} ({format_size(one.size_bytes)}, created "
            f"{format_timestamp(one.time)})"
        )
    say(f"Together: {format_size(sum(one.size_bytes or 0 for one in chosen))}")
    try:
        return click.confirm("This cannot be undone. Delete?", err=True)
    except click.Abort:
        raise CommandFailed(
            "No answer was given, so nothing was deleted", "Use --yes to delete without asking."
        ) from None


def _delete(options: GlobalOptions, rest: tinker.RestClient, paths: Sequence[str]) -> None:
    """Delete concurrently, and report what failed."""
    deletions = {rest.delete_checkpoint_from_tinker_path(path): path for path in paths}
    with progress(options, "Deleting checkpoints", len(paths)) as advance:
        for count, _ in enumerate(concurrent.futures.as_completed(deletions), start=1):
            advance(count)
    errors = {path: deletion.exception() for deletion, path in deletions.items()}
    failed = {
        path: read_message(error) for path, error in errors.items() if isinstance(error, Exception)
    }
    deleted = len(paths) - len(failed)
    if options.format == "json":
        records = [{"tinker_path": path, "error": reason} for path, reason in failed.items()]
        show_json({"deleted_count": deleted, "failed": records}, indent=None)
    elif deleted:
        click.echo(f"Deleted {format_count(deleted, 'checkpoint')}")
    if failed:
        problem = f"{format_count(len(failed), 'checkpoint')} could not be deleted"
        raise CommandFailed(problem, *(f"{path}: {reason}" for path, reason in failed.items()))
