"""``tinker model``: what can be trained and sampled."""

from __future__ import annotations

from tinker.cli.clients import rest_client
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, command
from tinker.cli.output import format_bool, format_optional, show, show_table

_COLUMNS = ("Model", "Max Context", "Trainable", "Sampleable")


@command("tinker model list")
def list_command(options: GlobalOptions, substring: str | None = None) -> None:
    """List the models that the server offers, or those whose name contains SUBSTRING (case-insensitive).

    Use the names in the column Model as base_model.
    """
    models = rest_client(options).get_server_capabilities().result().supported_models
    if substring is not None:
        models = [entry for entry in models if substring.lower() in (entry.model_name or "").lower()]
        if not models:
            raise CommandFailed(
                f"No model that you can use has {substring!r} in its name", "`tinker model list` shows them all."
            )
    rows = [
        (
            format_optional(entry.model_name),
            format_optional(entry.max_context_length),
            format_bool(entry.trainable),
            format_bool(entry.sampleable),
        )
        for entry in models
    ]
    show(options, {"models": models}, lambda: show_table(_COLUMNS, rows))
