"""``tinker checkpoint``: what the server keeps of trained weights."""

from __future__ import annotations

import click

from tinker.cli.lazy import Entry, LazyGroup

_HERE = "tinker.cli.commands.checkpoint"
COMMANDS = {
    "create": Entry(f"{_HERE}.create:create", "Make an adapter and save it."),
    "delete": Entry(f"{_HERE}.delete:delete", "Delete checkpoints permanently."),
    "download": Entry(f"{_HERE}.files:download", "Download a checkpoint into a folder."),
    "info": Entry(f"{_HERE}.show:info", "Show one checkpoint."),
    "list": Entry(f"{_HERE}.show:list_checkpoints", "List the checkpoints of a run, or of all."),
    "publish": Entry(f"{_HERE}.change:publish", "Let everybody use a checkpoint."),
    "push-hf": Entry(f"{_HERE}.files:push_hf", "Put a checkpoint onto the Hugging Face Hub."),
    "search": Entry(f"{_HERE}.search:search", "Find checkpoints by metadata, kind, model or project."),
    "set-ttl": Entry(f"{_HERE}.change:set_ttl", "Set when a checkpoint expires."),
    "unpublish": Entry(f"{_HERE}.change:unpublish", "Make a public checkpoint private again."),
    "upload": Entry(f"{_HERE}.upload:upload", "Bring a LoRA adapter on this machine into the service."),
}


@click.group(cls=LazyGroup, entries=COMMANDS)
def checkpoint() -> None:
    """List, find, change, delete, download and upload checkpoints.

    The path of a checkpoint is tinker://RUN/KIND/NAME, where KIND is weights, sampler_weights or external_weights.
    """
