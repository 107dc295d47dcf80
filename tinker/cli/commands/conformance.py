"""``tinker conformance``: does a server do what the contract says?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinker._config import load_config
from tinker.errors import TinkerError

if TYPE_CHECKING:
    from tinker.testing.conformance.outcome import Report

_FILE: Any = click.Path(dir_okay=False, allow_dash=True, path_type=Path)
_STDOUT = Path("-")
_CONTRADICTED, _CUT_SHORT = 1, 3


class NotRun(click.ClickException):
    """Nothing could be checked."""

    exit_code = 2


@click.command()
@click.option("--base-url", metavar="URL", help="The server. Default: TINKER_BASE_URL.")
@click.option("--api-key", metavar="KEY", help="The credential. Default: TINKER_API_KEY.")
@click.option("--base-model", metavar="NAME", help="The model to train. Default: the first that the server offers.")
@click.option("--label", default="", metavar="TEXT", help="What the server is called in reports, say with its version.")
@click.option(
    "--only", "--check", "only", multiple=True, metavar="PATTERN", help="Only checks of this name; `losses.*` is many."
)
@click.option("--skip", multiple=True, metavar="PATTERN", help="No checks of this name.")
@click.option("--slow", is_flag=True, help="Also what a server may hold back for minutes.")
@click.option("--destructive", is_flag=True, help="Also what takes something away: revokes the API key.")
@click.option("--strict", is_flag=True, help="Exit with 1 also where the server differs.")
@click.option(
    "--deadline", type=click.FloatRange(min=0, min_open=True), help="Seconds for each check. Default: 60, slow ones 300."
)
@click.option("--json", "json_file", type=_FILE, help="Report as JSON; - is the standard output, as for the others.")
@click.option("--junit", "junit_file", type=_FILE, help="Report as JUnit XML, for CI.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Report as Markdown, with recorded exchanges.")
@click.option("--badge", "badge_file", type=_FILE, help="Badge: SVG, or for a name in .json the endpoint of shields.io.")
@click.option("--list", "list_only", is_flag=True, help="Say what there is to check, and check nothing.")
def conformance(
    base_url: str | None,
    api_key: str | None,
    json_file: Path | None,
    junit_file: Path | None,
    markdown_file: Path | None,
    badge_file: Path | None,
    strict: bool,
    list_only: bool,
    **options: Any,
) -> None:
    """Check a server against the contract, operation by operation and feature by feature.

    Trains small adapters and saves small checkpoints on the server, in sessions of its own; frees what it has made, as far
    as the server can. A check that rests on one that fails is blocked by it and counted apart; what has one cause is one
    finding. Exits with 0 when nothing contradicts the contract, 1 when something does, 2 when nothing could be checked, 3
    when nothing contradicts it but the limits of the server did not allow every check.
    """
    from tinker.testing.conformance import files, table
    from tinker.testing.conformance.registry import all_checks

    screen = table.console()
    if list_only:
        table.show_checks(all_checks(), screen)
        return
    report = _run(base_url, api_key, **options)
    files.write(report, json=json_file, junit=junit_file, markdown=markdown_file, badge=badge_file, strict=strict)
    if _STDOUT not in (json_file, junit_file, markdown_file, badge_file):
        table.show(report, screen)
    if not report.passed(strict=strict):
        raise click.exceptions.Exit(_CONTRADICTED)
    if report.was_cut_short:
        raise click.exceptions.Exit(_CUT_SHORT)


def _run(base_url: str | None, api_key: str | None, *, only: tuple[str, ...], deadline: float | None, **options: Any) -> Report:
    """Return the report of a run; NotRun when nothing could be checked."""
    from tinker.testing.conformance import runner

    try:
        config = load_config(base_url=base_url, api_key=api_key)
        if config.is_local:
            raise NotRun("a server in this process cannot be checked; run `tinker serve` and give its URL")
        report = runner.run(
            config.base_url,
            api_key=config.api_key,
            headers=config.headers,
            only=only or ("*",),
            deadline_seconds=deadline,
            **options,
        )
    except (ConnectionError, TinkerError, ValueError) as error:
        raise NotRun(str(error)) from error
    if not report.checks:
        raise NotRun("no check has such a name, or all are left out; --list names them all")
    return report
