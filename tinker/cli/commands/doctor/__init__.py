"""``tinker doctor``: what works between here and the server."""

from __future__ import annotations

import click
import msgspec

from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, pass_options


@click.command()
@click.option(
    "--base-url", metavar="URL", help="Base URL of the server. Default: that of `tinker --base-url`, else TINKER_BASE_URL."
)
@click.option("--operations", is_flag=True, help="List every operation, including those that the server supports.")
@click.option("-v", "--verbose", is_flag=True, help="Add how clients adapt to this server, and why; for bug reports.")
@pass_options
def doctor(options: GlobalOptions, base_url: str | None, operations: bool, verbose: bool) -> None:
    """Diagnose the installation and the connection, and show what the server supports.

    Checks the versions, the installation, the connection with its latency and its certificate, the credential, the clock, the
    models, the format of training requests, and which operations of the contract the server has. Creates nothing on the server.
    Exits with 1 if something must be fixed before clients can work.
    """
    from tinker.cli.clients import config_of, connect
    from tinker.cli.commands.doctor.checks import diagnose
    from tinker.cli.output import show, show_table

    options = options._replace(base_url=base_url or options.base_url)
    report = diagnose(config_of(options), lambda: connect(options), options.patience_seconds)

    def table() -> None:
        rows = [(result.name, result.status, result.detail) for result in report.results]
        show_table(("Check", "", "Finding"), rows, f"{report.base_url}")
        if operations:
            click.echo("")
            show_table(("Operation", "Supported"), sorted(report.operations.items()))
        if verbose:
            click.echo("")
            found = [(fact.operation, fact.finding, fact.evidence) for fact in facts]
            show_table(("Operation", "Finding", "Evidence"), found, "How clients adapt to this server")

    facts = () if report.info is None else report.info.facts
    value = {
        "base_url": report.base_url,
        "ok": not report.failures,
        "checks": [result._asdict() for result in report.results],
        "operations": report.operations,
        "connections": [msgspec.structs.asdict(connection) for connection in report.connections],
        "facts": [msgspec.structs.asdict(fact) for fact in facts],
    }
    show(options, value, table)
    if report.failures:
        raise CommandFailed(f"Fix these first: {', '.join(report.failures)}")
