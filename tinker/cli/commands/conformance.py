"""``tinker conformance``: check a server against the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple, TypeAlias

import click

import tinker
from tinker.cli.options import CommandURL, GlobalOptions, Option, command
from tinker.cli.output import show, show_table

ReportFile: TypeAlias = Annotated[Path, click.Path(dir_okay=False, allow_dash=True, path_type=Path)]
_CONTRADICTED, _CUT_SHORT = 1, 3


class NotRun(click.ClickException):
    """A failure before the first check."""

    exit_code = 2


class _CheckOptions(NamedTuple):
    """The options that say which checks run, and how, with the names of the kit."""

    base_model: Annotated[
        str | None,
        Option("Model to train. Default: the first that the server offers.", metavar="NAME"),
    ] = None
    label: Annotated[
        str,
        Option(
            "Name of the server in reports, such as its name and version.",
            metavar="TEXT",
            show_default=False,
        ),
    ] = ""
    skip: Annotated[
        tuple[str, ...], Option("Skip matching checks; may be repeated.", metavar="PATTERN")
    ] = ()
    slow: Annotated[bool, Option("Include checks that can take minutes.")] = False
    destructive: Annotated[
        bool, Option("Include destructive checks, such as revoking the API key.")
    ] = False
    deadline_seconds: Annotated[
        float | None,
        click.FloatRange(min=0, min_open=True),
        Option("Timeout of a check in seconds. Default: 60; 300 for slow checks.", "--deadline"),
    ] = None


@command(
    "tinker conformance --base-url http://localhost:8000",
    "tinker conformance --base-url http://localhost:8000 --json report.json",
)
def conformance(
    options: GlobalOptions,
    base_url: CommandURL = None,
    api_key: Annotated[
        str | None, Option("API key. Default: TINKER_API_KEY.", metavar="KEY")
    ] = None,
    only: Annotated[
        tuple[str, ...],
        Option(
            "Run only matching checks, such as `losses.*`; may be repeated.",
            "--only",
            "--check",
            metavar="PATTERN",
        ),
    ] = (),
    *,
    chosen: _CheckOptions,
    strict: Annotated[bool, Option("Exit with 1 for differences, too.")] = False,
    json_file: Annotated[
        ReportFile | None,
        Option("Write a JSON report; - is standard output, here and below.", "--json"),
    ] = None,
    junit_file: Annotated[
        ReportFile | None, Option("Write a JUnit XML report, for CI.", "--junit")
    ] = None,
    markdown_file: Annotated[
        ReportFile | None, Option("Write a Markdown report with recorded exchanges.", "--markdown")
    ] = None,
    badge_file: Annotated[
        ReportFile | None,
        Option("Write a badge: the JSON of an endpoint for shields.io.", "--badge"),
    ] = None,
    list_only: Annotated[bool, Option("List the checks without running them.", "--list")] = False,
) -> None:
    """Check a server against the contract.

    Trains small adapters and saves small checkpoints on the server, and deletes these checkpoints
    where the server supports that. Runs cannot be deleted: they stay in the list, in sessions
    tagged `conformance`. Checks that depend on a failed check are reported as blocked. Failures
    with the same cause form one finding. Exits with 0 if nothing contradicts the contract, 1 if
    something does, 2 if nothing could be checked, and 3 if nothing contradicts it but the limits of
    the server prevented some checks.
    """
    from tinker._config import load_config
    from tinker.testing import conformance as runner
    from tinker.testing.conformance import all_checks
    from tinker.testing.conformance import report as files
    from tinker.testing.conformance import report as table

    if list_only:
        checks = all_checks()
        rows = [(one.name, one.statement, ", ".join(one.operations)) for one in checks]
        columns = ("Check", "Requirement", "Operations")
        show(options, list(map(files.describe_check, checks)), lambda: show_table(columns, rows))
        return
    try:
        config = load_config(base_url=base_url or options.base_url, api_key=api_key)
        if config.is_local:
            raise NotRun(
                "a server in this process cannot be checked; run `tinker serve` and give its URL"
            )
        report = runner.run(
            config.base_url,
            api_key=config.api_key,
            headers=config.headers,
            only=only or ("*",),
            **chosen._asdict(),
        )
    except (ConnectionError, tinker.TinkerError, ValueError) as error:
        raise NotRun(str(error)) from error
    if not report.checks:
        raise NotRun("no check has such a name, or all are left out; --list names them all")
    files.write(report, json=json_file, junit=junit_file, markdown=markdown_file, badge=badge_file)
    if Path("-") not in (json_file, junit_file, markdown_file, badge_file):
        if options.format == "json":
            click.echo(files.as_json(report), nl=False)
        else:
            table.show(report, table.console())
    if not report.passed(strict=strict):
        raise click.exceptions.Exit(_CONTRADICTED)
    if report.was_cut_short:
        raise click.exceptions.Exit(_CUT_SHORT)
