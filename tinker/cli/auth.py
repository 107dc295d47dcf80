"""``tinker auth``: the credential."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup

COMMANDS = {
    "login": Entry("tinker.cli.auth_keys:login", "Store a key of the hosted service on this machine."),
    "logout": Entry("tinker.cli.auth_keys:logout", "Forget the stored key."),
    "status": Entry("tinker.cli.auth_show:status", "Is there a credential, and does it work?"),
    "whoami": Entry("tinker.cli.auth_show:whoami", "Whose credential is used?"),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def auth() -> None:
    """Log in and out, and see whose credential is used."""
