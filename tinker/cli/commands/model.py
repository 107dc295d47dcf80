"""``tinker model``: what can be trained and sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinker.cli.clients import rest_client
from tinker.cli.errors import CommandFailed
from tinker.cli.options import GlobalOptions, command
from tinker.cli.output import Columns, show, show_items

if TYPE_CHECKING:
    from tinker_wire.models import SupportedModel

_COLUMNS: Columns[SupportedModel] = [
    ("Model", lambda model: model.model_name),
    ("Max Context", lambda model: model.max_context_length),
    ("Trainable", lambda model: model.trainable),
    ("Sampleable", lambda model: model.sampleable),
]


@command("tinker model list")
def list_command(options: GlobalOptions, substring: str | None = None) -> None:
    """List the models that the server offers, or those whose name contains SUBSTRING
    (case-insensitive).

    Use the names in the column Model as base_model.
    """
    models = rest_client(options).get_server_capabilities().result().supported_models
    if substring is not None:
        models = [
            entry for entry in models if substring.lower() in (entry.model_name or "").lower()
        ]
        if not models:
            problem = f"No model that you can use has {substring!r} in its name"
            raise CommandFailed(problem, "`tinker model list` shows them all.")
    show(options, {"models": models}, lambda: show_items(models, _COLUMNS))
