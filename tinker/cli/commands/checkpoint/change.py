"""``tinker checkpoint publish``, ``unpublish`` and ``set-ttl``. They print nothing when they succeed."""

from __future__ import annotations

import click

from tinker.cli.clients import rest_client
from tinker.cli.commands.checkpoint.paths import parsed
from tinker.cli.errors import Failure
from tinker.cli.options import Options, pass_options


@click.command()
@click.argument("checkpoint_path")
@pass_options
def publish(options: Options, checkpoint_path: str) -> None:
    """Let everybody load, sample and download a checkpoint. Only the owner of its run can."""
    path = parsed(checkpoint_path).tinker_path
    rest_client(options).publish_checkpoint_from_tinker_path(path).result()


@click.command()
@click.argument("checkpoint_path")
@pass_options
def unpublish(options: Options, checkpoint_path: str) -> None:
    """Make a public checkpoint private again. Only the owner of its run can."""
    path = parsed(checkpoint_path).tinker_path
    rest_client(options).unpublish_checkpoint_from_tinker_path(path).result()


@click.command("set-ttl")
@click.argument("checkpoint_path")
@click.option("--ttl", type=int, metavar="SECONDS", help="Delete it so long from now, in 3600 (an hour) or more.")
@click.option("--remove", is_flag=True, help="Keep it for ever.")
@pass_options
def set_ttl(options: Options, checkpoint_path: str, ttl: int | None, remove: bool) -> None:
    """Set when a checkpoint expires, with --ttl, or that it never does, with --remove."""
    path = parsed(checkpoint_path).tinker_path
    if remove == (ttl is not None):
        raise Failure("Give either --ttl or --remove")
    rest_client(options).set_checkpoint_ttl_from_tinker_path(path, ttl).result()
