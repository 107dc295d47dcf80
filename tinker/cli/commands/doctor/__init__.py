"""``tinker doctor``."""

from __future__ import annotations

import click

from tinker.cli.errors import Failure
from tinker.cli.options import Options, pass_options


@click.command()
@click.option("--base-url", metavar="URL", help="The server. Default: that of `tinker --base-url`, else TINKER_BASE_URL.")
@click.option("--operations", is_flag=True, help="Name every operation, also those that the server has.")
@pass_options
def doctor(options: Options, base_url: str | None, operations: bool) -> None:
    """Find out what works between here and the server, and what it can do.

    Looks at the versions and the installation here, the connection and how fast it is, the credential, the clock, the models,
    the form in which training requests will be sent, and which operations of the contract the server has. Nothing is made on
    the server. Exits with 1 when something must be repaired before clients can work.
    """
    from tinker.cli.clients import config_of, connected
    from tinker.cli.commands.doctor.prober import examine
    from tinker.cli.output import show, show_table

    options = options._replace(base_url=base_url or options.base_url)
    found = examine(config_of(options), lambda: connected(options), options.patience_seconds)

    def table() -> None:
        rows = [(one.name, one.status, one.detail) for one in found.findings]
        show_table(("Check", "", "Finding"), rows, f"{found.base_url}")
        if operations:
            click.echo("")
            show_table(("Operation", "Supported"), sorted(found.operations.items()))

    value = {
        "base_url": found.base_url,
        "ok": not found.failed,
        "checks": [one._asdict() for one in found.findings],
        "operations": found.operations,
    }
    show(options, value, table)
    if found.failed:
        raise Failure(f"To repair: {', '.join(found.failed)}")
