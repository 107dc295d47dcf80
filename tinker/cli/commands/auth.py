"""``tinker auth``: the credential."""

from __future__ import annotations

import getpass
import platform
import sys
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlencode

import click

from tinker.cli.clients import config_of, connected, rest_client
from tinker.cli.errors import Failure, failure_of
from tinker.cli.lazy import Entry, LazyGroup
from tinker.cli.options import Options, pass_options
from tinker.cli.output import format_optional, show, show_properties

if TYPE_CHECKING:
    from tinker_wire.runtime import Request

    from tinker._config import Config
    from tinker._http import StoredKey
    from tinker._runtime import Runtime
    from tinker.errors import TinkerError

T = TypeVar("T")


COMMANDS = {
    "login": Entry("tinker.cli.commands.auth:login", "Store a key of the hosted service on this machine."),
    "logout": Entry("tinker.cli.commands.auth:logout", "Forget the stored key."),
    "status": Entry("tinker.cli.commands.auth:status", "Is there a credential, and does it work?"),
    "whoami": Entry("tinker.cli.commands.auth:whoami", "Whose credential is used?"),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def auth() -> None:
    """Log in and out, and see whose credential is used."""


@click.command()
@pass_options
def login(options: Options) -> None:
    """Store a key of the hosted service on this machine, which clients then use by default.

    Prints where to create one and asks for it; the key is not shown. It may also come from a pipe.
    """
    from tinker_wire.api import auth as api

    from tinker._http import StoredKey, default_key, store_default
    from tinker.types.console import CONSOLE

    config = _hosted(options)
    if default_key(config.credentials_file) is not None:
        raise Failure("Already logged in", "`tinker auth logout` forgets the stored key first.")
    query = urlencode({"new_key": "true", "key_name": f"tinker-cli-{platform.node()}"})
    click.echo(f"Create an API Key: {_link(f'{CONSOLE}/keys?{query}')}\n", err=True)
    key = _asked()
    found = _ask(options, key, api.get_api_key())
    details = found.details.model_dump()
    stored = StoredKey(type="manual", key=key, name=found.name, note=found.note, details=details)
    store_default(config.credentials_file, str(found.key_id), stored)
    whose = f"{found.details.user_details.email} ({found.details.org_details.name})"
    click.echo(f"Logged in as {whose}. The key {found.name!r} is stored, and used by default.")


def _hosted(options: Options) -> Config:
    """The settings. A stored key goes to the hosted service only, so no other server's is stored."""
    config = config_of(options)
    if not config.is_hosted:
        where = f"The server is {config.base_url}; set TINKER_API_KEY for it."
        raise Failure("Keys are stored for the hosted service only", where)
    return config


def _link(url: str) -> str:
    """To click on, where the terminal can."""
    return f"\x1b]8;;{url}\x1b\\{url}\x1b]8;;\x1b\\" if sys.stderr.isatty() else url


def _asked() -> str:
    if sys.stdin.isatty():
        key = getpass.getpass("Paste your API key: ", stream=sys.stderr).strip()
    else:
        key = sys.stdin.readline().strip()
    if not key:
        raise Failure("No key was given, so nothing was stored")
    return key


def _ask(options: Options, key: str, request: Request[T]) -> T:
    """One exchange under this very key, also where others need a token that it is exchanged for."""
    from tinker.futures import APIFuture, start

    runtime = connected(options, key)
    return start(APIFuture[T](request.operation), lambda: _answered(runtime, key, request)).result()


async def _answered(runtime: Runtime, key: str, request: Request[T]) -> T:
    from tinker._http import REST, Credential, Purpose

    credential, transport = Credential(key), runtime.transport
    call = transport.prepare(request, Purpose.SESSION)

    async def attempt() -> T:
        return transport.decode(request, call, await transport.perform_with(call, request.operation, credential))

    return await transport.tried(REST, attempt, request.operation)


@click.command()
@pass_options
def logout(options: Options) -> None:
    """Forget the stored key. A key that was made for this machine is revoked, too; another one stays good elsewhere."""
    from tinker._http import default_key, remove_default
    from tinker.types.console import CONSOLE

    config = _hosted(options)
    found = default_key(config.credentials_file)
    if found is None:
        raise Failure("No key is stored", "`tinker auth login` stores one.")
    key_id, stored = found
    refusal = _revoked(options, stored) if stored.type == "generated" else None
    remove_default(config.credentials_file)
    name = stored.name or key_id
    if stored.type == "generated" and refusal is None:
        click.echo(f"The key {name!r} is forgotten and revoked.")
        return
    click.echo(f"The key {name!r} is forgotten here. It is still good; delete it at {_link(f'{CONSOLE}/keys/{key_id}')}")
    if stored.organization is not None:
        click.echo(f"Its organization: {stored.organization}")
    if refusal is not None:
        raise Failure("The key could not be revoked", str(refusal))


def _revoked(options: Options, stored: StoredKey) -> TinkerError | None:
    """None, or why not."""
    from tinker_wire.api import auth as api

    from tinker.errors import TinkerError

    try:
        _ask(options, stored.key, api.delete_api_key())
    except TinkerError as error:
        return error
    return None


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
