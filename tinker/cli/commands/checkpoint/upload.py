"""``tinker checkpoint upload``."""

from __future__ import annotations

from pathlib import Path

import attrs
import click

from tinker.cli.clients import service_client
from tinker.cli.commands.checkpoint.files import report_to
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, pass_options
from tinker.cli.output import format_size, progress, show, show_properties

# What the library calls its arguments, and the options that give them.
_OPTIONS = {
    "pass base_model and lora_config": "pass --base-model and --rank",
    "pass base_model": "pass --base-model",
    "lora_config.rank is": "--rank is",
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--base-model", metavar="NAME", help="Name of the base model on the server. Default: the one in adapter_config.json."
)
@click.option("--rank", type=click.IntRange(min=1), help="Rank of the adapter, if there is no adapter_config.json.")
@click.option("--project-id", metavar="ID", help="Project of the checkpoint. Default: TINKER_PROJECT_ID, else your own.")
@pass_options
def upload(options: GlobalOptions, folder: Path, base_model: str | None, rank: int | None, project_id: str | None) -> None:
    """Upload a LoRA adapter from this machine as a checkpoint that you can train further.

    FOLDER contains what PEFT's save_pretrained writes: adapter_config.json and adapter_model.safetensors. To resume an
    interrupted upload, run the command again.
    """
    from tinker import checkpoints, types

    lora_config = None if rank is None else types.LoraConfig(rank=rank)
    try:
        with (
            service_client(options, interactive=True) as service,
            progress(options, f"Uploading {folder}", None, nbytes=True) as advance,
        ):
            done = checkpoints.upload(
                folder,
                base_model=base_model,
                lora_config=lora_config,
                project_id=project_id,
                progress=report_to(advance),
                service=service,
            ).result()
    except (OSError, ValueError) as error:
        raise CommandFailed(_name_options(str(error))) from None
    properties = {
        "Checkpoint Path": done.checkpoint_path,
        "Base Model": done.base_model,
        "Total Size": format_size(done.nbytes),
    }
    show(options, attrs.asdict(done), lambda: show_properties(f"Checkpoint Upload: {folder}", properties))


def _name_options(text: str) -> str:
    """Return an error of the library with the options in the place of its arguments."""
    for argument, option in _OPTIONS.items():
        text = text.replace(argument, option)
    return text
