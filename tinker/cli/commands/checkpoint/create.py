"""``tinker checkpoint create``: an adapter that is saved and not trained, or the copy of one in a run of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tinker.cli.commands.checkpoint.paths import parse_path
from tinker.cli.commands.checkpoint.search import parse_pair
from tinker.cli.options import GlobalOptions, check_checkpoint_name, pass_options
from tinker.cli.times import check_ttl

if TYPE_CHECKING:
    from tinker.service_client import ServiceClient
    from tinker.training_client import TrainingClient

_RANK = 32


@click.command()
@click.option("-m", "--model", metavar="NAME", help="Base model of the new adapter.")
@click.option("--from", "start", metavar="PATH", help="Checkpoint to load instead, with its optimizer state.")
@click.option("--rank", type=click.IntRange(min=1), help=f"Rank of the new LoRA adapter. Default: {_RANK}.")
@click.option("--seed", type=int, help="Seed for initializing the adapter. Default: chosen by the server.")
@click.option("--train-mlp/--no-train-mlp", default=None, help="Whether the MLP layers get an adapter. Default: yes.")
@click.option("--train-attn/--no-train-attn", default=None, help="Whether the attention layers get one. Default: yes.")
@click.option("--train-unembed/--no-train-unembed", default=None, help="Whether the output layer gets one. Default: yes.")
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Metadata of the checkpoint; may be repeated.")
@click.option(
    "--name",
    metavar="NAME",
    default="initial",
    show_default=True,
    callback=check_checkpoint_name,
    help="Name of the checkpoint.",
)
@click.option("--sampler", is_flag=True, help="Also save a checkpoint to sample from.")
@click.option("--ttl", type=int, metavar="SECONDS", help="Expire in this many seconds; at least 3600 (an hour).")
@pass_options
def create(
    options: GlobalOptions,
    model: str | None,
    start: str | None,
    rank: int | None,
    seed: int | None,
    train_mlp: bool | None,
    train_attn: bool | None,
    train_unembed: bool | None,
    metadata: tuple[str, ...],
    name: str,
    sampler: bool,
    ttl: int | None,
) -> None:
    """Create a training run and save it immediately.

    The checkpoint is an untrained adapter from which several runs can start, or a copy of another checkpoint.
    """
    from tinker.cli.clients import service_client
    from tinker.cli.output import show, show_properties

    if (model is None) == (start is None):
        raise click.UsageError("Give either --model or --from.")
    layers = train_mlp, train_attn, train_unembed
    if start is not None and any(value is not None for value in (rank, seed, *layers)):
        raise click.UsageError("--rank, --seed and --train-... cannot be used with --from: the adapter is a copy.")
    check_ttl(ttl)
    pairs = dict(map(parse_pair, metadata)) or None
    with service_client(options) as service:
        training = _create_client(service, model, start, rank, seed, layers).result()
        saved = training.save_state(name, ttl, user_metadata=pairs)
        sampled = training.save_weights_for_sampler(name, ttl, user_metadata=pairs) if sampler else None
        paths = saved.result().path, None if sampled is None else sampled.result().path
        value = {"training_run_id": training.model_id, "checkpoint_path": paths[0], "sampler_path": paths[1]}
    properties = [("Training Run ID", training.model_id), ("To train on", paths[0])]
    properties += [] if paths[1] is None else [("To sample from", paths[1])]
    show(options, value, lambda: show_properties("Checkpoint", properties))


def _create_client(
    service: ServiceClient,
    model: str | None,
    start: str | None,
    rank: int | None,
    seed: int | None,
    layers: tuple[bool | None, bool | None, bool | None],
) -> TrainingClient:
    if start is not None:
        return service.create_training_client_from_state_with_optimizer(parse_path(start).tinker_path)
    assert model is not None
    mlp, attn, unembed = (value is not False for value in layers)
    return service.create_lora_training_client(
        model, rank=rank or _RANK, seed=seed, train_mlp=mlp, train_attn=attn, train_unembed=unembed
    )
