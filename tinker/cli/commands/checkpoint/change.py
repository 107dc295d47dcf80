"""``tinker checkpoint publish``, ``unpublish``, ``set-ttl`` and ``create``. The first three confirm on stderr only."""

from __future__ import annotations

from typing import Annotated

import click

from tinker.cli.clients import rest_client, service_client
from tinker.cli.commands.checkpoint.show import parse_pair
from tinker.cli.errors import CommandFailed
from tinker.cli.model_input import parse_path
from tinker.cli.options import ExpiryOption, GlobalOptions, Option, Positive, check_checkpoint_name, check_ttl, command
from tinker.cli.output import format_count, show, show_properties

_RANK = 32


@command("tinker checkpoint publish tinker://RUN/weights/final")
def publish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a checkpoint public: everybody can load, sample and download it. Only the owner of its run can do this."""
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
    check_ttl(ttl)
    rest_client(options).set_checkpoint_ttl_from_tinker_path(path, ttl).result()
    _confirm(options, f"{path} never expires." if ttl is None else f"{path} expires in {format_count(ttl, 'second')}.")


def _confirm(options: GlobalOptions, text: str) -> None:
    if options.format == "table":
        click.echo(text, err=True)


@command("tinker checkpoint create --model Qwen/Qwen3-8B --name start --sampler")
def create(
    options: GlobalOptions,
    model: Annotated[str | None, Option("Base model of the new adapter.", "-m", "--model", metavar="NAME")] = None,
    start: Annotated[
        str | None, Option("Checkpoint to load instead, with its optimizer state.", "--from", metavar="PATH")
    ] = None,
    rank: Annotated[Positive | None, Option(f"Rank of the new LoRA adapter. Default: {_RANK}.")] = None,
    seed: Annotated[int | None, Option("Seed for initializing the adapter. Default: chosen by the server.")] = None,
    train_mlp: Annotated[
        bool | None, Option("Whether the MLP layers get an adapter. Default: yes.", "--train-mlp/--no-train-mlp")
    ] = None,
    train_attn: Annotated[
        bool | None, Option("Whether the attention layers get one. Default: yes.", "--train-attn/--no-train-attn")
    ] = None,
    train_unembed: Annotated[
        bool | None, Option("Whether the output layer gets one. Default: yes.", "--train-unembed/--no-train-unembed")
    ] = None,
    metadata: Annotated[tuple[str, ...], Option("Metadata of the checkpoint; may be repeated.", metavar="KEY=VALUE")] = (),
    name: Annotated[str, Option("Name of the checkpoint.", metavar="NAME", callback=check_checkpoint_name)] = "initial",
    sampler: Annotated[bool, Option("Also save a checkpoint to sample from.")] = False,
    ttl: ExpiryOption = None,
) -> None:
    """Create a training run and save it immediately.

    The checkpoint is an untrained adapter from which several runs can start, or a copy of another checkpoint.
    """
    layers = (train_mlp, train_attn, train_unembed)
    if (model is None) == (start is None):
        raise click.UsageError("Give either --model or --from.")
    if start is not None and any(value is not None for value in (rank, seed, *layers)):
        raise click.UsageError("--rank, --seed and --train-... cannot be used with --from: the adapter is a copy.")
    check_ttl(ttl)
    pairs = dict(map(parse_pair, metadata)) or None
    with service_client(options) as service:
        if start is not None:
            training = service.create_training_client_from_state_with_optimizer(parse_path(start).tinker_path).result()
        else:
            mlp, attn, unembed = (value is not False for value in layers)
            training = service.create_lora_training_client(model or "", rank or _RANK, seed, mlp, attn, unembed).result()
        saved = training.save_state(name, ttl, user_metadata=pairs)
        sampled = training.save_weights_for_sampler(name, ttl, user_metadata=pairs) if sampler else None
        path, sampler_path = saved.result().path, None if sampled is None else sampled.result().path
    value = {"training_run_id": training.model_id, "checkpoint_path": path, "sampler_path": sampler_path}
    properties = [("Training Run ID", training.model_id), ("To train on", path)]
    properties += [] if sampler_path is None else [("To sample from", sampler_path)]
    show(options, value, lambda: show_properties("Checkpoint", properties))
