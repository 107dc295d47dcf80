"""``tinker checkpoint``: what the server keeps of trained weights."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup

_HERE = "tinker.cli.commands.checkpoint"
COMMANDS = {
    "create": Entry(f"{_HERE}.create:create", "Create an adapter and save it."),
    "delete": Entry(f"{_HERE}.delete:delete", "Permanently delete checkpoints."),
    "download": Entry(f"{_HERE}.files:download", "Download a checkpoint."),
    "info": Entry(f"{_HERE}.show:info", "Show a checkpoint."),
    "list": Entry(f"{_HERE}.show:list_checkpoints", "List the checkpoints of one or all runs."),
    "publish": Entry(f"{_HERE}.change:publish", "Make a checkpoint public."),
    "push-hf": Entry(f"{_HERE}.files:push_hf", "Push a checkpoint to the Hugging Face Hub."),
    "search": Entry(f"{_HERE}.search:search", "Find checkpoints by metadata, kind, model or project."),
    "set-ttl": Entry(f"{_HERE}.change:set_ttl", "Set when a checkpoint expires."),
    "unpublish": Entry(f"{_HERE}.change:unpublish", "Make a public checkpoint private again."),
    "upload": Entry(f"{_HERE}.upload:upload", "Upload a LoRA adapter from this machine."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def checkpoint() -> None:
    """List, find, change, delete, download and upload checkpoints.

    The path of a checkpoint is tinker://RUN/KIND/NAME, where KIND is weights, sampler_weights or external_weights.
    """
