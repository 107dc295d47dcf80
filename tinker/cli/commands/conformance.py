"""``tinker conformance``: does a server do what the contract says?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinker._config import load_config
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import show
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
@click.option(
    "--base-url", metavar="URL", help="Base URL of the server. Default: that of `tinker --base-url`, else TINKER_BASE_URL."
)
@click.option("--api-key", metavar="KEY", help="API key. Default: TINKER_API_KEY.")
@click.option("--base-model", metavar="NAME", help="Model to train. Default: the first that the server offers.")
@click.option("--label", default="", metavar="TEXT", help="Name of the server in reports, such as its name and version.")
@click.option(
    "--only",
    "--check",
    "only",
    multiple=True,
    metavar="PATTERN",
    help="Run only matching checks, such as `losses.*`; may be repeated.",
)
@click.option("--skip", multiple=True, metavar="PATTERN", help="Skip matching checks; may be repeated.")
@click.option("--slow", is_flag=True, help="Include checks that can take minutes.")
@click.option("--destructive", is_flag=True, help="Include destructive checks, such as revoking the API key.")
@click.option("--strict", is_flag=True, help="Exit with 1 for differences, too.")
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    help="Timeout of a check in seconds. Default: 60; 300 for slow checks.",
)
@click.option("--json", "json_file", type=_FILE, help="Write a JSON report; - is standard output, here and below.")
@click.option("--junit", "junit_file", type=_FILE, help="Write a JUnit XML report, for CI.")
@click.option("--markdown", "markdown_file", type=_FILE, help="Write a Markdown report with recorded exchanges.")
@click.option("--badge", "badge_file", type=_FILE, help="Write a badge: the JSON of an endpoint for shields.io.")
@click.option("--list", "list_only", is_flag=True, help="List the checks without running them.")
@pass_options
def conformance(
    global_options: GlobalOptions,
    /,
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
    """Check a server against the contract.

    Trains small adapters and saves small checkpoints on the server, in its own sessions, and deletes them where the server
    supports that. Checks that depend on a failed check are reported as blocked. Failures with the same cause form one finding.
    Exits with 0 if nothing contradicts the contract, 1 if something does, 2 if nothing could be checked, and 3 if nothing
    contradicts it but the limits of the server prevented some checks.
    """
    from tinker.testing.conformance import files, table
    from tinker.testing.conformance.registry import all_checks

    if list_only:
        checks = all_checks()
        show(global_options, list(map(files.describe_check, checks)), lambda: table.show_checks(checks, table.console()))
        return
    report = _run(base_url or global_options.base_url, api_key, **options)
    files.write(report, json=json_file, junit=junit_file, markdown=markdown_file, badge=badge_file, strict=strict)
    if _STDOUT not in (json_file, junit_file, markdown_file, badge_file):
        _show(global_options, report)
    if not report.passed(strict=strict):
        raise click.exceptions.Exit(_CONTRADICTED)
    if report.was_cut_short:
        raise click.exceptions.Exit(_CUT_SHORT)


def _show(options: GlobalOptions, report: Report) -> None:
    from tinker.testing.conformance import files, table

    if options.format == "json":
        click.echo(files.as_json(report), nl=False)
    else:
        table.show(report, table.console())


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
