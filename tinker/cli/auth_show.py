"""``tinker auth status`` and ``tinker auth whoami``."""

from __future__ import annotations

import click

from tinker.cli.connect import config_of, rest_client
from tinker.cli.context import Options, pass_options
from tinker.cli.failing import Failure, failure_of
from tinker.cli.output import format_optional, show, show_properties


@click.command()
@pass_options
def status(options: Options) -> None:
    """Say whether there is a credential, and whether the server takes it. Exits with 1 where not.

    Servers other than the hosted one may do without a credential.
    """
    from tinker.auth import tinker_has_credentials

    has = tinker_has_credentials()
    failure = _no_credential() if not has and config_of(options).is_hosted else _reached(options)
    accessible = failure is None
    value = {"credentials_available": has, "tinker_accessible": accessible}
    show(options, value, lambda: click.echo(f"Credentials available: {_word(has)}\nTinker accessible: {_word(accessible)}"))
    if failure is not None:
        raise failure


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _no_credential() -> Failure:
    return Failure("There is no credential for the hosted service", "Run `tinker auth login`, or set TINKER_API_KEY.")


def _reached(options: Options) -> Failure | None:
    from tinker.errors import TinkerError

    try:
        rest_client(options).get_server_capabilities().result()
    except TinkerError as error:
        return failure_of(error)
    return None


@click.command()
@pass_options
def whoami(options: Options) -> None:
    """Show the user and the organization of the credential, where the server gives tokens that say it."""
    found = rest_client(options).whoami().result()
    value = {"user_urn": found.user_urn, "org_urn": found.org_urn, "email": found.email}
    properties = {"User": found.user_urn, "Organization": found.org_urn, "Email": format_optional(found.email)}
    show(options, value, lambda: show_properties("Credential", properties))
