"""``tinker serve``: the whole API from this machine. Imports the server only when it runs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

import click

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
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Checkpoints. Default: ~/.tinker/local.")
@click.option("--api-key", help="Key that clients must send. Default: any, or none.")
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
    profile: str,
    hold: float | None,
    any_base_model: bool,
) -> None:
    """Serve the Tinker API from this machine until interrupted."""
    try:
        import attrs

        from tinker.local import Settings
        from tinker.local import serve as run
        from tinker.local.engines import choose_engine, missing_parts

        if choose_engine(engine, model) == "toy" and engine is None:
            missing = ", ".join(missing_parts()) or "the packaged model"
            click.echo(f"Without {missing} this is a toy: a bigram model in numpy.", err=True)
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        settings = Settings(data_dir=data, api_key=api_key, profile=profile, any_base_model=any_base_model)
        if hold is not None:
            settings = attrs.evolve(settings, hold_seconds=hold)
        run(model=model, engine=engine, host=host, port=port, settings=settings)
    except (ImportError, OSError) as error:
        raise click.ClickException(str(error)) from error
