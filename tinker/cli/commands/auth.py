"""``tinker auth``: the credential."""

from __future__ import annotations

import getpass
import platform
import sys
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import click

import tinker
from tinker.cli.clients import config_of, connect, rest_client, send
from tinker.cli.errors import CommandFailed, read_message
from tinker.cli.options import GlobalOptions, command
from tinker.cli.output import show, show_lines, show_properties
from tinker.cli.reading import STANDARD_INPUT, read_text

if TYPE_CHECKING:
    from tinker_wire.runtime import Request

T = TypeVar("T")


@command("tinker auth login", "echo $KEY | tinker auth login")
def login(options: GlobalOptions) -> None:
    """Store an API key of the hosted service on this machine. Clients use it by default.

    Prints where to create a key and asks for it without showing it. You can also pipe the key in.
    """
    from tinker_wire.api import auth as api

    from tinker._http import credentials
    from tinker.types.console import CONSOLE

    config = _load_hosted_config(options)
    if credentials.default_key(config.credentials_file) is not None:
        raise CommandFailed(
            "Already logged in", "To replace the stored key, run `tinker auth logout` first."
        )
    query = urlencode({"new_key": "true", "key_name": f"tinker-cli-{platform.node()}"})
    click.echo(f"Create an API Key: {_link(f'{CONSOLE}/keys?{query}')}\n", err=True)
    key = _read_key()
    answer = _send_with_key(options, key, api.get_api_key())
    stored = credentials.StoredKey(
        key=key, name=answer.name, note=answer.note, details=answer.details.model_dump()
    )
    credentials.store_default(config.credentials_file, str(answer.key_id), stored)
    whose = f"{answer.details.user_details.email} ({answer.details.org_details.name})"
    show_lines(f"Logged in as {whose}. The key {answer.name!r} is stored, and used by default.")


def _load_hosted_config(options: GlobalOptions) -> tinker.Config:
    """Load the settings; CommandFailed for another server, as a stored key goes to the hosted
    service only.
    """
    config = config_of(options)
    if not config.is_hosted:
        where = f"The server is {config.base_url}; set TINKER_API_KEY for it."
        raise CommandFailed("Keys are stored for the hosted service only", where)
    return config


def _link(url: str) -> str:
    """Format as a link to click on, where the terminal can."""
    return f"\x1b]8;;{url}\x1b\\{url}\x1b]8;;\x1b\\" if sys.stderr.isatty() else url


def _read_key() -> str:
    is_terminal = sys.stdin.isatty()
    key = (
        getpass.getpass("Paste your API key: ", stream=sys.stderr)
        if is_terminal
        else read_text(STANDARD_INPUT).partition("\n")[0]
    )
    if not key.strip():
        raise CommandFailed("No key was given, so nothing was stored")
    return key.strip()


def _send_with_key(options: GlobalOptions, key: str, request: Request[T]) -> T:
    """Send a request under this key; the runtime never asks for the settings, so the key is not
    exchanged for a token.
    """
    from tinker._http import REST, Credential

    return send(connect(options, key), request, REST, Credential(key))


@command("tinker auth logout")
def logout(options: GlobalOptions) -> None:
    """Remove the stored key. A key that was created for this machine is revoked, too; any other key
    stays valid elsewhere.
    """
    from tinker_wire.api import auth as api

    from tinker._http import credentials
    from tinker.types.console import CONSOLE

    config = _load_hosted_config(options)
    entry = credentials.default_key(config.credentials_file)
    if entry is None:
        raise CommandFailed("No key is stored", "To store one, run `tinker auth login`.")
    key_id, stored = entry
    refusal: tinker.TinkerError | None = None
    if stored.type == "generated":
        try:
            _send_with_key(options, stored.key, api.delete_api_key())
        except tinker.TinkerError as error:
            refusal = error
    credentials.remove_default(config.credentials_file)
    name = stored.name or key_id
    if stored.type == "generated" and refusal is None:
        click.echo(f"The key {name!r} is removed and revoked.")
        return
    click.echo(
        f"The key {name!r} is removed from this machine. It is still valid; delete it at "
        f"{_link(f'{CONSOLE}/keys/{key_id}')}"
    )
    if stored.organization is not None:
        show_lines(f"Its organization: {stored.organization}")
    if refusal is not None:
        raise CommandFailed("The key could not be revoked", read_message(refusal))


@command("tinker auth status", "tinker -f json auth status")
def status(options: GlobalOptions) -> None:
    """Show whether a credential is set and accepted. Exits with 1 if not.

    Servers other than the hosted service may not need a credential.
    """
    from tinker.auth import tinker_has_credentials

    has = tinker_has_credentials()
    failure: CommandFailed | tinker.TinkerError | None = None
    try:
        rest_client(options).get_server_capabilities().result()
    except (CommandFailed, tinker.TinkerError) as error:
        failure = error
    value = {"credentials_available": has, "tinker_accessible": failure is None}
    text = (
        f"Credentials available: {'yes' if has else 'no'}\nTinker accessible: "
        f"{'yes' if failure is None else 'no'}"
    )
    show(options, value, lambda: click.echo(text))
    if failure is not None:
        raise failure


@command("tinker auth whoami")
def whoami(options: GlobalOptions) -> None:
    """Show the user and the organization of the credential, if the server reports them."""
    identity = rest_client(options).whoami().result()
    value = {"user_urn": identity.user_urn, "org_urn": identity.org_urn, "email": identity.email}
    properties = {
        "User": identity.user_urn,
        "Organization": identity.org_urn,
        "Email": identity.email,
    }
    show_properties(options, value, "Credential", properties)
