"""``tinker checkpoint publish``, ``unpublish`` and ``set-ttl``. They confirm on stderr; stdout stays empty."""

from __future__ import annotations

import click

from tinker.cli.clients import rest_client
from tinker.cli.commands.checkpoint.paths import parse_path
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import format_count
from tinker.cli.times import check_ttl


@click.command()
@click.argument("checkpoint_path")
@pass_options
def publish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a checkpoint public: everybody can load, sample and download it. Only the owner of its run can do this."""
    path = parse_path(checkpoint_path).tinker_path
    rest_client(options).publish_checkpoint_from_tinker_path(path).result()
    _confirm(options, f"{path} is public.")


@click.command()
@click.argument("checkpoint_path")
@pass_options
def unpublish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a public checkpoint private again. Only the owner of its run can do this."""
    path = parse_path(checkpoint_path).tinker_path
    rest_client(options).unpublish_checkpoint_from_tinker_path(path).result()
    _confirm(options, f"{path} is private.")


@click.command("set-ttl")
@click.argument("checkpoint_path")
@click.option("--ttl", type=int, metavar="SECONDS", help="Expire in this many seconds; at least 3600 (an hour).")
@click.option("--remove", is_flag=True, help="Never expire.")
@pass_options
def set_ttl(options: GlobalOptions, checkpoint_path: str, ttl: int | None, remove: bool) -> None:
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
