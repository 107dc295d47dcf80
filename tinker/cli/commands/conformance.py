"""``tinker conformance``: does a server do what the contract says?"""

from __future__ import annotations

from pathlib import Path

import click

from tinker._config import load_config
from tinker.errors import TinkerError


class NotRun(click.ClickException):
    """Nothing could be checked."""

    exit_code = 2


@click.command()
@click.option("--base-url", metavar="URL", help="The server. Default: TINKER_BASE_URL.")
@click.option("--api-key", metavar="KEY", help="The credential. Default: TINKER_API_KEY.")
@click.option("--base-model", metavar="NAME", help="The model to train. Default: the first that the server offers.")
@click.option("--check", "only", multiple=True, metavar="PATTERN", help="Only checks of this name; `losses.*` is many.")
@click.option("--slow", is_flag=True, help="Also what a server may hold back for minutes.")
@click.option("--destructive", is_flag=True, help="Also what takes something away: revokes the API key.")
@click.option("--strict", is_flag=True, help="Exit with 1 also where the server differs.")
@click.option(
    "--deadline", type=click.FloatRange(min=0, min_open=True), help="Seconds for each check. Default: 60, slow ones 300."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path), help="Report as JSON.")
@click.option("--list", "list_only", is_flag=True, help="Say what there is to check, and check nothing.")
def conformance(
    base_url: str | None,
    api_key: str | None,
    base_model: str | None,
    only: tuple[str, ...],
    slow: bool,
    destructive: bool,
    strict: bool,
    deadline: float | None,
    json_file: Path | None,
    list_only: bool,
) -> None:
    """Check a server against the contract, operation by operation and feature by feature.

    Trains small adapters and saves small checkpoints on the server, in sessions of its own that it finishes. Exits with 0
    when nothing contradicts the contract, 1 when something does, 2 when nothing could be checked.
    """
    from tinker.testing.conformance import runner, table
    from tinker.testing.conformance.registry import all_checks

    screen = table.console()
    if list_only:
        table.show_checks(all_checks(), screen)
        return
    try:
        config = load_config(base_url=base_url, api_key=api_key)
        if config.is_local:
            raise NotRun("a server in this process cannot be checked; run `tinker serve` and give its URL")
        report = runner.run(
            config.base_url,
            api_key=config.api_key,
            headers=config.headers,
            base_model=base_model,
            only=only or ("*",),
            slow=slow,
            destructive=destructive,
            deadline_seconds=deadline,
        )
    except (ConnectionError, TinkerError, ValueError) as error:
        raise NotRun(str(error)) from error
    if not report.checks:
        raise NotRun(f"no check has a name like {', '.join(only)}; --list names them all")
    if json_file is not None:
        with click.open_file(str(json_file), "wb") as file:
            file.write(table.as_json(report))
    if json_file != Path("-"):
        table.show(report, screen)
    if not report.passed(strict=strict):
        raise click.exceptions.Exit(1)
