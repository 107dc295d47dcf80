"""``tinker checkpoint publish``, ``unpublish`` and ``set-ttl``. They confirm on stderr; stdout stays empty."""

from __future__ import annotations

from typing import Annotated

import click

from tinker.cli.clients import rest_client
from tinker.cli.errors import CommandFailed
from tinker.cli.model_input import parse_path
from tinker.cli.options import ExpiryOption, GlobalOptions, Option, check_ttl, command
from tinker.cli.output import format_count


@command
def publish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a checkpoint public: everybody can load, sample and download it. Only the owner of its run can do this."""
    path = parse_path(checkpoint_path).tinker_path
    rest_client(options).publish_checkpoint_from_tinker_path(path).result()
    _confirm(options, f"{path} is public.")


@command
def unpublish(options: GlobalOptions, checkpoint_path: str) -> None:
    """Make a public checkpoint private again. Only the owner of its run can do this."""
    path = parse_path(checkpoint_path).tinker_path
    rest_client(options).unpublish_checkpoint_from_tinker_path(path).result()
    _confirm(options, f"{path} is private.")


@command
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
