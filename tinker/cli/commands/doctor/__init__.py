"""``tinker doctor``: what works between here and the server."""

from __future__ import annotations

from typing import Annotated

import click

from tinker.cli.errors import CommandFailed
from tinker.cli.options import CommandURL, GlobalOptions, Option, command


@command("tinker doctor", "tinker --base-url http://localhost:8000 doctor --operations")
def doctor(
    options: GlobalOptions,
    base_url: CommandURL = None,
    operations: Annotated[
        bool, Option("List every operation, including those that the server supports.")
    ] = False,
    verbose: Annotated[
        bool,
        Option(
            "Add how clients adapt to this server, and why; for bug reports.", "-v", "--verbose"
        ),
    ] = False,
) -> None:
    """Diagnose the installation and the connection, and show what the server supports.

    Checks the versions, the installation, the connection with its latency and its certificate, the
    credential, the clock, the models, the format of training requests, and which operations of the
    contract the server has. Creates nothing on the server. Exits with 1 if something must be fixed
    before clients can work.
    """
    import msgspec

    from tinker.cli.clients import config_of, connect
    from tinker.cli.commands.doctor.checks import diagnose
    from tinker.cli.output import show, show_table

    options = options._replace(base_url=base_url or options.base_url)
    report = diagnose(config_of(options), lambda: connect(options), options.short_patience)

    def table() -> None:
        rows = [(result.name, result.status, result.detail) for result in report.results]
        show_table(("Check", "", "Finding"), rows, f"{report.base_url}")
        if operations:
            click.echo("")
            show_table(("Operation", "Supported"), sorted(report.operations.items()))
        if verbose:
            click.echo("")
            found = [(fact.operation, fact.finding, fact.evidence) for fact in facts]
            show_table(
                ("Operation", "Finding", "Evidence"), found, "How clients adapt to this server"
            )

    facts = () if report.info is None else report.info.facts
    value = {
        "base_url": report.base_url,
        "ok": not report.failures,
        "checks": [result._asdict() for result in report.results],
        "operations": report.operations,
        "connections": list(map(msgspec.structs.asdict, report.connections)),
        "facts": list(map(msgspec.structs.asdict, facts)),
    }
    show(options, value, table)
    if report.failures:
        raise CommandFailed(f"Fix these first: {', '.join(report.failures)}")
