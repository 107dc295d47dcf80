"""``tinker checkpoint search``."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from tinker.cli.clients import rest_client
from tinker.cli.commands.checkpoint.show import COLUMNS, SPARED, row
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import Advance, progress, show, show_table
from tinker.cli.paging import Listing

if TYPE_CHECKING:
    from tinker.rest_client import RestClient
    from tinker.types import Checkpoint, CheckpointSearchRequest

PAGE = 200


def parse_pair(text: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises BadParameter for other text."""
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value


@click.command()
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Only checkpoints with this metadata; may be repeated.")
@click.option("--type", "kind", type=click.Choice(["training", "sampler", "external"]), help="Only this kind.")
@click.option(
    "--base-model", "base_models", multiple=True, metavar="NAME", help="Only this base model; repeat to match any of several."
)
@click.option(
    "--project-id", "project_ids", multiple=True, metavar="ID", help="Only this project; repeat to match any of several."
)
@click.option("--accessible", is_flag=True, help="Include checkpoints of others that you can access. Default: your own.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Maximum number to show; 0 shows all.")
@pass_options
def search(
    options: GlobalOptions,
    metadata: tuple[str, ...],
    kind: str | None,
    base_models: tuple[str, ...],
    project_ids: tuple[str, ...],
    accessible: bool,
    limit: int,
) -> None:
    """Find checkpoints that match every given condition, newest first."""
    from tinker import types

    request = types.CheckpointSearchRequest(
        user_metadata=dict(map(parse_pair, metadata)),
        checkpoint_type=kind,
        base_models=base_models or None,
        project_ids=project_ids or None,
        owner=types.AccessibleSearchOwner() if accessible else types.OwnSearchOwner(),
    )
    rest = rest_client(options)
    with progress(options, "Searching checkpoints", None) as advance:
        found = _fetch(rest, request, limit, advance)
    listing = Listing(found, len(found))
    show(
        options,
        {"checkpoints": found},
        lambda: show_table(COLUMNS, map(row, found), listing.title("checkpoint"), spared=SPARED),
    )


def _fetch(rest: RestClient, request: CheckpointSearchRequest, limit: int, advance: Advance) -> list[Checkpoint]:
    """Follow the pages until there are enough."""
    found: list[Checkpoint] = []
    while not limit or len(found) < limit:
        count = min(PAGE, limit - len(found)) if limit else PAGE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the operation may change is for those who write programs
            page = rest.search_checkpoints(request.model_copy(update={"limit": count})).result()
        found += page.checkpoints[:count]
        advance(len(found))
        if page.next_cursor is None:
            break
        request = request.model_copy(update={"cursor": page.next_cursor})
    return found
